"""Timers are kept in bounds: what is over leaves no timer behind for good."""

import pytest

from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.policy import SECOND_NS
from tests.support.driver import POOL, Driver
from tests.support.programs import policy

DAY = 86_400 * SECOND_NS
ROOM = 3000
"""A heap of this size is made anew when most of it is void."""


def busy(driver: Driver, count: int) -> None:
    """Many short requests, one after the other, by one worker."""
    for number in range(count):
        driver.now_ns += SECOND_NS // 100
        driver.enqueue(f"r{number}", f"u{number % 20}", max_wait_ns=DAY)
        lease = driver.next()[0].lease_id
        driver.renew(lease)
        driver.complete(lease)


def test_ended_requests_leave_no_timers():
    """Neither waits nor leases nor the worker that served them."""
    driver = Driver(policy("sfq", hand_over_ns=0), replica=False)
    busy(driver, 5000)
    assert len(driver.state.timers) < ROOM


def test_leases_that_last_keep_no_timers_of_others():
    """One that is renewed for ever, and one for a day, set before others or between them."""
    driver = Driver(
        policy("sfq", hand_over_ns=0, lease_duration_ns=3600 * SECOND_NS), replica=False
    )
    for number in range(4):
        driver.enqueue(f"a{number}", "a")
    first = driver.next()[0].lease_id
    for number in range(8000):
        driver.now_ns += SECOND_NS // 100
        if number in {10, 20, 6000}:
            driver.next(lease_duration_ns=DAY)
        driver.enqueue(f"r{number}", "b")
        lease = driver.next()[0].lease_id
        driver.renew(first)
        driver.complete(lease)
        assert len(driver.state.timers) < 2 * ROOM
    assert len(driver.of(d.LeaseEnded)) == 0


def test_cancelled_requests_leave_no_timers():
    """The heap is made anew when most of it is void."""
    driver = Driver(policy("sfq"), replica=False)
    for number in range(5000):
        driver.enqueue(f"r{number}", "a", max_wait_ns=DAY)
        driver.cancel(f"r{number}")
    assert len(driver.state.timers) < ROOM


def test_a_large_heap_is_swept():
    """It is not made anew, and stays in proportion to what is alive."""
    driver = Driver(policy("sfq", max_waiting=20_000, max_waiting_per_user=20_000), replica=False)
    for number in range(9000):
        driver.enqueue(f"stays{number}", "a", max_wait_ns=DAY)
    for number in range(30_000):
        driver.enqueue(f"r{number}", "b", max_wait_ns=DAY)
        driver.cancel(f"r{number}")
    assert len(driver.state.timers) < 2.5 * 9000


def test_a_request_that_goes_from_worker_to_worker_leaves_no_timers():
    """However often it is given back: timers of its old leases are void, though it is leased."""
    lasting = policy("sfq", lease_duration_ns=60 * SECOND_NS, hand_over_ns=0, retry_backoff_ns=0)
    driver = Driver(lasting, replica=False)
    for number in range(20):
        driver.enqueue(f"r{number}", "a")
    held = []
    for _ in range(600):
        driver.now_ns += SECOND_NS
        for record in held:
            driver.complete(record.lease_id, d.Outcome.GIVEN_BACK)
        held = driver.next(20)
        assert len(held) == 20
    assert len(driver.state.timers) < ROOM


def test_pauses_that_were_lifted_leave_no_timers():
    """However far away their end was."""
    driver = Driver(policy("sfq"), replica=False)
    for _ in range(4000):
        driver.pause("a", driver.now_ns + DAY)
        driver.resume("a")
    assert len(driver.state.timers) < ROOM


def test_a_worker_that_changes_has_one_timer():
    """What it has in all may change with every call."""
    driver = Driver(policy("sfq"), replica=False)
    for number in range(500):
        driver.now_ns += SECOND_NS
        driver.ask(offer=d.Offer(free_tokens=1, total_tokens=10 + number % 2))
    assert len(driver.state.timers) < 10


