"""The SQLite store: opening, refusing, sizes, checkpoints, pruning, space given back."""

import sqlite3
import stat
import threading

import pytest

from scheduler_service.app import clock
from scheduler_service.app.ports import (
    Durability,
    Payload,
    Snapshot,
    StoreDamaged,
    StoreFailed,
    StoreRefused,
)
from scheduler_service.store import background, database, pruning, sqlite
from scheduler_service.store.pruning import Retention
from scheduler_service.store.reader import LogReader
from scheduler_service.store.snapshots import SnapshotFiles
from tests.unit.store.test_store import append

MIB = 1 << 20


def snapshot_here(directory, store):
    SnapshotFiles(directory.path).save(Snapshot(store.head(), "digest", b"state"))


def fill(store, groups, size=10_000):
    """Appends as the committer does, with upkeep after each group."""
    for _ in range(groups):
        append(store, 1, size=size)
        store.upkeep(idle=False)


def settle(store, steps=20_000):
    """Runs idle upkeep until nothing is due, the journal emptied."""
    for _ in range(steps):
        if not store.upkeep(idle=True) and store.usage().journal_bytes == 0:
            return
    raise AssertionError("upkeep never ends")


def test_files_are_for_their_owner_alone(directory, open_store):
    """Files are for their owner alone."""
    append(open_store())
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.path.iterdir()}

    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    assert set(modes.values()) == {0o600}
    assert {"log.sqlite3", "log.sqlite3-wal", "log.sqlite3-shm", "lock"} == set(modes)


def test_what_was_appended_is_there_after_a_restart(open_store, events):
    """What was appended is there after a restart."""
    store = open_store()
    append(store, 3, puts=[(2, Payload(b"p", b"m"))])
    head = store.head()
    store.prune(1, max_groups=9)
    store.close()
    again = open_store()

    assert (again.head(), again.payloads([2])) == (head, {2: Payload(b"p", b"m")})
    assert events == []


@pytest.mark.parametrize("durability", list(Durability))
def test_every_durability_keeps_what_was_appended(open_store, durability):
    """Every durability keeps what was appended."""
    store = open_store(durability=durability, sync_interval_ns=1_000_000)
    fill(store, 20)
    store.close()

    assert open_store().head().sequence == 20
    assert store.durability is durability


def test_durability_sets_when_sqlite_syncs(open_store):
    """Durability sets when SQLite syncs."""
    for durability, level in (("sync", 2), ("async", 1), ("none", 0)):
        store = open_store(durability=Durability(durability))
        assert database.integer_pragma(store._writer, "synchronous") == level
        append(store, 1)
        append(store, 1)
        store.prune(2, max_groups=1)
        assert database.integer_pragma(store._writer, "synchronous") == level
        assert database.integer_pragma(store._writer, "secure_delete") == 1
        store.close()


def test_a_database_of_something_else_is_refused(directory, open_store):
    """A database of something else is refused."""
    directory.path.mkdir()
    connection = sqlite3.connect(directory.log_path)
    connection.execute("CREATE TABLE t (x)")
    connection.close()

    with pytest.raises(StoreRefused, match="another application"):
        open_store()
    with pytest.raises(StoreRefused, match="another application"):
        LogReader(directory.log_path)


