"""How each system is driven: what enqueues, takes and completes, and what is measured of it."""

import json
import re
import subprocess
from collections.abc import Callable
from typing import Any

from tests.bench.load import Slice
from tests.bench.machine import MissingTools
from tests.bench.rivals import servers
from tests.bench.suite import Context

Found = dict[str, float]
"""`rate`, lifecycles a second, and `p50_ms`, `p99_ms`."""

_SLOW_SECONDS = 240.0


def client(ctx: Context, module: str, *words: object, timeout: float = _SLOW_SECONDS) -> Any:
    """Runs a Python client of a rival in the rivals' environment."""
    python = servers.python(install=ctx.settings.install)
    done = subprocess.run(
        [python, "-m", f"tests.bench.rivals.{module}", *map(str, words)],
        cwd=servers.ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{module} {words}: {done.stderr[-800:]}")
    return json.loads(done.stdout.splitlines()[-1])


def run_bullmq(ctx: Context, *words: object) -> Any:
    """Runs the benchmark of BullMQ."""
    folder = servers.node_folder(install=ctx.settings.install)
    done = subprocess.run(
        ["node", "bench.mjs", *map(str, words)],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=_SLOW_SECONDS,
    )
    if done.returncode != 0:
        raise RuntimeError(f"bullmq {words}: {done.stderr[-800:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _redis_load(ctx: Context, port: int, shape: str, connections: int, batch: int) -> Slice:
    words = [
        servers.redis_load(install=ctx.settings.install),
        port,
        shape,
        connections,
        batch,
        ctx.settings.seconds,
        ctx.settings.warmup,
        servers.HERE / "redis",
    ]
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
    """Runs pgbench on a script of the folder; one transaction is `batch` lifecycles."""
    log = server.folder / f"log-{script}-{clients}"
    done = subprocess.run(
        [
            servers.find("pgbench", install=False),
            "-n",
            "-M",
            "prepared",
            "-c",
            str(clients),
            "-j",
            "2",
            "-T",
            str(max(1, round(ctx.settings.seconds))),
            "-D",
            f"batch={batch}",
            "-h",
            str(server.folder),
            "-U",
            "bench",
            "-f",
            str(servers.HERE / "postgres" / script),
            "--log",
            f"--log-prefix={log}",
            "postgres",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
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


def of_ours(ctx: Context, durability: str) -> list[Entry]:
    """Fairsched itself: unary, batches, sessions."""
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
        (
            "fairsched",
            "sessions, 10 a message",
            durability,
            run("sessions", batch=10, in_system=1000, **sessions),
            _LOADED,
        ),
        (
            "fairsched",
            "sessions, 50 a message",
            durability,
            run("sessions", batch=50, in_system=2000, **sessions),
            _LOADED,
        ),
    ]
    return entries if durability == "sync" else entries[:1] + entries[3:]


def of_redis(ctx: Context, appendfsync: str) -> list[Entry]:
    """Redis by itself: streams, and a fair queue in Lua."""
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


def of_redis_frameworks(ctx: Context, appendfsync: str) -> list[Entry]:
    """What is built on Redis: BullMQ, Dramatiq, the scheduler of LiteLLM."""
    install = ctx.settings.install
    server = ctx.until_end(servers.Redis(ctx.settings.data, appendfsync, install=install))
    port, count = server.port, ctx.scale(4000, 300)
    entries: list[Entry] = []

    def bullmq(bulk: int) -> Measured:
        return lambda: _with_latency(
            run_bullmq(ctx, "rate", port, count, bulk), run_bullmq(ctx, "latency", port, 100)
        )

    try:
        servers.node_folder(install=install)
        entries += [
            ("bullmq", "add", appendfsync, bullmq(1), _IDLE),
            ("bullmq", "addBulk of 50", appendfsync, bullmq(50), _IDLE),
        ]
    except MissingTools as error:
        ctx.say(f"  left out: {error}")

    def dramatiq() -> Found:
        return _with_latency(
            client(ctx, "dramatiq_client", "rate", port, count),
            client(ctx, "dramatiq_client", "latency", port, 50),
        )

    def litellm() -> Found:
        return _with_latency(
            client(ctx, "litellm_client", "rate", port, count // 4, 16),
            client(ctx, "litellm_client", "latency", port, 50),
        )

    try:
        servers.python(install=install)
        entries += [
            ("dramatiq", "send", appendfsync, dramatiq, _IDLE),
            (
                "litellm scheduler",
                "c16, nothing to complete",
                appendfsync,
                litellm,
                "one turn, idle",
            ),
        ]
    except MissingTools as error:
        ctx.say(f"  left out: {error}")
    return entries


def of_postgres(ctx: Context) -> list[Entry]:
    """PostgreSQL with SKIP LOCKED, and Procrastinate on it."""
    install = ctx.settings.install
    server = ctx.until_end(servers.Postgres(ctx.settings.data, install=install))
    entries: list[Entry] = []
    for script, clients, batch, label in (
        ("single.sql", 64, 1, "c64"),
        ("single.sql", 1, 1, "c1"),
        ("batch.sql", 16, 50, "batches of 50"),
    ):

        def measure(script: str = script, clients: int = clients, batch: int = batch) -> Found:
            return _pgbench(ctx, server, script, clients, batch)

        entries.append(("postgres SKIP LOCKED", label, "sync", measure, _LOADED))
    folder, count = server.folder, ctx.scale(2000, 200)

    def procrastinate(batch: int) -> Measured:
        return lambda: _with_latency(
            client(ctx, "procrastinate_client", "rate", folder, count, batch),
            client(ctx, "procrastinate_client", "latency", folder, 50),
        )

    try:
        servers.python(install=install)
        entries += [
            ("procrastinate", "defer", "sync", procrastinate(1), _IDLE),
            ("procrastinate", "batch_defer of 50", "sync", procrastinate(50), _IDLE),
        ]
    except MissingTools as error:
        ctx.say(f"  left out: {error}")
    return entries
