"""Start-up from a long log: behind a snapshot, and replaying what no snapshot covers."""

import shutil
from pathlib import Path

from scheduler_service.app.ports import Durability
from scheduler_service.app.recovery import collector_paused
from scheduler_service.store.directory import DataDirectory
from scheduler_service.store.snapshotter import make_snapshot
from scheduler_service.store.sqlite import SqliteStore
from tests.bench.bench_store import quiet, write_real_log
from tests.bench.memory import tree_bytes
from tests.bench.results import Table
from tests.bench.suite import Context, benchmark

_BEHIND_ASKED = (5.0, 2.0)
_REPLAY_ASKED = (20.0, 10.0)


def _written(folder: Path, records: int) -> DataDirectory:
    """Writes a log of real decisions into a data directory of the service."""
    directory = DataDirectory(folder / "data")
    store = SqliteStore(directory, durability=Durability.NONE, report=quiet)
    try:
        with collector_paused():
            write_real_log(store, records)
    finally:
        store.close()
    return directory


def _start_seconds(ctx: Context, folder: Path) -> list[float]:
    """Starts the service on copies of a data directory, until health says SERVING."""
    seconds = []
    for number in range(min(ctx.settings.rounds, 5)):
        copy = ctx.settings.data / f"bench-start-{number}"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        try:
            ctx.guard.settled_percent()
            server = ctx.service(folder=copy, timeout=600)
            seconds.append(server.start_seconds)
            server.stop(kill=True)
        finally:
            shutil.rmtree(copy, ignore_errors=True)
    return seconds


@benchmark("start-replay", "Start-up that replays a million records")
def start_replay(ctx: Context) -> None:
    """No snapshot: every record is checked against the chain and folded in."""
    records = ctx.scale(1_000_000, 20_000)
    folder = ctx.settings.data / "bench-replay"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _written(folder, records)
        seconds = _start_seconds(ctx, folder)
        size = tree_bytes(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    empty = ctx.service().start_seconds
    ctx.results.add(
        "start-replay",
        f"start-up replaying {records:,} records",
        seconds,
        "s",
        accept=_REPLAY_ASKED[0],
        goal=_REPLAY_ASKED[1],
        at_most=True,
    )
    ctx.results.tables.append(
        Table(
            "start-replay",
            "Start-up without a snapshot",
            ["what", "seconds", "bytes a record"],
            [
                [f"{records:,} records", sorted(seconds)[len(seconds) // 2], size / records],
                ["an empty log", empty, 0],
            ],
        )
    )


@benchmark("start-snapshot", "Start-up with ten million records behind a snapshot", long=True)
def start_snapshot(ctx: Context) -> None:
    """The log is long, a snapshot stands at its end, a little of the log is behind it."""
    records = ctx.scale(10_000_000, 50_000)
    folder = ctx.settings.data / "bench-snapshot"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        ctx.say(f"  writing {records:,} records")
        directory = _written(folder, records)
        ctx.say("  making the snapshot")
        make_snapshot(directory)
        seconds = _start_seconds(ctx, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    ctx.results.add(
        "start-snapshot",
        f"start-up from {records:,} records behind a snapshot",
        seconds,
        "s",
        accept=_BEHIND_ASKED[0],
        goal=_BEHIND_ASKED[1],
        at_most=True,
    )
