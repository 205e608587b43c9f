"""Resident memory of the service for each waiting request, idle user, lease and stream."""

import subprocess
import threading
from pathlib import Path

from tests.bench.load import command, fill, run
from tests.bench.results import Table
from tests.bench.servers import POOL, Process
from tests.bench.suite import Context, benchmark

_ASKED_BYTES = (900.0, 600.0)
_STREAMS = 500


def settled_bytes(server: Process, wait: threading.Event) -> int:
    """Returns resident memory once it has stopped growing."""
    before = server.resident_bytes()
    for _ in range(20):
        wait.wait(0.5)
        now = server.resident_bytes()
        if abs(now - before) < 1 << 18:
            return now
        before = now
    return before


@benchmark("memory", "Memory for each waiting request, idle user, lease and stream, as RSS")
def memory(ctx: Context) -> None:
    """Everything that grows with the thing counted: index, id maps, remembered ids."""
    count = ctx.scale(1_000_000, 20_000)
    wait = threading.Event()
    table = Table("memory", "Resident memory of the service", ["what", "count", "bytes each"])

    def add(
        what: str, number: int, grown: int, *, asked: tuple[float, float] | None = None
    ) -> None:
        each = grown / number
        table.rows.append([what, number, each])
        accept, goal = asked or (None, None)
        ctx.results.add(
            "memory", f"memory for {what}", [each], "B", accept=accept, goal=goal, at_most=True
        )
        ctx.say(f"  memory for {what}: {each:,.0f} B ({number:,})")

    server = ctx.service()
    fill(ctx.tools, server, ctx.scale(20_000, 2_000), users=1000)
    empty = settled_bytes(server, wait)
    fill(ctx.tools, server, count, users=1000)
    waiting = settled_bytes(server, wait)
    add("a waiting request, 1,000 users", count, waiting - empty, asked=_ASKED_BYTES)
    leases = count // 5
    run(ctx.tools, server, "take", count=leases)
    leased = settled_bytes(server, wait)
    add("a lease more than waiting", leases, leased - waiting)
    run(ctx.tools, server, "take", count=leases, complete=1, worker="second")
    ended = settled_bytes(server, wait)
    add("a request that has ended, less one that waits", leases, ended - leased)
    server.close()

    server = ctx.service()
    fill(ctx.tools, server, ctx.scale(20_000, 2_000), users=1000)
    empty = settled_bytes(server, wait)
    fill(ctx.tools, server, count, users=10 * count)
    busy = settled_bytes(server, wait)
    add("a waiting request of a user of its own", count, busy - empty)
    server.close()

    server = ctx.service()
    fill(ctx.tools, server, 1000, users=100)
    add("an open worker session", _STREAMS, _streams(ctx, server, wait))
    ctx.results.tables.append(table)


@benchmark(
    "memory-idle-users",
    "Memory for an idle user that is still ahead of virtual time",
    in_quick=False,
)
def idle_users(ctx: Context) -> None:
    """Served once each, while others wait: their meters are kept.

    The same number of requests is served for few users; the difference is what the users take.
    """
    count = ctx.scale(200_000, 10_000)
    wait = threading.Event()
    grown = {}
    for users in (10, 100 * count):
        with ctx.service() as server:
            fill(ctx.tools, server, 1000, users=10)
            before = settled_bytes(server, wait)
            fill(ctx.tools, server, count, users=users)
            run(ctx.tools, server, "take", count=count, complete=1)
            grown[users] = settled_bytes(server, wait) - before
    few, many = grown.values()
    ctx.results.add(
        "memory-idle-users",
        "memory for an idle user",
        [(many - few) / count],
        "B",
        note="RSS keeps the high-water mark of the waiting requests in both runs",
    )


def _streams(ctx: Context, server: Process, wait: threading.Event) -> int:
    """Returns what open worker sessions without credits add."""
    before = settled_bytes(server, wait)
    words = command(ctx.tools, server, "hold", streams=_STREAMS, pool=POOL, connections=8)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as held:
        assert held.stdout is not None
        if held.stdout.readline() != "held\n":
            raise RuntimeError(f"sessions were refused: {held.stdout.read()}")
        after = settled_bytes(server, wait)
        held.communicate("")
    return after - before


def tree_bytes(folder: Path) -> int:
    """Returns the size of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
