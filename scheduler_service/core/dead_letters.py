"""Requests that failed too often: kept with their reason until somebody requeues or drops them."""

from scheduler_service.core import answers as a
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.admission import pool_named
from scheduler_service.core.errors import LimitReached, Unknown
from scheduler_service.core.recording import record
from scheduler_service.core.request import Request
from scheduler_service.core.state import Pool, State


def requeue(state: State, x: c.Requeue, log: list[d.Decision]) -> a.Finished:
    """Puts a dead-lettered request back with fresh attempts, uncharged: it paid for its turn.

    Raises:
        Unknown: POOL_UNKNOWN, REQUEST_UNKNOWN.
        LimitReached: USERS_FULL.
    """
    pool = pool_named(state, x.pool)
    request = _dead_letter(pool, x.request_id)
    if request.user_id not in pool.flows and len(pool.flows) >= pool.policy.max_users:
        raise LimitReached("USERS_FULL", f"Pool {x.pool!r} is full of users.", pool=x.pool)
    record(state, log, d.Requeued(x.now_ns, x.pool, x.request_id, x.peer, request.user_id))
    return a.Finished(x.pool, x.request_id, d.RequestState.REDELIVERY, a.Existing.NEW)


def discard(state: State, x: c.Discard, log: list[d.Decision]) -> a.Finished:
    """Drops a dead-lettered request for good.

    Raises:
        Unknown: POOL_UNKNOWN, REQUEST_UNKNOWN.
    """
    pool = pool_named(state, x.pool)
    _dead_letter(pool, x.request_id)
    drop_dead_letter(state, pool, x.request_id, x.now_ns, log, x.peer)
    return a.Finished(x.pool, x.request_id, d.RequestState.DEAD_LETTERED, a.Existing.NEW)


def drop_dead_letter(
    state: State,
    pool: Pool,
    request_id: str,
    now_ns: int,
    log: list[d.Decision],
    peer: str = "",
) -> None:
    """Drops one dead-lettered request."""
    dead = pool.dead[request_id]
    dropped = d.DeadLetterDropped(now_ns, pool.name, request_id, peer, dead.sequence, dead.user_id)
    record(state, log, dropped)


def drop_oldest(state: State, pool: Pool, now_ns: int, log: list[d.Decision]) -> None:
    """Drops the dead-lettered requests that are past the pool's limit, oldest first."""
    while len(pool.dead) > pool.policy.max_dead_letters:
        drop_dead_letter(state, pool, next(iter(pool.dead)), now_ns, log)


def _dead_letter(pool: Pool, request_id: str) -> Request:
    request = pool.dead.get(request_id)
    if request is None:
        raise Unknown(
            "REQUEST_UNKNOWN",
            f"There is no dead-lettered request {request_id!r} in pool {pool.name!r}.",
            pool=pool.name,
            requestId=request_id,
        )
    return request
