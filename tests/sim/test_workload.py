"""Synthetic streams: the paper's distributions, labels, pairing by seed."""

import math

import numpy as np
import pytest

from scheduler_service.sim.workload import (
    UserMix,
    flip_labels,
    label,
    several_users,
    synthetic,
)


def test_sizes_are_those_of_the_paper():
    """Prompts and responses have the stated distribution, floor and cap."""
    stream = synthetic(0, count=40_000)
    prompt, response = np.array(stream.prompt), np.array(stream.response)
    expected = np.exp(3 + 0.75 * np.log1p(prompt) + 0.3**2 / 2)

    stream.check()
    assert (prompt.min(), prompt.max()) == (1, 4096)
    assert np.median(prompt) == pytest.approx(90, rel=0.05)
    assert (prompt > 300).mean() == pytest.approx(0.3 * (40 / 301) ** 1.4, rel=0.1)
    fits = expected < 2000
    assert (response[fits] + 0.5).mean() == pytest.approx(expected[fits].mean(), rel=0.01)


def test_arrivals_are_poisson():
    """Inter-arrival times have the stated mean, and a coefficient of variation of 1."""
    gaps = np.diff(synthetic(1, rate=32.0, count=40_000).arrival_ns) / 1e9

    assert gaps.mean() == pytest.approx(1 / 32, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.02)


def test_the_cutoff_is_the_085_quantile():
    """About 15 % are long, and every long one is above the cutoff."""
    stream = synthetic(2)

    assert sum(stream.long) == pytest.approx(750, abs=5)
    assert all(
        (r > stream.cutoff) == long for r, long in zip(stream.response, stream.long, strict=True)
    )


def test_work_label_looks_at_prompt_and_response():
    """A label on work counts the prompt."""
    long, cutoff = label([1, 100, 1, 1], [10, 10, 10, 11], "work", 0.5)

    assert (long, cutoff) == ([False, True, False, True], 11.5)


def test_errors_are_paired():
    """A larger error rate flips a superset, only of its own class."""
    truth = synthetic(3).long
    some, more = flip_labels(truth, 3, 0.1), flip_labels(truth, 3, 0.3)

    assert sum(p != t for p, t in zip(some, truth, strict=True)) == pytest.approx(425, rel=0.15)
    assert all(m for s, m, t in zip(some, more, truth, strict=True) if s and not t)
    assert all(m == t for m, t in zip(more, truth, strict=True) if t)


def test_rate_and_errors_do_not_change_the_requests():
    """Runs of one seed at different rates and error rates have the same requests."""
    slow, fast = synthetic(4, rate=20.0), synthetic(4, rate=40.0, long_to_short=0.2)

    assert (slow.prompt, slow.response, slow.long) == (fast.prompt, fast.response, fast.long)
    assert slow.arrival_ns[-1] == pytest.approx(2 * fast.arrival_ns[-1])


def test_users_share_as_asked():
    """The heavy user sends its share, in bursts if asked; light users share the rest."""
    stream = several_users(5, mix=UserMix(heavy_share=0.5, light_users=4, burst=10))
    counts = np.bincount(stream.user)
    heavy = [t for t, user in zip(stream.arrival_ns, stream.user, strict=True) if user == 0]

    stream.check()
    assert counts[0] / len(stream) == pytest.approx(0.5, abs=0.03)
    assert counts[1:] == pytest.approx(np.full(4, counts[1:].mean()), rel=0.15)
    assert len(set(heavy)) == math.ceil(len(heavy) / 10)


def test_check_finds_broken_streams():
    """A stream whose columns disagree or leave their range is refused."""
    stream = synthetic(0, count=10)
    stream.cost.pop()
    with pytest.raises(ValueError, match="one length"):
        stream.check()
    stream = synthetic(0, count=10)
    stream.arrival_ns.reverse()
    with pytest.raises(ValueError, match="decrease"):
        stream.check()
    stream = synthetic(0, count=10)
    stream.prompt[3] = 0
    with pytest.raises(ValueError, match="at least 1"):
        stream.check()
