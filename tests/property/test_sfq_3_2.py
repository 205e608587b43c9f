"""SFQ §3.2: two continuously backlogged users differ by at most two largest charges."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from tests.support.driver import Driver
from tests.support.programs import SFQ, policy

BACKLOGS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=25), min_size=2, max_size=4)


def leads(backlogs: list[list[int]], rules) -> list[tuple[int, int]]:
    """For each pair of users backlogged throughout: the largest |W_i - W_j| of any interval."""
    driver = Driver(rules)
    users = "abcd"[: len(backlogs)]
    for user, costs in zip(users, backlogs, strict=True):
        for number, cost in enumerate(costs):
            driver.enqueue(f"{user}{number}", user, cost)
    work: dict[str, list[int]] = {user: [] for user in users}
    left = {user: len(costs) for user, costs in zip(users, backlogs, strict=True)}
    while all(left.values()):
        record = driver.next()[0]
        left[record.user_id] -= 1
        for user in users:
            work[user].append(record.charge_micros * (record.user_id == user))
    found = []
    for i in users:
        for j in users:
            both = zip(work[i], work[j], strict=True)
            lead = list(accumulate((a - b for a, b in both), initial=0))
            found.append((max(lead) - min(lead), max(map(max, backlogs)) * 10**6))
    return found


@given(BACKLOGS)
def test_backlogged_users_differ_by_at_most_two_largest_costs(backlogs):
    """|W_i - W_j| <= 2 c_max over every interval in which both wait throughout."""
    for spread, cost_max in leads(backlogs, SFQ):
        assert spread <= 2 * cost_max


@given(BACKLOGS, st.sampled_from([1, 500, 1000, 3000]))
def test_the_slack_adds_twice_itself(backlogs, slack_milli):
    """With slack D the bound is 2D + c_i + c_j; D is at most `slack_milli` of the largest cost."""
    rules = policy("fair_qba", slack_milli=slack_milli)
    for spread, cost_max in leads(backlogs, rules):
        assert spread <= 2 * cost_max + 2 * (cost_max * slack_milli // 1000)
