"""Fairsched beside what people would use instead: the same work, machine, run and sync policy."""

import json
import os
import re
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.load import Slice
from tests.bench.machine import MissingTools
from tests.bench.results import Table
from tests.bench.rivals import fairness, ours, servers
from tests.bench.suite import Context, benchmark

Found = dict[str, float]
"""`rate`, lifecycles a second, and `p50_ms`, `p99_ms` of one at a time; what was measured of them."""

_SLOW_SECONDS = 240.0


def _client(ctx: Context, module: str, *words: object, timeout: float = _SLOW_SECONDS) -> Any:
    """Runs a Python client of a rival in the rivals' environment."""
    python = servers.python(install=ctx.settings.install)
    done = subprocess.run(
        [python, "-m", f"tests.bench.rivals.{module}", *map(str, words)],
        cwd=servers.ROOT, check=False, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{module} {words}: {done.stderr[-800:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _bullmq(ctx: Context, *words: object) -> Any:
    folder = servers.node_folder(install=ctx.settings.install)
    done = subprocess.run(
        ["node", "bench.mjs", *map(str, words)],
        cwd=folder, check=False, capture_output=True, text=True, timeout=_SLOW_SECONDS,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"bullmq {words}: {done.stderr[-800:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _redis_load(ctx: Context, port: int, shape: str, connections: int, batch: int) -> Slice:
    words = [
        servers.redis_load(install=ctx.settings.install), port, shape, connections, batch,
        ctx.settings.seconds, ctx.settings.warmup, servers.HERE / "redis",
    ]  # fmt: skip
    done = subprocess.run(list(map(str, words)), check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    return Slice(found["series"], {}, {}, 0.0, found["client_cpu"], 0.0)


def _of_slice(slice_: Slice) -> Found:
    return {
        "rate": slice_.rate("lifecycle", "items_per_s"),
        "p50_ms": slice_.quantile_us("lifecycle", "p50") / 1000,
        "p99_ms": slice_.quantile_us("lifecycle", "p99") / 1000,
    }


def _pgbench(
    ctx: Context, server: servers.Postgres, script: str, clients: int, batch: int
) -> Found:
    """Runs pgbench on a script of the folder; a transaction of it is a whole lifecycle (or `batch`)."""
    log = server.folder / f"log-{script}-{clients}"
    done = subprocess.run(
        [servers.find("pgbench", install=False), "-n", "-M", "prepared", "-c", str(clients), "-j", "2",
         "-T", str(max(1, round(ctx.settings.seconds))), "-D", f"batch={batch}", "-h",
         str(server.folder), "-U", "bench", "-f", str(servers.HERE / "postgres" / script),
         "--log", f"--log-prefix={log}", "postgres"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    rate = float(re.findall(r"tps = ([\d.]+)", done.stdout)[-1])
    times = sorted(
        int(line.split()[2]) / 1000
        for path in log.parent.glob(f"{log.name}*")
        for line in path.read_text().splitlines()
    )
    return {
        "rate": rate * batch,
        "p50_ms": times[len(times) // 2],
        "p99_ms": times[len(times) * 99 // 100],
    }


def _with_latency(rate: Any, alone: Any) -> Found:
    return {"rate": rate["rate"], "p50_ms": alone["p50_ms"], "p99_ms": alone["p99_ms"]}


Measured = Callable[[], Found]
Entry = tuple[str, str, str, Measured, str]
"""System, shape, durability, what measures it, what the latency is of."""

_LOADED = "lifecycle at this load"
_IDLE = "enqueue to begin, idle"


def _ours(ctx: Context, durability: str) -> list[Entry]:
    server = ctx.service(durability=durability)

    def run(mode: str, **options: Any) -> Measured:
        return lambda: _of_slice(ctx.slice(server, mode, **options))

    def batches() -> Found:
        slice_ = ctx.slice(server, "batch", callers=16, batch=50)
        found = _of_slice(slice_)
        found["rate"] = slice_.rate("next_dispatch", "items_per_s")
        for level in ("p50", "p99"):
            steps = ("batch_enqueue", "next_dispatch")
            found[f"{level}_ms"] = sum(slice_.quantile_us(step, level) for step in steps) / 1000
        return found

    sessions = {"workers": 16, "gateways": 4}
    entries: list[Entry] = [
        ("fairsched", "unary c64", durability, run("lifecycle", callers=64), _LOADED),
        ("fairsched", "unary c1", durability, run("lifecycle", callers=1), _LOADED),
        ("fairsched", "batches of 50", durability, batches, "enqueue + take at this load"),
        ("fairsched", "sessions, 10 a message", durability,
         run("sessions", batch=10, in_system=1000, **sessions), _LOADED),
        ("fairsched", "sessions, 50 a message", durability,
         run("sessions", batch=50, in_system=4000, **sessions), _LOADED),
    ]  # fmt: skip
    return entries if durability == "sync" else entries[:1] + entries[3:]


def _redis(ctx: Context, appendfsync: str) -> list[Entry]:
    install = ctx.settings.install
    server = ctx.until_end(servers.Redis(ctx.settings.data, appendfsync, install=install))
    servers.redis_load(install=install)
    entries: list[Entry] = []
    for shape, name in (("streams", "redis streams (FIFO)"), ("lua", "redis lua (fair)")):
        for connections, batch in ((64, 1), (1, 1), (16, 50)):
            label = f"batches of {batch}" if batch > 1 else f"c{connections}"

            def measure(
                shape: str = shape, connections: int = connections, batch: int = batch
            ) -> Found:
                return _of_slice(_redis_load(ctx, server.port, shape, connections, batch))

            entries.append((name, label, appendfsync, measure, _LOADED))
    return entries


def _redis_frameworks(ctx: Context, appendfsync: str) -> list[Entry]:
    install = ctx.settings.install
    server = ctx.until_end(servers.Redis(ctx.settings.data, appendfsync, install=install))
    port, count = server.port, ctx.scale(4000, 300)
    entries: list[Entry] = []

    def bullmq(bulk: int) -> Measured:
        return lambda: _with_latency(
            _bullmq(ctx, "rate", port, count, bulk), _bullmq(ctx, "latency", port, 100)
        )

    try:
        servers.node_folder(install=install)
        entries += [("bullmq", "add", appendfsync, bullmq(1), _IDLE),
                    ("bullmq", "addBulk of 50", appendfsync, bullmq(50), _IDLE)]  # fmt: skip
    except MissingTools as error:
        ctx.say(f"  left out: {error}")

    def dramatiq() -> Found:
        return _with_latency(
            _client(ctx, "dramatiq_client", "rate", port, count),
            _client(ctx, "dramatiq_client", "latency", port, 50),
        )

    def litellm() -> Found:
        return _with_latency(
            _client(ctx, "litellm_client", "rate", port, count // 4, 16),
            _client(ctx, "litellm_client", "latency", port, 50),
        )

    try:
        servers.python(install=install)
        entries += [("dramatiq", "send", appendfsync, dramatiq, _IDLE),
                    ("litellm scheduler", "c16, nothing to complete", appendfsync, litellm,
                     "one turn, idle")]  # fmt: skip
    except MissingTools as error:
        ctx.say(f"  left out: {error}")
    return entries


def _postgres(ctx: Context) -> list[Entry]:
    install = ctx.settings.install
    server = ctx.until_end(servers.Postgres(ctx.settings.data, install=install))
    entries: list[Entry] = []
    for script, clients, batch, label in (
        ("single.sql", 64, 1, "c64"), ("single.sql", 1, 1, "c1"), ("batch.sql", 16, 50, "batches of 50"),
    ):  # fmt: skip

        def measure(script: str = script, clients: int = clients, batch: int = batch) -> Found:
            return _pgbench(ctx, server, script, clients, batch)

        entries.append(("postgres SKIP LOCKED", label, "sync", measure, _LOADED))
    folder, count = server.folder, ctx.scale(2000, 200)

    def procrastinate(batch: int) -> Measured:
        return lambda: _with_latency(
            _client(ctx, "procrastinate_client", "rate", folder, count, batch),
            _client(ctx, "procrastinate_client", "latency", folder, 50),
        )

    try:
        servers.python(install=install)
        entries += [("procrastinate", "defer", "sync", procrastinate(1), _IDLE),
                    ("procrastinate", "batch_defer of 50", "sync", procrastinate(50), _IDLE)]  # fmt: skip
    except MissingTools as error:
        ctx.say(f"  left out: {error}")
    return entries


@benchmark(
    "rivals", "The same work through Redis, BullMQ, PostgreSQL, Dramatiq, LiteLLM", long=True
)
def rivals(ctx: Context) -> None:
    """Enqueue, take in order, complete; durable with the same sync policy; alternating rounds."""
    entries = _ours(ctx, "sync") + _ours(ctx, "async")
    for group in (
        lambda: _redis(ctx, "always"), lambda: _redis(ctx, "everysec"),
        lambda: _redis_frameworks(ctx, "always"), lambda: _postgres(ctx),
    ):  # fmt: skip
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
        "rivals", "Lifecycles (enqueue, take in order, complete) through each system",
        ["system", "shape", "durability", "lifecycles/s", "low", "high", "p50 ms", "p99 ms", "latency of"],
        note="durability: always and sync make every answer durable; everysec and async do not",
    )  # fmt: skip
    for number, (system, shape, durability, _, latency) in enumerate(entries):
        runs = found[number]
        if not runs:
            continue
        rates = [run["rate"] for run in runs]
        table.rows.append([
            system, shape, durability, statistics.median(rates), min(rates), max(rates),
            statistics.median(run["p50_ms"] for run in runs),
            statistics.median(run["p99_ms"] for run in runs), latency,
        ])  # fmt: skip
    ctx.results.tables.append(table)


def _guarded(ctx: Context, entry: Entry, runs: list[Found]) -> None:
    """Measures one entry; repeats it while the spin test beside it is bad."""
    system, shape, durability, measure, _ = entry
    run: Found = {}
    lost = 0.0
    for _ in range(min(ctx.settings.attempts, 2)):
        lost = ctx.guard.lost_percent()
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
    ctx.results.slices.append({"benchmark": "rivals", "cell": f"{system}, {shape}, {durability}",
                               "round": len(runs), "lost_percent": lost, **run})  # fmt: skip
    ctx.say(f"  {system}, {shape}, {durability}: {run['rate']:,.0f}/s p50 {run['p50_ms']:.2f} ms "
            f"p99 {run['p99_ms']:.2f} ms")  # fmt: skip


@benchmark("rivals-fairness", "The multi-tenant trace through each system", long=True)
def rivals_fairness(ctx: Context) -> None:
    """Who waits when 1.2 times the capacity arrives."""
    play = fairness.make_play(ctx.scale(20, 5), part=1.0 if not ctx.quick else 0.25)
    trace = ctx.settings.data / f"bench-trace-{os.getpid()}.json"
    fairness.write_trace(play, trace)
    table = Table(
        "rivals-fairness",
        f"{len(play.arrivals)} requests of 21 users at 1.2 x capacity, {fairness.SERVERS} servers",
        ["system", "light users' mean wait, s", "light P99, s", "heavy users' mean wait, s",
         "heavy P99, s", "largest gap / largest request", "Jain index", "finished after, s"],
        note="light: demand below an equal share; gap: between two users while both waited",
    )  # fmt: skip
    for name, run in _players(ctx, play, trace):
        try:
            found = fairness.judge(play, [(int(a), b, c) for a, b, c in run()])
        except (MissingTools, RuntimeError, ValueError, subprocess.SubprocessError) as error:
            ctx.say(f"  {name}: {str(error)[:1000]}")
            ctx.results.failures[f"fairness of {name}"] = str(error)[:300]
            continue
        table.rows.append([
            name, found.light_mean, found.light_p99, found.heavy_mean, found.heavy_p99, found.gap,
            found.jain, found.seconds,
        ])  # fmt: skip
        ctx.say(f"  {name}: light {found.light_mean:.2f} s, heavy {found.heavy_mean:.2f} s, "
                f"gap {found.gap:.1f}, Jain {found.jain:.3f}")  # fmt: skip
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
        ("redis streams", lambda: on_redis(
            lambda port: _client(ctx, "redis_client", "replay", port, "streams", *words))),
        ("redis lua (fair)", lambda: on_redis(
            lambda port: _client(ctx, "redis_client", "replay", port, "lua", *words))),
        ("bullmq", lambda: on_redis(lambda port: _bullmq(ctx, "replay", port, *words))),
        ("postgres SKIP LOCKED", lambda: on_postgres(
            lambda folder: _client(ctx, "postgres_client", "replay", folder, *words))),
        ("procrastinate", lambda: on_postgres(
            lambda folder: _client(ctx, "procrastinate_client", "replay", folder, *words))),
        ("dramatiq", lambda: on_redis(
            lambda port: _client(ctx, "dramatiq_client", "replay", port, *words))),
        ("litellm scheduler", lambda: on_redis(
            lambda port: _client(ctx, "litellm_client", "replay", port, *words))),
    ]  # fmt: skip
