"""What is due, and in which order it must fire: by time, then by accept sequence.

Requests leave at their waiting limit, leases end at their deadline or unconfirmed, pauses end by
themselves.  Whatever is due at the time of a record must have fired before it.
"""

from typing import NamedTuple

from scheduler_service.core.decisions import LeaseEndCause, RequestState
from scheduler_service.oracle.ledger import Lease, Pool, Request

NEVER = 2**63


class Timer(NamedTuple):
    """One timer; `request` and `sequence` are empty for the end of a pause."""

    time_ns: int
    sequence: int
    request: Request | None = None


def timer_of(request: Request) -> Timer | None:
    """The one timer that a request has, if it has one."""
    if request.state is RequestState.WAITING and request.expire_ns:
        return Timer(request.expire_ns, request.sequence, request)
    if request.lease is not None:
        return Timer(request.lease.due_ns(), request.sequence, request)
    return None


def pauses(pool: Pool) -> list[Timer]:
    """Ends of pauses of the pool and its users."""
    until = [pool.paused_until, *(user.paused_until for user in pool.users.values())]
    return [Timer(time_ns, 0) for time_ns in until if time_ns]


def all_timers(pools: dict[str, Pool]) -> list[Timer]:
    """Every timer there is, in the order in which they fire."""
    found = [timer for pool in pools.values() for timer in pauses(pool)]
    for pool in pools.values():
        found += [timer for timer in map(timer_of, pool.requests.values()) if timer is not None]
    return sorted(found, key=lambda timer: timer[:2])


def cause_at(lease: Lease) -> LeaseEndCause:
    """Why the lease ends by itself: unconfirmed, or too late."""
    if lease.hand_over_ns and lease.hand_over_ns <= lease.expire_ns:
        return LeaseEndCause.HAND_OVER
    return LeaseEndCause.EXPIRED
