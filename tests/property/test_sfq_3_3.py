"""SFQ §3.3: leaving and rejoining again and again gains nothing against a backlogged user."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.driver import Driver
from tests.support.programs import SFQ

COSTS = st.lists(st.integers(1, 9), min_size=1, max_size=30)


def run(sender: list[int], backlog: int, turns: int) -> tuple[int, int, int, int]:
    """One user always drains its queue before it sends again; the other has a deep queue.

    Returns:
        W of the sender, W of the backlogged user, how far `v` rose, and the largest charge.
    """
    driver = Driver(SFQ)
    for number in range(turns + 1):
        driver.enqueue(f"b{number}", "b", backlog)
    work = {"a": 0, "b": 0}
    sent = 0
    start = driver.pool().virtual_time
    for _ in range(turns):
        if sent < len(sender) and not driver.pool().user("a").waiting:
            driver.enqueue(f"a{sent}", "a", sender[sent])
            sent += 1
        record = driver.next()[0]
        work[record.user_id] += record.charge_micros
    rise = driver.pool().virtual_time - start
    return work["a"], work["b"], rise, max([*sender, backlog]) * 10**6


@given(COSTS, st.integers(1, 9), st.integers(1, 40))
def test_a_sender_that_drains_its_queue_is_bounded_by_virtual_time(sender, backlog, turns):
    """W_i <= v(t2) - v(t1) + c_max, however often the user leaves and rejoins."""
    work, _, rise, cost_max = run(sender, backlog, turns)
    assert work <= rise + cost_max


@given(COSTS, st.integers(1, 9), st.integers(1, 40))
def test_a_backlogged_user_keeps_up_with_virtual_time(sender, backlog, turns):
    """W_j >= v(t2) - v(t1) - c_max for a user that waits throughout."""
    _, work, rise, cost_max = run(sender, backlog, turns)
    assert work >= rise - cost_max


@given(COSTS, st.integers(1, 9), st.integers(1, 40))
def test_leaving_and_rejoining_gains_at_most_two_requests(sender, backlog, turns):
    """W_i - W_j <= 2 c_max."""
    mine, theirs, _, cost_max = run(sender, backlog, turns)
    assert mine - theirs <= 2 * cost_max
