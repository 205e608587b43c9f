"""What is there now, read from the state: the numbers of one pool at one sequence.

Counts are derived from the tables, never kept beside them, so they cannot drift; `GetStats` and the
metrics show the same ones.

Complexity:
    O(1) and O(log n), but for the oldest waiting request: O(requests in flight).
"""

from typing import NamedTuple

from scheduler_service.core import invariants
from scheduler_service.core.charge import slack_for
from scheduler_service.core.decisions import RequestState
from scheduler_service.core.policy import PoolMode
from scheduler_service.core.request import Request
from scheduler_service.core.selection import could_hold
from scheduler_service.core.state import Flow, Pool, State

UNPLACEABLE_LOOKED_AT = 256
"""Oldest waiting requests looked at for one that no worker could hold."""


class PoolCensus(NamedTuple):
    """One pool now.  Meters are micro cost units, times nanoseconds, -1 is "none".

    Attributes:
        oldest_wait_ns: Age of the oldest waiting request.
        gap: Largest difference of two selectable users' meters.
        bound: D + L of the busy period: what the gap never exceeds; -1 when unbounded.
        slack: D in force; -1 when unbounded.
        threshold_ns: theta.
    """

    waiting: int
    leased: int
    redelivery: int
    dead_letters: int
    remembered: int
    users: int
    selectable_users: int
    in_flight_cost: int
    oldest_wait_ns: int
    virtual_time: int
    gap: int
    bound: int
    slack: int
    threshold_ns: int
    sample_size: int
    short_admission_count: int
    promotion_debt: bool
    short_cutoff: int
    output_ratio_milli: int


def census(pool: Pool, now_ns: int) -> PoolCensus:
    """Returns the numbers of `pool`."""
    charged = pool.backlog.charged
    oldest = oldest_waiting(pool)
    sample = pool.sample
    enough = len(sample) >= pool.policy.aging_min_sample
    ratio, _ = pool.ratios.get("", (0, 0))
    return PoolCensus(
        waiting=pool.waiting,
        leased=pool.leased,
        redelivery=len(pool.redelivery),
        dead_letters=len(pool.dead),
        remembered=len(pool.gone),
        users=len(pool.flows),
        selectable_users=pool.backlog.selectable,
        in_flight_cost=pool.in_flight_cost,
        oldest_wait_ns=-1 if oldest is None else now_ns - oldest.enqueue_ns,
        virtual_time=pool.virtual_time,
        gap=invariants.gap(pool) if charged else 0,
        bound=invariants.bound(pool) if charged else -1,
        slack=slack_for(pool.rules, pool.recent_costs.largest) if charged else -1,
        threshold_ns=sample.quantile(pool.policy.aging_quantile_bp) if enough else -1,
        sample_size=len(sample),
        short_admission_count=0 if charged else pool.short_admission_count,
        promotion_debt=False if charged else pool.promotion_debt,
        short_cutoff=pool.short_cutoff,
        output_ratio_milli=ratio or pool.policy.prior_output_ratio_milli,
    )


def oldest_waiting(pool: Pool) -> Request | None:
    """Returns the waiting request that was accepted first.

    The table of requests is in order of acceptance, but for dead letters that were put back, and
    those do not wait.
    """
    for request in pool.requests.values():
        if request.state is RequestState.WAITING:
            return request
    return None


def oldest_unplaceable_ns(state: State, pool: Pool, now_ns: int) -> int:
    """Returns the age of the oldest waiting request that no live worker could hold; -1 for none.

    Looks at the oldest `UNPLACEABLE_LOOKED_AT` waiting requests.  Without live workers nothing
    counts as unplaceable: absent workers are another matter.
    """
    if pool.policy.mode is not PoolMode.PULL:
        return -1
    offers = {
        worker.offer
        for worker in state.workers.values()
        if pool.name in worker.pools and not worker.draining
    }
    if not offers:
        return -1
    looked_at = 0
    for request in pool.requests.values():
        if request.state is not RequestState.WAITING:
            continue
        if not any(could_hold(request, offer) for offer in offers):
            return now_ns - request.enqueue_ns
        looked_at += 1
        if looked_at == UNPLACEABLE_LOOKED_AT:
            break
    return -1


def oldest_of(flow: Flow, now_ns: int) -> int:
    """Returns the age of a user's oldest waiting request, nanoseconds; -1 if none waits."""
    oldest = flow.oldest()
    return -1 if oldest is None else now_ns - oldest.enqueue_ns
