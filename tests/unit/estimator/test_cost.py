"""Cost and class from tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.estimator.classify import is_short
from scheduler_service.estimator.cost import (
    NOTHING_LEARNED,
    Tokens,
    cost_of,
    expected_output_tokens,
    output_ratio_milli,
)

TOKENS = st.integers(0, 10**9)


@pytest.mark.parametrize(
    ("prompt", "output", "a", "b", "cost"),
    [
        (0, 0, 1000, 1000, 1),
        (1, 0, 1, 0, 1),
        (1000, 0, 1, 0, 1),
        (1001, 0, 1, 0, 2),
        (10, 20, 1000, 2000, 50),
        (10, 0, 0, 1000, 1),
    ],
)
def test_cost(prompt, output, a, b, cost):
    """a and b are units for 1000 tokens; rounded up, never free."""
    assert cost_of(prompt, output, a, b) == cost


@given(TOKENS, TOKENS, st.integers(0, 10**9), st.integers(0, 10**9))
def test_more_tokens_never_cost_less(prompt, output, a, b):
    """Cost grows with tokens, so nobody gains by stating more than one thing."""
    cost = cost_of(prompt, output, a, b)

    assert cost >= 1
    assert cost_of(prompt + 1, output, a, b) >= cost
    assert cost_of(prompt, output + 1, a, b) >= cost


@given(st.integers(0, 10**9), st.integers(1, 1_000_000))
def test_expected_output_is_at_most_the_cap(cap, ratio):
    """A request is not expected to say more than it may."""
    assert 0 <= expected_output_tokens(Tokens(0, cap, 0), ratio) <= cap


def test_a_prediction_wins_over_the_cap():
    """Who predicts is taken at its word."""
    assert expected_output_tokens(Tokens(0, 100, 7), 500) == 7


def test_a_user_nobody_has_seen_is_estimated_like_everybody():
    """The prior gives way to the pool, and the pool to the user, as more is seen."""
    prior = (500, 1000)

    assert output_ratio_milli(prior) == 500
    assert output_ratio_milli(prior, (100, 1000)) == 300
    assert output_ratio_milli(prior, NOTHING_LEARNED, (100, 10**9)) == 100
    assert output_ratio_milli(prior, (100, 1000), (900, 1000)) == 600


@given(*(st.tuples(st.integers(0, 1_000_000), st.integers(0, 10**12)) for _ in range(2)))
def test_a_ratio_stays_between_what_it_rests_on(pool, user):
    """Blending invents nothing."""
    prior = (500, 100_000)
    seen = [ratio for ratio, tokens in (prior, pool, user) if tokens]

    assert min(seen) - 1 <= output_ratio_milli(prior, pool, user) <= max(seen) or min(seen) == 0


@pytest.mark.parametrize(
    ("prompt", "output", "cost", "by_work", "short"),
    [
        (60, 40, 1, True, True),
        (60, 41, 1, True, False),
        (60, 41, 1, False, True),
        (0, 101, 1, False, False),
        (0, 0, 100, True, True),
        (0, 0, 101, True, False),
    ],
)
def test_class(prompt, output, cost, by_work, short):
    """At most the cutoff is short; without tokens the cost stands for them."""
    found = is_short(
        prompt_tokens=prompt, output_tokens=output, cost=cost, cutoff=100, by_work=by_work
    )
    assert found is short


def test_without_a_cutoff_everything_is_short():
    """Nothing is called long before it is known what long is."""
    assert is_short(prompt_tokens=10**9, output_tokens=0, cost=1, cutoff=0, by_work=True)
