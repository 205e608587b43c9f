"""When a snapshot is due, and the process that makes it.

The process is started and waited for on a thread: that way it is started without copying the page
tables of a large service (`vfork`), whatever event loop is in use, and no fork handler runs.
"""

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass, replace

import msgspec

from scheduler_service.app import clock
from scheduler_service.app.ports import GENESIS, Position, Reporter
from scheduler_service.store.directory import DataDirectory
from scheduler_service.store.snapshots import SnapshotFiles
from scheduler_service.store.snapshotter import EXIT_LOCKED, Made

RETRY_NS = 60_000_000_000
"""After a failure the next attempt waits this long."""

LARGE_BYTES = 8 << 20
"""Up to this size, reading and writing the state takes less than folding in what is new."""


@dataclass(frozen=True, slots=True)
class SnapshotTriggers:
    """A snapshot is due when either is reached since the last one, and it has become worth it.

    They bound start-up: this much of the log has to be folded in at most, or what takes several
    times as long as restoring the snapshot, and what is recorded while one is being made.

    Attributes:
        records: Decisions; at least 1.
        log_bytes: Bytes of records; at least 1.
        growth: Behind a large snapshot so many times its size of log must have been recorded, too:
            else a large state, which takes long to read and write, is read and written all the
            time.
    """

    records: int = 200_000
    log_bytes: int = 128 << 20
    growth: int = 2


class SnapshotSchedule:
    """Starts the snapshot process when one is due; one at a time.

    Attributes:
        newest: Position of the newest snapshot known.
        last: What the last successful process did, if one has.
        failure_count: Processes that failed.
    """

    def __init__(
        self, directory: DataDirectory, triggers: SnapshotTriggers, *, report: Reporter
    ) -> None:
        self.last: Made | None = None
        self.failure_count = 0
        self._directory = directory
        self._triggers = triggers
        self.newest = GENESIS
        self._find_newest()
        self._report = report
        self._task: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = False
        self._retry_ns = 0

    def again(self, *, records: int, log_bytes: int) -> "SnapshotSchedule":
        """Returns another schedule for the same directory, with the same `growth`."""
        triggers = replace(self._triggers, records=records, log_bytes=log_bytes)
        return SnapshotSchedule(self._directory, triggers, report=self._report)

    def consider(self, head: Position, *, space_low: bool = False) -> bool:
        """Starts a process if one is due and none is running; cheap enough for every commit.

        Args:
            head: Position of the log.
            space_low: Whether the log should be prunable soon, whatever that takes.
        """
        if self._task is not None or self._closing:
            return False
        records = head.sequence - self.newest.sequence
        log_bytes = head.log_bytes - self.newest.log_bytes
        if records < self._triggers.records and log_bytes < self._triggers.log_bytes:
            return False
        if log_bytes < self._worth_bytes and not space_low:
            return False
        if clock.monotonic_ns() < self._retry_ns:
            return False
        self._task = asyncio.get_running_loop().create_task(self._run())
        return True

    @property
    def running(self) -> bool:
        """Whether a process is at work."""
        return self._task is not None

    async def finish(self) -> None:
        """Waits for the process at work, if there is one."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def close(self) -> None:
        """Stops the process at work; what it has not finished leaves nothing behind."""
        self._closing = True
        if self._process is not None:
            self._process.kill()
        await self.finish()

    def _find_newest(self) -> None:
        files = SnapshotFiles(self._directory.path)
        self.newest = files.newest_position() or self.newest
        size = files.size(self.newest.sequence)
        self._worth_bytes = self._triggers.growth * size if size > LARGE_BYTES else 0

    async def _run(self) -> None:
        try:
            exit_code, output, errors = await asyncio.to_thread(self._run_process)
        except OSError as error:
            self._failed(str(error))
        else:
            self._ended(exit_code, output, errors.decode("utf-8", "replace").strip())
        finally:
            self._task = self._process = None

    def _run_process(self) -> tuple[int, bytes, bytes]:
        """Runs the process to its end, on a thread.

        In a process group of its own, so that no Ctrl-C of a terminal reaches it, but in the same
        session: Linux weighs sessions alike (autogroups), and its low priority would count for
        nothing against the service.
        """
        command = (sys.executable, "-m", "scheduler_service.store.snapshotter")
        process = subprocess.Popen(  # noqa: S603 - this interpreter, a module of ours
            (*command, str(self._directory.path), "--parent", str(os.getpid())),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        self._process = process
        if self._closing:
            process.kill()
        output, errors = process.communicate()
        return process.returncode, output, errors

    def _ended(self, exit_code: int, output: bytes, errors: str) -> None:
        if exit_code == 0 and output:
            self.last = msgspec.json.decode(output, type=Made)
            self._find_newest()
            self._report("snapshot.made", **msgspec.to_builtins(self.last))
        elif exit_code == EXIT_LOCKED:
            self._retry_ns = clock.monotonic_ns() + RETRY_NS
        elif not self._closing:
            self._failed(errors, exit_code)

    def _failed(self, detail: str, exit_code: int | None = None) -> None:
        self.failure_count += 1
        self._retry_ns = clock.monotonic_ns() + RETRY_NS
        self._report("snapshot.failed", detail=detail[-2000:], exit_code=exit_code)
