"""Re-decides a dispatch record: who, why, and every number in it.

Source:
    SFQ §2.3, §3.1 (selection, charge, band), QBA §III-A (classes, aging, quota).
"""

from copy import copy

from scheduler_service.core.decisions import Dispatched, RequestState, Reserved, Turn
from scheduler_service.core.policy import MICRO, PoolMode
from scheduler_service.oracle import quota as quotas
from scheduler_service.oracle.book import Book
from scheduler_service.oracle.choice import Asking, Choice, Nothing, choose, smallest
from scheduler_service.oracle.difference import Report
from scheduler_service.oracle.ledger import Lease, Pool, Request, User

ALIVE = (RequestState.WAITING, RequestState.REDELIVERY)


def asking_of(book: Book, pool: Pool, record: Dispatched) -> Asking:
    """The question that this record answered."""
    leases = book.leases_of(record.worker)
    return Asking(record.worker, record.offer, record.now_ns, pool.theta(), leases)


def dispatched(book: Book, report: Report, pool: Pool, record: Dispatched) -> None:
    """Checks a dispatch against the rules, then gives the lease as the record says."""
    book.pay("Dispatched", pool.name)
    request = pool.requests.get(record.request_id)
    if request is None or request.state not in ALIVE:
        state = "unknown" if request is None else request.state.name
        report.add("request_id", "a waiting request", state, "one live lease a request")
        return
    asking = asking_of(book, pool, record)
    _check_choice(report, record, choose(pool, book.workers, asking))
    _check_request(report, pool, request, record)
    _check_offer(book, report, record, request)
    _check_lease(book, report, pool, request, record)
    if record.turn is Turn.REDELIVERY:
        _check_redelivery(report, pool, request, record)
    else:
        _check_turn(report, pool, request, record, asking)
    _apply(book, pool, request, record)
    _check_band(report, pool, request.user, record)


def reserved(book: Book, report: Report, pool: Pool, record: Reserved) -> None:
    """Checks that this worker had to be kept for this request, which no offer of it fitted."""
    request = pool.requests.get(record.request_id)
    if request is None or request.state is not RequestState.WAITING:
        report.add("request_id", "a waiting request", record.request_id, "reservation")
        return
    report.same("user_id", request.user.user_id, record.user_id, "the request's user")
    report.holds(
        "overtakes",
        true=request.overtakes >= pool.policy.max_overtakes,
        found=request.overtakes,
        source="reservation after max_overtakes",
    )
    taken = record.worker in pool.reservations or request in pool.reservations.values()
    report.holds("worker", true=not taken, found=record.worker, source="one worker a reservation")
    worker = book.workers.get(record.worker)
    can = worker is None or request.holdable(worker.offer)
    report.holds("worker", true=can, found=record.worker, source="total capacity could hold it")
    pool.reservations[record.worker] = request


def _check_choice(report: Report, record: Dispatched, expected: Choice | Nothing) -> None:
    source = "selection: redelivery, reservation, window, class order, fit"
    if isinstance(expected, Nothing):
        blocked = expected.request.request_id if expected.request else ""
        reason = f"nothing: {expected.reason.name} {blocked}".strip()
        report.add("request_id", reason, record.request_id, source)
        return
    report.same("request_id", expected.request.request_id, record.request_id, source)
    report.same("turn", expected.turn, record.turn, source)
    report.same("rule", expected.rule, record.rule, "QBA §III-A class order")
    overtook = tuple(request.request_id for request in expected.overtook)
    report.same("overtook", overtook, record.overtook, "overtake scan order")


def _check_request(report: Report, pool: Pool, request: Request, record: Dispatched) -> None:
    source = "the accepted request"
    report.same("user_id", request.user.user_id, record.user_id, source)
    report.same("request_sequence", request.sequence, record.request_sequence, source)
    report.same("cost", request.cost, record.cost, source)
    report.same("predicted_class", request.predicted_class, record.predicted_class, source)
    report.same("wait_ns", record.now_ns - request.accept_ns, record.wait_ns, source)
    weight = pool.weight_of(request.user)
    report.same("weight_milli", weight, record.weight_milli, "weight in force")
    report.same("policy_digest", pool.digest, record.policy_digest, "policy in force")


def _check_offer(book: Book, report: Report, record: Dispatched, request: Request) -> None:
    call, worker, left = book.last_call
    free = record.offer.free_tokens
    if (call, worker) == (record.call, record.worker) and call:
        report.same("offer.free_tokens", left, free, "a grant lowers what is free")
    left = -1 if free == -1 else free - request.kv_tokens
    book.last_call = (record.call, record.worker, left)


def _check_lease(
    book: Book, report: Report, pool: Pool, request: Request, record: Dispatched
) -> None:
    report.same("attempt", request.failures + 1, record.attempt, "only expiries are counted")
    report.holds(
        "lease_expire_ns",
        true=record.lease_expire_ns > record.now_ns,
        found=record.lease_expire_ns,
        source="a lease has a deadline",
    )
    ids = book.lease_ids()
    report.holds(
        "lease_id", true=record.lease_id not in ids, found=record.lease_id, source="fencing"
    )
    if record.hand_over_ns:
        due = record.now_ns + pool.policy.hand_over_ns
        report.same("hand_over_ns", due, record.hand_over_ns, "hand-over time")
    if pool.policy.mode is PoolMode.GATE:
        report.same("worker", "", record.worker, "a gate grants to no worker")


