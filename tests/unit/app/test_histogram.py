"""The histogram of commit times."""

from scheduler_service.app.histogram import BOUNDS_NS, DurationHistogram


def test_bounds_rise_and_are_inclusive():
    """Bounds rise and are inclusive."""
    assert list(BOUNDS_NS) == sorted(set(BOUNDS_NS))
    histogram = DurationHistogram()
    for bound_ns in BOUNDS_NS:
        histogram.observe(bound_ns)
        histogram.observe(bound_ns + 1)

    assert histogram.counts == [1] + [2] * (len(BOUNDS_NS) - 1) + [1]


def test_sums_and_quantiles():
    """Sums and quantiles."""
    histogram = DurationHistogram()
    assert histogram.quantile_ns(9900) == 0
    for _ in range(99):
        histogram.observe(90_000)
    histogram.observe(60_000_000_000)

    assert histogram.count == 100
    assert histogram.sum_ns == 99 * 90_000 + 60_000_000_000
    assert histogram.quantile_ns(9900) == 100_000
    assert histogram.quantile_ns(9901) == 60_000_000_000