def test_a_newer_format_is_refused_and_left_alone(directory, open_store):
    """A newer format is refused and left alone."""
    open_store().close()
    connection = sqlite3.connect(directory.log_path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = directory.log_path.read_bytes()

    with pytest.raises(StoreRefused, match="format 99; this version reads 1"):
        open_store()
    assert directory.log_path.read_bytes() == before


def test_a_file_that_is_no_database_is_named(directory, open_store):
    """A file that is no database is named."""
    directory.path.mkdir()
    directory.log_path.write_bytes(b"not a database, but long enough to be looked at" * 50)

    with pytest.raises(StoreDamaged, match=r"log\.sqlite3: file is not a database"):
        open_store()


def test_a_refused_directory_is_not_kept_locked(directory, open_store):
    """A refused directory is not kept locked."""
    directory.path.mkdir()
    directory.log_path.write_bytes(b"x" * 5000)
    with pytest.raises(StoreDamaged):
        open_store()
    directory.log_path.unlink()

    assert open_store().head().sequence == 0


def test_a_crash_before_the_tables_were_made_is_made_good(directory, open_store):
    """A crash before the tables were made is made good."""
    directory.create()
    assert directory.log_path.stat().st_size == 0

    append(open_store())


def test_a_reader_sees_what_is_committed_and_reads_without_a_writer(directory, open_store):
    """A reader sees what is committed and reads without a writer."""
    store = open_store()
    append(store, 2)
    reader = LogReader(directory.log_path)
    assert reader.head() == store.head()
    append(store, 2)
    assert reader.head() == store.head()
    reader.close()
    store.close()
    reader = LogReader(directory.log_path)
    assert reader.head() == store.head()
    assert len(reader.read(0, max_bytes=10**6)) == 2
    reader.close()


def test_a_reader_cannot_write(directory, open_store):
    """A reader cannot write."""
    open_store()
    reader = LogReader(directory.log_path)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader._connection.execute("DELETE FROM log")
    reader.close()


def test_reads_come_from_any_thread_while_groups_are_appended(open_store):
    """Reads come from any thread while groups are appended."""
    store = open_store()
    wrong: list[object] = []
    done = threading.Event()

    def read():
        after = 0
        while not done.is_set() or after < store.head().sequence:
            page = store.read(after, max_bytes=50_000)
            if page and page[0].first_sequence != after + 1:
                wrong.append(page[0])
                return
            after = page[-1].end.sequence if page else after

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    fill(store, 200, size=1000)
    done.set()
    for thread in threads:
        thread.join(20)

    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_the_write_ahead_file_stays_small_while_a_reader_pauses(directory, open_store, monkeypatch):
    """A reader between two pages pins nothing (R84, BYK/loreai#1221)."""
    monkeypatch.setattr(background, "CHECKPOINT_BYTES", MIB // 4)
    store = open_store(durability=Durability.NONE)
    fill(store, 5)
    reader = LogReader(directory.log_path)
    reader.read(0, max_bytes=1)
    written = 0
    largest = 0
    while written < 40 * MIB:
        fill(store, 10, size=20_000)
        written += 200_000
        largest = max(largest, directory.journal_path.stat().st_size)
    assert reader.read(1, max_bytes=1)[0].first_sequence == 2
    reader.close()

    assert largest < 8 * MIB
    assert store.usage().checkpoint_count > 5


def test_an_open_read_transaction_of_a_stranger_only_delays(directory, open_store, monkeypatch):
    """An open read transaction of a stranger only delays."""
    monkeypatch.setattr(background, "CHECKPOINT_BYTES", MIB // 4)
    store = open_store(durability=Durability.NONE)
    fill(store, 5)
    stranger = sqlite3.connect(directory.log_path, isolation_level=None)
    stranger.execute("BEGIN")
    stranger.execute("SELECT count(*) FROM log").fetchone()
    fill(store, 300, size=20_000)
    pinned = directory.journal_path.stat().st_size
    stranger.execute("COMMIT")
    stranger.close()
    settle(store)

    assert pinned > 5 * MIB
    assert directory.journal_path.stat().st_size == 0


def test_space_falls_back_after_a_burst_without_a_restart(directory, open_store):
    """Disk use falls back by itself when a burst has drained (R85, openclaw/openclaw#112950)."""
    store = open_store(durability=Durability.NONE)
    keys = range(1, 1001)
    for start in range(0, 1000, 50):
        puts = [(key, Payload(bytes(20_000), b"")) for key in keys[start : start + 50]]
        append(store, 1, puts=puts)
    for start in range(0, 1000, 50):
        append(store, 1, deletes=keys[start : start + 50])
    store._background.measure()
    assert store.usage().file_bytes > 20 * MIB
    settle(store)

    assert store.usage().file_bytes < 2 * MIB
    assert directory.log_path.stat().st_size < 2 * MIB


def test_ended_payloads_leave_no_trace(directory, open_store):
    """Ended payloads leave no trace."""
    store = open_store()
    secret = b"my grandmother's secret recipe" * 300
    append(store, 1, puts=[(1, Payload(secret, secret))])
    append(store, 1, deletes=[1])
    settle(store)

    assert directory.journal_path.read_bytes() == b""
    assert secret[:30] not in directory.log_path.read_bytes()


def test_nothing_is_pruned_without_two_snapshots(directory, open_store, monkeypatch):
    """Nothing is pruned without two snapshots."""
    monkeypatch.setattr(sqlite, "_PRUNE_CHECK_NS", 0)
    store = open_store(retention=Retention(max_bytes=100_000), durability=Durability.NONE)
    fill(store, 30)
    snapshot_here(directory, store)
    fill(store, 30)

    assert store.base().sequence == 0


def test_the_size_limit_prunes_behind_the_older_snapshot_only(directory, open_store, monkeypatch):
    """The size limit prunes behind the older snapshot only."""
    monkeypatch.setattr(sqlite, "_PRUNE_CHECK_NS", 0)
    store = open_store(retention=Retention(max_bytes=200_000), durability=Durability.NONE)
    fill(store, 50)
    snapshot_here(directory, store)
    fill(store, 50)
    snapshot_here(directory, store)
    fill(store, 1)
    assert store.base().sequence == 50
    fill(store, 10)
    assert store.base().sequence == 50
    snapshot_here(directory, store)
    fill(store, 1)

    assert 80 <= store.base().sequence < 100
    assert store.usage().log_bytes <= 220_000


def test_the_age_limit_prunes_by_engine_time(directory, open_store, monkeypatch):
    """The age limit prunes by engine time."""
    monkeypatch.setattr(sqlite, "_PRUNE_CHECK_NS", 0)
    store = open_store(retention=Retention(max_age_ns=20_000, max_bytes=0))
    fill(store, 40, size=10)
    assert store.base().sequence == 0
    for _ in range(2):
        snapshot_here(directory, store)
        fill(store, 10, size=10)

    oldest = store.read(store.base().sequence, max_bytes=1)[0]
    assert store.head().now_ns - oldest.end.now_ns == 20_000


def test_pruning_goes_in_small_steps_and_says_so(directory, open_store, monkeypatch):
    """Pruning goes in small steps and says so."""
    monkeypatch.setattr(sqlite, "_PRUNE_CHECK_NS", 0)
    monkeypatch.setattr(pruning, "STEP_BYTES", 50_000)
    store = open_store(retention=Retention(max_bytes=100_000), durability=Durability.NONE)
    for _ in range(2):
        for _ in range(50):
            append(store, 1, size=10_000)
        snapshot_here(directory, store)
    bases = [store.base().sequence]
    while store.upkeep(idle=False):
        bases.append(store.base().sequence)

    assert bases == list(range(0, 55, 5))
    assert store.usage().pruned_group_count == 50


def test_a_pruned_file_shrinks_when_idle(directory, open_store, monkeypatch):
    """A pruned file shrinks when idle."""
    monkeypatch.setattr(sqlite, "_PRUNE_CHECK_NS", 0)
    store = open_store(retention=Retention(max_bytes=MIB), durability=Durability.NONE)
    for _ in range(2):
        for _ in range(500):
            append(store, 1, size=10_000)
        snapshot_here(directory, store)
    settle(store)
    before = directory.log_path.stat().st_size
    assert before < 8 * MIB
    reopened = store.read(store.base().sequence, max_bytes=10**9)

    assert reopened[-1].end == store.head()


def test_an_idle_store_is_left_alone(open_store, monkeypatch):
    """What is settled costs no disk operation: upkeep does not write again and again."""
    store = open_store()
    fill(store, 3)
    settle(store)
    truncated = []
    monkeypatch.setattr(store, "_truncate_journal", lambda: truncated.append(1))
    for _ in range(50):
        assert not store.upkeep(idle=True)

    assert truncated == []


def test_a_background_failure_ends_the_store(open_store):
    """A background failure ends the store."""
    store = open_store()
    append(store)
    store._background.failure = StoreFailed("fdatasync: EIO")
    with pytest.raises(StoreFailed, match="EIO"):
        store.upkeep(idle=True)
    with pytest.raises(StoreFailed, match="EIO"):
        append(store)


def test_after_a_failed_append_nothing_is_taken(open_store):
    """After a failed append nothing is taken."""
    store = open_store()
    append(store)
    store._writer.execute("DROP TABLE log")
    head = store.head()
    for _ in range(2):
        with pytest.raises(StoreFailed):
            append(store)

    assert store.head() == head


def test_free_space_is_that_of_the_file_system(directory, open_store):
    """Free space is that of the file system."""
    store = open_store()
    free = store.usage().free_bytes

    assert free > 0
    assert abs(free - directory.free_bytes()) < 1 << 30


def test_the_time_of_the_last_prune_check_is_monotonic(open_store):
    """The time of the last prune check is monotonic."""
    store = open_store()
    store.upkeep(idle=False)

    assert 0 < store._prune_checked_ns <= clock.monotonic_ns()
