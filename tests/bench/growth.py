"""What a call costs as users, the backlog, pools and watchers grow."""

import subprocess
from contextlib import ExitStack
from typing import Any

from tests.bench.load import Slice, command, fill
from tests.bench.results import Table
from tests.bench.streams import lifecycle_rate
from tests.bench.suite import Context, benchmark


@benchmark(
    "growth", "Cost of a lifecycle as users, backlog, pools and watchers grow", in_quick=False
)
def growth(ctx: Context) -> None:
    """Sessions on both sides; server CPU for each lifecycle, one thing grown at a time."""
    options: dict[str, Any] = {"batch": 10, "workers": 8, "gateways": 4}
    table = Table(
        "growth",
        "Server CPU a lifecycle, sessions of 10 items a message",
        ["what grows", "to", "CPU us", "lifecycles/s"],
    )

    def row(what: str, size: int, name: str, found: Any) -> None:
        cpu = found.values(name, lambda s: s.cpu_us("lifecycle"))
        table.rows.append(
            [what, size, sorted(cpu)[len(cpu) // 2], found.median(name, lifecycle_rate)]
        )
        ctx.results.add("growth", f"server CPU a lifecycle, {what} {size:,}", cpu, "us")

    _users_and_backlog(ctx, options, row)
    _pools(ctx, options, row)
    _watchers(ctx, options, row)
    ctx.results.tables.append(table)


def _users_and_backlog(ctx: Context, options: dict[str, Any], row: Any) -> None:
    users = (10, 1000, 100_000) if not ctx.quick else (10, 1000)
    backlogs = (1_000, 100_000, 1_000_000) if not ctx.quick else (1_000, 10_000)
    with ExitStack() as stack:
        cells, names = [], []
        for size in users:
            server = stack.enter_context(ctx.service())
            fill(ctx.tools, server, max(2 * size, 20_000), users=size)
            cells.append(ctx.cell(f"users {size}", server, "sessions", users=size, **options))
            names.append(("users", size))
        for size in backlogs:
            server = stack.enter_context(ctx.service())
            fill(ctx.tools, server, size)
            cells.append(ctx.cell(f"backlog {size}", server, "sessions", **options))
            names.append(("backlog", size))
        found = ctx.alternate(cells)
    for what, size in names:
        row(what, size, f"{what} {size}", found)


def _pools(ctx: Context, options: dict[str, Any], row: Any) -> None:
    sizes = (1, 30, 300) if not ctx.quick else (1, 30)
    with ExitStack() as stack:
        cells = [
            ctx.cell(
                f"pools {size}", stack.enter_context(ctx.service(pools=size)), "sessions", **options
            )
            for size in sizes
        ]
        found = ctx.alternate(cells)
    for size in sizes:
        row("pools", size, f"pools {size}", found)


def _watchers(ctx: Context, options: dict[str, Any], row: Any) -> None:
    sizes = (0, 1, 4, 16) if not ctx.quick else (0, 4)
    with ctx.service() as server:

        def watched(size: int) -> Slice:
            seconds = ctx.settings.seconds + ctx.settings.warmup + 1
            words = command(
                ctx.tools,
                server,
                "watch",
                per_second=10**7,
                seconds=seconds,
                warmup=0,
                connections=1,
                after=-1,
            )
            readers = [subprocess.Popen(words, stdout=subprocess.DEVNULL) for _ in range(size)]
            try:
                return ctx.slice(server, "sessions", **options)
            finally:
                for reader in readers:
                    reader.wait(seconds + 60)

        cells = []
        for size in sizes:
            cell = ctx.cell(f"watchers {size}", server, "sessions", **options)
            cells.append(type(cell)(cell.name, lambda size=size: watched(size), cell.before))
        found = ctx.alternate(cells)
    for size in sizes:
        row("watchers", size, f"watchers {size}", found)
