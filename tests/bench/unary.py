"""Unary calls: the durable service beside the bare echo, batches, and an open loop."""

from tests.bench.load import Slice
from tests.bench.results import Table
from tests.bench.suite import Context, benchmark

_ASKED = {64: (0.70, 0.85), 256: (0.60, 0.70), 16: (0.55, 0.65), 1: (0.45, 0.55)}
_CPU_ASKED = (1.35, 1.15)
LEVELS = (0.50, 0.80, 0.95)
"""Parts of the measured capacity for the open loop."""


def rpc_rate(slice_: Slice) -> float:
    """Returns RPCs a second."""
    return slice_.rate("rpc")


def rpc_cpu(slice_: Slice) -> float:
    """Returns server CPU microseconds an RPC."""
    return slice_.cpu_us("rpc")


@benchmark("unary", "Unary lifecycle (Enqueue, NextDispatch, Complete), durable, beside bare echo")
def unary(ctx: Context) -> None:
    """Rates and CPU a call at 64, 256, 16 and 1 callers."""
    echo, service = ctx.echo(), ctx.service()
    callers = (64, 1) if ctx.quick else tuple(_ASKED)
    cells = []
    for count in callers:
        cells.append(ctx.cell(f"echo c{count}", echo, "echo", callers=count))
        cells.append(ctx.cell(f"durable c{count}", service, "lifecycle", callers=count))
        if not ctx.quick:
            cells.append(
                ctx.cell(f"piggyback c{count}", service, "lifecycle", callers=count, piggyback=1)
            )
    found = ctx.alternate(cells)
    table = Table(
        "unary",
        "Unary RPCs: bare echo, durable lifecycle, completions carried by NextDispatch",
        ["cell", "RPC/s", "x echo", "p50 ms", "p99 ms", "CPU us/RPC", "CPU x echo", "client cores"],
    )
    for cell in cells:
        base = f"echo c{cell.name.split(' c')[1]}"
        ratios = found.ratios(cell.name, rpc_rate, base)
        cpu = found.ratios(cell.name, rpc_cpu, base)
        table.rows.append(
            [
                cell.name,
                found.median(cell.name, rpc_rate),
                sorted(ratios)[len(ratios) // 2],
                found.median(cell.name, lambda s: s.quantile_us("rpc", "p50")) / 1000,
                found.median(cell.name, lambda s: s.quantile_us("rpc", "p99")) / 1000,
                found.median(cell.name, rpc_cpu),
                sorted(cpu)[len(cpu) // 2],
                found.median(cell.name, lambda s: s.client_cpu),
            ]
        )
    ctx.results.tables.append(table)
    for count in callers:
        accept, goal = _ASKED[count]
        ctx.results.add(
            "unary",
            f"unary RPCs, durable, {count} callers",
            found.ratios(f"durable c{count}", rpc_rate, f"echo c{count}"),
            "x echo",
            accept=accept,
            goal=goal,
        )
    ctx.results.add(
        "unary",
        "server CPU a call, durable, 64 callers",
        found.ratios("durable c64", rpc_cpu, "echo c64"),
        "x echo",
        accept=_CPU_ASKED[0],
        goal=_CPU_ASKED[1],
        at_most=True,
    )


@benchmark("batch", "Batches over unary calls, durable, beside bare echo", in_quick=False)
def batch(ctx: Context) -> None:
    """BatchEnqueue and a NextDispatch that carries completions, 10 and 50 items a call."""
    echo, service = ctx.echo(), ctx.service()
    cells = [ctx.cell("echo c64", echo, "echo", callers=64)]
    sizes = (10,) if ctx.quick else (10, 50, 200)
    cells += [ctx.cell(f"batch {size}", service, "batch", callers=16, batch=size) for size in sizes]
    found = ctx.alternate(cells)
    for size in sizes:
        ctx.results.add(
            "batch",
            f"lifecycles a second, batches of {size}",
            found.values(f"batch {size}", lambda s: s.rate("next_dispatch", "items_per_s")),
            "/s",
        )
        ctx.results.add(
            "batch",
            f"lifecycles a second against echo RPCs, batches of {size}",
            found.ratios(
                f"batch {size}",
                lambda s: s.rate("next_dispatch", "items_per_s"),
                "echo c64",
                rpc_rate,
            ),
            "x echo",
        )


@benchmark("open-loop", "Latency under open-loop load at 50, 80 and 95 % of capacity")
def open_loop(ctx: Context) -> None:
    """Whole unary lifecycles and whole session lifecycles; latency from the intended time."""
    service = ctx.service()
    shapes = {
        "unary": ("lifecycle", {"callers": 64}),
        "sessions": ("sessions", {"batch": 10, "workers": 8, "gateways": 4}),
    }
    table = Table(
        "open-loop",
        "Open loop (Poisson arrivals), latency from the intended time, ms",
        [
            "shape",
            "load",
            "arrivals/s",
            "served/s",
            "accept p50",
            "accept p99",
            "whole p50",
            "whole p99",
            "whole p99.9",
            "pacer p99",
        ],
        note="accept: Enqueue answered, durable; whole: until the completion is answered",
    )
    capacity = {}
    for shape, (mode, options) in shapes.items():
        cells = [ctx.cell(f"{shape} capacity", service, mode, **options)]
        found = ctx.alternate(cells, rounds=ctx.scale(3, 1))
        capacity[shape] = found.median(cells[0].name, lambda s: s.rate("lifecycle"))
    cells = []
    for shape, (mode, options) in shapes.items():
        open_options = {key: value for key, value in options.items() if key != "callers"}
        for level in LEVELS if not ctx.quick else LEVELS[:1]:
            rate = round(capacity[shape] * level, 1)
            cells.append(ctx.cell(f"{shape} {level:.0%}", service, mode, rate=rate, **open_options))
    found = ctx.alternate(cells)
    for cell in cells:
        shape, level = cell.name.split()
        rate = capacity[shape] * float(level[:-1]) / 100

        def ms(series: str, quantile: str, name: str = cell.name) -> float:
            return found.median(name, lambda s: s.quantile_us(series, quantile)) / 1000

        table.rows.append(
            [
                shape,
                level,
                rate,
                found.median(cell.name, lambda s: s.rate("lifecycle")),
                ms("enqueue", "p50"),
                ms("enqueue", "p99"),
                ms("lifecycle", "p50"),
                ms("lifecycle", "p99"),
                ms("lifecycle", "p999"),
                ms("pacer", "p99"),
            ]
        )
        for quantile in ("p50", "p99"):
            ctx.results.add(
                "open-loop",
                f"{shape}, {level} of {capacity[shape]:,.0f} lifecycles/s, {quantile}",
                [
                    v / 1000
                    for v in found.values(
                        cell.name, lambda s, q=quantile: s.quantile_us("lifecycle", q)
                    )
                ],
                "ms",
            )
    ctx.results.tables.append(table)
