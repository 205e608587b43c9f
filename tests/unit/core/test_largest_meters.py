"""Costs, weights and slacks at the ends of their ranges: meters near 2**62."""

import pytest

from scheduler_service.core.policy import PRESETS, PoolPolicy, SlackKind
from tests.support.driver import Driver

COST_MAX = 10**9


@pytest.mark.parametrize("slack", [2 * 10**18, 26 * 10**17, 3 * 10**18])
@pytest.mark.parametrize("users", [1, 3])
def test_the_largest_slack_with_the_largest_charges(slack, users):
    """Everything is dispatched, whatever the window's edge comes to."""
    policy = PoolPolicy(slack_kind=SlackKind.ABSOLUTE, slack_micros=slack, default_weight_milli=1)
    driver = Driver(policy)
    for number in range(12):
        driver.enqueue(f"r{number}", f"u{number % users}", cost=COST_MAX)

    granted = [driver.next()[0].request_id for _ in range(12)]
    assert sorted(granted) == sorted(f"r{number}" for number in range(12))
    driver.check()


def test_an_unbounded_window_holds_every_meter():
    """A pool that stops charging takes in users however large their meters had become."""
    charged = PoolPolicy(
        slack_kind=SlackKind.ABSOLUTE, slack_micros=3 * 10**18, default_weight_milli=1
    )
    driver = Driver(charged)
    for number in range(8):
        driver.enqueue(f"r{number}", f"u{number % 2}", cost=COST_MAX)
    for _ in range(4):
        driver.next()
    driver.configure(PRESETS["qba"])

    assert len([driver.next()[0] for _ in range(4)]) == 4
    driver.check()
