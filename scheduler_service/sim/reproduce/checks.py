"""Compares what was run with what the documents state: numbers, orderings, Table II.

Source:
    QBA §IV; the tolerances are those of `published`.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import mean, median
from typing import TYPE_CHECKING, NamedTuple

from scheduler_service.sim.reproduce.published import PUBLISHED, TABLE2, TABLE2_MEASURES

if TYPE_CHECKING:
    from scheduler_service.sim.metrics import Measures
    from scheduler_service.sim.reproduce.sweeps import Cell


class Comparison(NamedTuple):
    """One published number beside ours."""

    experiment: str
    line: str
    x: float
    measure: str
    published: float
    ours: float
    deviation: float
    tolerance: float
    holds: bool


class Check(NamedTuple):
    """One statement, and whether it holds."""

    statement: str
    holds: bool
    detail: str


Lookup = dict[tuple[str, str, float, str], float]


def lookup(cells: list[Cell]) -> Lookup:
    """Returns values by (experiment, line, x, measure)."""
    return {(c.experiment, c.line, round(c.x, 4), c.measure): c.value for c in cells}


def compare_numbers(values: Lookup) -> list[Comparison]:
    """Returns every published number whose experiment was run."""
    found = []
    for p in PUBLISHED:
        ours = values.get((p.experiment, p.line, p.x, p.measure))
        if ours is None:
            continue
        off = ours / p.value - 1
        found.append(
            Comparison(
                p.experiment,
                p.line,
                p.x,
                p.measure,
                p.value,
                ours,
                off,
                p.tolerance,
                abs(off) <= p.tolerance,
            )
        )
    return found


def _chain(values: Lookup, experiment: str, x: float, measure: str, lines: list[str]) -> Check:
    """Checks that `lines` are in rising order of `measure`."""
    found = [values[experiment, line, x, measure] for line in lines]
    holds = all(a < b for a, b in pairwise(found))
    shown = " < ".join(f"{n} {v:.2f}" for n, v in zip(lines, found, strict=True))
    return Check(f"{measure} at x = {x:g} ({experiment}): {' < '.join(lines)}", holds, shown)


def load_checks(values: Lookup) -> list[Check]:
    """Returns what is claimed of Fig. 2, at the reference load 32 and over the sweep."""
    found = [
        _chain(values, "fig2", 32.0, "wait_mean_s", ["PSF", "QBA", "FCFS"]),
        _chain(values, "fig2", 32.0, "long_wait_p99_s", ["AA", "QBA", "PSF"]),
        _chain(values, "fig2", 32.0, "wait_p99_s", ["FCFS", "AA", "QBA", "PSF"]),
    ]
    rates = sorted({x for (e, _, x, _) in values if e == "fig2"})
    for statement, measure, lines in (
        ("mean: PSF < QBA < FCFS at every load", "wait_mean_s", ["PSF", "QBA", "FCFS"]),
        ("mean: QBA < AA at every load", "wait_mean_s", ["QBA", "AA"]),
        ("P99: PSF is the worst at every load", "wait_p99_s", ["QBA", "PSF"]),
    ):
        chains = [_chain(values, "fig2", x, measure, lines) for x in rates]
        held = sum(chain.holds for chain in chains)
        found.append(Check(statement, held == len(rates), f"{held} of {len(rates)} loads"))
    over = [
        x
        for x in rates
        if values["fig2", "AA", x, "wait_mean_s"] > values["fig2", "FCFS", x, "wait_mean_s"]
    ]
    detail = f"at rates {', '.join(f'{x:g}' for x in over)}" if over else "at no rate"
    found.append(Check("mean: AA exceeds FCFS under congestion", bool(over), detail))
    return found


def quota_checks(values: Lookup) -> list[Check]:
    """Returns what is claimed of Fig. 3."""
    found = []
    tails = {
        x: v for (e, n, x, m), v in values.items() if (e, n, m) == ("fig3ab", "QBA", "wait_p99_s")
    }
    if tails:
        best = min(tails, key=lambda x: tails[x])
        found.append(
            Check("QBA's P99 is best near k = 4", best in {2, 4, 6}, f"best at k = {best:g}")
        )
        means = [values["fig3ab", "QBA", x, "wait_mean_s"] for x in sorted(tails)]
        falls = means[0] > means[-1]
        detail = f"{means[0]:.2f} s at the smallest k, {means[-1]:.2f} s at the largest"
        found.append(Check("QBA's mean falls as k grows", falls, detail))
    gammas = {
        x: v for (e, n, x, m), v in values.items() if (e, n, m) == ("fig3c", "QBA", "wait_p99_s")
    }
    if gammas:
        flat = [v for x, v in gammas.items() if x <= 0.95]  # noqa: PLR2004 - the paper's range
        spread = max(flat) / min(flat) - 1
        found.append(
            Check(
                "QBA's P99 is flat from gamma 0.5 to 0.95 and worse at 1",
                spread < 0.25 and gammas[1.0] > 1.1 * max(flat),  # noqa: PLR2004 - "flat"
                f"varies by {spread:.0%}, then {gammas[1.0]:.2f} s",
            )
        )
    return found


def error_checks(values: Lookup) -> list[Check]:
    """Returns what is claimed of Fig. 5: where long-to-short errors move QBA's waits."""
    found = []
    for measure, rises in (
        ("wait_mean_s", True),
        ("short_wait_p99_s", True),
        ("long_wait_p99_s", False),
    ):
        first, last = values["fig5", "QBA", 0.0, measure], values["fig5", "QBA", 0.4, measure]
        way = "raise" if rises else "lower"
        found.append(
            Check(
                f"long-to-short errors {way} QBA's {measure}",
                (last > first) == rises,
                f"{first:.2f} to {last:.2f} s",
            )
        )
    return found


class Table2Row(NamedTuple):
    """One row of Table II: ours under one label, beside the published."""

    label: str
    line: str
    ours: tuple[float, ...]
    published: tuple[float, ...]


def table2(
    runs: dict[tuple[str, str, int], Measures],
) -> tuple[list[Table2Row], list[Check]]:
    """Returns Table II and the orderings over windows.

    Means are pooled over all requests (windows are equally large), P99s are medians over windows.
    """
    rows = []
    for by in ("response", "work"):
        for line, published in TABLE2.items():
            own = [m for (b, n, _), m in runs.items() if (b, n) == (by, line)]
            columns = [[m[measure] for m in own if measure in m] for measure in TABLE2_MEASURES]
            ours = (mean(columns[0]), *(median(column) for column in columns[1:]))
            rows.append(Table2Row(by, line, ours, published))
    return rows, _table2_checks(runs)


def _table2_checks(runs: dict[tuple[str, str, int], Measures]) -> list[Check]:
    count = 1 + max(window for _, _, window in runs)
    found = []
    for by in ("response", "work"):
        for measure, lines in (
            ("long_wait_p99_s", ["AA", "QBA", "PSF"]),
            ("wait_mean_s", ["PSF", "QBA", "AA"]),
        ):
            held = 0
            for window in range(count):
                v = [runs[by, line, window].get(measure, 0.0) for line in lines]
                held += v[0] <= v[1] <= v[2]
            text = f"{measure}, label on {by}: {' <= '.join(lines)} in nearly all windows"
            found.append(Check(text, held >= 0.9 * count, f"{held} of {count} windows"))
        worst = max(m["kv_overflow_share"] for (b, _, _), m in runs.items() if b == by)
        found.append(Check(f"no KV overflow, label on {by}", worst == 0, f"at most {worst:.2%}"))
    return found
