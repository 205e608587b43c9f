"""What a waiting request can expect: how many are ahead, and how long it may take.

An estimate, made in time that does not grow with the queue:

- own requests ahead: those older in its user's queue that its class order puts first;
- other users' requests ahead: for every selectable user with a smaller meter, as many of its
  requests as fit between its meter and the start tag of ours (SFQ §2.1), measured by the charge of
  its oldest.  At most 32 users are looked at, evenly spread over the order, and the rest is scaled;
- expected wait: requests ahead, times the mean time between dispatches while the pool was busy.

Later arrivals of other users, promotions and placement may change the order, so it is a forecast
and no promise.
"""

from collections import deque
from typing import NamedTuple

from scheduler_service.app.engine import Engine
from scheduler_service.core import decisions as d
from scheduler_service.core.charge import charge_for
from scheduler_service.core.policy import ClassOrder, PredictedClass, WithinUser
from scheduler_service.core.state import Pool, Request

_USERS_SAMPLED = 32
_WALK_MAX = 1000
_PACE_WINDOW = 64
_PACE_MIN = 4


class Outlook(NamedTuple):
    """What a waiting request can expect.

    Attributes:
        requests_ahead: Requests expected to be dispatched before it.
        users_ahead: Other users with such requests.
        expected_wait_ns: Expected wait from now; -1 if there is no pace to go by.
    """

    requests_ahead: int
    users_ahead: int
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
    """Makes outlooks.

    Complexity:
        O(log n) a forecast with at most 32 users and 1000 own requests looked at; O(1) a dispatch.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._paces: dict[str, _Pace] = {}
        engine.listeners.append(self._decided)

    def outlook(self, pool: Pool, request: Request, now_ns: int) -> Outlook:
        """Returns what a waiting request can expect."""
        own, own_charge = _own_ahead(pool, request)
        others, users = _others_ahead(pool, request, own_charge)
        ahead = own + others
        pace = self._paces.get(pool.name)
        gap_ns = -1 if pace is None else pace.mean_ns(now_ns)
        return Outlook(ahead, users, -1 if gap_ns < 0 else gap_ns * (ahead + 1))

    def _decided(self, _before: int, decisions: list[d.Decision]) -> None:
        for decision in decisions:
            kind = type(decision)
            if kind is d.Dispatched:
                name = decision.pool  # type: ignore[union-attr]
                pace = self._paces.get(name)
                if pace is None:
                    pace = self._paces[name] = _Pace()
                pace.dispatched(decision.now_ns)
                if not self._engine.state.pools[name].waiting:
                    pace.idle()
            elif kind is d.PoolDeleted:
                self._paces.pop(decision.pool, None)  # type: ignore[union-attr]


def _own_ahead(pool: Pool, request: Request) -> tuple[int, int]:
    """Returns how many of its user's own requests go first, and what they charge (micros)."""
    flow = pool.flows[request.user_id]
    passes = pool.policy.within_user is WithinUser.CLASS and (
        pool.policy.class_order is not ClassOrder.FCFS
    )
    count, cost, older = 0, 0, request.older
    while older is not None and count < _WALK_MAX:
        count += 1
        cost += older.cost
        older = older.older
    rest = flow.waiting - 1 - count
    if older is not None and rest > 0:
        cost += rest * (cost // count)
        count += rest
    elif passes and request.predicted_class is PredictedClass.LONG:
        shorts, short = 0, flow.oldest_short
        while short is not None and shorts < _WALK_MAX:
            shorts += 1
            cost += short.cost
            short = short.newer
        count += shorts
    elif not passes:
        others = flow.oldest_long
        if request.predicted_class is PredictedClass.LONG:
            others = flow.oldest_short
        walked = 0
        while others is not None and others.sequence < request.sequence and walked < _WALK_MAX:
            walked += 1
            cost += others.cost
            others = others.newer
        count += walked
    return count, charge_for(cost, flow.weight_milli) if cost else 0


def _others_ahead(pool: Pool, request: Request, own_charge: int) -> tuple[int, int]:
    """Returns other users' requests expected first, and how many users they are of."""
    flow = pool.flows[request.user_id]
    if not pool.backlog.charged:
        return pool.waiting - flow.waiting, max(pool.backlog.selectable - 1, 0)
    index = pool.backlog.index
    start_tag = flow.meter + own_charge
    before = index.bisect_left((start_tag, request.sequence, ""))
    if before == 0:
        return 0, 0
    step = max(before // _USERS_SAMPLED, 1)
    looked = ahead = users = 0
    for position in range(0, before, step):
        other = pool.flows[index[position][2]]
        looked += 1
        if other is flow:
            continue
        oldest = other.oldest()
        charge = charge_for(oldest.cost, other.weight_milli) if oldest is not None else 1
        room = -(-(start_tag - other.meter) // charge)
        ahead += min(other.waiting, max(room, 1))
        users += 1
    return ahead * before // looked, users * before // looked
