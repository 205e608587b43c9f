"""Re-decides what comes in: requests, limits and shedding; weights, caps and policies.

Source:
    SFQ §2.4 (arrival), §4.4 (weights), and the rules for limits and shedding on top of them.
"""

from scheduler_service.core.decisions import (
    Accepted,
    Ended,
    EstimatorUpdated,
    PoolConfigured,
    RejoinCause,
    RequestState,
    UserConfigured,
    UserForgotten,
)
from scheduler_service.core.policy import PoolPolicy
from scheduler_service.oracle import quota as quotas
from scheduler_service.oracle.book import Book, Shed, leave
from scheduler_service.oracle.difference import Report
from scheduler_service.oracle.ledger import Pool, Quota, Request, User


def accepted(book: Book, report: Report, pool: Pool, record: Accepted) -> None:
    """Checks limits and the meter rule for arrivals, then queues the request."""
    owed = book.pay("Accepted", pool.name)
    shed = owed.detail if owed and isinstance(owed.detail, Shed) else None
    old = pool.requests.get(record.request_id)
    report.holds("request_id", true=old is None, found=record.request_id, source="ids are unique")
    _check_limits(report, pool, record, shed)
    user = pool.user(record.user_id)
    arrives = not user.waiting and not pool.policy.unbounded
    pool.renew_blank(user, record.meter_before)
    report.same("meter_before", user.meter, record.meter_before, "the user's meter")
    after = max(user.meter, pool.virtual_time) if arrives else user.meter
    report.same("meter_after", after, record.meter_after, "SFQ §2.4: S = max(S, v)")
    report.same("rejoined", arrives, record.rejoined, "SFQ §2.4: only when nothing waits")
    report.same("virtual_time", pool.virtual_time, record.virtual_time, "v changes at nothing else")
    report.same("weight_milli", pool.weight_of(user), record.weight_milli, "weight in force")
    report.holds(
        "expire_ns",
        true=record.expire_ns == 0 or record.expire_ns > record.now_ns,
        found=record.expire_ns,
        source="waiting limit",
    )
    if pool.policy.max_wait_ns:
        report.holds("expire_ns", true=record.expire_ns > 0, found=0, source="pool's max_wait")
    pool.raise_meter(user, record.meter_after)
    request = _request(report.sequence, user, record)
    user.waiting.append(request)
    user.held = pool.holds_back(user)
    pool.requests[request.request_id] = request
    book.note_timer(request.expire_ns)


def _request(sequence: int, user: User, record: Accepted) -> Request:
    return Request(
        sequence=sequence,
        request_id=record.request_id,
        user=user,
        cost=record.cost,
        predicted_class=record.predicted_class,
        kv_tokens=record.kv_tokens,
        labels=frozenset(record.labels),
        accept_ns=record.now_ns,
        expire_ns=record.expire_ns,
    )


def _check_limits(report: Report, pool: Pool, record: Accepted, shed: Shed | None) -> None:
    policy = pool.policy
    user = pool.users.get(record.user_id)
    held = len(user.waiting) if user else 0
    report.holds(
        "user_id",
        true=held < policy.max_waiting_per_user,
        found=held,
        source="bounded queue per user",
    )
    if user is None or pool.is_blank(user):
        users = sum(not pool.is_blank(other) for other in pool.users.values())
        room = users < policy.max_users or _make_room(pool)
        report.holds("user_id", true=room, found=users, source="bounded users")
    if shed is not None:
        _check_shed(report, pool, record, shed)
        return
    waiting = pool.waiting_count()
    report.holds(
        "pool", true=waiting < policy.max_waiting, found=waiting, source="bounded queue per pool"
    )


def _make_room(pool: Pool) -> bool:
    """At the limit of users, one idle user that only a started quota keeps is forgotten."""
    idle = [
        user
        for user in pool.users.values()
        if user.quota.count
        and not user.waiting
        and not user.flight
        and user.meter <= pool.virtual_time
    ]
    if idle:
        first = min(idle, key=lambda user: (user.meter, user.user_id))
        first.quota = Quota()
    return bool(idle)


