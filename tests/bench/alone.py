"""The core alone and the store alone, each benchmark in a process of its own."""

import json
import subprocess
import sys
from typing import Any

from tests.bench.results import Table
from tests.bench.suite import Context, benchmark

PRESETS = ("fair_qba", "sfq", "qba", "psf", "aa", "fcfs")
_CORE_ASKED = (50_000, 100_000)
_GROWTH_ASKED = (8.0, 4.0)


def _core(ctx: Context, *, repeat: int | None = None, **options: Any) -> list[dict[str, Any]]:
    """Runs the core benchmark `repeat` times in fresh processes."""
    words = [sys.executable, "-m", "tests.bench.core", "--json"]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    found = []
    for _ in range(repeat or ctx.settings.rounds):
        for _attempt in range(ctx.settings.attempts):
            lost = ctx.guard.settled_percent()
            done = subprocess.run(words, check=True, capture_output=True, text=True)
            lost = max(lost, ctx.guard.lost_percent())
            if lost <= ctx.guard.limit:
                break
        found.append(json.loads(done.stdout))
        ctx.results.slices.append(
            {"benchmark": ctx.name, **options, "lost_percent": lost, **found[-1]}
        )
    return found


def _row(found: list[dict[str, Any]], first: list[object]) -> list[object]:
    def middle(key: str) -> float:
        return float(sorted(run[key] for run in found)[len(found) // 2])

    return [
        *first,
        1e6 / middle("dispatch_us"),
        middle("dispatch_us"),
        middle("best_us"),
        middle("enqueue_us"),
        middle("complete_us"),
        middle("bytes_a_request"),
    ]


_COLUMNS = ["dispatches/s", "us/dispatch", "best us", "us/enqueue", "us/complete", "B/request"]


@benchmark("core", "The core alone: presets, users, slack")
def core(ctx: Context) -> None:
    """Dispatches a second with the full record, its hash and the band check."""
    dispatches = ctx.scale(20_000, 5_000)
    table = Table("core", "Core, 10,000 backlogged users", ["preset", *_COLUMNS])
    for preset in PRESETS if not ctx.quick else ("fair_qba", "sfq"):
        found = _core(ctx, presets=preset, users=10_000, dispatches=dispatches)
        table.rows.append(_row(found, [preset]))
        ctx.say(f"  core {preset}: {table.rows[-1][1]:,.0f}/s")
        if preset == "fair_qba":
            ctx.results.add(
                "core",
                "core, 10,000 backlogged users, fair_qba, full decision records",
                [1e6 / run["dispatch_us"] for run in found],
                "dispatches/s",
                accept=_CORE_ASKED[0],
                goal=_CORE_ASKED[1],
            )
    ctx.results.tables.append(table)
    slacks = Table("core", "Core, 10,000 backlogged users, fair_qba", ["slack, milli", *_COLUMNS])
    for slack in (0, 100, 500, 2000, 8000) if not ctx.quick else (0, 2000):
        found = _core(
            ctx,
            repeat=1,
            users=10_000,
            presets="fair_qba",
            dispatches=dispatches,
            slack_milli=slack,
        )
        slacks.rows.append(_row(found, [slack]))
    ctx.results.tables.append(slacks)


@benchmark("core-users", "The core alone as users grow from 10 to a million", in_quick=False)
def core_users(ctx: Context) -> None:
    """Cost of a decision against the number of backlogged users."""
    table = Table("core-users", "Core, fair_qba, as backlogged users grow", ["users", *_COLUMNS])
    by_users: dict[int, list[float]] = {}
    counts = (10, 100, 1000, 10_000, 100_000, 1_000_000)
    for users in counts if not ctx.quick else counts[:5]:
        found = _core(
            ctx,
            repeat=1 if users in {10, 100, 10_000} else min(3, ctx.settings.rounds),
            users=users,
            presets="fair_qba",
        )
        table.rows.append(_row(found, [users]))
        by_users[users] = [run["dispatch_us"] for run in found]
        ctx.say(f"  core {users:,} users: {table.rows[-1][1]:,.0f}/s")
    ctx.results.tables.append(table)
    most = max(by_users)
    base = sorted(by_users[1000])[len(by_users[1000]) // 2]
    ctx.results.add(
        "core-users",
        f"core, cost a decision at {most:,} users against 1,000",
        [value / base for value in by_users[most]],
        "x",
        accept=_GROWTH_ASKED[0],
        goal=_GROWTH_ASKED[1],
        at_most=True,
    )


@benchmark("core-requests", "The core alone as the backlog grows from 1M to 5M requests", long=True)
def core_requests(ctx: Context) -> None:
    """Cost of a decision against the number of waiting requests of 1,000 users."""
    table = Table("core-requests", "Core, fair_qba, 1,000 users", ["requests", *_COLUMNS])
    for requests in (1_000_000, 2_000_000, 5_000_000) if not ctx.quick else (100_000,):
        found = _core(ctx, repeat=1, users=1000, presets="fair_qba", backlog=requests)
        table.rows.append(_row(found, [requests]))
        ctx.say(f"  core {requests:,} requests: {table.rows[-1][1]:,.0f}/s")
    ctx.results.tables.append(table)


@benchmark("store", "The store alone: appended groups, and callers that wait for a commit")
def store(ctx: Context) -> None:
    """Records a second and latencies for each durability and group size."""
    words = [
        sys.executable,
        "-m",
        "tests.bench.bench_store",
        "--json",
        "append",
        "callers",
        "--directory",
        str(ctx.settings.data),
        "--seconds",
        str(0.2 if ctx.quick else ctx.settings.seconds),
    ]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    for found in json.loads(done.stdout):
        rows = [[_number(cell) for cell in row] for row in found["rows"]]
        ctx.results.tables.append(Table("store", found["title"], found["columns"], rows))


def _number(cell: str) -> object:
    try:
        return float(cell.replace(",", ""))
    except ValueError:
        return cell
