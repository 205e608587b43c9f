"""What the documents state, as data: the numbers of their text, to stand beside ours.

The curves of the paper's figures exist as pictures only; where its text gives no number there is
none here.

Source:
    QBA §IV-C, §IV-D, Table II; the FCFS level is that of an independent implementation.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MEAN_TOLERANCE: Final = 0.10
P99_TOLERANCE: Final = 0.15


class Published(NamedTuple):
    """One published number.

    Attributes:
        experiment: `fig2`, `fig4` or `fig5`, at rate 32.
        line: Method.
        x: Error rate, or the arrival rate.
        measure: Name of the measure.
        value: Seconds.
    """

    experiment: str
    line: str
    x: float
    measure: str
    value: float

    @property
    def tolerance(self) -> float:
        """Relative deviation up to which a value counts as reproduced."""
        return MEAN_TOLERANCE if "mean" in self.measure else P99_TOLERANCE


MEAN, SHORT_P99, LONG_P99 = "wait_mean_s", "short_wait_p99_s", "long_wait_p99_s"

PUBLISHED: Final = [
    Published("fig4", "PSF", 0.0, MEAN, 0.83),
    Published("fig4", "PSF", 0.0, SHORT_P99, 1.24),
    Published("fig4", "PSF", 0.0, LONG_P99, 11.10),
    Published("fig4", "PSF", 0.05, SHORT_P99, 7.03),
    Published("fig5", "PSF", 0.4, MEAN, 0.91),
    Published("fig5", "PSF", 0.4, LONG_P99, 17.29),
    Published("fig4", "QBA", 0.0, MEAN, 1.42),
    Published("fig4", "QBA", 0.0, SHORT_P99, 3.44),
    Published("fig4", "QBA", 0.0, LONG_P99, 7.64),
    Published("fig4", "QBA", 0.1, MEAN, 1.13),
    Published("fig4", "QBA", 0.1, SHORT_P99, 7.59),
    Published("fig4", "QBA", 0.1, LONG_P99, 9.45),
    Published("fig5", "QBA", 0.4, MEAN, 1.92),
    Published("fig5", "QBA", 0.4, SHORT_P99, 5.23),
    Published("fig5", "QBA", 0.4, LONG_P99, 5.27),
]

TABLE2: Final = {
    "FCFS": (0.179, 0.771, 0.771, 0.766, 0.804),
    "PSF": (0.123, 1.376, 0.285, 2.097, 1.428),
    "AA": (0.178, 0.949, 0.970, 0.491, 0.975),
    "QBA": (0.146, 0.951, 0.565, 1.446, 0.998),
}
"""Table II: mean, P99, short P99, long P99 of the wait, and P99 of TTFT, seconds."""

TABLE2_MEASURES: Final = (
    "wait_mean_s",
    "wait_p99_s",
    "short_wait_p99_s",
    "long_wait_p99_s",
    "ttft_p99_s",
)
"""Measures of the columns of Table II."""
