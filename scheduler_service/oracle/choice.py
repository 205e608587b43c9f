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
    """No dispatch; `request` is what blocks, or what the worker is to be reserved for."""

    reason: EmptyReason
    request: Request | None = None
    reserve: bool = False


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
    if asking.worker in pool.reservations:
        return _reserved(pool, pool.reservations[asking.worker], asking)
    redelivery = _redelivery(pool, asking)
    if redelivery is not None:
        return redelivery
    users = pool.selectable()
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
        case ClassOrder.FCFS:
            return Rule.FIRST_COME
        case ClassOrder.AA if aged:
            return Rule.AGED
        case ClassOrder.QBA if aged and quota.debt and quota.promoting is None:
            return Rule.PROMOTION
        case _:
            short = request.predicted_class is PredictedClass.SHORT
            return Rule.SHORT_FIRST if short else Rule.LONG


def _closed(pool: Pool, workers: dict[str, Worker], asking: Asking) -> EmptyReason:
    if pool.paused_until is not None:
        return EmptyReason.PAUSED
    if pool.policy.mode is PoolMode.GATE:
        return EmptyReason.NONE if _gate_open(pool) else EmptyReason.AT_CAPACITY
    worker = workers.get(asking.worker)
    if worker is not None and worker.draining:
        return EmptyReason.DRAINING
    limit = min(pool.policy.max_leases_per_worker, asking.offer.max_leases or asking.leases + 1)
    return EmptyReason.NONE if asking.leases < limit else EmptyReason.LEASES_FULL


def _gate_open(pool: Pool) -> bool:
    in_flight = pool.flight()
    cost = sum(request.cost for request in in_flight)
    limit = pool.policy.gate_max_in_flight_cost
    return len(in_flight) < pool.policy.gate_max_in_flight and (limit == 0 or cost < limit)


def _why_none(pool: Pool) -> EmptyReason:
    waiting = [user for user in pool.users.values() if user.waiting]
    if not waiting:
        return EmptyReason.EMPTY
    if all(user.paused_until is not None for user in waiting):
        return EmptyReason.PAUSED
    return EmptyReason.HELD_BY_CAP


def _reserved(pool: Pool, request: Request, asking: Asking) -> Choice | Nothing:
    ready = not pool.holds_back(request.user) and request.fits(asking.offer)
    if not ready:
        return Nothing(EmptyReason.RESERVED, request)
    return Choice(request, Turn.RESERVED, class_rule(pool, request, asking), ())


def _redelivery(pool: Pool, asking: Asking) -> Choice | None:
    for request in pool.flight():
        kept_back = asking.now_ns < request.backoff.get(asking.worker, 0)
        if (
            request.state is RequestState.REDELIVERY
            and request.user.paused_until is None
            and request.fits(asking.offer)
            and not kept_back
        ):
            short = request.predicted_class is PredictedClass.SHORT
            rule = Rule.SHORT_FIRST if short else Rule.LONG
            return Choice(request, Turn.REDELIVERY, rule, ())
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
    reach = low + slack + pool.overtake_slack()
    within = [] if pool.policy.user_by_user else [u for u in users if u.meter <= low + slack]
    beyond = [user for user in in_order if user not in within and user.meter <= reach]
    ranked = of(within)
    for user in beyond:
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
    skipped: list[Request] = []
    for request, rule in ranked[: pool.policy.overtake_scan]:
        if request.fits(asking.offer):
            turn = Turn.SELECTED if forced(pool, users) is None else Turn.MAX_PASSES
            return Choice(request, Turn.OVERTAKE if skipped else turn, rule, tuple(skipped))
        if overtaking and _starved(pool, request) and request.holdable(asking.offer):
            return Nothing(EmptyReason.RESERVED, request, reserve=True)
        if not overtaking and not hopeless(pool, workers, request):
            return Nothing(EmptyReason.STALLED_BY, request)
        skipped.append(request)
    return Nothing(EmptyReason.HELD_BY_FIT)


def _starved(pool: Pool, request: Request) -> bool:
    return (
        request.overtakes >= pool.policy.max_overtakes and request not in pool.reservations.values()
    )


def hopeless(pool: Pool, workers: dict[str, Worker], request: Request) -> bool:
    """Whether there are live workers in the pool and none could ever hold the request."""
    live = [worker for worker in workers.values() if pool.name in worker.pools]
    return bool(live) and not any(request.holdable(worker.offer) for worker in live)
