"""The fold: how each decision changes the state.

The live path and replay run the same function, so what was decided and what is recovered cannot
differ.  Nothing here chooses; where a record states a value (a meter, `v`, a counter), it is taken
from the record, and the meter before is asserted to be the one there is.  What follows from the
request itself, its wait and its cost, is taken from there.
"""

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any, Final

from scheduler_service.core import decisions as d
from scheduler_service.core import flows as fl
from scheduler_service.core import fold_config as fc
from scheduler_service.core import timers
from scheduler_service.core.charge import reach_of
from scheduler_service.core.grant import Grant, grant_of
from scheduler_service.core.policy import AdmissionPoint, ClassOrder, PredictedClass
from scheduler_service.core.request import OLD_LEASES_MAX, Lease, Past, Request, sequence_of
from scheduler_service.core.state import Pool, State

_LEASED: Final = d.RequestState.LEASED
_QBA: Final = ClassOrder.QBA
_PROMOTION: Final = d.Rule.PROMOTION
_AT_DISPATCH: Final = AdmissionPoint.DISPATCH
_CANCELLED: Final = d.RequestState.CANCELLED
_SHORT: Final = PredictedClass.SHORT
_REDELIVERY: Final = d.Turn.REDELIVERY


def evolve(state: State, decision: d.Decision) -> None:
    """Folds one decision into the state; its sequence is the next one."""
    state.sequence += 1
    state.now_ns = decision.now_ns
    _FOLD[type(decision)](state, decision)


def _accepted(state: State, x: d.Accepted) -> None:
    request_id, user_id, expire_ns = x.request_id, x.user_id, x.expire_ns
    pool = state.pools[x.pool]
    fl.forget_ended(state, pool)
    flow = pool.flows.get(user_id)
    if flow is None:
        if len(pool.flows) >= pool.policy.max_users:
            fl.make_room_for_user(pool)
        flow = fl.flow_of(pool, user_id)
    assert flow.meter == x.meter_before
    flow.meter = x.meter_after
    request = Request(
        request_id=request_id,
        user_id=flow.user_id,
        sequence=state.sequence,
        cost=x.cost,
        predicted_class=x.predicted_class,
        kv_tokens=x.kv_tokens,
        labels=x.labels,
        enqueue_ns=state.now_ns,
        expire_ns=expire_ns,
        content_digest=x.content_digest,
        payload_digest=x.payload_digest,
        payload_bytes=x.payload_bytes,
        prompt_tokens=x.prompt_tokens,
        output_cap_tokens=x.output_cap_tokens,
        expected_output_tokens=x.expected_output_tokens,
        caller_bound=x.caller_bound,
    )
    pool.gone.pop(request_id, None)  # past its time, but not forgotten yet
    pool.requests[request_id] = request
    fl.link(pool, flow, request)
    if expire_ns:
        timers.arm_wait(state, pool, request)


def _dispatched(state: State, x: d.Dispatched) -> None:
    name = x.pool
    pool = state.pools[name]
    grant, state.grant = state.grant, None
    if grant is None:
        grant = grant_of(pool, x)
    request, flow, turn, rule = grant.request, grant.flow, grant.turn, grant.rule
    if turn is _REDELIVERY:
        _drop_redelivery(pool, request)
    else:
        fl.unlink(pool, flow, request)
        flow.in_flight += 1
        pool.in_flight_cost += request.cost
        pool.sample.push(state.now_ns - request.enqueue_ns)
        request.first_dispatch_ns = state.now_ns
        request.rule = rule
        if request.expire_ns:
            timers.voided(state)
        pool.passes = grant.passes_after
        _take_turn(pool, grant)
        fl.settle(pool, flow, request.predicted_class)
    request.state = _LEASED
    request.attempts = grant.attempt
    lease_id, worker_key, hand_over_ns = grant.lease_id, grant.worker, grant.hand_over_ns
    request.lease = Lease(
        lease_id,
        worker_key,
        state.now_ns,
        grant.lease_expire_ns,
        hand_over_ns,
        state.sequence,
        turn,
        pool=name,
    )
    state.leases[lease_id] = request
    pool.leased += 1
    worker = state.workers.get(worker_key)
    if worker is not None:
        worker.leases += 1
        if hand_over_ns:
            worker.provisional[lease_id] = request
    if grant.idempotency_key:
        call = (worker_key, grant.idempotency_key)
        if call not in state.keys:
            state.key_queue.append((state.now_ns, call))
        fl.forget_keys(state, pool)
        state.keys[call] = (*state.keys.get(call, ()), (name, request.request_id, lease_id))
    timers.arm_lease(state, pool, request)


