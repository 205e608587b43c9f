"""SFQ §7.5: the five properties the article asks to be tested."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.driver import Driver
from tests.support.programs import SFQ


def backlog(driver: Driver, user: str, count: int, cost: int) -> None:
    for number in range(count):
        driver.enqueue(f"{user}{number}", user, cost)


@given(st.integers(1, 50), st.integers(1, 9), st.integers(1, 30))
def test_1_equal_costs_are_shared_equally(count, cost, turns):
    """Two users with equal costs never differ by more than one dispatch."""
    driver = Driver(SFQ)
    backlog(driver, "a", count, cost)
    backlog(driver, "b", count, cost)
    taken = {"a": 0, "b": 0}
    for record in driver.next(min(turns, count)):
        taken[record.user_id] += 1
        assert abs(taken["a"] - taken["b"]) <= 1


@given(st.integers(1, 20))
def test_2_ten_times_the_cost_gets_a_tenth_of_the_dispatches(rounds):
    """Cost is shared, not requests."""
    driver = Driver(SFQ)
    backlog(driver, "heavy", rounds + 1, 10)
    backlog(driver, "light", 10 * (rounds + 1), 1)
    users = [record.user_id for record in driver.next(11 * rounds)]
    assert users.count("heavy") == rounds
    assert users.count("light") == 10 * rounds


@given(st.integers(1, 40), st.integers(1, 9))
def test_3_idle_time_is_not_banked(turns, cost):
    """A user that returns after a long idle time rejoins at the baseline."""
    driver = Driver(SFQ)
    backlog(driver, "b", 2 * turns + 3, cost)
    driver.enqueue("a0", "a", cost)
    driver.next(2)
    driver.next(turns)
    driver.advance(3600)
    backlog_before = driver.pool().virtual_time
    for number in range(1, turns + 2):
        driver.enqueue(f"a{number}", "a", cost)
    assert driver.meter("a") == max(backlog_before, cost * 10**6)
    users = [record.user_id for record in driver.next(min(turns, 6))]
    assert users.count("a") <= users.count("b") + 1


@given(st.integers(1, 9), st.integers(1, 9), st.integers(4, 40))
def test_4_one_at_a_time_gets_the_same_share(single, deep, turns):
    """A user that drains its queue with every request gains nothing over a deep backlog."""
    driver = Driver(SFQ)
    backlog(driver, "b", turns + 1, deep)
    work = {"a": 0, "b": 0}
    for number in range(turns):
        if not driver.pool().user("a").waiting:
            driver.enqueue(f"a{number}", "a", single)
        record = driver.next()[0]
        work[record.user_id] += record.charge_micros
    assert abs(work["a"] - work["b"]) <= 2 * max(single, deep) * 10**6


@given(st.integers(1, 10**6), st.integers(1, 9))
def test_5_congestion_that_begins_anew_begins_level(heavy, cost):
    """After all queues drained, the user with the heaviest last request has no handicap."""
    driver = Driver(SFQ)
    driver.enqueue("first", "a", heavy)
    driver.next()
    backlog(driver, "a", 4, cost)
    backlog(driver, "b", 4, cost)
    assert driver.meter("a") == driver.meter("b") == driver.pool().virtual_time
    assert [record.user_id for record in driver.next(4)] == ["a", "b", "a", "b"]
