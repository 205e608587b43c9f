"""Configuration of pools and users, pauses, and workers: all decisions, all at once in force."""

from typing import Final

from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core import flows as fl
from scheduler_service.core.admission import pool_named
from scheduler_service.core.charge import rescaled_residual, slack_for
from scheduler_service.core.dead_letters import drop_dead_letter, drop_oldest
from scheduler_service.core.errors import Conflict, LimitReached, Unknown, WrongState
from scheduler_service.core.lifecycle import rejoin_freed
from scheduler_service.core.phrases import count_text
from scheduler_service.core.policy import POOLS_MAX, WORKERS_MAX, UserSettings
from scheduler_service.core.recording import record
from scheduler_service.core.state import Flow, Pool, State

_NAMES_MAX: Final = 5
"""Workers named in a refusal."""


def configure_pool(state: State, x: c.ConfigurePool, log: list[d.Decision]) -> None:
    """Creates a pool or changes its policy.

    Raises:
        Conflict: POOL_EXISTS.
        Unknown: POOL_UNKNOWN.
        WrongState: POOL_MODE, if the mode is to change while requests are in the pool.
    """
    known = state.pools.get(x.pool)
    if x.create and known is not None:
        raise Conflict("POOL_EXISTS", f"There is a pool {x.pool!r} already.", pool=x.pool)
    if x.create and len(state.pools) >= POOLS_MAX:
        raise LimitReached(
            "POOLS_FULL", f"There are {POOLS_MAX} pools already.", limitPools=POOLS_MAX
        )
    if not x.create:
        pool = pool_named(state, x.pool)
        if pool.policy.mode is not x.policy.mode and pool.requests:
            raise WrongState(
                "POOL_MODE",
                f"Pool {x.pool!r} holds requests; its mode changes only when it is empty.",
                pool=x.pool,
                requests=len(pool.requests),
            )
    record(
        state,
        log,
        d.PoolConfigured(x.now_ns, x.pool, x.policy, x.policy_digest, x.create, x.peer),
    )
    if not x.create:
        drop_oldest(state, state.pools[x.pool], x.now_ns, log)
        _rejoin_all(state, state.pools[x.pool], x.now_ns, log)


def _rejoin_all(state: State, pool: Pool, now_ns: int, log: list[d.Decision]) -> None:
    for user_id in sorted(pool.flows):
        rejoin_freed(state, pool, user_id, d.RejoinCause.CAP, now_ns, log)


def delete_pool(state: State, x: c.DeletePool, log: list[d.Decision]) -> None:
    """Deletes a pool that holds no request and that no worker asks for work.

    Raises:
        Unknown: POOL_UNKNOWN.
        WrongState: POOL_NOT_EMPTY, or POOL_HAS_WORKERS unless it is forced.
    """
    pool = pool_named(state, x.pool)
    if pool.requests:
        raise WrongState(
            "POOL_NOT_EMPTY",
            f"Pool {x.pool!r} holds {count_text(len(pool.requests), 'request')}: "
            "cancel what is in it, or wait until it has ended"
            + ("; force covers workers only, never requests." if x.force else "."),
            pool=x.pool,
            requests=len(pool.requests),
        )
    serving = {w.name for w in state.workers.values() if x.pool in w.pools and not w.draining}
    if serving and not x.force:
        some = ", ".join(repr(name) for name in sorted(serving)[:_NAMES_MAX])
        more = f" and {len(serving) - _NAMES_MAX} more" if len(serving) > _NAMES_MAX else ""
        raise WrongState(
            "POOL_HAS_WORKERS",
            f"Pool {x.pool!r} is served by {some}{more}.",
            pool=x.pool,
            workers=f"{some}{more}",
        )
    for request_id in list(pool.dead):
        drop_dead_letter(state, pool, request_id, x.now_ns, log, x.peer)
    record(state, log, d.PoolDeleted(x.now_ns, x.pool, x.peer))


