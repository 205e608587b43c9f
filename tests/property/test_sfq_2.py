"""SFQ §2: charge once at dispatch, nothing else moves a meter; weights divide the charge (§4.4)."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.core import decisions as d
from tests.support.driver import Driver
from tests.support.programs import LIVELY, SFQ, WEIGHTED, play, policy
from tests.support.watches import Band, Meters


@given(LIVELY)
def test_completions_failures_cancellations_and_expiry_change_no_meter(program):
    """Only a dispatch, an arrival, a rejoin, a weight and the end of a busy period move meters."""
    play(SFQ, program, Meters)


@given(LIVELY)
def test_a_request_is_charged_exactly_once(program):
    """However often a request is granted, its charge is made at its first dispatch (§5.1)."""
    driver = play(SFQ, program).driver
    charges: dict[str, list[int]] = {}
    for record in driver.of(d.Dispatched):
        charges.setdefault(record.request_id, []).append(record.charge_micros)
    for first, *later in charges.values():
        assert first > 0
        assert set(later) <= {0}


@given(st.integers(1, 10**9), st.integers(1, 1_000_000))
def test_the_charge_is_cost_over_weight_rounded_up(cost, weight_milli):
    """A charge is at least 1, and less than 1 micro unit above the exact quotient (§4.4)."""
    driver = Driver(policy("sfq", default_weight_milli=weight_milli))
    driver.enqueue("r", "a", cost)
    charge = driver.next()[0].charge_micros
    exact = Fraction(cost * 10**6 * 1000, weight_milli)
    assert exact <= charge < exact + 1
    assert charge >= 1


@given(WEIGHTED)
def test_a_weight_acts_at_once_on_all_that_waits(program):
    """Every dispatch is charged by the weight in force, and the band survives every change."""
    driver = play(SFQ, program, Band).driver
    weights: dict[str, int] = {}
    for record in driver.log:
        if isinstance(record, d.UserConfigured):
            weights[record.user_id] = record.weight_milli or 1000
        if isinstance(record, d.Dispatched):
            assert record.weight_milli == weights.get(record.user_id, 1000)


def test_shares_follow_weights():
    """Of two backlogged users with weights 1 and 3, the second gets three times the cost."""
    driver = Driver(SFQ)
    driver.weigh("b", 3000)
    for number in range(400):
        driver.enqueue(f"a{number}", "a", 2)
        driver.enqueue(f"b{number}", "b", 2)
    users = [record.user_id for record in driver.next(400)]
    assert abs(users.count("b") - 3 * users.count("a")) <= 4


def test_a_changed_weight_rescales_the_lead():
    """A lead of 6 at weight 1 is a lead of 2 at weight 3, and grows back no further than D + L."""
    driver = Driver(SFQ)
    driver.enqueue("b0", "b", 1)
    driver.enqueue("a0", "a", 6)
    driver.enqueue("a1", "a", 6)
    driver.next()
    driver.weigh("a", 3000)
    assert driver.meter("a") == 2_000_000
    driver.weigh("a", 1)
    assert driver.meter("a") == 6_000_000
