"""QBA §III-A: short first, a quota of promotions, aging by quantile; and its limiting cases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.core import decisions as d
from scheduler_service.core.policy import AdmissionPoint, ClassOrder, WithinUser
from tests.support import watches
from tests.support.driver import LONG, SHORT, Driver
from tests.support.programs import (
    CLASSES,
    COMPLETIONS,
    COSTS,
    DISPATCHES,
    MIXED,
    PATIENT,
    PREFILLS,
    WAITS,
    Player,
    enqueues,
    policy,
    programs,
)

SCOPES = st.sampled_from(["qba", "fair_qba"])
POINTS = st.sampled_from(list(AdmissionPoint))
QUOTAS = st.integers(1, 4)
LEASED = programs(enqueues(COSTS, CLASSES), DISPATCHES, COMPLETIONS, PREFILLS, WAITS, max_size=60)


def watched(rules, program, *laws) -> Driver:
    driver = Driver(rules)
    for law in laws:
        driver.watch(law(driver))
    Player(driver).play(program)
    driver.check()
    return driver


def order(rules, program) -> list[str]:
    driver = Driver(rules)
    Player(driver).play(program).drain()
    return [
        record.request_id
        for record in driver.of(d.Dispatched)
        if record.turn is not d.Turn.REDELIVERY
    ]


@given(LEASED, SCOPES, POINTS, QUOTAS)
def test_the_counter_stays_between_0_and_k_and_debt_means_k(program, scope, point, k):
    """0 <= c <= k, and the debt is owed exactly while c = k; per user or per pool."""
    rules = policy(scope, admission_point=point, quota_k=k, aging_min_sample=1)
    watched(rules, program, watches.Quotas)


@given(LEASED, SCOPES, POINTS, QUOTAS)
def test_promotions_are_at_most_counted_shorts_over_k(program, scope, point, k):
    """Admitted promotions <= floor(counted shorts / k), for each counter and at every moment."""
    rules = policy(scope, admission_point=point, quota_k=k, aging_min_sample=1)
    driver = watched(rules, program, watches.Quotas)
    promotions = [x for x in driver.of(d.Dispatched) if x.rule is d.Rule.PROMOTION]
    shorts = [x for x in driver.of(d.Accepted) if x.predicted_class is SHORT]
    assert len({x.request_id for x in promotions}) * k <= len(shorts) + k


@given(LEASED, SCOPES, POINTS, QUOTAS, st.sampled_from(list(WithinUser)))
def test_a_debt_is_paid_by_the_oldest_aged_long(program, scope, point, k, within):
    """With debt and an aged long the next dispatch is the oldest such; age alone is not enough."""
    rules = policy(scope, admission_point=point, quota_k=k, aging_min_sample=1, within_user=within)
    watched(rules, program, watches.Promotions)


@given(MIXED, SCOPES)
def test_requests_of_one_user_and_class_are_fifo(program, scope):
    """Within a user's class the order of acceptance stands."""
    watched(policy(scope, aging_min_sample=1, quota_k=1), program, watches.Fifo)


@given(MIXED, SCOPES)
def test_k_without_end_is_psf(program, scope):
    """A quota that is never earned leaves predicted-short-first."""
    qba = policy(scope, class_order=ClassOrder.QBA, quota_k=10**9, aging_min_sample=1)
    assert order(qba, program) == order(policy(scope, class_order=ClassOrder.PSF), program)


@given(MIXED, SCOPES)
def test_theta_without_end_is_psf(program, scope):
    """A threshold that is never passed leaves predicted-short-first."""
    qba = policy(scope, class_order=ClassOrder.QBA, quota_k=1, aging_min_sample=1_000_000)
    assert order(qba, program) == order(policy(scope, class_order=ClassOrder.PSF), program)


@given(
    programs(enqueues(COSTS, CLASSES), DISPATCHES, WAITS),
    st.sampled_from(CLASSES.elements),
    st.sampled_from([ClassOrder.PSF, ClassOrder.AA, ClassOrder.QBA]),
)
def test_a_single_class_is_fcfs(program, cls, class_order):
    """With one class only, every class order is first come, first served."""
    one = [(*step[:3], cls) if step[0] == "enqueue" else step for step in program]
    rules = policy("qba", class_order=class_order, quota_k=1, aging_min_sample=1)
    first_come = order(policy("fcfs"), one)
    assert order(rules, one) == first_come
    assert first_come == sorted(first_come, key=lambda name: int(name[1:]))


