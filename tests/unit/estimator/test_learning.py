"""The estimator learns from real usage, and measures its own errors both ways."""

import pytest

from scheduler_service.estimator.learning import (
    CUTOFF_BP,
    FULL_TALLY_TOKENS,
    LENGTHS_MAX,
    LENGTHS_MIN,
    UPDATES_MAX,
    PoolLearner,
    Usage,
)


def usage(user="a", output=100, cap=400, *, prompt=50, short=True, cost=250, real=150):
    return Usage(user, prompt, output, cap, short=short, cost=cost, real_cost=real)


def test_ratio_is_total_output_over_total_cap():
    """The learned ratio is total real output over total cap, for the pool and for each user."""
    learner = PoolLearner(by_work=True)
    learner.observe([usage("a", output=100, cap=400)], 0)
    learner.observe([usage("b", output=300, cap=400)], 0)

    proposal = learner.propose({}, 0)

    assert proposal is not None
    assert proposal.ratios == (("", 500, 800), ("a", 250, 400), ("b", 750, 400))


def test_small_moves_are_not_worth_a_decision():
    """Nothing is proposed while the values in force are close to what is seen."""
    learner = PoolLearner(by_work=True)
    learner.observe([usage("a", output=100, cap=400)], 0)

    assert learner.propose({"": (251, 400), "a": (249, 400)}, 0) is None


def test_old_observations_fade():
    """A full tally is halved, so the ratio follows a workload that has changed."""
    learner = PoolLearner(by_work=True)
    learner.observe([usage(output=FULL_TALLY_TOKENS, cap=FULL_TALLY_TOKENS)], 0)
    for _ in range(4):
        learner.observe([usage(output=0, cap=FULL_TALLY_TOKENS)], 0)

    assert learner.pool.ratio_milli() < 100


@pytest.mark.parametrize("by_work", [True, False])
def test_cutoff_is_the_quantile_of_what_was_seen(by_work):
    """The cutoff is the nearest-rank 0.85 quantile of work, or of output lengths alone."""
    learner = PoolLearner(by_work=by_work)
    lengths = [(37 * n) % 1009 + 1 for n in range(LENGTHS_MIN)]
    for output in lengths:
        learner.observe([usage(output=output, prompt=10)], 0)

    ordered = sorted(output + (10 if by_work else 0) for output in lengths)
    assert learner.cutoff() == ordered[-(-CUTOFF_BP * len(ordered) // 10_000) - 1]


def test_cutoff_follows_the_newest():
    """Only the newest lengths count, whether they came one by one or many at once."""
    learner = PoolLearner(by_work=False)
    learner.observe([usage(output=9000) for _ in range(500)], 0)
    learner.observe([usage(output=10) for _ in range(LENGTHS_MAX - 100)], 0)
    assert learner.cutoff() == 10
    for _ in range(LENGTHS_MAX):
        learner.observe([usage(output=70)], 0)
    assert learner.cutoff() == 70
    learner.observe([usage(output=n) for n in range(3 * LENGTHS_MAX)], 0)
    newest = range(2 * LENGTHS_MAX, 3 * LENGTHS_MAX)

    assert learner.cutoff() == newest[-(-CUTOFF_BP * LENGTHS_MAX // 10_000) - 1]


def test_no_cutoff_from_a_handful():
    """A few requests do not make a cutoff."""
    learner = PoolLearner(by_work=True)
    for _ in range(LENGTHS_MIN - 1):
        learner.observe([usage()], 0)

    assert learner.cutoff() == 0


def test_errors_are_measured_both_ways():
    """Too low and too high costs, and both kinds of wrong class, are counted apart."""
    learner = PoolLearner(by_work=False)
    learner.observe([usage(output=10, short=False, cost=300, real=100)], cutoff=50)
    learner.observe([usage(output=90, short=True, cost=100, real=140)], cutoff=50)
    learner.observe([usage(output=90, short=False, cost=140, real=140)], cutoff=50)

    found = learner.errors
    assert (found.too_high_cost, found.too_low_cost) == (200, 40)
    assert (found.short_as_long, found.shorts) == (1, 1)
    assert (found.long_as_short, found.longs) == (1, 2)
    assert (found.charged_cost, found.real_cost, found.measured) == (540, 380, 3)


def test_one_update_is_bounded():
    """However many users have moved, one decision names a bounded number of them."""
    learner = PoolLearner(by_work=True)
    for number in range(UPDATES_MAX + 50):
        learner.observe([usage(f"user-{number}")], 0)

    proposal = learner.propose({}, 0)

    assert proposal is not None
    assert len(proposal.ratios) == UPDATES_MAX


def test_goes_on_from_what_is_in_force():
    """After a restart one request does not overturn what many had shown."""
    learner = PoolLearner(by_work=True)
    learner.resume("", 250, 1_000_000)
    learner.observe([usage(output=400, cap=400)], 0)

    assert learner.pool.ratio_milli() == 250
