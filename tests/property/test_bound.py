"""What holds for any slack, weights, caps, cancels and overtaking: the band and the bound.

The traces are random in everything that algorithm and service know; the laws are watched at every
record.  The negative control at the end shows that they would not hold without the rejoin rule.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.core.policy import Placement
from tests.support import watches
from tests.support.core import Edit, mutated
from tests.support.driver import DisagreementError, Driver
from tests.support.programs import COSTS, DISPATCHES, Player, enqueues, policy, programs
from tests.support.traces import Trace

SEEDS = st.integers(0, 2**32)


def run(seed: int, *laws: type) -> None:
    driver = Driver()
    for law in laws:
        driver.watch(law(driver))
    Trace(seed, driver=driver).run()


@given(SEEDS)
def test_the_band_holds(seed):
    """V never falls; selectable users have S >= v; every user has S <= v + D + L."""
    run(seed, watches.Band)


@given(SEEDS)
def test_the_bound_between_two_users_holds(seed):
    """|W_i - W_j| <= 2D + c_i + c_j for users selectable throughout."""
    run(seed, watches.PairBound)


@given(
    programs(enqueues(COSTS), DISPATCHES, max_size=60),
    st.sampled_from([0, 1, 500, 1000, 4000]),
    st.sampled_from(list(Placement)),
)
def test_the_bound_holds_for_backlogs_of_any_shape(program, slack_milli, placement):
    """The same for plain programs, which Hypothesis can cut down."""
    driver = Driver(policy("fair_qba", slack_milli=slack_milli, placement=placement))
    driver.watch(watches.Band(driver)).watch(watches.PairBound(driver))
    Player(driver).play(program).drain()


def test_the_bound_is_tight():
    """Somewhere the difference comes to the bound itself, so no smaller one could be promised."""
    worst = 0.0
    for seed in range(60):
        driver = Driver()
        pair = watches.PairBound(driver)
        Trace(seed, driver=driver.watch(pair)).run()
        worst = max(worst, pair.worst)
    assert worst > 0.9


def test_without_the_rejoin_rule_the_bound_breaks():
    """Negative control: let a capped user save its turns up, and the laws fail in most runs."""
    broken = mutated(
        Edit("lifecycle", "after = max(flow.meter, pool.virtual_time)", "after = flow.meter")
    )
    failed = 0
    for seed in range(40):
        driver = Driver(policy("fair_qba"), core=broken, strict=False, replica=False)
        driver.watch(watches.PairBound(driver))
        try:
            _capped(driver, seed)
        except AssertionError:
            failed += 1
    assert failed >= 30


def _capped(driver: Driver, seed: int) -> None:
    """One user is held by its cap for a while, and then let free among backlogged others."""
    for user in "abc":
        for number in range(60):
            driver.enqueue(f"{user}{number}", user, 1 + (seed + number) % 3)
    driver.weigh("a", 0, 1)
    driver.next(60 + seed)
    driver.weigh("a", 0, 0)
    driver.next(40)


def test_the_same_run_is_fair_with_the_rejoin_rule():
    """The control is about the rule: with it, the same runs keep the bound."""
    for seed in range(40):
        driver = Driver(policy("fair_qba"))
        driver.watch(watches.PairBound(driver))
        _capped(driver, seed)


def test_the_oracle_names_the_missing_rejoin():
    """And the oracle says which record it was."""
    broken = mutated(
        Edit("lifecycle", "after = max(flow.meter, pool.virtual_time)", "after = flow.meter")
    )
    with pytest.raises(DisagreementError, match=r"Rejoined\.meter_after"):
        _capped(Driver(policy("fair_qba"), core=broken, replica=False), 0)
