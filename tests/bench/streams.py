"""Sessions: workers on a backlog, whole lifecycles, a full queue against an empty one."""

from tests.bench.load import Slice, fill
from tests.bench.results import Table
from tests.bench.servers import Process
from tests.bench.suite import Context, benchmark
from tests.bench.unary import rpc_cpu, rpc_rate

_ASKED = {10: (6.0, 8.0), 50: (8.0, 10.0)}
_LIFECYCLE_ASKED = (20_000 / 5_000, 30_000 / 5_000)
"""20,000 lifecycles a second where the echo does 5,000 calls; try for 30,000."""

_BACKLOG_ASKED = (0.85, 0.95)


def lifecycle_rate(slice_: Slice) -> float:
    """Returns lifecycles (dispatch and completion) a second."""
    return slice_.rate("lifecycle")


class Backlog:
    """Keeps a service's queue filled between slices.

    Args:
        ctx: The benchmark's.
        server: The service.
        size: Waiting requests that a slice begins with.
        users: Their users.
    """

    def __init__(self, ctx: Context, server: Process, size: int, *, users: int = 1000) -> None:
        self._ctx = ctx
        self._server = server
        self._users = users
        self.size = size
        self._waiting = 0

    def refill(self) -> None:
        """Adds what is missing."""
        fill(self._ctx.tools, self._server, self.size - self._waiting, users=self._users)
        self._waiting = max(self.size, self._waiting)

    def taken(self, slice_: Slice, series: str) -> Slice:
        """Takes note of what a slice took; rates are over the window, so allow for the rest."""
        window = slice_.series.get(series, {}).get("items", 0)
        options = slice_.options
        seconds = options["seconds"]
        self._waiting -= int(window * (1 + (options["warmup"] + 1) / seconds))
        self._waiting = max(self._waiting, 0)
        return slice_


_UNDER_WAY = {1: "", 2: ", two under way", 4: ", four under way"}
"""With four, 16 workers have as many messages under way as the echo beside them has calls."""


_TOLD_ALL = "worker session 50, two under way, told all"


def _session(batch: int, window: int) -> str:
    return f"worker session {batch}{_UNDER_WAY[window]}"