def _check_redelivery(report: Report, pool: Pool, request: Request, record: Dispatched) -> None:
    source = "redelivery is no part of selection, charge, sample and quota"
    quota = pool.quota_of(request.user)
    meter, virtual_time = request.user.meter, pool.virtual_time
    expected: dict[str, object] = {
        "charge_micros": 0,
        "meter_before": meter,
        "meter_after": meter,
        "virtual_time_before": virtual_time,
        "virtual_time_after": virtual_time,
        "short_admission_count_before": quota.count,
        "short_admission_count_after": quota.count,
        "promotion_debt_before": quota.debt,
        "promotion_debt_after": quota.debt,
        "aging_threshold_ns": -1,
        "aged": False,
        "slack_micros": -1,
        "passes_after": pool.passes,
        "users_waiting": 0,
        "runner_up": "",
        "runner_up_meter": 0,
    }
    for name, value in expected.items():
        report.same(name, value, getattr(record, name), source)


def _check_turn(
    report: Report, pool: Pool, request: Request, record: Dispatched, asking: Asking
) -> None:
    user, users = request.user, pool.selectable()
    slack = pool.slack()
    charge = 0 if slack is None else charge_for(request.cost, pool.weight_of(user))
    first = smallest(pool, users) if user in users else user
    moves = slack is not None and user in users
    expected: dict[str, object] = {
        "charge_micros": charge,
        "meter_before": user.meter,
        "meter_after": user.meter + charge,
        "virtual_time_before": pool.virtual_time,
        "virtual_time_after": first.meter if moves else pool.virtual_time,
        "slack_micros": -1 if slack is None else slack,
        "users_waiting": len(users),
        "aging_threshold_ns": asking.theta,
        "aged": pool.is_aged(request, asking.now_ns, asking.theta),
        "passes_after": _passes_after(pool, user, first),
    }
    rest = [other for other in users if other is not user]
    second = smallest(pool, rest) if rest and slack is not None else None
    expected["runner_up"] = second.user_id if second else ""
    expected["runner_up_meter"] = second.meter if second else 0
    expected |= _quota_after(pool, request, record)
    for name, value in expected.items():
        report.same(name, value, getattr(record, name), "SFQ §2.3 and QBA §III-A")
    if moves:
        low = min(other.meter for other in users)
        report.holds(
            "virtual_time_before", true=low >= pool.virtual_time, found=low, source="SFQ §3.1 (3)"
        )


def charge_for(cost: int, weight_milli: int) -> int:
    """What a dispatch adds to a meter: cost over weight, rounded up (SFQ §4.4)."""
    return -(-cost * MICRO * 1000 // weight_milli)


def _passes_after(pool: Pool, user: User, first: User) -> int:
    if pool.policy.unbounded or pool.policy.user_by_user or user is first:
        return 0
    return pool.passes + 1


def _quota_after(pool: Pool, request: Request, record: Dispatched) -> dict[str, object]:
    """Counter and debt before and after, tried on copies."""
    quota = pool.quota_of(request.user)
    trial, other = copy(quota), copy(request)
    quotas.dispatched(pool.policy, trial, other, record.rule)
    return {
        "short_admission_count_before": quota.count,
        "short_admission_count_after": trial.count,
        "promotion_debt_before": quota.debt,
        "promotion_debt_after": trial.debt,
    }


def _apply(book: Book, pool: Pool, request: Request, record: Dispatched) -> None:
    user = request.user
    waited = request in user.waiting
    first_start = request.rule is None
    _give_lease(book, pool, request, record)
    pool.virtual_time = record.virtual_time_after
    pool.raise_meter(user, record.meter_after)
    pool.passes = record.passes_after
    if first_start:
        request.rule = record.rule
        quota = pool.quota_of(user)
        quotas.dispatched(pool.policy, quota, request, record.rule)
        quota.count = record.short_admission_count_after
        quota.debt = record.promotion_debt_after
        pool.sample.append(record.wait_ns)
        pool.trim_sample()
    for request_id in record.overtook:
        if request_id in pool.requests:
            pool.requests[request_id].overtakes += 1
    if first_start and not pool.policy.unbounded:
        pool.slack_seen = max(pool.slack_seen, (pool.slack() or 0) + pool.overtake_slack())
        pool.costs.append(request.cost)
        pool.charges.append(record.charge_micros)
        pool.charge_seen = max(pool.charge_seen, record.charge_micros)
        user.charge_max = max(user.charge_max, record.charge_micros)
    user.held = pool.holds_back(user)
    book.settle(pool, left=waited)


def _give_lease(book: Book, pool: Pool, request: Request, record: Dispatched) -> None:
    user = request.user
    if request in user.waiting:
        user.waiting.remove(request)
        user.flight.append(request)
    for worker, kept in list(pool.reservations.items()):
        if kept is request:
            del pool.reservations[worker]
    request.state = RequestState.LEASED
    request.lease = Lease(
        record.lease_id, record.worker, record.call, record.lease_expire_ns, record.hand_over_ns
    )
    book.note_timer(request.lease.due_ns())


def _check_band(report: Report, pool: Pool, user: User, record: Dispatched) -> None:
    """`S <= v + D + L` for the only meter that rose, with its own largest charge as L."""
    if pool.policy.unbounded:
        return
    limit = pool.virtual_time + pool.slack_seen + user.charge_max
    report.holds(
        "meter_after",
        true=record.meter_after <= limit,
        found=(record.meter_after, limit),
        source="band S <= v + D + L (SFQ §3.1)",
    )
    report.holds(
        "virtual_time_after",
        true=record.virtual_time_after >= record.virtual_time_before,
        found=record.virtual_time_after,
        source="v never decreases (SFQ §3.1)",
    )
