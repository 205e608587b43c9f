"""What the store costs, alone: `python -m tests.bench.bench_store [append] [callers] [recovery]`.

Prints tables; nothing here passes or fails.  Numbers are for the disk under --directory.

    append     groups one after the other, from one thread, upkeep between them as in the service
    callers    callers that wait for their decision to be durable, through the committer and uvloop
    recovery   start-up: replay of a whole log, and a snapshot with a log behind it
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from scheduler_service.app import codec
from scheduler_service.app.chain import GroupBuilder
from scheduler_service.app.commit import Commit, GroupCommitter
from scheduler_service.app.memory import MemoryStore
from scheduler_service.app.ports import GENESIS, Durability, Group, Payload
from scheduler_service.app.recovery import collector_paused, recover
from scheduler_service.core import decisions as d
from scheduler_service.core.state import State
from scheduler_service.store.directory import DataDirectory
from scheduler_service.store.snapshots import SnapshotFiles
from scheduler_service.store.snapshotter import make_snapshot
from scheduler_service.store.sqlite import SqliteStore
from tests.fault.workload import Workload

SECONDS = 2.0
PAYLOAD = Payload(os.urandom(1000), b"metadata")
LIVE_PAYLOADS = 5000


def sample_decisions(count: int) -> list[d.Decision]:
    """Returns decisions of a real mix: accepted, dispatched, completed."""
    workload = Workload(1)
    found: list[d.Decision] = []
    while len(found) < count:
        found += workload.step().decisions
    return found[:count]


def quiet(_event: str, /, **_values: object) -> None:
    """Takes events of the store."""


@contextmanager
def a_store(root: Path, durability: Durability) -> Iterator[SqliteStore]:
    with tempfile.TemporaryDirectory(dir=root) as path:
        store = SqliteStore(DataDirectory(path), durability=durability, report=quiet)
        try:
            yield store
        finally:
            store.close()


class PlainFile(MemoryStore):
    """The floor: a preallocated file, one write and one fdatasync a group, nothing kept."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._file = tempfile.TemporaryFile(dir=root, buffering=0)  # noqa: SIM115 - it lives as long as the store
        os.posix_fallocate(self._file.fileno(), 0, 256 << 20)
        self._end = GENESIS
        self._at = 0

    def append(self, group: Group) -> dict[int, Payload]:
        frame = codec.join_frame(group.records)
        frame += b"".join(payload.payload for _, payload in group.puts)
        if self._at + len(frame) > 256 << 20:
            self._at = 0
        self._at += os.pwrite(self._file.fileno(), frame, self._at)
        os.fdatasync(self._file.fileno())
        self._end = group.end
        return {}

    def head(self):
        return self._end


