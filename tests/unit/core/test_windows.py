"""Sliding windows against lists that are looked at from end to end."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.core.windows import ReferenceSample, SlidingMax

VALUES = st.lists(st.integers(0, 9), max_size=60)


@given(VALUES, st.integers(1, 8))
def test_the_largest_of_the_last_values(values, size):
    """Whatever came before the window does not count."""
    window = SlidingMax(size)
    for index, value in enumerate(values):
        window.push(value)
        assert window.largest == max(values[max(0, index + 1 - size) : index + 1])


@given(VALUES, VALUES, st.integers(1, 8))
def test_a_restored_maximum_goes_on_as_before(values, more, size):
    """Written down in the middle, it gives the same answers."""
    window, other = SlidingMax(size), SlidingMax(size)
    for value in values:
        window.push(value)
    other.restore(window.dump())
    assert other.largest == window.largest
    for value in more:
        window.push(value)
        other.push(value)
        assert other.largest == window.largest


@given(VALUES, st.integers(0, 8), st.integers(1, 10_000))
def test_the_nearest_rank_of_the_newest_entries(values, size, level_bp):
    """`sample[ceil(level * n) - 1]`; a window of 0 is the whole history."""
    sample = ReferenceSample(size)
    for index, value in enumerate(values):
        sample.push(value)
        kept = sorted(values[max(0, index + 1 - size) : index + 1] if size else values[: index + 1])
        assert len(sample) == len(kept)
        assert sample.quantile(level_bp) == kept[-(-level_bp * len(kept) // 10_000) - 1]


@given(VALUES, st.integers(0, 8), st.integers(0, 8))
def test_another_window_keeps_the_newest(values, before, after):
    """As many of them as both windows held."""
    sample = ReferenceSample(before)
    for value in values:
        sample.push(value)
    kept = values[-before:] if before else values
    assert sample.resized(after).dump() == (kept[-after:] if after else kept)
