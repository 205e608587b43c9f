"""Timers as data: a heap of (time, request sequence, kind, pool, id).

A timer says when something must be looked at, not what will happen.  There is at most one timer
for a wait and one for a lease; a renewed lease keeps its old timer, which is set again when it
comes up early.  Timers of things that have gone are void; they are cleared away a few at a time.

Invariants:
    Whatever has a time limit has a timer at or before it.
"""

from heapq import heapify, heappush
from typing import Any, Final

from scheduler_service.core.decisions import RequestState
from scheduler_service.core.request import Request
from scheduler_service.core.state import Pool, State
from scheduler_service.core.sweeping import sweep

WAIT: Final = 1
LEASE: Final = 2
PAUSE: Final = 3
WORKER: Final = 4
WAKE: Final = 5

_LEFT_UP_TO: Final = 1024
_ANEW_UP_TO: Final = 8192
"""A heap of this size is made anew in some milliseconds, which is cheaper than sweeping it."""

_Timer = tuple[Any, ...]
"""Typed loosely: compiled, it stays the one tuple that was made (see `search.Key`)."""


def arm_wait(state: State, pool: Pool, request: Request) -> None:
    """Sets the timer for the end of a request's wait."""
    _arm(state, (request.expire_ns, request.sequence, WAIT, pool.name, request.request_id))


def arm_lease(state: State, pool: Pool, request: Request) -> None:
    """Sets the timer for the end of a request's lease, or of its hand-over."""
    lease = request.held_lease
    _arm(state, (lease_due(request), request.sequence, LEASE, pool.name, lease.lease_id))


def arm_pause(state: State, pool: str, user_id: str, until_ns: int) -> None:
    """Sets the timer for the end of a pause; 0 has none."""
    if until_ns:
        _arm(state, (until_ns, 0, PAUSE, pool, user_id))


def arm_wake(state: State, time_ns: int) -> None:
    """Sets a timer at which nothing ends, but something that was held back may go."""
    _arm(state, (time_ns, 0, WAKE, "", ""))


def arm_worker(state: State, worker: str) -> None:
    """Sets the timer that looks whether a worker without leases has gone silent; one is enough."""
    if state.workers[worker].armed:
        return
    state.workers[worker].armed = True
    _arm(state, (worker_due(state, worker), 0, WORKER, "", worker))


def pause_end(state: State, pool_name: str, user_id: str) -> int:
    """Returns when the pause of a pool (`user_id` empty) or a user ends; 0 if it does not."""
    pool = state.pools.get(pool_name)
    if pool is None:
        return 0
    if not user_id:
        return pool.pause_until_ns
    settings = pool.settings.get(user_id)
    return 0 if settings is None else settings.pause_until_ns


def lease_due(request: Request) -> int:
    """Returns when the lease ends, nanoseconds: at its hand-over time until it is confirmed."""
    lease = request.held_lease
    if lease.hand_over_ns:
        return min(lease.hand_over_ns, lease.expire_ns)
    return lease.expire_ns


def worker_due(state: State, worker: str) -> int:
    """Returns when a worker counts as gone if nothing more is seen of it, nanoseconds."""
    seen = state.workers[worker]
    ttl = max(
        (state.pools[name].policy.worker_ttl_ns for name in seen.pools if name in state.pools),
        default=0,
    )
    return seen.last_seen_ns + ttl


def next_due(state: State) -> int | None:
    """Returns when a timer must next be looked at, nanoseconds; None without timers."""
    if not state.timers:
        return None
    due_ns: int = state.timers[0][0]
    return due_ns


def _arm(state: State, timer: _Timer) -> None:
    heappush(state.timers, timer)


def voided(state: State) -> None:
    """Clears void timers away; to be called whenever one has become void."""
    heap = state.timers
    if len(heap) <= _LEFT_UP_TO:
        return
    if len(heap) > _ANEW_UP_TO:
        state.timer_place = sweep(heap, state.timer_place, lambda timer: _is_void(state, timer))
        return
    state.void_timers += 1
    if state.void_timers * 4 > len(heap) * 3:
        heap[:] = [timer for timer in heap if not _is_void(state, timer)]
        heapify(heap)
        state.void_timers = 0


def _is_void(state: State, timer: _Timer) -> bool:
    kind: int = timer[2]
    name: str = timer[4]
    if kind == LEASE:
        return name not in state.leases
    if kind == WORKER:
        return name not in state.workers
    if kind == WAKE:
        return False
    if kind == PAUSE:
        due_ns: int = timer[0]
        return pause_end(state, timer[3], name) != due_ns
    sequence: int = timer[1]
    pool = state.pools.get(timer[3])
    request = None if pool is None else pool.requests.get(name)
    return (
        request is None or request.sequence != sequence or request.state is not RequestState.WAITING
    )


def rearm_all(state: State) -> None:
    """Sets every timer anew from the tables."""
    state.timers, state.timer_place, state.void_timers = [], 0, 0
    for pool in state.pools.values():
        for request in pool.requests.values():
            _arm_request(state, pool, request)
        if pool.paused:
            arm_pause(state, pool.name, "", pool.pause_until_ns)
        for user_id, settings in pool.settings.items():
            if settings.paused:
                arm_pause(state, pool.name, user_id, settings.pause_until_ns)
    for worker in state.workers:
        arm_worker(state, worker)


def _arm_request(state: State, pool: Pool, request: Request) -> None:
    if request.lease is not None:
        arm_lease(state, pool, request)
    elif request.givers:
        for _, until_ns in request.givers:
            arm_wake(state, until_ns)
    elif request.expire_ns and request.state is RequestState.WAITING:
        arm_wait(state, pool, request)
