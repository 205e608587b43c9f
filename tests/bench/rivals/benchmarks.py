"""Fairsched beside what people would use instead: the same work, machine, run and sync policy."""

import os
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.machine import MissingTools
from tests.bench.results import Table
from tests.bench.rivals import fairness, ours, servers
from tests.bench.rivals.systems import (
    Entry,
    Found,
    client,
    of_ours,
    of_postgres,
    of_redis,
    of_redis_frameworks,
    run_bullmq,
)
from tests.bench.suite import Context, benchmark


@benchmark(
    "rivals", "The same work through Redis, BullMQ, PostgreSQL, Dramatiq, LiteLLM", long=True
)
def rivals(ctx: Context) -> None:
    """Enqueue, take in order, complete; durable with the same sync policy; alternating rounds."""
    entries = of_ours(ctx, "sync") + of_ours(ctx, "async")
    for group in (
        lambda: of_redis(ctx, "always"),
        lambda: of_redis(ctx, "everysec"),
        lambda: of_redis_frameworks(ctx, "always"),
        lambda: of_postgres(ctx),
    ):
        try:
            entries += group()
        except MissingTools as error:
            ctx.say(f"  left out: {error}")
            ctx.results.failures[f"rivals ({len(entries)})"] = str(error)
    found: dict[int, list[Found]] = {number: [] for number in range(len(entries))}
    for round_ in range(ctx.scale(ctx.settings.rounds, 1)):
        order = list(range(len(entries)))
        for number in order if round_ % 2 == 0 else order[::-1]:
            _guarded(ctx, entries[number], found[number])
    table = Table(
        "rivals",
        "Lifecycles (enqueue, take in order, complete) through each system",
        [
            "system",
            "shape",
            "durability",
            "lifecycles/s",
            "low",
            "high",
            "p50 ms",
            "p99 ms",
            "latency of",
        ],
        note="durability: always and sync make every answer durable; everysec and async do not",
    )
    for number, (system, shape, durability, _, latency) in enumerate(entries):
        runs = found[number]
        if not runs:
            continue
        rates = [run["rate"] for run in runs]
        table.rows.append(
            [
                system,
                shape,
                durability,
                statistics.median(rates),
                min(rates),
                max(rates),
                statistics.median(run["p50_ms"] for run in runs),
                statistics.median(run["p99_ms"] for run in runs),
                latency,
            ]
        )
    ctx.results.tables.append(table)


def _guarded(ctx: Context, entry: Entry, runs: list[Found]) -> None:
    """Measures one entry; repeats it while the spin test beside it is bad."""
    system, shape, durability, measure, _ = entry
    run: Found = {}
    lost = 0.0
    for _ in range(min(ctx.settings.attempts, 2)):
        lost = ctx.guard.settled_percent()
        try:
            run = measure()
        except (subprocess.SubprocessError, RuntimeError) as error:
            ctx.say(f"  {system}, {shape}: {str(error)[:1000]}")
            ctx.results.failures[f"{system}, {shape}, {durability}"] = str(error)[:300]
            return
        lost = max(lost, ctx.guard.lost_percent())
        if lost <= ctx.guard.limit:
            break
    runs.append(run)
    ctx.results.slices.append(
        {
            "benchmark": "rivals",
            "cell": f"{system}, {shape}, {durability}",
            "round": len(runs),
            "lost_percent": lost,
            **run,
        }
    )
    ctx.say(
        f"  {system}, {shape}, {durability}: {run['rate']:,.0f}/s p50 {run['p50_ms']:.2f} ms "
        f"p99 {run['p99_ms']:.2f} ms"
    )


@benchmark("rivals-fairness", "The multi-tenant trace through each system", long=True)
def rivals_fairness(ctx: Context) -> None:
    """Who waits when 1.2 times the capacity arrives."""
    play = fairness.make_play(ctx.scale(20, 5), part=1.0 if not ctx.quick else 0.25)
    users = len({arrival.user for arrival in play.arrivals})
    trace = ctx.settings.data / f"bench-trace-{os.getpid()}.json"
    fairness.write_trace(play, trace)
    table = Table(
        "rivals-fairness",
        f"{len(play.arrivals)} requests of {users} users at 1.2 x capacity, "
        f"{fairness.SERVERS} servers",
        [
            "system",
            "light users' mean wait, s",
            "light P99, s",
            "heavy users' mean wait, s",
            "heavy P99, s",
            "largest gap / largest request",
            "Jain index",
            "finished after, s",
        ],
        note="light: demand below an equal share; gap: between two users while both waited",
    )
    for name, run in _players(ctx, play, trace):
        try:
            found = fairness.judge(play, [(int(a), b, c) for a, b, c in run()])
        except (MissingTools, RuntimeError, ValueError, subprocess.SubprocessError) as error:
            ctx.say(f"  {name}: {str(error)[:1000]}")
            ctx.results.failures[f"fairness of {name}"] = str(error)[:300]
            continue
        table.rows.append(
            [
                name,
                found.light_mean,
                found.light_p99,
                found.heavy_mean,
                found.heavy_p99,
                found.gap,
                found.jain,
                found.seconds,
            ]
        )
        ctx.say(
            f"  {name}: light {found.light_mean:.2f} s, heavy {found.heavy_mean:.2f} s, "
            f"gap {found.gap:.1f}, Jain {found.jain:.3f}"
        )
    trace.unlink()
    ctx.results.tables.append(table)


def _players(
    ctx: Context, play: fairness.Play, trace: Path
) -> list[tuple[str, Callable[[], list[Any]]]]:
    """Returns the systems that can play the trace."""
    install, unit = ctx.settings.install, play.unit_seconds
    words = (trace, fairness.SERVERS, unit)

    def our_own(preset: str) -> list[Any]:
        with ctx.service(policy={"preset": preset, "cost_source": "caller"}) as server:
            return list(ours.replay(server.target, play))

    def on_redis(run: Callable[[int], Any]) -> list[Any]:
        with servers.Redis(ctx.settings.data, "always", install=install) as server:
            return list(run(server.port)["records"])

    def on_postgres(run: Callable[[Path], Any]) -> list[Any]:
        with servers.Postgres(ctx.settings.data, install=install) as server:
            return list(run(server.folder)["records"])

    return [
        ("fairsched fair_qba", lambda: our_own("fair_qba")),
        ("fairsched sfq", lambda: our_own("sfq")),
        ("fairsched fcfs", lambda: our_own("fcfs")),
        (
            "redis streams",
            lambda: on_redis(
                lambda port: client(ctx, "redis_client", "replay", port, "streams", *words)
            ),
        ),
        (
            "redis lua (fair)",
            lambda: on_redis(
                lambda port: client(ctx, "redis_client", "replay", port, "lua", *words)
            ),
        ),
        ("bullmq", lambda: on_redis(lambda port: run_bullmq(ctx, "replay", port, *words))),
        (
            "postgres SKIP LOCKED",
            lambda: on_postgres(
                lambda folder: client(ctx, "postgres_client", "replay", folder, *words)
            ),
        ),
        (
            "procrastinate",
            lambda: on_postgres(
                lambda folder: client(ctx, "procrastinate_client", "replay", folder, *words)
            ),
        ),
        (
            "dramatiq",
            lambda: on_redis(lambda port: client(ctx, "dramatiq_client", "replay", port, *words)),
        ),
        (
            "litellm scheduler",
            lambda: on_redis(lambda port: client(ctx, "litellm_client", "replay", port, *words)),
        ),
    ]
