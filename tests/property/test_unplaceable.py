"""A request that no live worker could ever hold never stalls the pool, and ends UNPLACEABLE."""

import pytest

from scheduler_service.core import decisions as d
from scheduler_service.core.policy import SECOND_NS, Placement
from tests.support import watches
from tests.support.driver import LONG, Driver
from tests.support.programs import PATIENT, policy

SMALL = d.Offer(free_tokens=10, total_tokens=10)
TAKES_NO_LONGS = d.Offer(accepts_long=False)


@pytest.mark.parametrize("placement", list(Placement))
@pytest.mark.parametrize("slack_milli", [0, 500])
def test_others_go_past_it(placement, slack_milli):
    """Under either placement, and however far ahead of it they already are."""
    rules = policy("fair_qba", placement=placement, slack_milli=slack_milli, max_overtakes=1000)
    driver = Driver(rules)
    driver.enqueue("huge", "a", kv_tokens=100)
    for number in range(20):
        driver.enqueue(f"b{number}", "b", 3)
    assert len(driver.next(20, offer=SMALL)) == 20


def test_its_user_does_not_save_the_time_up():
    """It is passed by like a held-back user: it rejoins beside the first that can be served."""
    driver = Driver(policy("sfq"))
    driver.enqueue("huge", "a", kv_tokens=100)
    driver.enqueue("a1", "a")
    for number in range(3):
        driver.enqueue(f"b{number}", "b", 3)
    driver.next(3, offer=SMALL)
    passed = [x for x in driver.of(d.Rejoined) if x.cause is d.RejoinCause.UNPLACEABLE]
    assert passed
    assert {record.user_id for record in passed} == {"a"}
    for record in passed:
        assert record.meter_after > record.meter_before


def test_it_ends_after_its_time_once_a_worker_asks():
    """With the reason; not before, and not while a worker that could hold it is alive."""
    driver = Driver(policy("sfq", unplaceable_wait_ns=10 * SECOND_NS, **PATIENT))
    driver.enqueue("huge", "a", kv_tokens=100)
    driver.now_ns = 10 * SECOND_NS - 1
    driver.ask(offer=SMALL)
    assert not driver.of(d.Ended)
    driver.ask(worker="large", offer=d.Offer(free_tokens=5, total_tokens=200))
    driver.now_ns += 1
    driver.ask(offer=SMALL)
    assert not driver.of(d.Ended)
    driver.now_ns += 120 * SECOND_NS
    driver.ask(offer=SMALL)
    assert [(x.state, x.reason) for x in driver.of(d.Ended)] == [
        (d.RequestState.UNPLACEABLE, "NO_WORKER_CAN_HOLD")
    ]


def test_nobody_is_passed_by_for_nothing():
    """Only when that lets somebody be served: else `v` stays behind and newcomers get ahead."""
    driver = Driver(policy("sfq"))
    driver.watch(watches.PairBound(driver))
    driver.enqueue("l0", "b", 1, LONG)
    for number in range(2):
        driver.enqueue(f"d{number}", "d", 40)
    driver.next(offer=TAKES_NO_LONGS)
    driver.cancel("d1")
    driver.enqueue("big", "d", 1, kv_tokens=6)
    driver.ask(offer=d.Offer(free_tokens=5, total_tokens=50, accepts_long=False))
    assert not [x for x in driver.of(d.Rejoined) if x.cause is d.RejoinCause.UNPLACEABLE]


def test_behind_it_in_a_fifo_queue_nobody_can_be_served():
    """With `fifo` only the head counts: what stands behind it does not make its user servable."""
    driver = Driver(policy("sfq"))
    driver.enqueue("l0", "c", 1, LONG)
    driver.enqueue("s0", "c")
    driver.enqueue("b0", "b", 2)
    driver.enqueue("b1", "b", 2)
    assert [x.request_id for x in driver.next(2, offer=TAKES_NO_LONGS)] == ["b0", "b1"]


def test_thousands_of_them_are_ended_without_trouble():
    """A flood of impossible requests ends bit by bit, and what others enqueued is served."""
    driver = Driver(policy("fair_qba", unplaceable_wait_ns=SECOND_NS, **PATIENT), replica=False)
    driver.strict = False
    driver.ask(offer=SMALL)
    for number in range(3000):
        driver.enqueue(f"huge{number}", "a", kv_tokens=100)
    driver.enqueue("small", "b", 3)
    driver.now_ns += 2 * SECOND_NS
    calls = 0
    while driver.state.pools["pool"].waiting:
        driver.ask(offer=SMALL)
        calls += 1
    assert calls < 3000 / 32
    assert [x.request_id for x in driver.of(d.Dispatched)] == ["small"]
