"""What happened since the service started: plain integers, counted from the decisions.

One listener of the engine counts; statistics, metrics and the console all read the same numbers.
What is there *now* is never counted here: it is read from the state (`app.census`).

Complexity:
    O(1) a decision, well under a microsecond; memory is bounded by pools and `USERS_TALLIED_MAX`.
"""

from typing import Any, Final, final

from scheduler_service.core import decisions as d
from scheduler_service.core.policy import SECOND_NS, PredictedClass
from scheduler_service.core.search import place

USERS_TALLIED_MAX = 20_000
"""Users of a pool with a tally of their own; when there are more, the smaller half goes."""

WAIT_BOUNDS_NS: Final = tuple(
    millis * 1_000_000
    for millis in (10, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000)
)
"""Upper bounds of the waiting-time buckets, inclusive: 10 ms … 5 min; one more has no end."""

_WAIT_BOUNDS: Final = list(WAIT_BOUNDS_NS)

_REDELIVERY: Final = d.Turn.REDELIVERY
_PROMOTION: Final = d.Rule.PROMOTION
_OVERTAKE: Final = d.Turn.OVERTAKE

_DISPATCHED: Final = d.Dispatched
_COMPLETED: Final = d.Completed
_ACCEPTED: Final = d.Accepted


@final
class Waits:
    """Waiting times of one class by bucket.

    Attributes:
        counts: By bucket, not cumulative; one more than `WAIT_BOUNDS_NS`.
        sum_ns: Their sum.
    """

    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(WAIT_BOUNDS_NS) + 1)
        self.sum_ns: int = 0


@final
class UserTally:
    """First dispatches of one user, and their cost units."""

    __slots__ = ("cost", "dispatched")

    def __init__(self) -> None:
        self.dispatched: int = 0
        self.cost: int = 0


