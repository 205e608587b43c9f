"""How decisions about pools, users, workers and virtual time change the state.

Part of the fold; see `evolve`.
"""

from typing import Final

from scheduler_service.core import decisions as d
from scheduler_service.core import flows as fl
from scheduler_service.core import timers
from scheduler_service.core.backlog import OUT, Backlog
from scheduler_service.core.charge import rescaled_residual, slack_for
from scheduler_service.core.policy import PoolMode, PredictedClass, UserSettings
from scheduler_service.core.state import Flow, Pool, State, Worker

_SHORT: Final = PredictedClass.SHORT


def log_opened(state: State, x: d.LogOpened) -> None:
    """Takes note of who writes the log."""
    state.algorithm_version = x.algorithm_version
    state.durability = x.durability
    state.config_digest = x.config_digest


def recovered(state: State, x: d.Recovered) -> None:
    """Extends every lease, and the time within which workers must be seen, by the downtime."""
    for request in state.leases.values():
        lease = request.held_lease
        lease.expire_ns += x.downtime_ns
        if lease.hand_over_ns:
            lease.hand_over_ns += x.downtime_ns
    for worker in state.workers.values():
        worker.last_seen_ns += x.downtime_ns


def pool_configured(state: State, x: d.PoolConfigured) -> None:
    """Makes a pool, or puts a new policy in force on all that is in it."""
    if x.policy.mode is PoolMode.GATE:
        state.gates[x.pool] = None
    else:
        state.gates.pop(x.pool, None)
    if x.created:
        state.pools[x.pool] = Pool(x.pool, x.policy, x.policy_digest)
        return
    pool = state.pools[x.pool]
    before = pool.policy
    pool.govern(x.policy, x.policy_digest)
    if before.aging_sample_window != x.policy.aging_sample_window:
        pool.sample = pool.sample.resized(x.policy.aging_sample_window)
    if before.short_cutoff != x.policy.short_cutoff:
        pool.short_cutoff = x.policy.short_cutoff
    if before.unbounded and not x.policy.unbounded:
        for flow in pool.flows.values():
            flow.meter = pool.virtual_time
        pool.largest_meter = pool.virtual_time
    holders: list[Pool | Flow] = [pool, *pool.flows.values()]
    for holder in holders:
        holder.short_admission_count = (
            x.policy.quota_k
            if holder.promotion_debt
            else min(holder.short_admission_count, x.policy.quota_k)
        )
        holder.promotion_debt = holder.short_admission_count >= x.policy.quota_k
    pool.waiting_weight_milli = 0
    pool.held_index = None
    _reset_settings(pool)
    rebuild(pool)


def _reset_settings(pool: Pool) -> None:
    """Puts weights and caps in force that follow from the policy and the users' settings."""
    for flow in pool.flows.values():
        weight = fl.weight_of(pool, flow.user_id)
        residual = flow.meter - pool.virtual_time
        if weight != flow.weight_milli and residual > 0 and not pool.policy.unbounded:
            slack = slack_for(pool.rules, pool.recent_costs.largest)
            limit = slack + pool.recent_charges.largest
            scaled = rescaled_residual(residual, flow.weight_milli, weight, limit)
            flow.meter = pool.virtual_time + scaled
            pool.largest_meter = max(pool.largest_meter, flow.meter)
            pool.charge_max = max(pool.charge_max, pool.recent_charges.largest)
            pool.slack_max = max(pool.slack_max, slack)
        flow.weight_milli = weight
        flow.max_in_flight = fl.cap_of(pool, flow.user_id)
        if flow.waiting:
            pool.waiting_weight_milli += flow.weight_milli


def rebuild(pool: Pool) -> None:
    """Derives the backlog and the idle heaps of a pool anew from its flows."""
    were_out = {user_id for user_id, flow in pool.flows.items() if flow.place == OUT}
    pool.backlog = Backlog(pool.policy, pool.flows)
    pool.idle, pool.idle_in_quota = [], []
    pool.idle_place = pool.quota_place = 0
    for flow in sorted(pool.flows.values(), key=lambda flow: flow.meter):
        flow.place, flow.key, flow.idle_entry = OUT, None, None
        if not fl.may_be_selected(flow):
            fl.rest(pool, flow)
        elif flow.user_id not in were_out:
            pool.backlog.join(flow)


def pool_deleted(state: State, x: d.PoolDeleted) -> None:
    """Forgets a pool and what was remembered for it."""
    pool = state.pools.pop(x.pool)
    state.gates.pop(x.pool, None)
    for past in pool.forget_queue:
        fl.forget_leases(state, past)


