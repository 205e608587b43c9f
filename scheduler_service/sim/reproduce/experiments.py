"""Runs the experiments, and turns what they give into tables, pictures and a report section.

Source:
    QBA §IV, SFQ §2 to §6.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler_service.sim import plots
from scheduler_service.sim.pool import Results, run_all
from scheduler_service.sim.reproduce import article, checks, surrogate_curve, sweeps
from scheduler_service.sim.reproduce.published import PUBLISHED, TABLE2, TABLE2_MEASURES
from scheduler_service.sim.specs import RunSpec, stream_of
from scheduler_service.sim.tables import write_table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scheduler_service.sim.reproduce.checks import Check, Comparison
    from scheduler_service.sim.reproduce.sweeps import Cell, Sweep


@dataclass(frozen=True)
class Plan:
    """How much is run.

    Attributes:
        folder: Output folder.
        seeds: Repetitions of the synthetic experiments.
        windows: Windows of Table II.
        traces: Azure files, merged by time; without any Table II uses the sample shipped.
        jobs: Processes; 0 is one a core.
        quiet: Shows no progress.
    """

    folder: Path
    seeds: int = 100
    windows: int = 100
    traces: tuple[str, ...] = ()
    jobs: int = 0
    quiet: bool = False


class Table(NamedTuple):
    """A table of the report."""

    title: str
    header: list[str]
    rows: list[list[Any]]


@dataclass
class Outcome:
    """What an experiment gave.

    Attributes:
        name, title: Of the experiment.
        cells: Aggregated values.
        comparisons: Published numbers beside ours.
        checks: Statements and whether they hold.
        tables: Tables for the report.
        pictures: File names without their end.
        notes: Sentences for the report.
    """

    name: str
    title: str
    cells: list[Cell] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _cells(plan: Plan, results: Results, *found: Sweep) -> list[Cell]:
    cells: list[Cell] = []
    for sweep in found:
        specs = list(sweep.specs(plan.seeds))
        run_all(specs, results, title=sweep.name, jobs=plan.jobs, quiet=plan.quiet)
        cells += sweep.cells(results, plan.seeds)
    return cells


def _overflow_note(cells: list[Cell]) -> str:
    shares = [c.value for c in cells if c.measure == "kv_overflow_share"]
    return (
        f"KV cache above its hard capacity after {min(shares):.1%} to {max(shares):.1%} of the "
        "batches: the paper's admission rule does not guard decode growth."
    )


def _caption(plan: Plan) -> str:
    return f"Mean of {plan.seeds} seeds, band: 95 % confidence interval. 5000 requests a run."


_WAIT, _P99 = "wait_mean_s", "wait_p99_s"


def fig2(plan: Plan, results: Results) -> Outcome:
    """Runs Fig. 2: waits over load, by the surrogate and by simulation."""
    out = Outcome("fig2", "Fig. 2: waiting time against load")
    out.cells = _cells(plan, results, sweeps.FIG2, sweeps.FIG2_PHI)
    values = checks.lookup(out.cells)
    fit = surrogate_curve.fit_service()
    formula = surrogate_curve.curve(fit, values)
    out.checks = checks.load_checks(values)
    out.checks += surrogate_curve.curve_checks(fit, formula, values)
    label = sweeps.FIG2.x_label
    panels = [
        plots.panel_of(formula, "fig2a", _WAIT, "(a) surrogate, mean wait", label)._replace(
            log=True
        ),
        plots.panel_of(out.cells, "fig2", _WAIT, "(b) simulation, mean wait", label),
        plots.panel_of(out.cells, "fig2", _P99, "(c) simulation, P99 wait", label),
    ]
    plots.draw_panels(plan.folder, "fig2", panels, _caption(plan))
    out.pictures, out.cells = ["fig2"], out.cells + formula
    out.notes = [
        _overflow_note(out.cells),
        "The surrogate explains orderings of the mean; its levels are not predictions.",
    ]
    return out


def fig3(plan: Plan, results: Results) -> Outcome:
    """Runs Fig. 3: QBA's sensitivity to k and gamma."""
    out = Outcome("fig3", "Fig. 3: sensitivity to quota and aging quantile")
    quota, gamma = sweeps.FIG3_QUOTA, sweeps.FIG3_GAMMA
    out.cells = _cells(plan, results, quota, gamma)
    out.checks = checks.quota_checks(checks.lookup(out.cells))
    flat = frozenset({"FCFS", "PSF", "AA"})
    rest = frozenset({"FCFS", "PSF"})
    panels = [
        plots.panel_of(out.cells, "fig3ab", _WAIT, "(a) mean wait", quota.x_label, flat),
        plots.panel_of(out.cells, "fig3ab", _P99, "(b) P99 wait", quota.x_label, flat),
        plots.panel_of(out.cells, "fig3c", _P99, "(c) P99 wait", gamma.x_label, rest),
    ]
    plots.draw_panels(plan.folder, "fig3", panels, _caption(plan))
    out.pictures, out.notes = ["fig3"], [_overflow_note(out.cells)]
    return out