def _take_turn(pool: Pool, grant: Grant) -> None:
    """Charges the meter and moves `v` (SFQ §2.3), and the quota (QBA §III-A6)."""
    if pool.backlog.charged:
        charge, meter = grant.charge_micros, grant.meter_after
        virtual_time = grant.virtual_time_after
        grant.flow.meter = meter
        pool.largest_meter = max(pool.largest_meter, meter)
        pool.recent_costs.push(grant.request.cost)
        pool.recent_charges.push(charge)
        pool.charge_max = max(pool.charge_max, charge)
        pool.slack_max = max(pool.slack_max, reach_of(pool.rules, grant.slack_micros))
        if virtual_time > pool.virtual_time:
            pool.virtual_time = virtual_time
            if pool.idle:
                fl.forget_idle(pool)
    if pool.rules.class_order is _QBA:
        _move_quota(pool, grant)
    for request_id in grant.overtook:
        pool.requests[request_id].overtakes += 1


def _move_quota(pool: Pool, grant: Grant) -> None:
    flow, request = grant.flow, grant.request
    holder = flow if pool.backlog.charged else pool
    if grant.rule is _PROMOTION:
        request.promoted, request.promoted_by_pool = True, holder is pool
    if pool.rules.admission_point is _AT_DISPATCH:
        request.counted = True
        holder.short_admission_count = grant.short_admission_count_after
        debt = grant.promotion_debt_after
        if holder.promotion_debt is not debt:
            holder.promotion_debt = debt
            if debt and holder is flow:
                pool.backlog.owe(flow)
    elif request.promoted:
        holder.promotion_under_way = True


def _leases_confirmed(state: State, x: d.LeasesConfirmed) -> None:
    provisional = state.workers[x.worker].provisional
    for request in provisional.values():
        if request.lease is not None:
            request.lease.hand_over_ns = 0
    provisional.clear()


def _lease_renewed(state: State, x: d.LeaseRenewed) -> None:
    lease = state.pools[x.pool].requests[x.request_id].lease
    assert lease is not None
    assert lease.lease_id == x.lease_id
    lease.expire_ns = x.expire_ns
    worker = state.workers.get(lease.worker)
    if lease.hand_over_ns:
        lease.hand_over_ns = 0
        if worker is not None:
            worker.provisional.pop(x.lease_id, None)
    if worker is not None:
        worker.last_seen_ns = x.now_ns


def _prefill_completed(state: State, x: d.PrefillCompleted) -> None:
    pool = state.pools[x.pool]
    request = pool.requests[x.request_id]
    flow = pool.flows[request.user_id]
    holder = fl.quota_holder(pool, flow, request)
    request.counted = True
    if request.promoted:
        holder.promotion_under_way = False
    holder.short_admission_count = x.short_admission_count_after
    holder.promotion_debt = x.promotion_debt_after
    if x.promotion_debt_after and holder is flow:
        pool.backlog.owe(flow)


def _drop_redelivery(pool: Pool, request: Request) -> None:
    place = bisect_left(pool.redelivery, (request.sequence, request.request_id))
    assert pool.redelivery[place][0] == request.sequence
    del pool.redelivery[place]


def _drop_lease(state: State, pool: Pool, request: Request) -> None:
    lease = request.held_lease
    del state.leases[lease.lease_id]
    pool.leased -= 1
    timers.voided(state)
    worker = state.workers.get(lease.worker)
    if worker is not None:
        worker.leases -= 1
        if worker.leases == 0:
            timers.arm_worker(state, lease.worker)
        if lease.hand_over_ns:
            worker.provisional.pop(lease.lease_id, None)


def _lease_ended(state: State, x: d.LeaseEnded) -> None:
    pool = state.pools[x.pool]
    request = pool.requests[x.request_id]
    lease = request.held_lease
    assert lease.lease_id == x.lease_id
    _drop_lease(state, pool, request)
    state.old_leases[lease.dispatch_sequence] = Past(x.pool, x.request_id, 0, x.lease_id)
    old = request.old_leases
    if len(old) >= OLD_LEASES_MAX:
        state.old_leases.pop(sequence_of(old[0]), None)
        old = old[1:]
    request.old_leases = (*old, x.lease_id)
    if x.cause is d.LeaseEndCause.GIVEN_BACK:
        request.given_back = (*request.given_back[1 - OLD_LEASES_MAX :], x.lease_id)
    request.lease = None
    request.state = d.RequestState.REDELIVERY
    request.failures = x.failures_after
    if x.cause is not d.LeaseEndCause.EXPIRED:
        request.attempts -= 1
    request.last_error = x.error
    insort(pool.redelivery, (request.sequence, x.request_id))
    if x.retry_ns:
        still = tuple(giver for giver in request.givers if giver[1] > x.now_ns)
        request.givers = (*still, (lease.worker, x.retry_ns))
        timers.arm_wake(state, x.retry_ns)


