"""What a worker that asks now must get: the whole selection, by looking at everyone.

Order of rules: pause and limits, a reservation of this worker, redeliveries, then the selection
between users (SFQ §2.3, widened by the slack) and between classes (QBA §III-A), with overtaking.
"""

from typing import NamedTuple

from scheduler_service.core.decisions import EmptyReason, Offer, RequestState, Rule, Turn
from scheduler_service.core.policy import (
    ClassOrder,
    Placement,
    PoolMode,
    PredictedClass,
    WithinUser,
)
from scheduler_service.oracle.ledger import Pool, Request, User, Worker, oldest


class Choice(NamedTuple):
    """A request to dispatch, and whom that passes over."""

    request: Request
    turn: Turn
    rule: Rule
    overtook: tuple[Request, ...]


class Nothing(NamedTuple):
    """No dispatch.

    Attributes:
        reason: What the worker is told.
        request: What blocks, or what the worker is to be reserved for.
        reserve: Whether a reservation must be made first.
        stuck: Whether users that nobody alive can serve must be passed by first.
    """

    reason: EmptyReason
    request: Request | None = None
    reserve: bool = False
    stuck: bool = False


class Asking(NamedTuple):
    """Who asks, with what, when; the aging threshold then, and the leases it holds already."""

    worker: str
    offer: Offer
    now_ns: int
    theta: int
    leases: int


Ranked = list[tuple[Request, Rule]]


def choose(pool: Pool, workers: dict[str, Worker], asking: Asking) -> Choice | Nothing:
    """Decides what `asking` gets from `pool`."""
    reason = _closed(pool, workers, asking)
    if reason is not EmptyReason.NONE:
        return Nothing(reason)
    redelivery = _redelivery(pool, asking)
    if redelivery is not None:
        return redelivery
    users = pool.selectable()
    kept = pool.reservations.get(asking.worker)
    if kept is not None and _within_reach(pool, users, kept.user):
        if not _suits(pool, kept, asking):
            return Nothing(EmptyReason.RESERVED, kept)
        return Choice(kept, Turn.RESERVED, plain_rule(pool, kept), ())
    if not users:
        return Nothing(_why_none(pool))
    return _place(pool, workers, asking, _scan(pool, users, asking))


def smallest(pool: Pool, users: list[User]) -> User:
    """The user that fairness alone would take: smallest meter, ties as the policy says."""
    if pool.policy.user_by_user:
        return min(users, key=lambda user: (user.meter, user.user_id))
    return min(users, key=lambda user: (user.meter, oldest(user)))


def forced(pool: Pool, users: list[User]) -> User | None:
    """The user whose turn it is because it was passed over too often, if so."""
    windowed = not pool.policy.unbounded and not pool.policy.user_by_user
    if windowed and pool.passes >= pool.policy.max_passes:
        return smallest(pool, users)
    return None


def class_rule(pool: Pool, request: Request, asking: Asking) -> Rule:
    """The class rule under which a request goes when it goes now."""
    quota = pool.quota_of(request.user)
    aged = pool.is_aged(request, asking.now_ns, asking.theta)
    match pool.policy.class_order:
        case ClassOrder.AA if aged:
            return Rule.AGED
        case ClassOrder.QBA if aged and quota.debt and quota.promoting is None:
            return Rule.PROMOTION
        case _:
            return plain_rule(pool, request)


def plain_rule(pool: Pool, request: Request) -> Rule:
    """The class rule under which a request goes that no debt and no age has helped."""
    if pool.policy.class_order is ClassOrder.FCFS:
        return Rule.FIRST_COME
    short = request.predicted_class is PredictedClass.SHORT
    return Rule.SHORT_FIRST if short else Rule.LONG


def _closed(pool: Pool, workers: dict[str, Worker], asking: Asking) -> EmptyReason:
    if pool.policy.mode is PoolMode.GATE:
        leased = sum(request.lease is not None for request in pool.flight())
        if leased >= pool.policy.gate_max_in_flight:
            return EmptyReason.AT_CAPACITY
    elif asking.worker in workers and workers[asking.worker].draining:
        return EmptyReason.DRAINING
    else:
        own = asking.offer.max_leases or asking.leases + 1
        if asking.leases >= min(pool.policy.max_leases_per_worker, own):
            return EmptyReason.LEASES_FULL
    return EmptyReason.NONE if pool.paused_until is None else EmptyReason.PAUSED


def _too_costly(pool: Pool, request: Request) -> bool:
    """Whether a gate has no room for the cost of the request; an empty gate takes any."""
    limit = pool.policy.gate_max_in_flight_cost
    in_flight = pool.flight()
    if pool.policy.mode is not PoolMode.GATE or limit == 0:
        return False
    if all(other.lease is None for other in in_flight):
        return False
    return sum(other.cost for other in in_flight) + request.cost > limit


def _suits(pool: Pool, request: Request, asking: Asking) -> bool:
    """Whether the request can be given; a gate places nothing, so there everything suits."""
    return pool.policy.mode is PoolMode.GATE or request.fits(asking.offer)


def _why_none(pool: Pool) -> EmptyReason:
    waiting = [user for user in pool.users.values() if user.waiting]
    if not waiting:
        due = any(request.lease is None for request in pool.flight())
        return EmptyReason.HELD_BY_FIT if due else EmptyReason.EMPTY
    if all(user.paused_until is not None for user in waiting):
        return EmptyReason.PAUSED
    return EmptyReason.HELD_BY_CAP


