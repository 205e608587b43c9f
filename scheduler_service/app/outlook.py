"""How many requests go before a waiting one, and how long it may take.

There is one count, that of `core.ahead`.  Who asks about a waiting request gets it counted.  One
that was accepted just now gets it counted while few wait, and looked up in a profile of the backlog
(`core.profile`) while many do, since every call pays for it.  The expected wait is the count times
the mean time between dispatches while the pool was busy.  Arrivals still to come, promotions and
placement may change the order: it is a forecast and no promise.
"""

from collections import deque
from typing import NamedTuple

from scheduler_service.app.engine import Engine
from scheduler_service.core import decisions as d
from scheduler_service.core.ahead import ahead_of
from scheduler_service.core.profile import Profile
from scheduler_service.core.request import Request
from scheduler_service.core.state import Pool

_PACE_WINDOW = 64
_PACE_MIN = 4

COUNTED_MAX = 32
"""Waiting requests up to which one that was accepted just now has its place counted."""


class Outlook(NamedTuple):
    """What a waiting request can expect.

    Attributes:
        requests_ahead: Requests expected to be dispatched before it.
        expected_wait_ns: Expected wait from now; -1 if there is no pace to go by.
    """

    requests_ahead: int
    expected_wait_ns: int


class _Pace:
    """Mean time between the latest dispatches of one pool while something waited."""

    __slots__ = ("_gaps", "_last_ns", "_total_ns")

    def __init__(self) -> None:
        self._gaps: deque[int] = deque()
        self._total_ns = 0
        self._last_ns = 0

    def dispatched(self, now_ns: int) -> None:
        if self._last_ns:
            gap = now_ns - self._last_ns
            self._gaps.append(gap)
            self._total_ns += gap
            if len(self._gaps) > _PACE_WINDOW:
                self._total_ns -= self._gaps.popleft()
        self._last_ns = now_ns

    def idle(self) -> None:
        self._last_ns = 0

    def mean_ns(self, now_ns: int) -> int:
        """Returns the mean gap; the one that is still open counts once it is longer."""
        count = len(self._gaps)
        if count < _PACE_MIN:
            return -1
        mean = self._total_ns // count
        if self._last_ns and now_ns - self._last_ns > mean:
            return (self._total_ns + now_ns - self._last_ns) // (count + 1)
        return mean


class Forecast:
    """Makes outlooks, and keeps the pace of each pool."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._paces: dict[str, _Pace] = {}
        self._profiles: dict[str, Profile] = {}
        engine.on((d.Dispatched,), self._dispatched)
        engine.on((d.Ended,), self._ended)
        engine.on((d.Paused, d.Resumed, d.UserConfigured), self._moved)
        engine.on((d.PoolDeleted,), self._pool_deleted)

    def at_once(self, pool: Pool, request: Request, now_ns: int) -> Outlook:
        """Returns what a request can expect that was accepted just now, the newest of its pool.

        The count is exactly that of `outlook` while at most `COUNTED_MAX` requests wait, else
        as near to it as `core.profile` says.

        Complexity:
            Some tens of microseconds at most, on average over calls.
        """
        if pool.waiting <= COUNTED_MAX:
            self._profiles.pop(pool.name, None)
            return self.outlook(pool, request, now_ns)
        profile = self._profiles.get(pool.name)
        if profile is None or not profile.serves(pool, now_ns):
            profile = self._profiles[pool.name] = Profile(pool, request, now_ns)
        requests = profile.before_newest(pool, request)
        return Outlook(requests, self.expected_wait_ns(pool, requests, now_ns))

    def outlook(self, pool: Pool, request: Request, now_ns: int) -> Outlook:
        """Returns what a waiting request can expect, counted."""
        requests = ahead_of(pool, request).requests
        return Outlook(requests, self.expected_wait_ns(pool, requests, now_ns))

    def expected_wait_ns(self, pool: Pool, requests_ahead: int, now_ns: int) -> int:
        """Returns how long a request behind so many others may wait; -1 without a pace."""
        pace = self._paces.get(pool.name)
        gap_ns = -1 if pace is None else pace.mean_ns(now_ns)
        return -1 if gap_ns < 0 else gap_ns * (requests_ahead + 1)

    def _dispatched(self, decision: d.Dispatched) -> None:
        pace = self._paces.get(decision.pool)
        if pace is None:
            pace = self._paces[decision.pool] = _Pace()
        pace.dispatched(decision.now_ns)
        if self._profiles and decision.turn is not d.Turn.REDELIVERY:
            profile = self._profiles.get(decision.pool)
            if profile is not None:
                profile.dispatched(decision)
        if not self._engine.state.pools[decision.pool].waiting:
            pace.idle()

    def _ended(self, decision: d.Ended) -> None:
        profile = self._profiles.get(decision.pool)
        if profile is not None:
            profile.changed()

    def _moved(self, decision: "d.Paused | d.Resumed | d.UserConfigured") -> None:
        self._profiles.pop(decision.pool, None)

    def _pool_deleted(self, decision: d.PoolDeleted) -> None:
        self._paces.pop(decision.pool, None)
        self._profiles.pop(decision.pool, None)
