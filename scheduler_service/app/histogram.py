"""A histogram of durations in plain integers, cheap enough for every commit."""

from scheduler_service.core.policy import SECOND_NS
from scheduler_service.core.search import place

_BOUNDS_MICROS = (100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000)
_BOUNDS_SECONDS = (1, 10)

BOUNDS_NS = (
    *(micros * 1000 for micros in _BOUNDS_MICROS),
    *(seconds * SECOND_NS for seconds in _BOUNDS_SECONDS),
)
"""Upper bounds of the buckets, inclusive: 0.1 ms … 10 s; one more bucket is without end."""

SHORT_BOUNDS_NS = tuple(
    micros * 1000
    for micros in (5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 50_000, 250_000)
)
"""The same for what happens in memory: 5 us … 250 ms."""


class DurationHistogram:
    """Counts durations by bucket.  One thread observes; any thread may read, slightly late.

    Args:
        bounds_ns: Upper bounds of the buckets, inclusive, rising.

    Attributes:
        bounds_ns: As stated.
        counts: Observations by bucket, not cumulative; one more than there are bounds.
        sum_ns: Sum of all observations.
        max_ns: Largest observation.
    """

    __slots__ = ("_ordered", "bounds_ns", "counts", "max_ns", "sum_ns")

    def __init__(self, bounds_ns: tuple[int, ...] = BOUNDS_NS) -> None:
        self.bounds_ns = bounds_ns
        self.counts = [0] * (len(bounds_ns) + 1)
        self.sum_ns: int = 0
        self.max_ns: int = 0
        self._ordered = list(bounds_ns)

    @property
    def count(self) -> int:
        """How many durations were observed."""
        return sum(self.counts)

    def observe(self, duration_ns: int) -> None:
        """Counts one duration, at least 0."""
        self.counts[place(self._ordered, duration_ns)] += 1
        self.sum_ns += duration_ns
        self.max_ns = max(self.max_ns, duration_ns)

    def quantile_ns(self, basis_points: int) -> int:
        """Returns an upper bound of a quantile: the bound of its bucket; 0 without observations.

        Args:
            basis_points: 1 … 10,000; 9900 is the 99th percentile (nearest rank).
        """
        rank = -(-self.count * basis_points // 10_000)
        seen = 0
        for bound_ns, count in zip(self.bounds_ns, self.counts, strict=False):
            seen += count
            if rank and seen >= rank:
                return min(bound_ns, self.max_ns)
        return self.max_ns