def _completed(state: State, x: d.Completed) -> None:
    pool = state.pools[x.pool]
    request, how = fl.taken(state, pool, x), x.state
    _drop_lease(state, pool, request)
    reason = request.cancel_reason if how is _CANCELLED else x.error
    _end_in_flight(state, pool, request, how, reason)


def _end_in_flight(
    state: State, pool: Pool, request: Request, how: d.RequestState, reason: str
) -> None:
    flow = pool.flows[request.user_id]
    if request.promoted and not request.counted:
        holder = fl.quota_holder(pool, flow, request)
        holder.promotion_under_way = False
        if holder is flow:
            pool.backlog.owe(flow)
    flow.in_flight -= 1
    pool.in_flight_cost -= request.cost
    fl.remember(state, pool, request, how, reason)
    fl.rest(pool, flow)


def _cancel_requested(state: State, x: d.CancelRequested) -> None:
    state.pools[x.pool].requests[x.request_id].cancel_reason = x.reason


def _ended(state: State, x: d.Ended) -> None:
    pool = state.pools[x.pool]
    request = pool.requests[x.request_id]
    dead = x.state is d.RequestState.DEAD_LETTERED
    if dead:
        pool.dead[x.request_id] = request
    if request.state is d.RequestState.REDELIVERY:
        _drop_redelivery(pool, request)
        _end_in_flight(state, pool, request, x.state, x.reason)
        return
    flow = pool.flows[request.user_id]
    fl.unlink(pool, flow, request)
    if request.expire_ns:
        timers.voided(state)
    fl.settle(pool, flow, request.predicted_class)
    fl.remember(state, pool, request, x.state, x.reason)
    fl.rest(pool, flow)


def _requeued(state: State, x: d.Requeued) -> None:
    pool = state.pools[x.pool]
    request = pool.dead.pop(x.request_id)
    pool.gone.pop(x.request_id, None)
    pool.requests[x.request_id] = request
    flow = fl.flow_of(pool, request.user_id)
    flow.in_flight += 1
    fl.settle(pool, flow, request.predicted_class)
    pool.in_flight_cost += request.cost
    request.failures, request.attempts = 0, 0
    request.givers, request.promoted = (), False
    request.state = d.RequestState.REDELIVERY
    request.lease = None
    insort(pool.redelivery, (request.sequence, x.request_id))


def _reserved(state: State, x: d.Reserved) -> None:
    pool = state.pools[x.pool]
    pool.reservations[x.worker] = x.request_id
    pool.reserved_for[x.request_id] = x.worker


def _dead_letter_dropped(state: State, x: d.DeadLetterDropped) -> None:
    del state.pools[x.pool].dead[x.request_id]


_FOLD: Final[dict[type[Any], Callable[[State, Any], None]]] = {
    d.LogOpened: fc.log_opened,
    d.Recovered: fc.recovered,
    d.PoolConfigured: fc.pool_configured,
    d.PoolDeleted: fc.pool_deleted,
    d.UserConfigured: fc.user_configured,
    d.Paused: fc.paused,
    d.Resumed: fc.resumed,
    d.Rejoined: fc.rejoined,
    d.Accepted: _accepted,
    d.Dispatched: _dispatched,
    d.LeasesConfirmed: _leases_confirmed,
    d.LeaseRenewed: _lease_renewed,
    d.PrefillCompleted: _prefill_completed,
    d.LeaseEnded: _lease_ended,
    d.Completed: _completed,
    d.CancelRequested: _cancel_requested,
    d.Ended: _ended,
    d.Requeued: _requeued,
    d.BusyPeriodClosed: fc.busy_period_closed,
    d.Rebased: fc.rebased,
    d.Reserved: _reserved,
    d.WorkerSeen: fc.worker_seen,
    d.WorkerDrained: fc.worker_drained,
    d.WorkerGone: fc.worker_gone,
    d.EstimatorUpdated: fc.estimator_updated,
    d.DeadLetterDropped: _dead_letter_dropped,
    d.UserForgotten: fc.user_forgotten,
}