@benchmark("worker-session", "Worker sessions on a backlog, durable, against echo RPCs")
def worker_session(ctx: Context) -> None:
    """16 workers, 10 and 50 items a message; each waits for its answer, or keeps some under way.

    They ask for brief results, as the Python client does; one cell does not.
    """
    echo, service = ctx.echo(), ctx.service()
    size = ctx.scale(400_000, 60_000)
    backlog = Backlog(ctx, service, size)
    ctx.say(f"  filling {size:,} requests")
    cells = [ctx.cell("echo c64", echo, "echo", callers=64)]
    shapes = (
        ((10, 1),) if ctx.quick else ((1, 1), (10, 1), (10, 2), (10, 4), (50, 1), (50, 2), (50, 4))
    )
    names = {_session(batch, window): (batch, window, 1) for batch, window in shapes}
    if not ctx.quick:
        names[_TOLD_ALL] = (50, 2, 0)
    for name, (batch, window, brief) in names.items():
        options = {"workers": 16, "gateways": 0, "batch": batch, "window": window, "brief": brief}
        cell = ctx.cell(name, service, "sessions", backlog.refill, **options)
        measure = cell.measure
        cells.append(
            type(cell)(
                cell.name, lambda measure=measure: backlog.taken(measure(), "dispatch"), cell.before
            )
        )
    if not ctx.quick:
        cells.append(ctx.cell("echo session 10", echo, "echo-session", streams=16, batch=10))
    found = ctx.alternate(cells)
    table = Table(
        "worker-session",
        "Worker sessions, 16 streams, on a backlog",
        ["cell", "items/s", "x echo RPC/s", "messages/s", "CPU us/item"],
    )
    for name, (batch, window, brief) in names.items():
        ratios = found.ratios(name, lifecycle_rate, "echo c64", rpc_rate)
        accept, goal = _ASKED.get(batch, (None, None)) if brief else (None, None)
        measure = ctx.results.add(
            "worker-session",
            f"dispatch + complete a second, {batch} items a message{_UNDER_WAY[window]}"
            + ("" if brief else ", told all"),
            ratios,
            "x echo",
            accept=accept,
            goal=goal,
        )
        table.rows.append(
            [
                name,
                found.median(name, lifecycle_rate),
                measure.value,
                found.median(name, lambda s: s.rate("dispatch_message")),
                found.median(name, lambda s: s.cpu_us("lifecycle")),
            ]
        )
    if not ctx.quick:
        name = "echo session 10"
        ratios = found.ratios(
            name, lambda s: s.rate("message", "items_per_s"), "echo c64", rpc_rate
        )
        table.rows.append(
            [
                name,
                found.median(name, lambda s: s.rate("message", "items_per_s")),
                sorted(ratios)[len(ratios) // 2],
                found.median(name, lambda s: s.rate("message")),
                found.median(name, lambda s: s.cpu_us("message", "items_per_s")),
            ]
        )
    ctx.results.tables.append(table)


@benchmark("lifecycle-sessions", "Whole lifecycle over sessions on both sides, durable")
def lifecycle_sessions(ctx: Context) -> None:
    """4 gateways enqueue, 16 workers take and complete; with brief results, and without."""
    echo, service = ctx.echo(), ctx.service()
    shapes = {
        "10 a message": {"batch": 10, "in_system": 1000},
        "50 a message": {"batch": 50, "in_system": 2000},
        "50 a message, told all": {"batch": 50, "in_system": 2000, "brief": 0},
    }
    cells = [ctx.cell("echo c64", echo, "echo", callers=64)]
    cells += [
        ctx.cell(name, service, "sessions", workers=16, gateways=4, **options)
        for name, options in shapes.items()
    ]
    found = ctx.alternate(cells)
    for name, options in shapes.items():
        accept, goal = _LIFECYCLE_ASKED if options.get("brief", 1) else (None, None)
        ctx.results.add(
            "lifecycle-sessions",
            f"lifecycles a second, {name}",
            found.values(name, lifecycle_rate),
            "/s",
        )
        ctx.results.add(
            "lifecycle-sessions",
            f"lifecycles against echo RPCs, {name}",
            found.ratios(name, lifecycle_rate, "echo c64", rpc_rate),
            "x echo",
            accept=accept,
            goal=goal,
        )
        ctx.results.add(
            "lifecycle-sessions",
            f"server CPU a lifecycle, {name}",
            found.values(name, lambda s: s.cpu_us("lifecycle")),
            "us",
        )


@benchmark("backlog", "A million waiting requests against an empty queue", in_quick=False)
def backlog(ctx: Context) -> None:
    """The same load on both: unary lifecycles of 64 callers, and sessions."""
    empty, full = ctx.service(), ctx.service()
    size = ctx.scale(1_000_000, 20_000)
    ctx.say(f"  filling {size:,} requests")
    fill(ctx.tools, full, size, users=10_000)
    shapes = {
        "unary c64": ("lifecycle", {"callers": 64}, rpc_rate),
        "sessions 10": ("sessions", {"batch": 10, "workers": 16, "gateways": 4}, lifecycle_rate),
    }
    cells = []
    for name, (mode, options, _) in shapes.items():
        cells.append(ctx.cell(f"empty {name}", empty, mode, **options))
        cells.append(ctx.cell(f"full {name}", full, mode, **options))
    found = ctx.alternate(cells)
    for name, (_, _, rate) in shapes.items():
        ctx.results.add(
            "backlog",
            f"rate with {size:,} waiting against empty, {name}",
            found.ratios(f"full {name}", rate, f"empty {name}"),
            "x empty",
            accept=_BACKLOG_ASKED[0],
            goal=_BACKLOG_ASKED[1],
        )
    ctx.results.add(
        "backlog",
        f"server CPU a call with {size:,} waiting against empty, unary c64",
        found.ratios("full unary c64", rpc_cpu, "empty unary c64"),
        "x empty",
    )
