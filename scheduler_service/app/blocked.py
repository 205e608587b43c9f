"""For how long a request was held back by something other than the order, by cause.

Spans in which a user with waiting requests was at its cap or paused, or its pool was paused, are
kept as they end.  A request was blocked for as much of them as lies behind its acceptance.  What
does not fit, and what it blocks, is watched by `app.misfits`: a request is blocked by FIT from when
it is a misfit, without the time in which its user or its pool was held back, and before that by
STALLED while its pool was.  A user can be held back while its pool is stalled, so the causes may
overlap.  Kept in memory only: after a restart the count begins anew.

Bounded: a user keeps its last spans only, older ones are run together; a user without waiting
requests keeps none.
"""

from typing import Any

from scheduler_service.app.engine import Engine
from scheduler_service.app.misfits import Misfits
from scheduler_service.app.spans import Spans
from scheduler_service.core import decisions as d
from scheduler_service.core.backlog import OUT
from scheduler_service.core.outlook import WaitCause
from scheduler_service.core.request import Request
from scheduler_service.core.state import Flow, Pool

_Key = tuple[str, str]


class Blocked:
    """Watches who is held back.

    Attributes:
        misfits: What waits for room.
    """

    def __init__(self, engine: Engine) -> None:
        self._state = engine.state
        self.misfits = Misfits(engine)
        self._users: dict[_Key, dict[WaitCause, Spans]] = {}
        self._pools: dict[str, Spans] = {}
        now_ns = engine.now_ns()
        for pool in engine.state.pools.values():
            self._follow_pool(pool, now_ns)
            for flow in pool.flows.values():
                self._follow(pool, flow, now_ns)
        engine.on(_TOUCHES_A_USER, self._touched)
        engine.on((d.Paused, d.Resumed, d.UserConfigured), self._configured)
        engine.on((d.PoolDeleted,), self._pool_deleted)

    def held(self) -> dict[tuple[str, WaitCause], int]:
        """Returns how many users with waiting requests are held back now, by pool and cause."""
        found: dict[tuple[str, WaitCause], int] = {}
        for (pool, _), causes in self._users.items():
            for cause, spans in causes.items():
                if spans.open_ns:
                    found[pool, cause] = found.get((pool, cause), 0) + 1
        return found

    def of(self, pool: Pool, request: Request, now_ns: int) -> dict[WaitCause, int]:
        """Returns nanoseconds blocked, by cause, of a request that waits."""
        found = {}
        since_ns = request.enqueue_ns
        spans = self._pools.get(pool.name)
        if spans is not None:
            found[WaitCause.POOL_PAUSED] = spans.since(since_ns, now_ns)
        users = self._users.get((pool.name, request.user_id), {})
        for cause, own in users.items():
            found[cause] = own.since(since_ns, now_ns)
        misfit_ns = self.misfits.since(pool, request)
        if misfit_ns:
            held_ns = sum(own.since(misfit_ns, now_ns) for own in users.values())
            held_ns += spans.since(misfit_ns, now_ns) if spans is not None else 0
            found[WaitCause.FIT] = now_ns - misfit_ns - held_ns
        found[WaitCause.STALLED] = self.misfits.stalled(pool, since_ns, misfit_ns or now_ns, now_ns)
        return {cause: blocked_ns for cause, blocked_ns in found.items() if blocked_ns > 0}

    def _touched(self, decision: Any) -> None:
        pool = self._state.pools.get(decision.pool)
        if pool is None or not (self._users or pool.may_hold_back):
            return
        user_id = decision.user_id
        flow = pool.flows.get(user_id)
        if self._users or (flow is not None and flow.place == OUT and flow.waiting):
            self._touch(pool, user_id, flow, decision.now_ns)

    def _pool_deleted(self, decision: d.PoolDeleted) -> None:
        self._pools.pop(decision.pool, None)
        for key in [key for key in self._users if key[0] == decision.pool]:
            del self._users[key]

    def _configured(self, decision: "d.Paused | d.Resumed | d.UserConfigured") -> None:
        pool = self._state.pools.get(decision.pool)
        if pool is None:
            return
        if decision.user_id:
            user_id = decision.user_id
            self._touch(pool, user_id, pool.flows.get(user_id), decision.now_ns)
        else:
            self._follow_pool(pool, decision.now_ns)

    def _touch(self, pool: Pool, user_id: str, flow: Flow | None, now_ns: int) -> None:
        if flow is None or flow.waiting == 0:
            self._users.pop((pool.name, user_id), None)
        else:
            self._follow(pool, flow, now_ns)

    def _follow_pool(self, pool: Pool, now_ns: int) -> None:
        spans = self._pools.get(pool.name)
        if pool.paused:
            if spans is None:
                spans = self._pools[pool.name] = Spans()
            spans.open(now_ns)
        elif spans is not None:
            spans.close(now_ns)

    def _follow(self, pool: Pool, flow: Flow, now_ns: int) -> None:
        key = (pool.name, flow.user_id)
        causes = self._users.get(key)
        now_is = None
        if flow.place == OUT and flow.waiting:
            now_is = WaitCause.USER_PAUSED if flow.paused else WaitCause.USER_CAP
        if causes is None:
            if now_is is None:
                return
            causes = self._users[key] = {}
        for cause, spans in causes.items():
            if cause is not now_is:
                spans.close(now_ns)
        if now_is is not None:
            spans = causes.setdefault(now_is, Spans())
            spans.open(now_ns)


_TOUCHES_A_USER = (
    d.Accepted,
    d.Dispatched,
    d.Rejoined,
    d.Completed,
    d.Ended,
    d.LeaseEnded,
    d.Requeued,
)