def percentile(sorted_ns: list[int], basis_points: int) -> float:
    return sorted_ns[min(len(sorted_ns) * basis_points // 10_000, len(sorted_ns) - 1)] / 1e6


def append_row(store, size: int, *, payloads: bool, seconds: float) -> list[str]:
    """Appends groups of `size` for a while; with payloads, every third record has one."""
    decisions = sample_decisions(max(size, 64))
    builder = GroupBuilder(store.head())
    live: list[int] = []
    times: list[int] = []
    busy_ns = 0
    number = 0
    end = time.monotonic_ns() + int(seconds * 1e9)
    while time.monotonic_ns() < end:
        for _ in range(size):
            number += 1
            builder.add([decisions[number % len(decisions)]])
            if payloads and number % 3 == 0:
                builder.put_payload(builder.sequence, PAYLOAD)
                live.append(builder.sequence)
                if len(live) > LIVE_PAYLOADS:
                    builder.delete_payload(live.pop(0))
        group = builder.take()
        began = time.monotonic_ns()
        cpu = time.thread_time_ns()
        store.append(group)
        times.append(time.monotonic_ns() - began)
        busy_ns += time.thread_time_ns() - cpu
        if len(times) % 64 == 0:
            store.upkeep(idle=False)
    records = len(times) * size
    times.sort()
    return [
        f"{records / (sum(times) / 1e9):,.0f}",
        f"{percentile(times, 5000):.3f}",
        f"{percentile(times, 9900):.3f}",
        f"{times[-1] / 1e6:.1f}",
        f"{busy_ns / records / 1000:.2f}",
        f"{len(times)}",
    ]


def bench_append(root: Path, show: Callable[[Table], None], seconds: float) -> None:
    table = Table(title="append, one thread")
    for column in (
        "store", "group", "payloads", "records/s", "p50 ms", "p99 ms", "max ms", "CPU us/rec", "n",
    ):  # fmt: skip
        table.add_column(column, justify="right")
    for payloads in (False, True):
        for size in (1, 10, 100, 1000):
            table.add_row(
                "plain file", str(size), str(payloads),
                *append_row(PlainFile(root), size, payloads=payloads, seconds=seconds),
            )  # fmt: skip
            for durability in Durability:
                with a_store(root, durability) as store:
                    row = append_row(store, size, payloads=payloads, seconds=seconds)
                table.add_row(f"sqlite {durability}", str(size), str(payloads), *row)
    show(table)


async def call_for_a_while(store, callers: int, length_seconds: float) -> list[str]:
    decisions = sample_decisions(256)
    waiters: list[tuple[int, asyncio.Future[None]]] = []

    def durable(commit: Commit) -> None:
        for at, (ticket, waiter) in enumerate(waiters):
            if ticket > commit.ticket:
                del waiters[:at]
                return
            waiter.set_result(None)
        waiters.clear()

    committer = GroupCommitter(store, on_durable=durable, on_failure=print)
    committer.start()
    loop = asyncio.get_running_loop()
    times: list[int] = []
    end = time.monotonic_ns() + int(length_seconds * 1e9)

    async def call(number: int) -> None:
        while (began := time.monotonic_ns()) < end:
            committer.record([decisions[number % 256]])
            waiter = loop.create_future()
            waiters.append((committer.ticket(), waiter))
            await waiter
            times.append(time.monotonic_ns() - began)

    cpu = time.process_time_ns()
    began = time.monotonic_ns()
    await asyncio.gather(*(call(number) for number in range(callers)))
    seconds = (time.monotonic_ns() - began) / 1e9
    cpu = time.process_time_ns() - cpu
    await committer.close()
    times.sort()
    return [
        f"{len(times) / seconds:,.0f}",
        f"{percentile(times, 5000):.3f}",
        f"{percentile(times, 9900):.3f}",
        f"{percentile(times, 9990):.3f}",
        f"{times[-1] / 1e6:.1f}",
        f"{cpu / len(times) / 1000:.1f}",
        f"{len(times) / committer.group_count:.1f}",
    ]


def bench_callers(root: Path, show: Callable[[Table], None], seconds: float) -> None:
    table = Table(title="callers waiting for durability, committer on uvloop")
    for column in (
        "store", "callers", "decisions/s", "p50 ms", "p99 ms", "p99.9 ms", "max ms", "CPU us",
        "per group",
    ):  # fmt: skip
        table.add_column(column, justify="right")
    for callers in (1, 16, 64, 256):
        floor = uvloop.run(call_for_a_while(MemoryStore(), callers, seconds))
        table.add_row("memory", str(callers), *floor)
        file = uvloop.run(call_for_a_while(PlainFile(root), callers, seconds))
        table.add_row("plain file", str(callers), *file)
        for durability in (Durability.SYNC, Durability.ASYNC):
            with a_store(root, durability) as store:
                row = uvloop.run(call_for_a_while(store, callers, seconds))
            table.add_row(f"sqlite {durability}", str(callers), *row)
    show(table)


def timed(action: Callable[[], object]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


def write_real_log(store: SqliteStore, records: int) -> State:
    """Writes real decisions in groups of about 100; returns the state they fold to."""
    workload = Workload(3, payload_bytes=0)
    builder = GroupBuilder(store.head())
    while workload.state.sequence < records:
        decisions = workload.step().decisions
        if decisions:
            builder.add(decisions)
        if len(builder.records) >= 100:
            store.append(builder.take())
            store.upkeep(idle=False)
    if builder.has_work:
        store.append(builder.take())
    return workload.state


def bench_recovery(root: Path, show: Callable[[Table], None], records: int) -> None:
    table = Table(title="start-up")
    table.add_column("what")
    table.add_column("seconds", justify="right")
    with tempfile.TemporaryDirectory(dir=root) as path:
        directory = DataDirectory(path)
        files = SnapshotFiles(directory.path)

        def opened() -> SqliteStore:
            return SqliteStore(directory, durability=Durability.NONE, report=quiet)

        store = opened()
        with collector_paused():
            write_real_log(store, records)
        store.close()
        store = opened()
        seconds = timed(lambda: recover(store, files, report=quiet))
        table.add_row(f"replay of {records:,} records", f"{seconds:.2f}")
        store.close()
        table.add_row("making a snapshot of them", f"{timed(lambda: make_snapshot(directory)):.2f}")

        def start() -> None:
            store = opened()
            recover(store, files, report=quiet)
            store.close()

        table.add_row(f"start with {records:,} records behind a snapshot", f"{timed(start):.3f}")
        size = directory.log_path.stat().st_size >> 20
        table.add_row(f"(the log has {size} MiB)", "")
    show(table)


def columns_and_rows(table: Table) -> dict[str, object]:
    """Returns a table as data."""
    columns = [list(column.cells) for column in table.columns]
    return {
        "title": table.title,
        "columns": [str(column.header) for column in table.columns],
        "rows": [list(row) for row in zip(*columns, strict=True)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="*", default=["append", "callers", "recovery"])
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: list[dict[str, object]] = []
    console = Console(width=120)

    def show(table: Table) -> None:
        found.append(columns_and_rows(table))
        if not options.json:
            console.print(table)

    if "append" in options.what:
        bench_append(options.directory, show, options.seconds)
    if "callers" in options.what:
        bench_callers(options.directory, show, options.seconds)
    if "recovery" in options.what:
        bench_recovery(options.directory, show, options.records)
    if options.json:
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