@final
class PoolTally:
    """What happened in one pool.

    Attributes:
        accepted: Requests accepted.
        dispatched: First dispatches, by turn and rule: `dispatches` sums to it.
        redelivered: Dispatches of requests whose lease was lost.
        cost: Cost units of first dispatches; with a finite slack, what was charged.
        ended: Requests ended, by state.
        leases_ended: Leases that ended unfinished, by cause.
        overtakes: Requests passed over since they did not fit, once for each time.
        rejoins: Users that became selectable again after being held back.
        busy_periods: Times the pool ran out of waiting requests.
        waits: Waiting times until the first dispatch, by class.
        users: By user; see `USERS_TALLIED_MAX`.
        refused: Refused requests by reason.
    """

    __slots__ = (
        "accepted",
        "busy_periods",
        "cost",
        "dispatched",
        "dispatches",
        "ended",
        "leases_ended",
        "overtakes",
        "redelivered",
        "refused",
        "rejoins",
        "users",
        "waits",
    )

    def __init__(self) -> None:
        self.accepted: int = 0
        self.dispatched: int = 0
        self.redelivered: int = 0
        self.cost: int = 0
        self.overtakes: int = 0
        self.rejoins: int = 0
        self.busy_periods: int = 0
        self.dispatches: dict[tuple[Any, ...], int] = {}
        self.ended: dict[d.RequestState, int] = {}
        self.leases_ended: dict[d.LeaseEndCause, int] = {}
        self.waits = {kind: Waits() for kind in PredictedClass}
        self.users: dict[str, UserTally] = {}
        self.refused: dict[str, int] = {}

    @property
    def promoted(self) -> int:
        """Dispatches that were promotions."""
        return sum(n for (_, rule), n in self.dispatches.items() if rule is _PROMOTION)

    @property
    def overtaking(self) -> int:
        """Dispatches of something that came later but did fit."""
        return sum(n for (turn, _), n in self.dispatches.items() if turn is _OVERTAKE)

    def tally_dispatch(self, x: d.Dispatched) -> None:
        """Counts a dispatch."""
        turn = x.turn
        if turn is _REDELIVERY:
            self.redelivered += 1
            return
        cost, wait_ns, user_id = x.cost, x.wait_ns, x.user_id
        self.dispatched += 1
        self.cost += cost
        dispatches = self.dispatches
        key: tuple[Any, ...] = (turn, x.rule)  # typed loosely: see `core.search.Key`
        dispatches[key] = dispatches.get(key, 0) + 1
        overtook = x.overtook
        if overtook:
            self.overtakes += len(overtook)
        waits = self.waits[x.predicted_class]
        waits.counts[place(_WAIT_BOUNDS, wait_ns)] += 1
        waits.sum_ns += wait_ns
        user = self.users.get(user_id)
        if user is None:
            user = self._new_user(user_id)
        user.dispatched += 1
        user.cost += cost

    def _new_user(self, user_id: str) -> UserTally:
        users = self.users
        if len(users) >= USERS_TALLIED_MAX:
            kept = sorted(users.items(), key=_cost_of_item, reverse=True)
            self.users = users = dict(kept[: USERS_TALLIED_MAX // 2])
        tally = users[user_id] = UserTally()
        return tally


def _cost_of_item(item: tuple[str, UserTally]) -> int:
    return item[1].cost


@final
class Tally:
    """Counts for all pools.

    Attributes:
        pools: By pool; deleted ones are dropped.
        decisions: Decisions taken, by type.
        refused: Refused calls that name no known pool, by reason.
        start_ns: Engine time when counting began.
    """

    def __init__(self, start_ns: int, pools: list[str]) -> None:
        self.start_ns = start_ns
        self.pools = {name: PoolTally() for name in pools}
        self.decisions: dict[type[Any], int] = {}
        self.refused: dict[str, int] = {}

    def decided(self, _before: int, decisions: list[d.Decision]) -> None:
        """Counts decisions; a listener of the engine."""
        pools = self.pools
        last: type[Any] | None = None
        count = 0
        x: Any
        for x in decisions:
            kind = type(x)
            if kind is not last:
                self._count(last, count)
                last, count = kind, 0
            count += 1
            if kind is _DISPATCHED:
                pools[x.pool].tally_dispatch(x)
            elif kind is _COMPLETED:
                ended, state = pools[x.pool].ended, x.state
                ended[state] = ended.get(state, 0) + 1
            elif kind is _ACCEPTED:
                pools[x.pool].accepted += 1
            elif kind in _RARER:
                self._rarer(x)
        self._count(last, count)

    def _count(self, kind: type[Any] | None, count: int) -> None:
        """Counts decisions of one kind that were taken one after the other."""
        if kind is not None:
            self.decisions[kind] = self.decisions.get(kind, 0) + count

    def _rarer(self, x: d.Decision) -> None:
        match x:
            case d.Ended():
                ended = self.pools[x.pool].ended
                ended[x.state] = ended.get(x.state, 0) + 1
            case d.LeaseEnded():
                causes = self.pools[x.pool].leases_ended
                causes[x.cause] = causes.get(x.cause, 0) + 1
            case d.Rejoined():
                self.pools[x.pool].rejoins += 1
            case d.BusyPeriodClosed():
                self.pools[x.pool].busy_periods += 1
            case d.PoolConfigured():
                self.pools.setdefault(x.pool, PoolTally())
            case d.PoolDeleted():
                self.pools.pop(x.pool, None)
            case d.UserForgotten():
                self.pools[x.pool].users.pop(x.user_id, None)
            case _:
                pass

    def refuse(self, pool: str, reason: str) -> None:
        """Counts a refused request."""
        tally = self.pools.get(pool)
        refused = self.refused if tally is None else tally.refused
        refused[reason] = refused.get(reason, 0) + 1

    def uptime_seconds(self, now_ns: int) -> float:
        """Returns how long it has been counting."""
        return (now_ns - self.start_ns) / SECOND_NS


_RARER: Final = frozenset(
    {
        d.Ended,
        d.LeaseEnded,
        d.Rejoined,
        d.BusyPeriodClosed,
        d.PoolConfigured,
        d.PoolDeleted,
        d.UserForgotten,
    }
)