def _errors(plan: Plan, results: Results, sweep: Sweep, title: str) -> Outcome:
    out = Outcome(sweep.name, title)
    out.cells = _cells(plan, results, sweep)
    values = checks.lookup(out.cells)
    out.comparisons = checks.compare_numbers(values)
    flat = frozenset({"FCFS"})
    panels = [
        plots.panel_of(out.cells, sweep.name, measure, name, sweep.x_label, flat)
        for measure, name in zip(
            sweep.measures,
            ("(a) mean wait", "(b) true-short P99 wait", "(c) true-long P99 wait"),
            strict=True,
        )
    ]
    plots.draw_panels(plan.folder, sweep.name, panels, _caption(plan))
    out.pictures, out.notes = [sweep.name], [_overflow_note(out.cells)]
    return out


def fig4(plan: Plan, results: Results) -> Outcome:
    """Runs Fig. 4: short requests predicted long."""
    return _errors(plan, results, sweeps.FIG4, "Fig. 4: short requests predicted long")


def fig5(plan: Plan, results: Results) -> Outcome:
    """Runs Fig. 5: long requests predicted short."""
    out = _errors(plan, results, sweeps.FIG5, "Fig. 5: long requests predicted short")
    out.checks = checks.error_checks(checks.lookup(out.cells))
    return out


def numbers(plan: Plan, results: Results) -> Outcome:
    """Runs only the points for which the paper's text gives a number."""
    out = Outcome("numbers", "The numbers of the paper's text, rate 32")
    for sweep in (sweeps.FIG4, sweeps.FIG5):
        known = {p.x for p in PUBLISHED if p.experiment == sweep.name}
        points = replace(sweep, xs=tuple(sorted({0.0, *known})))
        out.cells += _cells(plan, results, points)
    values = checks.lookup(out.cells)
    out.comparisons = checks.compare_numbers(values)
    out.checks = checks.error_checks(values)
    level = values["fig4", "FCFS", 0.0, _WAIT]
    out.notes = [f"FCFS mean {level:.2f} s (not published).", _overflow_note(out.cells)]
    return out


def table2(plan: Plan, results: Results) -> Outcome:
    """Runs Table II under both labels."""
    from scheduler_service.sim.data import AZURE_SAMPLE  # noqa: PLC0415 - found when needed

    out = Outcome("table2", "Table II: windows of the Azure trace")
    paths = plan.traces or AZURE_SAMPLE
    windows = plan.windows if plan.traces else min(plan.windows, 20)
    specs = sweeps.table2_specs(paths, windows)
    run_all(specs.values(), results, title="table2", jobs=plan.jobs, quiet=plan.quiet)
    runs = {where: results[spec] for where, spec in specs.items()}
    rows, out.checks = checks.table2(runs)
    header = ["label on", "policy", *(f"{m} (paper)" for m in TABLE2_MEASURES)]
    body = [
        [r.label, r.line, *(f"{o:.3f} ({p:.3f})" for o, p in zip(r.ours, r.published, strict=True))]
        for r in rows
    ]
    out.tables = [Table("Ours, and the published value in brackets, seconds", header, body)]
    for place, measure in enumerate(TABLE2_MEASURES):
        for r in rows:
            value = r.ours[place]
            name = f"{r.line} ({r.label})"
            out.cells.append(
                sweeps.Cell("table2", name, 0.0, measure, value, value, value, windows)
            )
    bars = [plots.Bar(f"{r.line}, label on {r.label}", [r.ours[1], r.ours[3]]) for r in rows]
    plots.draw_bars(
        plan.folder, "table2", "Median over windows", "seconds", ["P99 wait", "long P99 wait"], bars
    )
    out.pictures, out.notes = ["table2"], _table2_notes(plan, rows, specs, windows)
    return out


