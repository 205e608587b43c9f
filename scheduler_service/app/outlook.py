"""How many requests go before a waiting one, and how long it may take.

There is one count, that of `core.ahead`.  Who asks about a waiting request gets it counted.  One
that was accepted just now gets it counted while few wait or slack is unbounded, else looked up in a
profile of the backlog (`core.profile`), since every call pays for it.  The expected wait is the
count times the mean time between dispatches while the pool was busy.  Arrivals still to come,
promotions and placement may change the order: it is a forecast and no promise.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from scheduler_service.core import decisions as d
from scheduler_service.core.ahead import requests_ahead
from scheduler_service.core.profile import Profile
from scheduler_service.core.request import Request
from scheduler_service.core.state import Pool, State

_PACE_WINDOW: Final = 64
_PACE_MIN: Final = 4

COUNTED_MAX: Final = 32
"""Waiting requests up to which one that was accepted just now has its place counted."""

KEPT_MIN: Final = COUNTED_MAX // 2
"""Waiting requests at which a profile is dropped; between the two one is kept, but none is made."""

_REDELIVERY: Final = d.Turn.REDELIVERY


Outlook = tuple[int, int]
"""What a waiting request can expect: how many are dispatched before it, and its wait from now in
nanoseconds, -1 if there is no pace to go by."""


class _Pace:
    """Mean time between the latest dispatches of one pool while something waited."""

    __slots__ = ("_gaps", "_last_ns", "_total_ns")

    def __init__(self) -> None:
        self._gaps: deque[int] = deque()
        self._total_ns: int = 0
        self._last_ns: int = 0

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


class Watched(Protocol):
    """What a forecast needs of the engine."""

    @property
    def state(self) -> State:
        """Everything; the forecast only reads it."""

    def on(self, kinds: Iterable[type[d.Decision]], handler: Callable[[Any], None]) -> None:
        """Has `handler` told of every decision of these kinds."""


class Forecast:
    """Makes outlooks, and keeps the pace of each pool."""

    def __init__(self, engine: Watched) -> None:
        self._state = engine.state
        self._paces: dict[str, _Pace] = {}
        self._profiles: dict[str, Profile] = {}
        engine.on((d.Dispatched,), self._dispatched)
        engine.on((d.Ended,), self._ended)
        engine.on((d.Paused, d.Resumed, d.UserConfigured), self._moved)
        engine.on((d.PoolDeleted,), self._pool_deleted)

    def at_once(self, pool: Pool, request: Request, now_ns: int) -> Outlook:
        """Returns what a request can expect that was accepted just now, the newest of its pool.

        The count is that of `outlook` while at most `COUNTED_MAX` requests wait, and with
        unbounded slack, else as near to it as `core.profile` says.

        Complexity:
            Some microseconds, and one to two milliseconds when a profile is made.
        """
        profile = self._profile(pool, now_ns)
        if profile is None and pool.waiting > COUNTED_MAX and pool.backlog.charged:
            profile = self._profiles[pool.name] = Profile(pool, request, now_ns)
        requests = -1 if profile is None else profile.before_newest(pool, request)
        if requests < 0 or pool.waiting <= COUNTED_MAX:
            return self.outlook(pool, request, now_ns)
        return requests, self.expected_wait_ns(pool, requests, now_ns)

    def outlook(self, pool: Pool, request: Request, now_ns: int) -> Outlook:
        """Returns what a waiting request can expect, counted."""
        requests = requests_ahead(pool, request)
        return requests, self.expected_wait_ns(pool, requests, now_ns)

    def expected_wait_ns(self, pool: Pool, requests_ahead: int, now_ns: int) -> int:
        """Returns how long a request behind so many others may wait; -1 without a pace."""
        pace = self._paces.get(pool.name)
        gap_ns = -1 if pace is None else pace.mean_ns(now_ns)
        return -1 if gap_ns < 0 else gap_ns * (requests_ahead + 1)

    def _dispatched(self, decision: d.Dispatched) -> None:
        name, now_ns = decision.pool, decision.now_ns
        pace = self._paces.get(name)
        if pace is None:
            pace = self._paces[name] = _Pace()
        pace.dispatched(now_ns)
        pool = self._state.pools[name]
        if self._profiles and decision.turn is not _REDELIVERY:
            profile = self._profile(pool, now_ns)
            if profile is not None:
                profile.dispatched(decision)
        if not pool.waiting:
            pace.idle()

    def _profile(self, pool: Pool, now_ns: int) -> Profile | None:
        """Returns the profile of a pool, if there is one; drops one that is of no more use."""
        profile = self._profiles.get(pool.name)
        if profile is None:
            return None
        if pool.waiting > KEPT_MIN and profile.serves(pool, now_ns):
            return profile
        del self._profiles[pool.name]
        return None

    def _ended(self, decision: d.Ended) -> None:
        pool = self._state.pools.get(decision.pool)
        profile = None if pool is None else self._profile(pool, decision.now_ns)
        if profile is not None:
            profile.ended()

    def _moved(self, decision: "d.Paused | d.Resumed | d.UserConfigured") -> None:
        profile = self._profiles.get(decision.pool)
        if profile is not None:
            profile.outdate()

    def _pool_deleted(self, decision: d.PoolDeleted) -> None:
        self._paces.pop(decision.pool, None)
        self._profiles.pop(decision.pool, None)
