"""Waiting limits, bounded queues and fair shedding (the rules around the order)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.core import answers as a
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.errors import Conflict, LimitReached
from scheduler_service.core.policy import SECOND_NS
from tests.support.driver import Driver
from tests.support.programs import SFQ, policy


def reason(driver: Driver, *arguments, **fields) -> str:
    with pytest.raises(LimitReached) as error:
        driver.enqueue(*arguments, **fields)
    return error.value.reason


def test_a_request_leaves_at_its_waiting_limit():
    """At that time, uncharged, and never dispatched after."""
    driver = Driver(SFQ)
    driver.enqueue("a0", "a", 5, max_wait_ns=3 * SECOND_NS)
    driver.now_ns = 3 * SECOND_NS
    assert not driver.next()
    assert [record.state for record in driver.of(d.Ended)] == [d.RequestState.EXPIRED]
    assert driver.meter("a") == 0


def test_a_limit_fires_although_no_call_asks():
    """A tick is enough; and one nanosecond earlier the request still goes."""
    driver = Driver(policy("sfq", max_wait_ns=3 * SECOND_NS))
    driver.enqueue("a0", "a")
    driver.now_ns = 3 * SECOND_NS - 1
    driver.do(c.Tick)
    assert not driver.of(d.Ended)
    driver.now_ns += 1
    driver.do(c.Tick)
    assert driver.of(d.Ended)


def test_a_dispatched_request_has_no_waiting_limit():
    """Leased and redelivered requests are not waiting."""
    driver = Driver(policy("sfq", hand_over_ns=0, lease_duration_ns=SECOND_NS))
    driver.enqueue("a0", "a", max_wait_ns=2 * SECOND_NS)
    driver.next()
    driver.advance(30)
    assert [record.request_id for record in driver.next()] == ["a0"]
    assert not driver.of(d.Ended)


def test_expired_requests_do_not_fill_a_queue():
    """What is due leaves before the newcomer is judged."""
    driver = Driver(policy("sfq", max_waiting=1, max_waiting_per_user=1))
    driver.enqueue("a0", "a", max_wait_ns=SECOND_NS)
    assert reason(driver, "a1", "a") == "USER_QUEUE_FULL"
    driver.now_ns = SECOND_NS
    driver.enqueue("a1", "a")


def test_a_user_queue_is_bounded():
    """And the reason tells it from a full pool."""
    driver = Driver(policy("sfq", max_waiting_per_user=2))
    driver.enqueue("a0", "a")
    driver.enqueue("a1", "a")
    assert reason(driver, "a2", "a") == "USER_QUEUE_FULL"
    driver.enqueue("b0", "b")


def test_users_with_state_are_bounded():
    """A third user with work is refused; a user that has rested makes room."""
    driver = Driver(policy("sfq", max_users=2))
    driver.enqueue("a0", "a")
    driver.enqueue("b0", "b")
    assert reason(driver, "c0", "c") == "USERS_FULL"
    driver.cancel("a0")
    driver.enqueue("c0", "c")


def test_one_flooding_user_cannot_lock_others_out():
    """A full pool sheds the newest request of whoever is furthest past its share."""
    driver = Driver(policy("sfq", max_waiting=4))
    for number in range(4):
        driver.enqueue(f"a{number}", "a")
    driver.enqueue("b0", "b")
    driver.enqueue("b1", "b")
    shed = [(record.request_id, record.state) for record in driver.of(d.Ended)]
    assert shed == [("a3", d.RequestState.SHED), ("a2", d.RequestState.SHED)]
    assert reason(driver, "b2", "b") == "QUEUE_FULL"
    assert driver.meter("a") == 0, "shed while waiting, hence uncharged"


def offer_round(driver: Driver, mark: str) -> int:
    """Each of three users offers three requests; returns how many were shed for it."""
    before = len(driver.of(d.Ended))
    for number, user in enumerate("abc" * 3):
        enqueue = driver.make(
            c.Enqueue, pool="pool", request_id=f"{mark}{number}", user_id=user, cost=1
        )
        driver.attempt(enqueue)
    return len(driver.of(d.Ended)) - before


@given(st.lists(st.sampled_from("abc"), max_size=40), st.sampled_from([3, 6, 9]))
def test_shedding_settles(users, places):
    """Once everybody has its share, newcomers are refused and nobody is shed any more."""
    driver = Driver(policy("sfq", max_waiting=places))
    for number, user in enumerate(users):
        enqueue = driver.make(
            c.Enqueue, pool="pool", request_id=f"{user}{number}", user_id=user, cost=1
        )
        driver.attempt(enqueue)
    offer_round(driver, "x")
    held = [len(driver.pool().user(user).waiting) for user in "abc"]
    assert held == [places // 3] * 3
    assert offer_round(driver, "y") == 0


def test_an_id_is_idempotent():
    """The same id and content gets the same answer, nothing twice; other content is refused."""
    driver = Driver(SFQ)
    first = driver.enqueue("a0", "a", 3, content_digest=b"1")
    again = driver.enqueue("a0", "a", 3, content_digest=b"1")
    assert (again.sequence, again.existing) == (first.sequence, a.Existing.REPEATED)
    with pytest.raises(Conflict):
        driver.enqueue("a0", "a", 4, content_digest=b"2")
    assert len(driver.of(d.Accepted)) == 1
    driver.next()
    driver.complete(driver.of(d.Dispatched)[0].lease_id)
    assert driver.enqueue("a0", "a", 3, content_digest=b"1").state is d.RequestState.SUCCEEDED
    driver.advance(601)
    assert driver.enqueue("a0", "a", 3, content_digest=b"1").existing is a.Existing.NEW