def _table2_notes(
    plan: Plan,
    rows: list[checks.Table2Row],
    specs: dict[tuple[str, str, int], RunSpec],
    windows: int,
) -> list[str]:
    import numpy as np  # noqa: PLC0415 - optional, of the extra `sim`

    mean = {(row.label, row.line): row.ours[0] for row in rows}
    gain = {by: 1 - mean[by, "PSF"] / mean[by, "FCFS"] for by in ("response", "work")}
    streams = [stream_of(spec.stream) for spec in list(specs.values())[:: 2 * len(TABLE2)]]
    prompt = np.concatenate([s.prompt for s in streams])
    response = np.concatenate([s.response for s in streams])
    gaps = [np.diff(s.arrival_ns) for s in streams]
    burst = float(np.mean([g.var() / g.mean() ** 2 for g in gaps]))
    tokens, related = float((prompt + response).mean()), float(np.corrcoef(prompt, response)[0, 1])
    why = (
        f"These windows: {tokens:.0f} tokens a request (the published throughput means about 770), "
        f"squared variation of inter-arrival times {burst:.1f} (published 2.9), correlation of "
        f"prompt and response length {related:+.2f}. The published row does not reproduce from the "
        "public 2023 traces for these reasons: lower demand, less bursty arrivals, and a response "
        "length that says nothing about the prompt."
    )
    gained = (
        f"Mean wait gained by PSF over FCFS: {gain['response']:.0%} with the label on the "
        f"response, {gain['work']:.0%} with the label on work (published: 31 %)."
    )
    notes = [why, gained]
    if not plan.traces:
        notes.append(
            f"Run on the sample shipped with the package, {windows} windows; give the whole traces "
            "with --trace."
        )
    return notes


def article_claims(plan: Plan, results: Results) -> Outcome:  # noqa: ARG001 - same shape as all
    """Runs the fairness article's claims."""
    out = Outcome("article", "The fairness article: §2.7, §3.2, §3.3, §4.2, §6.3")
    gaps = article.gap_table(min(plan.seeds, 20))
    quanta, traits = article.quantum_table(), article.trait_table()
    out.checks = article.claims(gaps, quanta, traits)
    out.tables = [
        Table(
            "§2.7, from the core",
            ["v", "selected", "S_A", "S_B"],
            [list(row) for row in article.table_2_7()],
        ),
        Table(
            "§3.2: five users who always wait, heavy-tailed costs; largest gap over 2 c_max, and "
            "how often a pair was beyond SFQ's bound c_i + c_j",
            ["method", "seeds", "gap / 2 c_max", "beyond"],
            [list(row) for row in gaps],
        ),
        Table(
            "§4.2: gap in c_max; cost served to seven others before a returning user's light and "
            "heavy request",
            ["method", "gap / c_max", "light waits for", "heavy waits for"],
            [list(row) for row in quanta],
        ),
        Table(
            "§6.3: cost served to others before a returning user's heavy and light request, "
            "dispatches in a row after a long absence, and the lead of leaving and rejoining",
            ["method", "heavy waits for", "light waits for", "banked", "lead, requests"],
            [list(row) for row in traits],
        ),
    ]
    _draw_article(plan.folder, quanta)
    out.pictures = ["article_rejoin", "article_quantum"]
    for table, rows in (
        ("article_gaps", gaps),
        ("article_traits", traits),
        ("article_quantum", quanta),
    ):
        write_table(plan.folder, table, [row._asdict() for row in rows])
    return out


def _draw_article(folder: Path, quanta: list[article.QuantumRow]) -> None:
    lines: list[plots.Line] = []
    for name in ("sfq", "sfq_reset", "drr", "wfq", "vtc"):
        lead = [value / article.REJOIN_COST for value in article.rejoin_lead(name)]
        lines.append((name, [float(i) for i in range(1, len(lead) + 1)], lead, [], []))
    panel = plots.Panel(
        "Lead of a user who leaves and rejoins (§3.3)",
        "dispatches",
        "lead, requests",
        lines,
    )
    plots.draw_panels(folder, "article_rejoin", [panel])
    bars = [
        plots.Bar(row.method, [row.return_cost / 1000, row.heavy_cost / 1000]) for row in quanta
    ]
    plots.draw_bars(
        folder,
        "article_quantum",
        "Served to others first (§4.2)",
        "thousand cost units",
        ["light request", "heavy request"],
        bars,
    )


EXPERIMENTS: dict[str, Callable[[Plan, Results], Outcome]] = {
    "fig2": fig2,
    "fig3": fig3,
    "fig4": fig4,
    "fig5": fig5,
    "table2": table2,
    "article": article_claims,
}
"""Every experiment by the name that the command takes."""

PARTS: dict[str, Callable[[Plan, Results], Outcome]] = {"numbers": numbers}
"""Parts of experiments, run only by name."""
