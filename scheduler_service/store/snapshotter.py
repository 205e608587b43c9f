"""The process that makes snapshots: `python -m scheduler_service.store.snapshotter DIRECTORY`.

It reads the log like any other reader, folds what is new onto the newest snapshot, and writes the
next one.  It runs at a low priority and ends when its parent does; the service shares nothing
with it but the directory.

Before the snapshot gets its name, the log files are synced: in no durability mode does a snapshot
lie ahead of the log it was folded from.

Exit codes: 0 done (one JSON line on stdout says what), 3 another process is making a snapshot,
4 the log or all snapshots are damaged, 5 something could not be read or written.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from scheduler_service.app import clock
from scheduler_service.app.ports import (
    Position,
    Snapshot,
    StoreDamaged,
    StoreError,
    StoreLocked,
)
from scheduler_service.app.recovery import begin, collector_paused, fold
from scheduler_service.core import snapshot as core_snapshot
from scheduler_service.core.state import State
from scheduler_service.store.directory import DataDirectory
from scheduler_service.store.reader import LogReader
from scheduler_service.store.snapshots import SnapshotFiles

NICENESS = 10
"""On a machine that is busy with the service it gets a tenth of a core, and ends some time."""

EXIT_LOCKED = 3
EXIT_DAMAGED = 4
EXIT_FAILED = 5


class Made(msgspec.Struct):
    """What the process did.

    Attributes:
        sequence: Sequence of the newest snapshot now.
        folded: Records folded in for it; 0 if it was there already.
        body_bytes: Size of the state.
        duration_ns: Time taken.
    """

    sequence: int
    folded: int
    body_bytes: int
    duration_ns: int


class _ParentGoneError(Exception):
    """The service has ended, and a snapshot made now would only compete with its successor."""


def make_snapshot(
    directory: DataDirectory, *, check: Callable[[int, int], None] | None = None
) -> Made:
    """Folds the log onto the newest snapshot and writes the next one.

    Args:
        directory: Where the log is and the snapshot goes.
        check: Called now and then with (sequence reached, sequence of the head).

    Raises:
        StoreLocked: Another process is making one.
        StoreDamaged: The log or all snapshots are damaged, or the new one cannot be restored.
        OSError: It could not be written.
    """
    began_ns = clock.monotonic_ns()
    lock = directory.lock_snapshots()
    try:
        files = SnapshotFiles(directory.path)
        files.remove_partial()
        with collector_paused():
            state, start, end = _fold_new(directory, files, check)
            if end.sequence == start.sequence:
                return Made(start.sequence, 0, 0, clock.monotonic_ns() - began_ns)
            body = core_snapshot.dump(state)
            del state
            # A snapshot that cannot be restored must never stand between the log and its start.
            if core_snapshot.dump(core_snapshot.restore(body)) != body:
                raise StoreDamaged("snapshot", end.sequence, "does not restore to the same state")
        sync_log(directory)
        files.save(Snapshot(end, core_snapshot.digest_of(body), body))
    finally:
        lock.release()
    folded = end.sequence - start.sequence
    return Made(end.sequence, folded, len(body), clock.monotonic_ns() - began_ns)


def _fold_new(
    directory: DataDirectory, files: SnapshotFiles, check: Callable[[int, int], None] | None
) -> tuple[State, Position, Position]:
    """Returns the state of the whole log, where the fold began and where it ended."""
    log = LogReader(directory.log_path)
    try:
        head = log.head().sequence  # what comes meanwhile is left: it may come faster than this
        state, start = begin(log, files, report=_report)
        return state, start, fold(state, log, start, progress=check, until_sequence=head)
    finally:
        log.close()


def sync_log(directory: DataDirectory) -> None:
    """Makes what has been written of the log durable, whatever the durability mode.

    Only for a process without a connection to the database: closing a descriptor of a database
    file drops the locks of the whole process on it.
    """
    for path in (directory.journal_path, directory.log_path):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)


def _report(event: str, /, **values: object) -> None:
    line = msgspec.json.encode({"event": event, **values})
    sys.stderr.buffer.write(line + b"\n")


def main(arguments: list[str] | None = None) -> int:
    """Makes one snapshot; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scheduler_service.store.snapshotter")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--parent", type=int, default=0, help="end when this process does")
    options = parser.parse_args(arguments)
    os.nice(NICENESS)

    def check(_reached: int, _head: int) -> None:
        if options.parent and os.getppid() != options.parent:
            raise _ParentGoneError

    try:
        made = make_snapshot(DataDirectory(options.directory), check=check)
    except StoreLocked as error:
        _report("snapshot.refused", detail=str(error))
        return EXIT_LOCKED
    except _ParentGoneError:
        return 0
    except (StoreError, OSError) as error:
        _report("snapshot.failed", detail=str(error))
        return EXIT_DAMAGED if isinstance(error, StoreDamaged) else EXIT_FAILED
    sys.stdout.buffer.write(msgspec.json.encode(made) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
