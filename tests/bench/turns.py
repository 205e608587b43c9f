"""From `Acquire` to `Granted` on an idle pool: how long a gateway waits when nobody else does."""

from collections.abc import Callable
from functools import partial

from tests.bench import machine
from tests.bench.load import Slice
from tests.bench.results import Table
from tests.bench.suite import Context, benchmark

RATE = 100
_ASKED_MS = {"p50": (2.0, 1.0), "p99": (10.0, 5.0)}


@benchmark("acquire", "Acquire to Granted, idle pool, durable, open loop of 100/s")
def acquire(ctx: Context) -> None:
    """A gate, and a pool with one waiting worker; with the disk's own sync time beside it."""
    gate = ctx.service(policy={"mode": "gate", "gate_max_in_flight": 1000})
    pull = ctx.service()
    unsynced = ctx.service(durability="none", policy={"mode": "gate", "gate_max_in_flight": 1000})
    seconds = ctx.settings.seconds * ctx.scale(3, 1)
    stated = {"rate": RATE, "callers": 200, "seconds": seconds}
    cells = [
        ctx.cell("gate", gate, "acquire", gate=1, **stated),
        ctx.cell("pull", pull, "acquire", gate=0, batch=100, **stated),
        ctx.cell("gate, no sync", unsynced, "acquire", gate=1, **stated),
    ]
    syncs = [machine.sync_microseconds(ctx.settings.data)]
    found = ctx.alternate(cells)
    syncs.append(machine.sync_microseconds(ctx.settings.data))
    sync_ms = {level: max(sync[f"{level}_us"] for sync in syncs) / 1000 for level in ("p50", "p99")}
    table = Table(
        "acquire",
        f"Acquire, open loop of {RATE}/s (Poisson), ms from the intended time",
        ["pool", "granted p50", "granted p99", "granted max", "queued p50", "pacer p99"],
        note=f"a 4 KiB sync here: p50 {sync_ms['p50']:.2f} ms, p99 {sync_ms['p99']:.2f} ms",
    )
    for cell in cells:

        def ms(series: str, level: str, name: str = cell.name) -> float:
            return found.median(name, lambda s: s.quantile_us(series, level)) / 1000

        table.rows.append(
            [
                cell.name,
                ms("granted", "p50"),
                ms("granted", "p99"),
                ms("granted", "max"),
                ms("queued", "p50"),
                ms("pacer", "p99"),
            ]
        )
    ctx.results.tables.append(table)
    for name in ("gate", "pull"):
        for level, (accept, goal) in _ASKED_MS.items():
            ctx.results.add(
                "acquire",
                f"Acquire to Granted, {name}, {level}",
                found.values(name, _granted_ms(level)),
                "ms",
                accept=accept + sync_ms[level],
                goal=goal + sync_ms[level],
                at_most=True,
                note=f"limits: {accept:g} and {goal:g} ms plus the sync's own {sync_ms[level]:.2f}",
            )


def _granted_ms(level: str) -> Callable[[Slice], float]:
    return partial(_quantile_ms, level=level)


def _quantile_ms(slice_: Slice, level: str) -> float:
    return slice_.quantile_us("granted", level) / 1000