def _within_reach(pool: Pool, users: list[User], user: User) -> bool:
    """Whether a reservation may be used: its user selectable, and not too far ahead.

    Other requests of that user may have been dispatched since; past the reach of overtaking the
    reservation waits and the worker serves others, or the band would break.
    """
    if user not in users:
        return False
    slack = pool.slack()
    if slack is None:
        return True
    return user.meter <= min(u.meter for u in users) + slack + pool.overtake_slack()


def _redelivery(pool: Pool, asking: Asking) -> Choice | None:
    for request in pool.flight():
        kept_back = asking.now_ns < request.backoff.get(asking.worker, 0)
        if (
            request.state is RequestState.REDELIVERY
            and request.user.paused_until is None
            and _suits(pool, request, asking)
            and not kept_back
        ):
            return Choice(request, Turn.REDELIVERY, request.rule or plain_rule(pool, request), ())
    return None


def _by_class(pool: Pool, heads: list[Request], asking: Asking) -> Ranked:
    """The candidates in class order: promotions, then shorts, then longs, each by age."""
    first = (Rule.FIRST_COME, Rule.PROMOTION, Rule.AGED)
    ranked = [(request, class_rule(pool, request, asking)) for request in heads]

    def place(item: tuple[Request, Rule]) -> tuple[int, int]:
        request, rule = item
        tier = 0 if rule in first else 1 if rule is Rule.SHORT_FIRST else 2
        return tier, request.sequence

    return sorted(ranked, key=place)


def _scan(pool: Pool, users: list[User], asking: Asking) -> Ranked:
    """All that may be examined, in order; the first is the selected one."""
    fifo = pool.policy.within_user is WithinUser.FIFO
    slack = pool.slack()

    def of(some: list[User]) -> Ranked:
        heads = [request for user in some for request in user.heads(fifo=fifo)]
        return _by_class(pool, heads, asking)

    if slack is None:
        return of(users)
    in_order = sorted(users, key=lambda user: (user.meter, user.user_id))
    low = in_order[0].meter
    edge = low - 1 if pool.policy.user_by_user else low + slack
    reach = low + slack + pool.overtake_slack()
    ranked = of([user for user in users if user.meter <= edge])
    for user in in_order:
        if len(ranked) >= pool.policy.overtake_scan or user.meter > reach:
            break  # nobody looks further
        if user.meter > edge:
            ranked += of([user])
    turn = forced(pool, users)
    if turn is not None:
        own = of([turn])
        ranked = own + [item for item in ranked if item not in own]
    return ranked


def _place(
    pool: Pool, workers: dict[str, Worker], asking: Asking, ranked: Ranked
) -> Choice | Nothing:
    """Takes the first of `ranked` that fits; what it must not pass over ends the search."""
    overtaking = pool.policy.placement is Placement.OVERTAKE
    users = pool.selectable()
    if _too_costly(pool, ranked[0][0]):
        return Nothing(EmptyReason.AT_CAPACITY, ranked[0][0])
    skipped: list[Request] = []
    for request, rule in ranked[: pool.policy.overtake_scan]:
        if _suits(pool, request, asking):
            turn = Turn.SELECTED if forced(pool, users) is None else Turn.MAX_PASSES
            return Choice(request, Turn.OVERTAKE if skipped else turn, rule, tuple(skipped))
        late = asking.now_ns - request.accept_ns >= pool.policy.unplaceable_wait_ns
        if late and hopeless(pool, workers, request):
            return Nothing(EmptyReason.HELD_BY_FIT, request)
        free = asking.worker not in pool.reservations
        if overtaking and free and _starved(pool, request) and request.holdable(asking.offer):
            return Nothing(EmptyReason.RESERVED, request, reserve=True)
        if not overtaking and not hopeless(pool, workers, request):
            return Nothing(EmptyReason.STALLED_BY, request)
        skipped.append(request)
    return Nothing(EmptyReason.HELD_BY_FIT, stuck=_stuck(pool, workers, asking))


def _stuck(pool: Pool, workers: dict[str, Worker], asking: Asking) -> bool:
    """Whether this worker could be served if those whom nobody alive can serve were passed by."""
    lost, first = stuck_behind(pool, workers)
    meters = [user.meter for user in lost]
    for user in lost:
        user.meter = first
    then = _place(pool, workers, asking, _scan(pool, pool.selectable(), asking)) if lost else None
    for user, meter in zip(lost, meters, strict=True):
        user.meter = meter
    return isinstance(then, Choice)


def stuck_behind(pool: Pool, workers: dict[str, Worker]) -> tuple[list[User], int]:
    """Users that nobody alive can serve, below the first that can be served; and its meter.

    Overtaking reaches only so far past the smallest meter, so they could stall the pool; they are
    held back and rejoin beside that first user.  With unbounded slack nobody is out of reach.
    """
    users = pool.selectable()
    fifo = pool.policy.within_user is WithinUser.FIFO
    served = [
        user.meter
        for user in users
        if not all(hopeless(pool, workers, head) for head in user.heads(fifo=fifo))
    ]
    if pool.policy.unbounded or not served:
        return [], 0
    first = min(served)
    return [user for user in users if user.meter < first], first


def _starved(pool: Pool, request: Request) -> bool:
    return (
        request.overtakes >= pool.policy.max_overtakes and request not in pool.reservations.values()
    )


def hopeless(pool: Pool, workers: dict[str, Worker], request: Request) -> bool:
    """Whether there are live workers in the pool and none could ever hold the request."""
    live = [x for x in workers.values() if pool.name in x.pools and not x.draining]
    return bool(live) and not any(request.holdable(worker.offer) for worker in live)
