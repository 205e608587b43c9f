"""How long a waiting request was held back by something other than the order, and by what.

Kept from the decisions, since the service started: when a pool or a user was paused, when a user
was at its cap, and since when a request has been passed over because it did not fit.  A request's
blocked time is where these times overlap its wait.  What the log does not say (that a gate was
full, that a head of the queue stalled everybody) is not counted.

Complexity:
    O(1) a decision.  Memory is bounded: `SPANS_MAX` spans a holder, `HOLDERS_MAX` holders; the
    oldest are forgotten first.
"""

from collections import OrderedDict, deque
from typing import NamedTuple

from scheduler_service.core import decisions as d
from scheduler_service.core.outlook import WaitCause
from scheduler_service.core.state import Flow, Request, State

SPANS_MAX = 64
HOLDERS_MAX = 10_000

_Holder = tuple[str, str]
"""(pool, user id); an empty user id is the pool itself."""


class _Span(NamedTuple):
    cause: WaitCause
    start_ns: int
    end_ns: int


class _Spans:
    """Times at which one holder was held back."""

    __slots__ = ("closed", "open")

    def __init__(self) -> None:
        self.open: dict[WaitCause, int] = {}
        self.closed: deque[_Span] = deque(maxlen=SPANS_MAX)

    def close(self, cause: WaitCause, now_ns: int) -> None:
        start_ns = self.open.pop(cause, None)
        if start_ns is not None and start_ns < now_ns:
            self.closed.append(_Span(cause, start_ns, now_ns))


class Holds:
    """Remembers what held requests back; a listener of the engine."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._spans: OrderedDict[_Holder, _Spans] = OrderedDict()
        self._misfits: OrderedDict[tuple[str, str], int] = OrderedDict()
        for pool in state.pools.values():
            if pool.paused:
                self._open((pool.name, ""), WaitCause.POOL_PAUSED, state.now_ns)
            for flow in pool.flows.values():
                if flow.paused:
                    self._open((pool.name, flow.user_id), WaitCause.USER_PAUSED, state.now_ns)
                if _at_cap(flow):
                    self._open((pool.name, flow.user_id), WaitCause.USER_CAP, state.now_ns)

    @property
    def capped_users(self) -> int:
        """Users at their cap right now."""
        return sum(WaitCause.USER_CAP in spans.open for spans in self._spans.values())

    def blocked(self, pool: str, request: Request, now_ns: int) -> list[tuple[WaitCause, int]]:
        """Returns (cause, nanoseconds) for what held a waiting request back so far."""
        totals: dict[WaitCause, int] = {}
        for holder in ((pool, ""), (pool, request.user_id)):
            spans = self._spans.get(holder)
            if spans is None:
                continue
            still = (_Span(cause, start, now_ns) for cause, start in spans.open.items())
            for cause, start_ns, end_ns in (*spans.closed, *still):
                overlap = end_ns - max(start_ns, request.enqueue_ns)
                if overlap > 0:
                    totals[cause] = totals.get(cause, 0) + overlap
        passed_ns = self._misfits.get((pool, request.request_id))
        if passed_ns is not None and now_ns > passed_ns:
            totals[WaitCause.FIT] = now_ns - passed_ns
        return sorted(totals.items())

    def decided(self, _before: int, decisions: list[d.Decision]) -> None:
        """Follows decisions; a listener of the engine."""
        for x in decisions:
            kind = type(x)
            if kind is d.Dispatched:
                self._dispatched(x)  # type: ignore[arg-type]
            elif kind is d.Accepted:
                flow = self._flow(x)
                if flow is not None and flow.max_in_flight and _at_cap(flow):
                    self._open((x.pool, x.user_id), WaitCause.USER_CAP, x.now_ns)  # type: ignore[union-attr]
            elif kind in _OTHERS:
                self._other(x)

    def _flow(self, x: d.Decision) -> Flow | None:
        pool = self._state.pools.get(x.pool)  # type: ignore[union-attr]
        return None if pool is None else pool.flows.get(x.user_id)  # type: ignore[union-attr]

    def _dispatched(self, x: d.Dispatched) -> None:
        if self._misfits:
            self._misfits.pop((x.pool, x.request_id), None)
        for request_id in x.overtook:
            self._misfits.setdefault((x.pool, request_id), x.now_ns)
            if len(self._misfits) > HOLDERS_MAX:
                self._misfits.popitem(last=False)
        flow = self._flow(x)
        if flow is not None and flow.max_in_flight and _at_cap(flow):
            self._open((x.pool, x.user_id), WaitCause.USER_CAP, x.now_ns)

    def _other(self, x: d.Decision) -> None:
        match x:
            case d.Paused():
                cause = WaitCause.USER_PAUSED if x.user_id else WaitCause.POOL_PAUSED
                self._open((x.pool, x.user_id), cause, x.now_ns)
            case d.Resumed():
                cause = WaitCause.USER_PAUSED if x.user_id else WaitCause.POOL_PAUSED
                self._close((x.pool, x.user_id), cause, x.now_ns)
            case d.Completed() | d.Ended() | d.UserConfigured() | d.Rejoined():
                if isinstance(x, d.Ended) and self._misfits:
                    self._misfits.pop((x.pool, x.request_id), None)
                self._recheck_cap(x.pool, x.user_id, x.now_ns)
            case d.PoolConfigured() | d.PoolDeleted():
                for pool, user_id in [key for key in self._spans if key[0] == x.pool]:
                    self._recheck_cap(pool, user_id, x.now_ns)
            case _:
                pass

    def _recheck_cap(self, pool_name: str, user_id: str, now_ns: int) -> None:
        spans = self._spans.get((pool_name, user_id))
        if spans is None or WaitCause.USER_CAP not in spans.open:
            return
        pool = self._state.pools.get(pool_name)
        flow = None if pool is None else pool.flows.get(user_id)
        if flow is None or not _at_cap(flow):
            spans.close(WaitCause.USER_CAP, now_ns)

    def _open(self, holder: _Holder, cause: WaitCause, now_ns: int) -> None:
        spans = self._spans.get(holder)
        if spans is None:
            spans = self._spans[holder] = _Spans()
            if len(self._spans) > HOLDERS_MAX:
                self._spans.popitem(last=False)
        spans.open.setdefault(cause, now_ns)

    def _close(self, holder: _Holder, cause: WaitCause, now_ns: int) -> None:
        spans = self._spans.get(holder)
        if spans is not None:
            spans.close(cause, now_ns)


def _at_cap(flow: Flow) -> bool:
    return 0 < flow.max_in_flight <= flow.in_flight


_OTHERS = frozenset(
    {
        d.Paused,
        d.Resumed,
        d.Completed,
        d.Ended,
        d.UserConfigured,
        d.Rejoined,
        d.PoolConfigured,
        d.PoolDeleted,
    }
)