def shares(pool: Pool, newcomer: str, held: dict[str, int]) -> dict[str, int]:
    """Fair places of every waiting user and the newcomer, in whole places, at least one."""
    weights = {name: pool.weight_of(pool.users[name]) for name in held if held[name]}
    known = pool.users.get(newcomer)
    weights[newcomer] = pool.weight_of(known) if known else pool.policy.default_weight_milli
    total = sum(weights.values())
    places = pool.policy.max_waiting
    return {name: max(1, places * weight // total) for name, weight in weights.items()}


def _check_shed(report: Report, pool: Pool, record: Accepted, shed: Shed) -> None:
    fair = shares(pool, record.user_id, shed.held)
    own = shed.held.get(record.user_id, 0)
    report.holds(
        "user_id",
        true=own < fair[record.user_id],
        found=(own, fair[record.user_id]),
        source="a newcomer below its share displaces",
    )
    excess = {name: held - fair[name] for name, held in shed.held.items() if held}
    victim = max(excess, key=lambda name: (excess[name], name))
    report.same("shed", victim, shed.victim.user.user_id, "largest excess, then greatest user_id")
    report.holds(
        "shed", true=excess[victim] > 0, found=excess[victim], source="only an excess is shed"
    )


def shed(book: Book, report: Report, pool: Pool, request: Request, record: Ended) -> None:
    """Checks that the pool was full and the newest request went; the newcomer must follow."""
    held = {user.user_id: len(user.waiting) for user in pool.users.values() if user.waiting}
    waiting = sum(held.values())
    report.holds(
        "state", true=waiting >= pool.policy.max_waiting, found=waiting, source="shed when full"
    )
    newest = request.user.waiting[-1] if request.user.waiting else None
    report.same(
        "request_id",
        newest.request_id if newest else "",
        record.request_id,
        "the newest request is shed",
    )
    leave(book, pool, request, RequestState.SHED)
    book.owe("Accepted", pool.name, "", Shed(request, held))


def rescaled(pool: Pool, user: User, weight_old: int, weight_new: int) -> int:
    """The meter after a change of weight: the lead over `v` in the new weight, clamped."""
    lead = user.meter - pool.virtual_time
    slack = pool.slack()
    if slack is None or lead <= 0 or weight_old == weight_new:
        return user.meter
    scaled = -(-lead * weight_old // weight_new)
    scaled = min(scaled, max(lead, slack + max(pool.charges, default=0)))
    return pool.virtual_time + scaled


def _note_rescale(pool: Pool, user: User) -> None:
    """The clamp speaks of the recent window, so the band must allow for it."""
    pool.slack_seen = max(pool.slack_seen, pool.slack() or 0)
    user.charge_max = max(user.charge_max, max(pool.charges, default=0))


def user_configured(book: Book, report: Report, pool: Pool, record: UserConfigured) -> None:
    """Checks the rescaled meter, then puts weight and cap into force."""
    user = pool.user(record.user_id)
    old = pool.weight_of(user)
    pool.renew_blank(user, record.meter_before)
    report.same("meter_before", user.meter, record.meter_before, "the user's meter")
    report.same("weight_milli_before", old, record.weight_milli_before, "weight in force")
    user.weight_milli = record.weight_milli
    user.cap = record.max_in_flight
    after = rescaled(pool, user, old, pool.weight_of(user))
    report.same("meter_after", after, record.meter_after, "a weight acts at once, clamped")
    if record.meter_after != user.meter:
        _note_rescale(pool, user)
        pool.raise_meter(user, record.meter_after)
    book.freed(pool, user, RejoinCause.CAP)


def user_forgotten(book: Book, report: Report, pool: Pool, record: UserForgotten) -> None:
    """Drops all that is known of a user without work: should it come back, it is a new one."""
    user = pool.users.get(record.user_id)
    if user is None:
        return
    idle = not user.waiting and not user.flight
    report.holds("user_id", true=idle, found=record.user_id, source="only users without work")
    user.weight_milli = 0
    user.cap = -1
    user.paused_until = None
    user.meter = pool.virtual_time
    user.quota = Quota()
    book.freed(pool, user, RejoinCause.CAP)


def pool_configured(book: Book, report: Report, record: PoolConfigured) -> None:
    """Creates a pool, or puts a changed policy into force on all that waits."""
    pool = book.pools.get(record.pool)
    report.same("created", pool is None, record.created, "a pool is created once")
    if pool is None or record.created:
        book.pools[record.pool] = Pool(record.pool, record.policy, record.policy_digest)
        return
    old = pool.policy
    weights = {name: pool.weight_of(user) for name, user in pool.users.items()}
    pool.policy, pool.digest = record.policy, record.policy_digest
    if old.unbounded and not pool.policy.unbounded:
        pool.meter_max = pool.virtual_time
    for user in pool.users.values():
        _repolicy(book, pool, old, user, weights[user.user_id])
    quotas.retuned(pool.quota, pool.policy.quota_k)
    pool.trim_sample()
    book.bound_dead_letters(pool)
    book.settle(pool)


def _repolicy(book: Book, pool: Pool, old: PoolPolicy, user: User, weight: int) -> None:
    """What a new policy does to one user."""
    if old.unbounded and not pool.policy.unbounded:
        user.meter = pool.virtual_time
    elif pool.weight_of(user) != weight:
        after = rescaled(pool, user, weight, pool.weight_of(user))
        if after != user.meter:
            _note_rescale(pool, user)
            pool.raise_meter(user, after)
    quotas.retuned(user.quota, pool.policy.quota_k)
    book.freed(pool, user, RejoinCause.CAP)


def estimator_updated(_book: Book, _report: Report, _pool: Pool, _record: EstimatorUpdated) -> None:
    """New estimates speak of later requests only; nothing that waits changes (SFQ §7.4)."""
