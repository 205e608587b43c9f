"""For how long a request was held back by something other than the order, by cause.

Spans in which a user with waiting requests was at its cap or paused, or its pool was paused, are
kept as they end.  A request was blocked for as much of them as lies behind its acceptance.  Kept in
memory only: after a restart the count begins anew.

Bounded: a user keeps its last spans only, older ones are run together; a user without waiting
requests keeps none.
"""

from collections import deque
from typing import Any, NamedTuple

from scheduler_service.app.engine import Engine
from scheduler_service.core import decisions as d
from scheduler_service.core.backlog import OUT
from scheduler_service.core.outlook import WaitCause
from scheduler_service.core.request import Request
from scheduler_service.core.state import Flow, Pool

_SPANS_MAX = 32

_Key = tuple[str, str]


class _Span(NamedTuple):
    """Blocked for `blocked_ns` of the time from `start_ns` to `end_ns`."""

    start_ns: int
    end_ns: int
    blocked_ns: int

    def since(self, time_ns: int) -> int:
        if time_ns <= self.start_ns:
            return self.blocked_ns
        if time_ns >= self.end_ns:
            return 0
        return self.blocked_ns * (self.end_ns - time_ns) // (self.end_ns - self.start_ns)


class _Spans:
    """Spans of one cause, and the one that is open."""

    __slots__ = ("_closed", "open_ns")

    def __init__(self) -> None:
        self._closed: deque[_Span] = deque()
        self.open_ns = 0

    def close(self, now_ns: int) -> None:
        if not self.open_ns:
            return
        self._closed.append(_Span(self.open_ns, now_ns, now_ns - self.open_ns))
        self.open_ns = 0
        if len(self._closed) > _SPANS_MAX:
            first, second = self._closed.popleft(), self._closed.popleft()
            blocked_ns = first.blocked_ns + second.blocked_ns
            self._closed.appendleft(_Span(first.start_ns, second.end_ns, blocked_ns))

    def since(self, time_ns: int, now_ns: int) -> int:
        total = sum(span.since(time_ns) for span in self._closed)
        return total + (now_ns - max(self.open_ns, time_ns) if self.open_ns else 0)


class Blocked:
    """Watches who is held back."""

    def __init__(self, engine: Engine) -> None:
        self._state = engine.state
        self._users: dict[_Key, dict[WaitCause, _Spans]] = {}
        self._pools: dict[str, _Spans] = {}
        now_ns = engine.state.now_ns
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
        for cause, own in self._users.get((pool.name, request.user_id), {}).items():
            found[cause] = own.since(since_ns, now_ns)
        return {cause: blocked_ns for cause, blocked_ns in found.items() if blocked_ns > 0}

    def _touched(self, decision: Any) -> None:
        pool = self._state.pools.get(decision.pool)
        if pool is None:
            return
        flow = pool.flows.get(decision.user_id)
        if self._users or (flow is not None and flow.place == OUT and flow.waiting):
            self._touch(pool, decision.user_id, flow, decision.now_ns)

    def _pool_deleted(self, decision: d.PoolDeleted) -> None:
        self._pools.pop(decision.pool, None)

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
                spans = self._pools[pool.name] = _Spans()
            spans.open_ns = spans.open_ns or now_ns
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
            spans = causes.setdefault(now_is, _Spans())
            spans.open_ns = spans.open_ns or now_ns


_TOUCHES_A_USER = (
    d.Accepted,
    d.Dispatched,
    d.Rejoined,
    d.Completed,
    d.Ended,
    d.LeaseEnded,
    d.Requeued,
)
