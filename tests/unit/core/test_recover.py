"""What a restart does to time limits."""

import pytest

from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.policy import SECOND_NS, PoolPolicy
from scheduler_service.core.scheduler import apply
from scheduler_service.core.state import State

LEASE_NS = 10 * SECOND_NS


@pytest.fixture
def state():
    """A pool with one leased request, one that waits at most 5 s, and a clock at 0."""
    state = State()
    policy = PoolPolicy(lease_duration_ns=LEASE_NS, hand_over_ns=0)
    apply(
        state, c.ConfigurePool(now_ns=0, pool="p", policy=policy, policy_digest="", create=True), []
    )
    apply(state, c.Enqueue(now_ns=0, pool="p", request_id="leased", user_id="a", cost=1), [])
    apply(state, c.NextDispatch(now_ns=0, nonce="n", pools=("p",), worker="w"), [])
    limit = 5 * SECOND_NS
    waits = c.Enqueue(
        now_ns=0, pool="p", request_id="waits", user_id="a", cost=1, max_wait_ns=limit
    )
    apply(state, waits, [])
    return state


def test_downtime_loses_no_lease(state):
    """A lease that fell due while the service was away has what was left of it; waits do not."""
    log: list[d.Decision] = []

    apply(state, c.Recover(now_ns=100 * SECOND_NS, downtime_ns=96 * SECOND_NS), log)

    assert type(log[0]) is d.Recovered
    pool = state.pools["p"]
    lease = pool.requests["leased"].lease
    assert lease is not None
    assert lease.expire_ns == LEASE_NS + 96 * SECOND_NS
    assert pool.gone["waits"].state is d.RequestState.EXPIRED


def test_leases_end_after_the_extension(state):
    """The extension moves the end of a lease and does not remove it."""
    apply(state, c.Recover(now_ns=100 * SECOND_NS, downtime_ns=96 * SECOND_NS), [])
    log: list[d.Decision] = []

    apply(state, c.Tick(now_ns=106 * SECOND_NS - 1), log)
    assert log == []
    apply(state, c.Tick(now_ns=106 * SECOND_NS), log)

    assert [type(decision) for decision in log] == [d.LeaseEnded]
