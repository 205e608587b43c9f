"""Bits that changed on disk: found by chain or checksum, named, cut at the end, refused before."""

import pytest

from scheduler_service.app.ports import Durability, StoreDamaged
from scheduler_service.app.recovery import recover
from scheduler_service.core import snapshot as core_snapshot
from scheduler_service.store.directory import DataDirectory
from scheduler_service.store.snapshots import SnapshotFiles
from scheduler_service.store.snapshotter import make_snapshot
from scheduler_service.store.sqlite import SqliteStore
from tests.fault.checks import start_and_check
from tests.fault.workload import Workload, next_group

SEED = 5


@pytest.fixture
def written(directory):
    """A closed store of 60 groups with two snapshots; gives the group frames."""
    store = SqliteStore(directory, report=print, durability=Durability.NONE)
    workload = Workload(SEED)
    for number in range(60):
        store.append(next_group(workload, store.head(), steps=4))
        if number in {20, 40}:
            make_snapshot(directory)
    groups = store.read(0, max_bytes=10**9)
    store.close()
    return groups


def flip(path, needle: bytes) -> None:
    content = path.read_bytes()
    at = content.index(needle) + len(needle) // 2
    changed = bytes((content[at] ^ 1,))
    path.write_bytes(content[:at] + changed + content[at + 1 :])


def needle_of(group) -> bytes:
    """Bytes of the frame that lie together in the file."""
    return group.frame[-60:-20]


def open_and_recover(directory, events):
    store = SqliteStore(directory, report=events)
    try:
        return recover(store, SnapshotFiles(directory.path), report=events)
    finally:
        store.close()


def test_a_bit_of_the_last_group_cuts_it_with_one_event(directory, written, events):
    """A bit of the last group cuts it with one event."""
    flip(directory.log_path, needle_of(written[-1]))
    found = open_and_recover(directory, events)

    assert events == [
        (
            "log.tail_cut",
            {
                "file": "log.sqlite3",
                "sequence": written[-1].first_sequence,
                "detail": "the hash chain is broken",
            },
        )
    ]
    assert found.position == written[-2].end
    model = Workload(SEED)
    model.advance_to(found.position.sequence)
    assert core_snapshot.digest(found.state) == core_snapshot.digest(model.state)


def test_a_bit_in_the_middle_of_the_tail_refuses_to_start(directory, written, events):
    """A bit in the middle of the tail refuses to start."""
    flip(directory.log_path, needle_of(written[50]))
    for _ in range(2):
        with pytest.raises(
            StoreDamaged,
            match=rf"log\.sqlite3, sequence {written[50].first_sequence}: the hash chain is broken",
        ):
            open_and_recover(directory, events)

    assert events == []


def test_a_bit_behind_the_snapshot_does_not_stop_a_start(directory, written):
    """A bit behind the snapshot does not stop a start."""
    flip(directory.log_path, needle_of(written[10]))

    assert start_and_check(directory, SEED, acknowledged=written[-1].end.sequence).events == []


def test_a_damaged_newest_snapshot_falls_back(directory, written, events):
    """A damaged newest snapshot falls back."""
    flip(SnapshotFiles(directory.path).path(written[40].end.sequence), b"pool")
    found = start_and_check(directory, SEED, acknowledged=written[-1].end.sequence)

    assert found.events == ["snapshot.damaged"]
    assert found.recovery.from_snapshot == written[20].end.sequence


def test_two_damaged_snapshots_fall_back_to_the_whole_log(directory, written):
    """Two damaged snapshots fall back to the whole log."""
    for number in (20, 40):
        flip(SnapshotFiles(directory.path).path(written[number].end.sequence), b"pool")
    found = start_and_check(directory, SEED, acknowledged=written[-1].end.sequence)

    assert found.events == ["snapshot.damaged"] * 2
    assert found.recovery.from_snapshot == 0


def test_a_snapshotter_meets_damage_with_an_error_and_leaves_the_old_snapshots(directory, written):
    """A snapshotter meets damage with an error and leaves the old snapshots."""
    flip(directory.log_path, needle_of(written[50]))
    with pytest.raises(StoreDamaged):
        make_snapshot(directory)

    assert SnapshotFiles(directory.path).newest_position() == written[40].end


def test_a_snapshot_of_another_log_is_not_used(directory, written, tmp_path):
    """A snapshot of another log is not used."""
    other = DataDirectory(tmp_path / "other")
    store = SqliteStore(other, report=print)
    workload = Workload(SEED + 1)
    while store.head().sequence <= written[40].end.sequence:
        store.append(next_group(workload, store.head()))
    make_snapshot(other)
    store.close()
    foreign = SnapshotFiles(other.path)
    foreign.path(foreign.sequences()[0]).rename(
        directory.path / foreign.path(foreign.sequences()[0]).name
    )
    found = start_and_check(directory, SEED, acknowledged=written[-1].end.sequence)

    assert found.events == ["snapshot.refused"]
    assert found.recovery.from_snapshot == written[40].end.sequence


def test_a_destroyed_page_is_named_or_does_not_matter(directory, written):
    """Each page of the database in turn: nothing is believed that is not what was written."""
    whole = directory.log_path.read_bytes()
    named = []
    for start in range(0, len(whole), 4096):
        directory.log_path.write_bytes(whole[:start] + b"\xff" * 4096 + whole[start + 4096 :])
        try:
            start_and_check(directory, SEED, acknowledged=written[-1].end.sequence)
        except StoreDamaged as damage:
            named.append(damage.file)

    assert len(named) > 5
    assert set(named) == {"log.sqlite3"}


def test_a_copy_without_its_journal_goes_on_from_the_snapshot(directory, events):
    """The log ends before the snapshot: the state is the snapshot's, the log goes on behind it."""
    store = SqliteStore(directory, report=print, durability=Durability.NONE)
    workload = Workload(SEED)
    for number in range(60):
        store.append(next_group(workload, store.head()))
        if number == 20:
            store._writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    make_snapshot(directory)
    head = store.head()
    kept = directory.log_path.read_bytes()
    store.close()
    directory.log_path.write_bytes(kept)
    found = open_and_recover(directory, events)

    assert events.names == ["log.ended_early"]
    assert found.position == head
    assert core_snapshot.digest(found.state) == core_snapshot.digest(workload.state)
    store = SqliteStore(directory, report=events)
    assert store.head() == store.base() == head
    store.append(next_group(workload, store.head()))
    store.close()
    events.clear()
    again = open_and_recover(directory, events)

    assert (again.replayed > 0, events) == (True, [])
    assert core_snapshot.digest(again.state) == core_snapshot.digest(workload.state)
