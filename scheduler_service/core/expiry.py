"""What happens when time has passed: waits, leases, pauses and silent workers end.

Timers that are due fire before the command that brings the time, in order of (time, request
sequence).
"""

from heapq import heappop

from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core import timers
from scheduler_service.core.admin import resume
from scheduler_service.core.lifecycle import end, end_lease
from scheduler_service.core.recording import record
from scheduler_service.core.state import State


def fire_due(state: State, now_ns: int, log: list[d.Decision]) -> None:
    """Fires every timer that is due at `now_ns`."""
    heap = state.timers
    while heap and heap[0][0] <= now_ns:
        due_ns, sequence, kind, pool, name = heappop(heap)
        if kind == timers.LEASE:
            _lease_timer(state, due_ns, pool, name, now_ns, log)
        elif kind == timers.WAIT:
            _wait_timer(state, sequence, pool, name, now_ns, log)
        elif kind == timers.PAUSE:
            _pause_timer(state, due_ns, pool, name, now_ns, log)
        elif kind == timers.WORKER:
            _worker_timer(state, due_ns, name, now_ns, log)


def _lease_timer(
    state: State, due_ns: int, pool_name: str, lease_id: str, now_ns: int, log: list[d.Decision]
) -> None:
    request = state.leases.get(lease_id)
    if request is None:
        return
    pool = state.pools[pool_name]
    if timers.lease_due(request) > due_ns:
        # Set for a time that has moved on: it fires in its new place, even if that is due too.
        timers.arm_lease(state, pool, request)
        return
    lease = request.held_lease
    by_hand_over = 0 < lease.hand_over_ns <= lease.expire_ns
    cause = d.LeaseEndCause.HAND_OVER if by_hand_over else d.LeaseEndCause.EXPIRED
    end_lease(state, pool, request, cause, now_ns, log)


def _wait_timer(
    state: State, sequence: int, pool_name: str, request_id: str, now_ns: int, log: list[d.Decision]
) -> None:
    pool = state.pools.get(pool_name)
    request = None if pool is None else pool.requests.get(request_id)
    if (
        pool is None
        or request is None
        or request.sequence != sequence
        or request.state is not d.RequestState.WAITING
    ):
        return
    end(state, pool, request, d.RequestState.EXPIRED, "MAX_WAIT", now_ns, log)


def _pause_timer(
    state: State, due_ns: int, pool_name: str, user_id: str, now_ns: int, log: list[d.Decision]
) -> None:
    if timers.pause_end(state, pool_name, user_id) == due_ns:
        ended = c.Resume(now_ns=now_ns, pool=pool_name, user_id=user_id)
        resume(state, ended, log, by_timer=True)


def _worker_timer(
    state: State, due_ns: int, worker: str, now_ns: int, log: list[d.Decision]
) -> None:
    seen = state.workers.get(worker)
    if seen is None:
        return
    seen.armed = False
    if timers.worker_due(state, worker) > due_ns:
        timers.arm_worker(state, worker)
    elif seen.leases == 0:  # else the end of its last lease sets the timer again
        record(state, log, d.WorkerGone(now_ns, worker))
