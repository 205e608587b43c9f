"""The experiments of the paper as sweeps: a method and a setting a line, seeds as repetitions.

Source:
    QBA §IV-B (Fig. 2), §IV-C (Fig. 3), §IV-D (Figs. 4, 5), §IV-E (Table II).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from scheduler_service.sim.specs import MethodSpec, RunSpec, StreamSpec
from scheduler_service.sim.traces import PAPER_RATE, PAPER_SCALE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scheduler_service.sim.pool import Results

ORDERS: Final = {"FCFS": "fcfs", "PSF": "psf", "AA": "aa", "QBA": "qba"}
_CI95: Final = 1.96


class Cell(NamedTuple):
    """One aggregated value.

    Attributes:
        low, high: 95 % confidence interval of the mean over the repetitions.
        runs: Number of repetitions.
    """

    experiment: str
    line: str
    x: float
    measure: str
    value: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class Sweep:
    """One experiment.

    Attributes:
        name: Short name, as in the commands.
        title: What it shows.
        x_label: Meaning of x.
        xs: Points.
        lines: Run of each line at a point with a seed.
        measures: What is reported.
    """

    name: str
    title: str
    x_label: str
    xs: tuple[float, ...]
    lines: dict[str, Callable[[float, int], RunSpec]]
    measures: tuple[str, ...]

    def specs(self, seeds: int) -> Iterator[RunSpec]:
        """Yields all runs, those of one stream side by side."""
        for seed in range(seeds):
            for x in self.xs:
                for line in self.lines.values():
                    yield line(x, seed)

    def cells(self, results: Results, seeds: int) -> list[Cell]:
        """Returns means and confidence intervals over the seeds."""
        found = []
        for name, line in self.lines.items():
            for x in self.xs:
                runs = [results[line(x, seed)] for seed in range(seeds)]
                for measure in (*self.measures, "kv_overflow_share"):
                    values = [run[measure] for run in runs if measure in run]
                    found.append(aggregate(self.name, name, x, measure, values))
        return found


def aggregate(experiment: str, line: str, x: float, measure: str, values: list[float]) -> Cell:
    """Returns mean and 95 % confidence interval of repetitions."""
    count = len(values)
    mean = sum(values) / count if count else math.nan
    variance = sum((v - mean) ** 2 for v in values) / (count - 1) if count > 1 else 0.0
    half = _CI95 * math.sqrt(variance / count) if count else 0.0
    return Cell(experiment, line, x, measure, mean, mean - half, mean + half, count)


def _at(order: str, **changes: int) -> MethodSpec:
    return MethodSpec(f"paper:{order}", tuple(sorted(changes.items())))


def _by_rate(order: str) -> Callable[[float, int], RunSpec]:
    return lambda rate, seed: RunSpec(StreamSpec(seed=seed, rate=rate), _at(order))


def _constant(order: str) -> Callable[[float, int], RunSpec]:
    return lambda _, seed: RunSpec(StreamSpec(seed=seed), _at(order))


def _by_quota(order: str) -> Callable[[float, int], RunSpec]:
    return lambda k, seed: RunSpec(StreamSpec(seed=seed), _at(order, quota_k=int(k)))


def _by_gamma(order: str) -> Callable[[float, int], RunSpec]:
    return lambda gamma, seed: RunSpec(
        StreamSpec(seed=seed), _at(order, aging_quantile_bp=round(gamma * 10_000))
    )


def _by_error(order: str, kind: str) -> Callable[[float, int], RunSpec]:
    if kind == "short_to_long":
        return lambda e, seed: RunSpec(StreamSpec(seed=seed, short_to_long=e), _at(order))
    return lambda e, seed: RunSpec(StreamSpec(seed=seed, long_to_short=e), _at(order))


def _error_lines(kind: str) -> dict[str, Callable[[float, int], RunSpec]]:
    """FCFS does not look at labels: one run serves all error rates."""
    lines = {name: _by_error(order, kind) for name, order in ORDERS.items()}
    return lines | {"FCFS": _constant("fcfs")}


_WAITS: Final = ("wait_mean_s", "wait_p99_s")
_CLASS_WAITS: Final = ("wait_mean_s", "short_wait_p99_s", "long_wait_p99_s")
_ERRORS: Final = tuple(i * 5 / 100 for i in range(9))
PHI_RATES: Final = (25.0, 27.0, 29.0, 31.0, 33.0)

FIG2: Final = Sweep(
    "fig2",
    "Waiting time against load",
    "arrival rate, requests/s",
    tuple(float(rate) for rate in range(26, 41)),
    {name: _by_rate(order) for name, order in ORDERS.items()},
    (*_WAITS, "short_wait_p99_s", "long_wait_p99_s", "batch_utilisation"),
)
FIG2_PHI: Final = Sweep(
    "fig2_phi",
    "Promoted fractions for the surrogate",
    "arrival rate, requests/s",
    PHI_RATES,
    {name: _by_rate(ORDERS[name]) for name in ("AA", "QBA")},
    ("promoted_long_share",),
)
FIG3_QUOTA: Final = Sweep(
    "fig3ab",
    "Sensitivity of QBA to the quota",
    "quota k",
    tuple(float(k) for k in range(2, 15, 2)),
    {"QBA": _by_quota("qba"), **{n: _constant(ORDERS[n]) for n in ("FCFS", "PSF", "AA")}},
    _WAITS,
)
FIG3_GAMMA: Final = Sweep(
    "fig3c",
    "Sensitivity of QBA and AA to the aging quantile",
    "aging quantile gamma",
    tuple(i * 5 / 100 for i in range(10, 21)),
    {
        "QBA": _by_gamma("qba"),
        "AA": _by_gamma("aa"),
        "FCFS": _constant("fcfs"),
        "PSF": _constant("psf"),
    },
    _WAITS,
)
FIG4: Final = Sweep(
    "fig4",
    "Short requests predicted long",
    "error rate short to long",
    _ERRORS,
    _error_lines("short_to_long"),
    _CLASS_WAITS,
)
FIG5: Final = Sweep(
    "fig5",
    "Long requests predicted short",
    "error rate long to short",
    _ERRORS,
    _error_lines("long_to_short"),
    _CLASS_WAITS,
)
SWEEPS: Final = {s.name: s for s in (FIG2, FIG2_PHI, FIG3_QUOTA, FIG3_GAMMA, FIG4, FIG5)}


def table2_specs(paths: tuple[str, ...], windows: int) -> dict[tuple[str, str, int], RunSpec]:
    """Returns the runs of Table II: by label, method and window."""
    found = {}
    for window in range(windows):
        for by in ("response", "work"):
            stream = StreamSpec(
                "trace",
                rate=PAPER_RATE,
                count=0,
                by=by,
                paths=paths,
                scale=PAPER_SCALE,
                window=window,
                windows=windows,
            )
            for name, order in ORDERS.items():
                found[by, name, window] = RunSpec(stream, _at(order))
    return found