def configure_user(state: State, x: c.ConfigureUser, log: list[d.Decision]) -> None:
    """Sets a user's weight and cap and rescales its meter about `v`.

    Raises:
        Unknown: POOL_UNKNOWN.
    """
    pool = pool_named(state, x.pool)
    weight_before = fl.weight_of(pool, x.user_id)
    weight_after = x.weight_milli or pool.policy.default_weight_milli
    flow = pool.flows.get(x.user_id)
    meter = pool.virtual_time if flow is None else flow.meter
    meter_after = meter
    if flow is not None and pool.backlog.charged and meter > pool.virtual_time:
        meter_after = _rescaled(pool, flow, weight_before, weight_after)
    record(
        state,
        log,
        d.UserConfigured(
            x.now_ns,
            x.pool,
            x.user_id,
            x.weight_milli,
            x.max_in_flight,
            weight_before,
            meter,
            meter_after,
            x.peer,
        ),
    )
    rejoin_freed(state, pool, x.user_id, d.RejoinCause.CAP, x.now_ns, log)


def _rescaled(pool: Pool, flow: Flow, before: int, after: int) -> int:
    if before == after:
        return flow.meter
    slack = slack_for(pool.rules, pool.recent_costs.largest)
    limit = slack + pool.recent_charges.largest
    residual = flow.meter - pool.virtual_time
    return pool.virtual_time + rescaled_residual(residual, before, after, limit)


def pause(state: State, x: c.Pause, log: list[d.Decision]) -> None:
    """Pauses a pool or a user; a repeat changes the end.

    Raises:
        Unknown: POOL_UNKNOWN.
    """
    pool_named(state, x.pool)
    record(state, log, d.Paused(x.now_ns, x.pool, x.user_id, x.until_ns, x.peer))


def resume(state: State, x: c.Resume, log: list[d.Decision], *, by_timer: bool = False) -> None:
    """Ends a pause; without one nothing happens.

    Raises:
        Unknown: POOL_UNKNOWN.
    """
    pool = pool_named(state, x.pool)
    paused = pool.settings.get(x.user_id, UserSettings()).paused if x.user_id else pool.paused
    if not paused:
        return
    record(state, log, d.Resumed(x.now_ns, x.pool, x.user_id, by_timer, x.peer))
    if x.user_id:
        rejoin_freed(state, pool, x.user_id, d.RejoinCause.RESUMED, x.now_ns, log)


def forget_user(state: State, x: c.ForgetUser, log: list[d.Decision]) -> None:
    """Deletes a user's settings and learned values.

    Raises:
        Unknown: POOL_UNKNOWN.
        WrongState: USER_HAS_WORK.
    """
    pool = pool_named(state, x.pool)
    flow = pool.flows.get(x.user_id)
    if flow is not None and (flow.waiting or flow.in_flight):
        raise WrongState(
            "USER_HAS_WORK",
            "The user has requests waiting or in flight.",
            pool=x.pool,
            requests=flow.waiting + flow.in_flight,
        )
    record(state, log, d.UserForgotten(x.now_ns, x.pool, x.user_id, x.peer))


def register_worker(state: State, x: c.RegisterWorker, log: list[d.Decision]) -> None:
    """Opens a worker session.

    Raises:
        Unknown: POOL_UNKNOWN.
    """
    for name in x.pools:
        pool_named(state, name)
    make_room_for_worker(state, x.worker)
    record(
        state,
        log,
        d.WorkerSeen(
            x.now_ns,
            x.worker,
            x.worker_name,
            tuple(sorted(x.pools)),
            x.offer,
            x.endpoint,
            registered=True,
        ),
    )


def make_room_for_worker(state: State, worker: str) -> None:
    """Checks that one more worker can be kept in mind.

    Raises:
        LimitReached: WORKERS_FULL.
    """
    if worker not in state.workers and len(state.workers) >= WORKERS_MAX:
        raise LimitReached(
            "WORKERS_FULL", f"There are {WORKERS_MAX} workers already.", limitWorkers=WORKERS_MAX
        )


def drain_worker(state: State, x: c.DrainWorker, log: list[d.Decision]) -> None:
    """Stops new work for a worker; a repeat does nothing.

    Raises:
        Unknown: WORKER_UNKNOWN.
    """
    worker = state.workers.get(x.worker)
    if worker is None:
        raise Unknown("WORKER_UNKNOWN", f"There is no worker {x.worker!r}.", worker=x.worker)
    if not worker.draining:
        record(state, log, d.WorkerDrained(x.now_ns, x.worker, x.peer))


def update_estimator(state: State, x: c.UpdateEstimator, log: list[d.Decision]) -> None:
    """Puts learned estimator values into force.

    Raises:
        Unknown: POOL_UNKNOWN.
    """
    pool_named(state, x.pool)
    record(state, log, d.EstimatorUpdated(x.now_ns, x.pool, x.ratios, x.short_cutoff))