def test_aa_promotes_every_aged_long():
    """Aggressive aging knows no quota: all aged longs go before any short."""
    driver = Driver(policy("aa", aging_min_sample=1, aging_quantile_bp=1, **PATIENT))
    driver.enqueue("s0", "a")
    driver.next()
    for number in range(3):
        driver.enqueue(f"l{number}", "a", 1, LONG)
    driver.advance(1)
    driver.enqueue("s1", "b")
    rules = [(record.request_id, record.rule) for record in driver.next(4)]
    assert rules == [
        ("l0", d.Rule.AGED),
        ("l1", d.Rule.AGED),
        ("l2", d.Rule.AGED),
        ("s1", d.Rule.SHORT_FIRST),
    ]


def test_an_ordinary_long_leaves_counter_and_debt_alone():
    """A long that goes because no short waits is no promotion, whatever is owed."""
    driver = Driver(policy("qba", quota_k=1))
    driver.enqueue("s0", "a")
    driver.enqueue("l0", "a", 1, LONG)
    short, long = driver.next(2)
    assert (short.promotion_debt_after, long.rule) == (True, d.Rule.LONG)
    assert long.promotion_debt_after
    assert long.short_admission_count_after == 1


@pytest.mark.parametrize(
    ("waits", "quantile_bp", "expected"),
    [
        ([3, 1, 2, 5, 4], 8000, 4),
        ([3, 1, 2, 5, 4], 8001, 5),
        ([3, 1, 2, 5, 4], 1, 1),
        ([3, 1, 2, 5, 4], 10_000, 5),
        ([7], 5000, 7),
        ([2, 2, 9], 6666, 2),
        ([2, 2, 9], 6667, 9),
    ],
)
def test_theta_is_the_nearest_rank(waits, quantile_bp, expected):
    """Theta is sample[ceil(gamma * n) - 1] of the sorted sample, in integers."""
    rules = policy("fcfs", aging_quantile_bp=quantile_bp, aging_min_sample=len(waits), **PATIENT)
    driver = Driver(rules)
    for number, wait in enumerate(waits):
        driver.enqueue(f"r{number}", "a")
        driver.advance(wait)
        driver.next()
    driver.enqueue("last", "a", 1, LONG)
    driver.advance(expected)
    record = driver.next()[0]
    assert record.aging_threshold_ns == expected * 10**9
    assert not record.aged, "a wait equal to theta is not past it"


def test_nothing_is_aged_while_the_sample_is_too_small():
    """With fewer than min_sample entries there is no threshold."""
    driver = Driver(policy("aa", aging_min_sample=3, **PATIENT))
    for number in range(3):
        driver.enqueue(f"s{number}", "a")
    driver.next(2)
    driver.enqueue("l0", "a", 1, LONG)
    driver.advance(3600)
    record = driver.next()[0]
    assert (record.request_id, record.aging_threshold_ns) == ("s2", -1)


def test_the_counter_is_the_users_with_finite_slack_and_the_pools_without():
    """Two users' shorts fill one pool counter, or one counter each."""
    for scope, expected in (("qba", [1, 2]), ("fair_qba", [1, 1])):
        driver = Driver(policy(scope))
        driver.enqueue("a0", "a")
        driver.enqueue("b0", "b")
        counts = [record.short_admission_count_after for record in driver.next(2)]
        assert counts == expected


def test_one_promotion_is_under_way_at_a_time():
    """While a promotion has not reached its admission point, no second one is made."""
    point = AdmissionPoint.PREFILL_COMPLETE
    driver = Driver(policy("qba", admission_point=point, quota_k=1, aging_min_sample=1))
    driver.enqueue("s0", "a")
    driver.renew(driver.next()[0].lease_id, prefilled=True)
    driver.enqueue("l0", "a", 1, LONG)
    driver.enqueue("l1", "a", 1, LONG)
    driver.advance(1)
    first, second = driver.next(2)
    assert (first.rule, second.rule) == (d.Rule.PROMOTION, d.Rule.LONG)
    driver.complete(first.lease_id, d.Outcome.FAILED)
    assert driver.quota().debt, "a promotion that failed pays nothing"
    driver.enqueue("l2", "a", 1, LONG)
    driver.advance(2)
    third = driver.next()[0]
    assert third.rule is d.Rule.PROMOTION
    driver.complete(third.lease_id)
    assert not driver.quota().debt, "success implies the prefill"
