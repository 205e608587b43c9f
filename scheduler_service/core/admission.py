"""Accepting requests: idempotency, limits, fair shedding, and the rule for arrivals (SFQ §2.4)."""

from typing import Final

from scheduler_service.core import answers as a
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core import flows as fl
from scheduler_service.core.errors import Conflict, LimitReached, Unknown
from scheduler_service.core.held import share_of
from scheduler_service.core.phrases import count_text
from scheduler_service.core.policy import COST_MAX
from scheduler_service.core.recording import record
from scheduler_service.core.state import Pool, State

_WAITING: Final = d.RequestState.WAITING
_NEW: Final = a.Existing.NEW


def pool_named(state: State, name: str) -> Pool:
    """Returns the pool.

    Raises:
        Unknown: POOL_UNKNOWN.
    """
    pool = state.pools.get(name)
    if pool is None:
        raise Unknown("POOL_UNKNOWN", f"There is no pool {name!r}.", pool=name)
    return pool


def enqueue(state: State, x: c.Enqueue, log: list[d.Decision]) -> a.Accepted:
    """Puts a request at the tail of its user's queue, or answers a repeat.

    Raises:
        Unknown: POOL_UNKNOWN.
        Conflict: REQUEST_ID_REUSED.
        LimitReached: USER_QUEUE_FULL, QUEUE_FULL, USERS_FULL.
    """
    now_ns, name, request_id, user_id = x.now_ns, x.pool, x.request_id, x.user_id
    pool = pool_named(state, name)
    known = pool.requests.get(request_id) or fl.remembered(pool, request_id, now_ns)
    if known is None and request_id in pool.dead:
        known = pool.dead[request_id]
    if known is not None:
        if known.content_digest != x.content_digest or known.user_id != user_id:
            raise Conflict(
                "REQUEST_ID_REUSED",
                f"Request {request_id!r} is known with other content.",
                pool=name,
                requestId=request_id,
            )
        return a.Accepted(
            known.sequence,
            known.cost,
            known.predicted_class,
            d.RequestState.DEAD_LETTERED if request_id in pool.dead else known.state,
            a.Existing.REPEATED,
        )
    _check_limits(state, pool, x, log)
    flow = pool.flows.get(user_id)
    virtual_time = pool.virtual_time
    meter = virtual_time if flow is None else flow.meter
    meter_after, rejoined = meter, False
    if pool.backlog.charged and (flow is None or flow.waiting == 0):
        rejoined = True
        meter_after = meter if meter > virtual_time else virtual_time
    weight = fl.weight_of(pool, user_id) if flow is None else flow.weight_milli
    max_wait_ns = x.max_wait_ns or pool.policy.max_wait_ns
    cost, predicted_class = x.cost, x.predicted_class
    assert 1 <= cost <= COST_MAX, "a cost that charges cannot be computed for"
    accepted = d.Accepted(
        now_ns,
        name,
        request_id,
        user_id,
        cost,
        predicted_class,
        weight,
        x.kv_tokens,
        now_ns + max_wait_ns if max_wait_ns else 0,
        x.labels,
        x.content_digest,
        x.payload_digest,
        x.payload_bytes,
        x.prompt_tokens,
        x.output_cap_tokens,
        x.expected_output_tokens,
        x.caller_bound,
        rejoined,
        meter,
        meter_after,
        virtual_time,
        x.peer,
    )
    record(state, log, accepted)
    return a.Accepted(state.sequence, cost, predicted_class, _WAITING, _NEW)


def _check_limits(state: State, pool: Pool, x: c.Enqueue, log: list[d.Decision]) -> None:
    policy = pool.policy
    flow = pool.flows.get(x.user_id)
    held = 0 if flow is None else flow.waiting
    if held >= policy.max_waiting_per_user:
        raise LimitReached(
            "USER_QUEUE_FULL",
            f"User {x.user_id!r} has {count_text(held, 'request')} waiting in pool {x.pool!r}.",
            pool=x.pool,
            limitRequests=policy.max_waiting_per_user,
        )
    if flow is None and len(pool.flows) >= policy.max_users and not _evictable(pool):
        raise LimitReached(
            "USERS_FULL",
            f"Pool {x.pool!r} has {count_text(len(pool.flows), 'user')} with work.",
            pool=x.pool,
            limitUsers=policy.max_users,
        )
    if pool.waiting >= policy.max_waiting:
        _shed_for(state, pool, x, held, log)


def _evictable(pool: Pool) -> bool:
    return any(
        flow.waiting == flow.in_flight == 0 and flow.meter <= pool.virtual_time
        for flow in (pool.flows.get(user_id) for _, user_id, _ in pool.idle_in_quota)
        if flow is not None
    )


def _shed_for(state: State, pool: Pool, x: c.Enqueue, held: int, log: list[d.Decision]) -> None:
    """Makes a place by shedding the newest request of the user furthest past its share.

    Source:
        SFQ §5.1 (shed while waiting, hence uncharged).
    """
    places = pool.policy.max_waiting
    weight = fl.weight_of(pool, x.user_id)
    weight_sum = pool.waiting_weight_milli + (weight if held == 0 else 0)
    victim = None
    if held < share_of(places, weight, weight_sum):
        victim = fl.watch_held(pool).victim(places, weight_sum)
    if victim is None:
        raise LimitReached(
            "QUEUE_FULL",
            f"Pool {x.pool!r} has {count_text(pool.waiting, 'request')} waiting.",
            pool=x.pool,
            limitRequests=places,
        )
    newest = pool.flows[victim].newest()
    assert newest is not None
    how = d.RequestState.SHED
    ended = d.Ended(
        x.now_ns, x.pool, newest.request_id, how, "POOL_FULL", x.peer, newest.sequence, victim
    )
    record(state, log, ended)