def user_configured(state: State, x: d.UserConfigured) -> None:
    """Puts a user's weight and cap in force; its meter follows the record."""
    pool = state.pools[x.pool]
    settings = pool.settings.setdefault(x.user_id, UserSettings())
    settings.weight_milli, settings.max_in_flight = x.weight_milli, x.max_in_flight
    if settings == UserSettings():
        del pool.settings[x.user_id]
    flow = pool.flows.get(x.user_id)
    if flow is None:
        return
    assert flow.meter == x.meter_before
    weight = fl.weight_of(pool, x.user_id)
    if flow.waiting:
        pool.waiting_weight_milli += weight - flow.weight_milli
    flow.weight_milli = weight
    flow.max_in_flight = fl.cap_of(pool, x.user_id)
    flow.meter = x.meter_after
    pool.largest_meter = max(pool.largest_meter, x.meter_after)
    if x.meter_after > x.meter_before:
        # The clamp let the meter rise as far as the D + L of now: the band is that wide from here.
        pool.charge_max = max(pool.charge_max, pool.recent_charges.largest)
        pool.slack_max = max(pool.slack_max, slack_for(pool.rules, pool.recent_costs.largest))
    if pool.held_index is not None:
        pool.held_index.update(flow)
    fl.settle(pool, flow, _SHORT)
    if flow.place != OUT:
        pool.backlog.update(flow, PredictedClass.LONG)
    fl.rest(pool, flow)


def paused(state: State, x: d.Paused) -> None:
    """Holds a pool or a user back."""
    pool = state.pools[x.pool]
    before_ns = timers.pause_end(state, x.pool, x.user_id)
    if not x.user_id:
        pool.paused, pool.pause_until_ns = True, x.until_ns
    else:
        settings = pool.settings.setdefault(x.user_id, UserSettings())
        settings.paused, settings.pause_until_ns = True, x.until_ns
        flow = pool.flows.get(x.user_id)
        if flow is not None:
            flow.paused = True
            fl.settle(pool, flow, _SHORT)
    if before_ns != x.until_ns:
        timers.arm_pause(state, x.pool, x.user_id, x.until_ns)
        timers.voided(state)


def resumed(state: State, x: d.Resumed) -> None:
    """Ends a pause; a user joins the backlog with the `Rejoined` that follows."""
    pool = state.pools[x.pool]
    if not x.user_id:
        pool.paused, pool.pause_until_ns = False, 0
        timers.voided(state)
        return
    settings = pool.settings[x.user_id]
    settings.paused, settings.pause_until_ns = False, 0
    timers.voided(state)
    if settings == UserSettings():
        del pool.settings[x.user_id]
    flow = pool.flows.get(x.user_id)
    if flow is not None:
        flow.paused = False


def rejoined(state: State, x: d.Rejoined) -> None:
    """Puts a held-back user into the backlog."""
    pool = state.pools[x.pool]
    flow = pool.flows[x.user_id]
    assert flow.meter == x.meter_before
    flow.meter = x.meter_after
    if flow.place == OUT:
        pool.backlog.join(flow)
    else:
        pool.backlog.update(flow, _SHORT)


def busy_period_closed(state: State, x: d.BusyPeriodClosed) -> None:
    """Moves `v` to the largest meter and begins the band anew (SFQ §2.5)."""
    pool = state.pools[x.pool]
    assert pool.virtual_time == x.virtual_time_before
    pool.virtual_time = x.virtual_time_after
    pool.busy = False
    pool.slack_max = pool.charge_max = 0
    fl.forget_idle(pool)


def rebased(state: State, x: d.Rebased) -> None:
    """Takes the offset off `v` and every meter (SFQ §7.2)."""
    pool = state.pools[x.pool]
    offset = x.offset_micros
    pool.virtual_time -= offset
    pool.largest_meter = max(pool.largest_meter - offset, 0)
    for flow in pool.flows.values():
        flow.meter = max(flow.meter - offset, 0)
    rebuild(pool)


def worker_seen(state: State, x: d.WorkerSeen) -> None:
    """Takes note of a worker and what it has."""
    worker = state.workers.get(x.worker)
    if worker is None:
        state.workers[x.worker] = Worker(
            x.worker,
            x.worker_name,
            x.pools,
            x.offer,
            x.endpoint,
            x.now_ns,
            registered=x.registered,
        )
        timers.arm_worker(state, x.worker)
        return
    worker.pools, worker.offer = x.pools, x.offer
    worker.last_seen_ns = x.now_ns
    if x.registered:
        worker.name, worker.endpoint = x.worker_name, x.endpoint
        worker.registered, worker.draining = True, False


def worker_drained(state: State, x: d.WorkerDrained) -> None:
    """Keeps new work from a worker."""
    state.workers[x.worker].draining = True
    _release_reservations(state, x.worker)


def worker_gone(state: State, x: d.WorkerGone) -> None:
    """Forgets a worker."""
    del state.workers[x.worker]
    _release_reservations(state, x.worker)


def _release_reservations(state: State, worker: str) -> None:
    for pool in state.pools.values():
        request_id = pool.reservations.pop(worker, None)
        if request_id is not None:
            del pool.reserved_for[request_id]


def estimator_updated(state: State, x: d.EstimatorUpdated) -> None:
    """Puts learned estimator values in force."""
    pool = state.pools[x.pool]
    for user_id, ratio_milli, cap_tokens in x.ratios:
        pool.ratios[user_id] = (ratio_milli, cap_tokens)
    pool.short_cutoff = x.short_cutoff


def user_forgotten(state: State, x: d.UserForgotten) -> None:
    """Deletes what is configured and learned for a user."""
    pool = state.pools[x.pool]
    pool.settings.pop(x.user_id, None)
    pool.ratios.pop(x.user_id, None)
    flow = pool.flows.get(x.user_id)
    if flow is not None:
        assert flow.waiting == flow.in_flight == 0
        del pool.flows[x.user_id]
