"""SFQ §5.2: the ordering layer is work-conserving; a stall or a hold says why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.core import decisions as d
from tests.support.driver import POOL, Driver
from tests.support.programs import LIVELY, SFQ, Player, policy
from tests.support.traces import Trace

SMALL = d.Offer(free_tokens=5, total_tokens=50)


@given(LIVELY)
def test_something_is_granted_whenever_something_waits(program):
    """With room everywhere, an empty answer means an empty pool."""
    driver = Driver(SFQ)
    player = Player(driver).play(program)
    waiting = driver.pool().waiting_count()
    due = [request for request in driver.pool().flight() if request.lease is None]
    taken = driver.ask(100, "another")
    assert len(taken.granted) == waiting + len(due)
    assert taken.empty_reason is d.EmptyReason.EMPTY
    assert player.driver.pool().waiting_count() == 0


@given(st.integers(0, 2**32))
def test_nobody_is_sent_away_who_could_have_been_served(seed):
    """Whatever the policy: a worker that gets less than it asked for could get nothing more."""
    Trace(seed, steps=40).run()


def test_a_stall_names_the_request():
    """Under `stall` the selected request blocks, and the answer says which it is."""
    driver = Driver(SFQ)
    driver.enqueue("a0", "a", kv_tokens=10)
    driver.enqueue("b0", "b")
    answer = driver.ask(1, offer=SMALL)
    assert (answer.empty_reason, answer.stalled_by) == (d.EmptyReason.STALLED_BY, "a0")


def test_overtaking_goes_past_what_does_not_fit():
    """Under `overtake` the next candidate goes, and the record names whom it overtook."""
    driver = Driver(policy("fair_qba"))
    driver.enqueue("a0", "a", kv_tokens=10)
    driver.enqueue("b0", "b")
    record = driver.next(offer=SMALL)[0]
    assert (record.request_id, record.overtook) == ("b0", ("a0",))


@pytest.mark.parametrize(
    ("reason", "hold"),
    [
        (d.EmptyReason.PAUSED, lambda driver: driver.pause()),
        (d.EmptyReason.PAUSED, lambda driver: driver.pause("a")),
        (d.EmptyReason.HELD_BY_CAP, lambda driver: (driver.weigh("a", 0, 1), driver.next())),
    ],
)
def test_an_empty_answer_says_why(reason, hold):
    """A pause and a cap are told apart from an empty pool."""
    driver = Driver(SFQ)
    driver.enqueue("a0", "a")
    driver.enqueue("a1", "a")
    hold(driver)
    assert driver.ask(1).empty_reason is reason
    assert driver.ask(1, pools=(POOL,), worker="other").empty_reason is reason
