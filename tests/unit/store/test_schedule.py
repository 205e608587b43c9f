"""When snapshots are made, and the process that makes them."""

import json
import os
import subprocess
import sys

import pytest
import uvloop

from scheduler_service.app.ports import GENESIS, StoreLocked
from scheduler_service.store import schedule as schedule_module
from scheduler_service.store import snapshotter
from scheduler_service.store.directory import DataDirectory
from scheduler_service.store.reader import LogReader
from scheduler_service.store.schedule import SnapshotSchedule, SnapshotTriggers
from scheduler_service.store.snapshots import SnapshotFiles
from tests.fault.workload import Workload, next_group


@pytest.fixture
def store(open_store):
    store = open_store()
    workload = Workload(1)
    for _ in range(30):
        store.append(next_group(workload, store.head(), steps=2))
    return store


def run_snapshotter(directory, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "scheduler_service.store.snapshotter", directory.path, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


async def test_nothing_is_started_before_it_is_due(directory, store, events):
    """Nothing is started before it is due."""
    head = store.head()
    triggers = SnapshotTriggers(records=head.sequence + 1, log_bytes=head.log_bytes + 1)
    schedule = SnapshotSchedule(directory, triggers, report=events)

    assert not schedule.consider(head)
    assert not schedule.running
    await schedule.close()


@pytest.mark.parametrize("trigger", ["records", "log_bytes"])
async def test_either_trigger_starts_one_process(directory, store, events, trigger):
    """Either trigger starts one process."""
    head = store.head()
    limits = {"records": head.sequence + 1, "log_bytes": head.log_bytes + 1} | {trigger: 50}
    schedule = SnapshotSchedule(directory, SnapshotTriggers(**limits), report=events)
    assert schedule.consider(head)
    assert not schedule.consider(head)
    await schedule.finish()

    assert events.names == ["snapshot.made"]
    assert schedule.last is not None
    assert schedule.last.folded == head.sequence
    assert schedule.newest == SnapshotFiles(directory.path).newest_position() == head
    assert not schedule.consider(head)


async def test_a_schedule_begins_at_the_snapshot_there_is(directory, store, events):
    """A schedule begins at the snapshot there is."""
    snapshotter.make_snapshot(directory)
    schedule = SnapshotSchedule(directory, SnapshotTriggers(records=1), report=events)

    assert schedule.newest == store.head()
    assert not schedule.consider(store.head())


async def test_behind_a_large_snapshot_more_log_is_needed(directory, store, events, monkeypatch):
    """Behind a large snapshot so many times its size of log is recorded before the next."""
    snapshotter.make_snapshot(directory)
    snapshot = store.head()
    size = SnapshotFiles(directory.path).size(snapshot.sequence)
    monkeypatch.setattr(schedule_module, "LARGE_BYTES", size - 1)
    schedule = SnapshotSchedule(directory, SnapshotTriggers(records=1, growth=3), report=events)
    grown = snapshot._replace(sequence=snapshot.sequence + 10_000)
    enough = snapshot.log_bytes + 3 * size

    assert not schedule.consider(grown._replace(log_bytes=enough - 1))
    assert schedule.consider(grown._replace(log_bytes=enough))
    await schedule.close()


async def test_a_snapshot_just_made_says_when_the_next_is_worth_it(
    directory, store, events, monkeypatch
):
    """The size of the snapshot just made counts, not that of the one found at the start."""
    monkeypatch.setattr(schedule_module, "LARGE_BYTES", 1)
    schedule = SnapshotSchedule(directory, SnapshotTriggers(records=1, growth=3), report=events)
    assert schedule.consider(store.head())
    await schedule.finish()
    size = SnapshotFiles(directory.path).size(store.head().sequence)
    head = store.head()._replace(sequence=store.head().sequence + 10_000)

    assert size > 1
    assert not schedule.consider(head._replace(log_bytes=head.log_bytes + 3 * size - 1))
    assert schedule.consider(head._replace(log_bytes=head.log_bytes + 3 * size))
    await schedule.close()


async def test_growth_is_not_waited_for_when_space_is_low(directory, store, events, monkeypatch):
    """Only what lies behind snapshots can be pruned."""
    monkeypatch.setattr(schedule_module, "LARGE_BYTES", 1)
    snapshotter.make_snapshot(directory)
    schedule = SnapshotSchedule(directory, SnapshotTriggers(records=1), report=events)
    head = store.head()._replace(sequence=store.head().sequence + 10_000)

    assert not schedule.consider(head)
    assert schedule.consider(head, space_low=True)
    await schedule.close()


async def test_a_last_snapshot_is_worth_as_much_log_as_others(
    directory, store, events, monkeypatch
):
    """What is due differs at the end; what a large snapshot must be worth does not."""
    monkeypatch.setattr(schedule_module, "LARGE_BYTES", 1)
    snapshotter.make_snapshot(directory)
    head = store.head()._replace(sequence=store.head().sequence + 10_000)
    never = SnapshotTriggers(records=10**12, log_bytes=1 << 50, growth=1)
    running = SnapshotSchedule(directory, never, report=events)
    size = SnapshotFiles(directory.path).size(store.head().sequence)
    last = running.again(records=1000, log_bytes=1 << 20)
    grown = head._replace(log_bytes=head.log_bytes + size)

    assert not running.consider(grown)
    assert not last.consider(grown._replace(log_bytes=grown.log_bytes - 1))
    assert last.consider(grown)
    await last.close()


async def test_the_process_gives_way_to_the_service(directory, store, events, monkeypatch):
    """It stays in the session, where its low priority counts, but no Ctrl-C reaches it."""
    seen = {}
    really = subprocess.Popen

    def start(*arguments, **options):
        process = really(*arguments, **options)
        seen["session"], seen["group"] = os.getsid(process.pid), os.getpgid(process.pid)
        seen["pid"] = process.pid
        return process

    monkeypatch.setattr(schedule_module.subprocess, "Popen", start)
    schedule = SnapshotSchedule(directory, SnapshotTriggers(records=1), report=events)
    assert schedule.consider(store.head())
    await schedule.finish()

    assert seen == {"session": os.getsid(0), "group": seen["pid"], "pid": seen["pid"]}
    assert seen["group"] != os.getpgid(0)
    assert events.names == ["snapshot.made"]


def test_the_process_lowers_its_priority_before_it_begins(directory, store, monkeypatch):
    """Niceness is what makes it give way; it is no longer the service's once work begins."""
    order = []
    really = snapshotter.make_snapshot
    monkeypatch.setattr(snapshotter.os, "nice", lambda by: order.append(by > 0))
    monkeypatch.setattr(
        snapshotter, "make_snapshot", lambda *a, **k: (order.append("made"), really(*a, **k))[1]
    )

    assert snapshotter.main([str(directory.path)]) == 0
    assert order == [True, "made"]


async def test_a_process_that_fails_is_reported_and_tried_again_later(
    directory, store, events, monkeypatch
):
    """A process that fails is reported and tried again later."""
    store.close()
    directory.log_path.write_bytes(b"junk" * 5000)
    schedule = SnapshotSchedule(directory, SnapshotTriggers(records=1), report=events)
    head = GENESIS._replace(sequence=10)
    schedule.consider(head)
    await schedule.finish()
    assert schedule.failure_count == 1
    [(name, values)] = events
    assert (name, values["exit_code"]) == ("snapshot.failed", snapshotter.EXIT_DAMAGED)
    assert "file is not a database" in values["detail"]
    assert not schedule.consider(head)
    monkeypatch.setattr(schedule, "_retry_ns", 0)

    assert schedule.consider(head)
    await schedule.finish()


async def test_a_program_that_cannot_be_started_is_reported(directory, store, events, monkeypatch):
    """A program that cannot be started is reported."""
    monkeypatch.setattr(schedule_module.sys, "executable", "/nowhere/python")
    schedule = SnapshotSchedule(directory, SnapshotTriggers(records=1), report=events)
    schedule.consider(store.head())
    await schedule.finish()

    assert events.names == ["snapshot.failed"]
    assert not schedule.running


async def test_a_running_process_can_be_stopped(directory, store, events):
    """Closing ends the process; what it had not finished is not there, and nothing is locked."""
    schedule = SnapshotSchedule(directory, SnapshotTriggers(records=1), report=events)
    assert schedule.consider(store.head())
    await schedule.close()
    await schedule.close()

    assert not schedule.running
    assert not schedule.consider(store.head())
    assert "snapshot.failed" not in events.names
    directory.lock_snapshots().release()


def test_snapshots_are_made_on_uvloop_too(directory, store, events):
    """The process does not depend on the event loop."""

    async def make():
        schedule = SnapshotSchedule(directory, SnapshotTriggers(records=1), report=events)
        schedule.consider(store.head())
        await schedule.finish()

    uvloop.run(make())

    assert events.names == ["snapshot.made"]


def test_the_process_says_what_it_did(directory, store):
    """The process says what it did."""
    done = run_snapshotter(directory)
    made = json.loads(done.stdout)
    assert done.returncode == 0
    assert made["sequence"] == made["folded"] == store.head().sequence
    assert made["body_bytes"] > 100
    again = json.loads(run_snapshotter(directory).stdout)

    assert (again["sequence"], again["folded"]) == (store.head().sequence, 0)


def test_only_one_process_makes_a_snapshot(directory, store):
    """Only one process makes a snapshot."""
    lock = directory.lock_snapshots()
    with pytest.raises(StoreLocked, match=f"pid {os.getpid()}"):
        snapshotter.make_snapshot(directory)
    assert run_snapshotter(directory).returncode == snapshotter.EXIT_LOCKED
    lock.release()

    assert run_snapshotter(directory).returncode == 0


def test_a_process_whose_parent_has_gone_makes_nothing(directory, store):
    """A process whose parent has gone makes nothing."""
    assert run_snapshotter(directory, "--parent", "1").returncode == 0

    assert SnapshotFiles(directory.path).sequences() == []


def test_a_directory_without_a_log_is_an_error_in_words(tmp_path):
    """A directory without a log is an error in words."""
    directory = DataDirectory(tmp_path / "nothing")
    directory.path.mkdir()
    done = run_snapshotter(directory)

    assert done.returncode == snapshotter.EXIT_FAILED
    assert "log.sqlite3: unable to open database file" in done.stderr
    assert not directory.log_path.exists()


def test_snapshots_are_folded_onto_the_one_before(directory, store):
    """Snapshots are folded onto the one before."""
    first = snapshotter.make_snapshot(directory)
    workload = Workload(1)
    workload.advance_to(store.head().sequence)
    store.append(next_group(workload, store.head(), steps=5))
    second = snapshotter.make_snapshot(directory)

    assert first.folded + second.folded == second.sequence == store.head().sequence


def test_a_snapshot_does_not_stop_the_writer_or_pin_its_journal(directory, store):
    """The fold reads in short statements; between them the writer is free."""
    workload = Workload(1)
    workload.advance_to(store.head().sequence)
    heads = []

    def write_in_between(_reached, _head):
        while len(heads) < 5:
            store.append(next_group(workload, store.head()))
            row = store._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            heads.append((row[0], store.head().sequence))

    before = store.head()
    made = snapshotter.make_snapshot(directory, check=write_in_between)

    assert [busy for busy, _ in heads] == [0] * 5
    assert made.sequence == before.sequence
    assert store.head().sequence == heads[-1][1]


def test_a_snapshot_ends_however_fast_the_log_grows(directory, store):
    """It is of what there was when it began: a writer that is faster cannot put it off for good."""
    workload = Workload(1)
    workload.advance_to(store.head().sequence)
    head = store.head()

    def always_more(_reached, _head):
        store.append(next_group(workload, store.head()))
        assert store.head().sequence < head.sequence + 1000, "it never ends"

    assert snapshotter.make_snapshot(directory, check=always_more).sequence == head.sequence
    assert store.head().sequence > head.sequence


def test_files_are_synced_before_a_snapshot_has_its_name(directory, store, monkeypatch):
    """Files are synced before a snapshot has its name."""
    order = []
    real_sync, real_save = snapshotter.sync_log, SnapshotFiles.save
    monkeypatch.setattr(
        snapshotter, "sync_log", lambda where: (order.append("sync"), real_sync(where))
    )
    monkeypatch.setattr(
        SnapshotFiles, "save", lambda files, made: (order.append("save"), real_save(files, made))
    )
    snapshotter.make_snapshot(directory)

    assert order == ["sync", "save"]


def test_a_reader_of_a_stopped_service_changes_nothing(directory, store):
    """A reader of a stopped service changes nothing."""
    head = store.head()
    store.close()
    before = directory.log_path.read_bytes()
    reader = LogReader(directory.log_path)
    assert reader.head() == head
    reader.close()

    assert directory.log_path.read_bytes() == before
