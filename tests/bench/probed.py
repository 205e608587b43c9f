"""The service under observation: what kept its event loop from turning, and for how long.

    python -m tests.bench.probed serve …

Runs the command line of the service unchanged.  A timer on its loop looks every millisecond how
late it is; the collector reports its pauses.  A late timer is split in two by the thread's CPU
clock: what the service itself computed in that time, and what the machine gave to others.  SIGUSR1
writes what was found since the last time to `$BENCH_PAUSES` and begins anew.
"""

import asyncio
import gc
import json
import os
import signal
import sys
import time
from pathlib import Path

from scheduler_service.cli import main

_EVERY_SECONDS = 0.001
_LONG_NS = 2_000_000
_KEPT = 20


class Pauses:
    """Watches one event loop and the collector."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path) -> None:
        self._loop = loop
        self._path = path
        self._due_ns = self._cpu_ns = self._began_ns = self._began_cpu_ns = 0
        self._clear()
        gc.callbacks.append(self._collected)
        loop.add_signal_handler(signal.SIGUSR1, self._write)
        self._arm()

    def _clear(self) -> None:
        self._since_ns = time.monotonic_ns()
        self._late: list[tuple[int, int, int]] = []
        self._collections: list[tuple[int, int, int]] = []
        self._turns = 0
        self._longest_cpu_ns = 0

    def _arm(self) -> None:
        self._due_ns = time.monotonic_ns() + int(_EVERY_SECONDS * 1e9)
        self._cpu_ns = time.thread_time_ns()
        self._loop.call_later(_EVERY_SECONDS, self._turn)

    def _turn(self) -> None:
        late_ns = time.monotonic_ns() - self._due_ns
        cpu_ns = time.thread_time_ns() - self._cpu_ns
        self._turns += 1
        self._longest_cpu_ns = max(self._longest_cpu_ns, min(cpu_ns, late_ns))
        if late_ns > _LONG_NS:
            self._keep(self._late, (late_ns, cpu_ns, time.monotonic_ns() - self._since_ns))
        self._arm()

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began_ns, self._began_cpu_ns = time.monotonic_ns(), time.thread_time_ns()
            return
        took = time.monotonic_ns() - self._began_ns
        cpu = time.thread_time_ns() - self._began_cpu_ns
        self._keep(self._collections, (took, cpu, info["generation"]))

    @staticmethod
    def _keep(kept: list[tuple[int, int, int]], entry: tuple[int, int, int]) -> None:
        kept.append(entry)
        if len(kept) > 10 * _KEPT:
            kept.sort(reverse=True)
            del kept[_KEPT:]

    def _write(self) -> None:
        self._late.sort(reverse=True)
        self._collections.sort(reverse=True)
        found = {
            "seconds": (time.monotonic_ns() - self._since_ns) / 1e9,
            "turns": self._turns,
            "longest_cpu_ms": self._longest_cpu_ns / 1e6,
            "late_ms": [[late / 1e6, cpu / 1e6, at / 1e9] for late, cpu, at in self._late[:_KEPT]],
            "collections_ms": [
                [took / 1e6, cpu / 1e6, generation]
                for took, cpu, generation in self._collections[:_KEPT]
            ],
        }
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(found))
        part.rename(self._path)
        self._clear()


def _watch_new_loops() -> None:
    """Has every loop that runs coroutines of the service watched from its first turn."""
    begin = asyncio.Runner.run

    def run(self, coroutine, **options):
        async def watched():
            watch = Pauses(asyncio.get_running_loop(), Path(os.environ["BENCH_PAUSES"]))
            try:
                return await coroutine
            finally:
                del watch

        return begin(self, watched(), **options)

    asyncio.Runner.run = run


if __name__ == "__main__":
    _watch_new_loops()
    sys.exit(main())
