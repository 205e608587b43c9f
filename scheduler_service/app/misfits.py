"""For how long requests waited for room, and pools stood still for one that did.

A *misfit* is a waiting request whose turn came and that a worker which asked could not take.  It is
one from the first time that

    - somebody was dispatched past it            `Dispatched.overtook`
    - a worker was reserved for it               `Reserved`
    - a worker asked and got nothing, and it was next

until it is dispatched or ends.  The log says the first two; a call that gets nothing leaves no
record, so the third is taken from its answer.  A request behind a misfit is none until its own turn
has come: what would fit whom is not worked out for the whole backlog.

A pool is *stalled* from a worker's call that gets nothing since the request that is next does not
fit it and nothing may pass (placement `stall`), or since the worker is kept for a reserved request,
until the pool's next dispatch.  It is not when those workers are gone or drained, the pool is
paused or configured anew, or nothing is left that may be selected.

Kept in memory only: after a restart the count begins anew.
"""

from collections.abc import Callable

from scheduler_service.app.engine import Engine
from scheduler_service.app.spans import Spans
from scheduler_service.core import answers as a
from scheduler_service.core import decisions as d
from scheduler_service.core.policy import Placement
from scheduler_service.core.request import Request
from scheduler_service.core.selection import frame_of, select
from scheduler_service.core.state import Pool

MISFITS_MAX = 100_000
"""Misfits that are remembered; the one that has been one longest is dropped first."""

Cleared = Callable[[str], None]

_SAYS_NOTHING = frozenset(
    {d.EmptyReason.NONE, d.EmptyReason.EMPTY, d.EmptyReason.LEASES_FULL, d.EmptyReason.DRAINING}
)


class _Stall:
    """Stalls of one pool.

    Attributes:
        spans: When it was stalled.
        workers: Who asked and got nothing in the open span.
        total_ns: Length of all closed spans.
    """

    __slots__ = ("spans", "total_ns", "workers")

    def __init__(self) -> None:
        self.spans = Spans()
        self.workers: set[str] = set()
        self.total_ns = 0

    def open(self, worker: str, now_ns: int) -> None:
        self.spans.open(now_ns)
        self.workers.add(worker)

    def close(self, now_ns: int) -> None:
        if self.spans.open_ns:
            self.total_ns += now_ns - self.spans.open_ns
            self.spans.close(now_ns)
        self.workers.clear()


class Misfits:
    """Watches what does not fit.

    Args:
        engine: Whose decisions are watched.

    Attributes:
        cleared: Told of the pool when a misfit of it was dispatched: what it stood in the way of
            may go now.
    """

    def __init__(self, engine: Engine) -> None:
        self.cleared: list[Cleared] = []
        self._engine = engine
        self._since: dict[tuple[str, str], int] = {}
        self._stalls: dict[str, _Stall] = {}
        now_ns = engine.now_ns()
        for pool in engine.state.pools.values():
            for request_id in pool.reserved_for:
                self._note(pool.name, request_id, now_ns)
        engine.on((d.Dispatched,), self._dispatched)
        engine.on((d.Reserved,), self._reserved)
        engine.on((d.Ended,), self._ended)
        engine.on((d.Paused, d.UserConfigured, d.PoolConfigured), self._moved)
        engine.on((d.WorkerGone, d.WorkerDrained), self._worker_left)
        engine.on((d.PoolDeleted,), self._pool_deleted)

    def asked(self, worker: str, pools: tuple[str, ...], answer: a.Dispatches) -> None:
        """Takes note of an answer that a worker gets now; to be called before the next command.

        A call that was not granted all it asked for, but for the worker's own limit, got nothing
        from any of its pools in the end; where something selectable waits, it did not fit.

        Complexity:
            O(1) if all was granted or nothing waits, else O(log n) a pool.
        """
        if answer.empty_reason in _SAYS_NOTHING:
            return
        now_ns = self._engine.now_ns()
        for name in pools:
            pool = self._engine.state.pools.get(name)
            if pool is None or _stands_not(pool):
                continue
            kept = answer.empty_reason is d.EmptyReason.RESERVED and worker in pool.reservations
            if not kept:
                blocking = select(pool, frame_of(pool, now_ns)).request
                self._note(name, blocking.request_id, now_ns)
            if kept or pool.policy.placement is Placement.STALL:
                stall = self._stalls.get(name)
                if stall is None:
                    stall = self._stalls[name] = _Stall()
                stall.open(worker, now_ns)

    def since(self, pool: Pool, request: Request) -> int:
        """Returns since when a request has been a misfit, nanoseconds; 0 if it is none."""
        return self._since.get((pool.name, request.request_id), 0)

    def stalled(self, pool: Pool, since_ns: int, until_ns: int, now_ns: int) -> int:
        """Returns for how many nanoseconds between two times the pool was stalled."""
        stall = self._stalls.get(pool.name)
        if stall is None:
            return 0
        spans = stall.spans
        return spans.since(since_ns, now_ns) - spans.since(until_ns, now_ns)

    def counts(self) -> dict[str, int]:
        """Returns the number of misfits by pool."""
        found: dict[str, int] = {}
        for name, _ in self._since:
            found[name] = found.get(name, 0) + 1
        return found

    def stalled_ns(self, pool: str, now_ns: int) -> int:
        """Returns for how long a pool has been stalled since the service started."""
        stall = self._stalls.get(pool)
        if stall is None:
            return 0
        open_ns = stall.spans.open_ns
        return stall.total_ns + (now_ns - open_ns if open_ns else 0)

    def _note(self, pool: str, request_id: str, now_ns: int) -> None:
        since = self._since
        if len(since) >= MISFITS_MAX and (pool, request_id) not in since:
            del since[next(iter(since))]
        since.setdefault((pool, request_id), now_ns)

    def _dispatched(self, x: d.Dispatched) -> None:
        for request_id in x.overtook:
            self._note(x.pool, request_id, x.now_ns)
        if self._since and self._since.pop((x.pool, x.request_id), 0):
            for tell in self.cleared:
                tell(x.pool)
        if self._stalls and x.pool in self._stalls:
            self._stalls[x.pool].close(x.now_ns)

    def _reserved(self, x: d.Reserved) -> None:
        self._note(x.pool, x.request_id, x.now_ns)

    def _ended(self, x: d.Ended) -> None:
        self._since.pop((x.pool, x.request_id), None)
        self._moved(x)

    def _moved(self, x: "d.Ended | d.Paused | d.UserConfigured | d.PoolConfigured") -> None:
        stall = self._stalls.get(x.pool)
        if stall is None:
            return
        pool = self._engine.state.pools.get(x.pool)
        if pool is None or _stands_not(pool) or isinstance(x, d.PoolConfigured):
            stall.close(x.now_ns)

    def _worker_left(self, x: "d.WorkerGone | d.WorkerDrained") -> None:
        for stall in self._stalls.values():
            if x.worker in stall.workers:
                stall.workers.remove(x.worker)
                if not stall.workers:
                    stall.close(x.now_ns)

    def _pool_deleted(self, x: d.PoolDeleted) -> None:
        self._stalls.pop(x.pool, None)
        for key in [key for key in self._since if key[0] == x.pool]:
            del self._since[key]


def _stands_not(pool: Pool) -> bool:
    """Whether a pool cannot be stalled: it is paused, or nothing in it may be selected."""
    return pool.paused or not pool.backlog.selectable
