"""The laws, checked.

`check_band` runs after every charged dispatch, in production too: a broken band stops the service
rather than letting it go on unfairly.  `check` looks at everything and is for tests and dumps.

Source:
    SFQ §3.1 (the three properties), with the slack in the place of one largest charge.
"""

from typing import TYPE_CHECKING

from scheduler_service.core.backlog import OUT
from scheduler_service.core.decisions import RequestState
from scheduler_service.core.flows import may_be_selected
from scheduler_service.core.meters import lowest
from scheduler_service.core.policy import PredictedClass

if TYPE_CHECKING:
    from scheduler_service.core.decisions import Dispatched
    from scheduler_service.core.state import Flow, Pool, State


def bound(pool: "Pool") -> int:
    """Returns D + L of the busy period, micro cost units: how far a meter may be above `v`.

    Where overtaking was on, D includes how far overtaking could reach past the window.
    """
    return pool.slack_max + pool.charge_max


def gap(pool: "Pool") -> int:
    """Returns the largest difference of two selectable users' meters, micro cost units."""
    index = pool.backlog.index
    return index[-1][0] - index[0][0] if index else 0


def check_band(pool: "Pool", dispatched: "Dispatched", flow: "Flow") -> None:
    """Asserts the band for the user just charged, and that `v` did not fall."""
    virtual_time = pool.virtual_time
    assert dispatched.virtual_time_before <= virtual_time, "v fell"
    backlog = pool.backlog
    if backlog.selectable:
        smallest: int = lowest(backlog.parts)[0]
        assert virtual_time <= smallest, "a selectable user is below v"
    assert flow.meter - virtual_time <= bound(pool), "a meter is above v + D + L"


def check(state: "State") -> None:
    """Asserts every structural law of the whole state.

    Complexity:
        O(everything); for tests, dumps and start-up.
    """
    assert state.at_hand is None, "a request was at hand for a decision that did not take it"
    assert state.grant is None, "a grant was at hand for a decision that did not take it"
    for pool in state.pools.values():
        _check_pool(state, pool)
    for lease_id, request in state.leases.items():
        assert request.lease is not None
        assert request.lease.lease_id == lease_id
        assert state.pools[request.lease.pool].requests[request.request_id] is request
    assert len(state.leases) == sum(pool.leased for pool in state.pools.values())
    for worker in state.workers.values():
        held = sum(
            1
            for request in state.leases.values()
            if request.lease is not None and request.lease.worker == worker.worker
        )
        assert worker.leases == held


def _check_pool(state: "State", pool: "Pool") -> None:
    waiting = leased = 0
    for flow in pool.flows.values():
        queue = _queue(flow)
        assert len(queue) == flow.waiting
        waiting += flow.waiting
        leased += flow.in_flight
        assert 0 <= flow.short_admission_count <= pool.policy.quota_k
        assert flow.promotion_debt == (flow.short_admission_count == pool.policy.quota_k)
        assert (flow.place != OUT) == may_be_selected(flow), flow.user_id
        assert flow.meter <= max(pool.largest_meter, pool.virtual_time)
        if pool.backlog.charged:
            assert (flow.key is not None) == (flow.place != OUT)
            assert flow.key is None or flow.key in pool.backlog.index
            assert flow.place == OUT or flow.meter >= pool.virtual_time
            assert flow.meter <= pool.virtual_time + bound(pool) or not pool.busy
    assert pool.waiting == waiting
    assert pool.waiting_shorts == sum(
        request.state is RequestState.WAITING and request.predicted_class is PredictedClass.SHORT
        for request in pool.requests.values()
    )
    assert leased == pool.leased + len(pool.redelivery)
    assert len(pool.requests) == waiting + leased
    pool.backlog.check()
    assert pool.backlog.selectable == sum(1 for f in pool.flows.values() if f.place != OUT)
    assert len(pool.backlog.index) == (pool.backlog.selectable if pool.backlog.charged else 0)
    assert pool.in_flight_cost == sum(
        request.cost
        for request in pool.requests.values()
        if request.state is not RequestState.WAITING
    )
    assert pool.waiting_weight_milli == sum(
        flow.weight_milli for flow in pool.flows.values() if flow.waiting
    )
    assert state.sequence >= 0


def _queue(flow: "Flow") -> list[int]:
    found = []
    for head in (flow.oldest_short, flow.oldest_long):
        request, last = head, 0
        while request is not None:
            assert request.sequence > last, "a queue is out of order"
            last = request.sequence
            found.append(last)
            request = request.newer
    return found