def test_givers_are_forgotten_when_they_may_ask_again():
    """A request that many workers gave back, long after one another, remembers only the last."""
    driver = Driver(policy("sfq", hand_over_ns=0, lease_duration_ns=DAY), replica=False)
    driver.enqueue("a0", "a")
    for number in range(100):
        driver.now_ns += 6 * SECOND_NS
        lease = driver.next(worker=f"w{number}")[0].lease_id
        driver.complete(lease, d.Outcome.GIVEN_BACK)
    assert len(driver.state.pools[POOL].requests["a0"].givers) == 1


def test_a_renewed_lease_expires_at_its_new_time():
    """The old timer comes up first and is set again."""
    driver = Driver(policy("sfq", hand_over_ns=0, lease_duration_ns=10 * SECOND_NS))
    driver.enqueue("a0", "a")
    lease = driver.next()[0].lease_id
    driver.now_ns = 6 * SECOND_NS
    driver.renew(lease)
    driver.advance(9)
    assert not driver.of(d.LeaseEnded)
    driver.advance(1)
    assert driver.of(d.LeaseEnded)


def test_leases_end_in_order_of_time_and_age():
    """However their timers were set: of leases that end together the oldest request's is first."""
    driver = Driver(policy("sfq", hand_over_ns=0, retry_backoff_ns=0))
    for number in range(6):
        driver.enqueue(f"a{number}", "a")

    def lease(until: int) -> d.Dispatched:
        (record,) = driver.next(lease_duration_ns=until * SECOND_NS - driver.now_ns)
        return record

    first = lease(30)
    for until in (12, 20, 12):
        lease(until)
    driver.now_ns = SECOND_NS
    driver.complete(first.lease_id, d.Outcome.GIVEN_BACK)
    assert [lease(12).request_id, lease(5).request_id] == ["a0", "a4"]
    driver.now_ns = 40 * SECOND_NS
    driver.do(c.Tick)
    ended = [x.request_id for x in driver.of(d.LeaseEnded) if x.cause is d.LeaseEndCause.EXPIRED]
    assert ended == ["a4", "a0", "a1", "a3", "a2"]


def test_a_pause_ends_by_itself_at_its_last_stated_time():
    """A repeat moves the end; the earlier timer ends nothing."""
    driver = Driver(policy("sfq"))
    driver.pause("a", 5 * SECOND_NS)
    driver.pause("a", 8 * SECOND_NS)
    driver.advance(6)
    assert not driver.of(d.Resumed)
    driver.advance(2)
    assert [(x.user_id, x.by_timer) for x in driver.of(d.Resumed)] == [("a", True)]


def test_a_silent_worker_without_leases_is_forgotten():
    """After its time to live; with a lease it is kept in mind."""
    driver = Driver(
        policy("sfq", worker_ttl_ns=5 * SECOND_NS, hand_over_ns=0, lease_duration_ns=30 * SECOND_NS)
    )
    driver.enqueue("a0", "a")
    lease = driver.next()[0].lease_id
    driver.advance(20)
    assert not driver.of(d.WorkerGone)
    driver.complete(lease)
    driver.advance(20)
    assert [record.worker for record in driver.of(d.WorkerGone)] == ["w"]
    assert not driver.state.workers


def test_commands_do_not_go_back_in_time():
    """The engine's clock never does; the core insists."""
    driver = Driver(policy("sfq"))
    driver.now_ns = 5
    driver.enqueue("a0", "a")
    driver.now_ns -= 1
    with pytest.raises(AssertionError, match="time went back"):
        driver.do(c.Tick)


def test_a_pause_that_was_moved_ends_in_its_new_place():
    """The timer of its old end does not bring the new end forward among what is due."""
    driver = Driver(policy("sfq"))
    driver.enqueue("a0", "a", max_wait_ns=5 * SECOND_NS)
    driver.pause("a", 5 * SECOND_NS)
    driver.pause("a", 6 * SECOND_NS)
    driver.advance(10)
    order = [type(x) for x in driver.log if isinstance(x, d.Ended | d.Resumed)]
    assert order == [d.Ended, d.Resumed]
