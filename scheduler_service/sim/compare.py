"""Every method side by side over the same streams, and what slack, k and gamma trade.

All methods stand in the same engine, by default the one with the safe KV rule, at a stated load:
the rate is a part of what the engines can do with the stream.  Light and heavy users are shown
apart.

Source:
    SFQ §4, §6.3; QBA §IV-B, §IV-C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from scheduler_service.core.phrases import count_text
from scheduler_service.core.policy import Placement
from scheduler_service.sim import plots
from scheduler_service.sim.capacity import at_load
from scheduler_service.sim.data import AZURE_SAMPLE, MULTI_TENANT_SAMPLE
from scheduler_service.sim.metrics import split_by_user
from scheduler_service.sim.pool import Results, run_all
from scheduler_service.sim.recommend import recommendation
from scheduler_service.sim.specs import MethodSpec, RunSpec, StreamSpec, policy_of, stream_of
from scheduler_service.sim.tables import markdown, write_table

if TYPE_CHECKING:
    from pathlib import Path

    from scheduler_service.sim.metrics import Measures

METHODS: Final = (
    MethodSpec("fcfs"),
    MethodSpec("round_robin"),
    MethodSpec("psf"),
    MethodSpec("aa"),
    MethodSpec("qba"),
    MethodSpec("sfq"),
    MethodSpec("sfq_reset"),
    MethodSpec("fair_qba"),
    MethodSpec("fair_qba", (("placement", int(Placement.STALL)),)),
    *(MethodSpec("drr", quantum=quantum) for quantum in (100, 1000, 10_000)),
    MethodSpec("wfq"),
    MethodSpec("stride"),
    MethodSpec("cfs"),
    MethodSpec("vtc"),
    MethodSpec("dlpm"),
    MethodSpec("two_counter"),
)
"""Every method that the two documents name or compare."""

SLACKS_MILLI: Final = (0, 125, 250, 500, 1000, 2000, 4000, 16_000)
QUOTAS: Final = (2, 3, 4, 5, 6, 8, 12, 20)
GAMMAS_BP: Final = (5000, 6000, 7000, 8000, 9000, 9500)

COLUMNS: Final = (
    ("wait_mean_s", "mean wait"),
    ("light_wait_mean_s", "light mean"),
    ("light_wait_p99_s", "light P99"),
    ("heavy_wait_mean_s", "heavy mean"),
    ("heavy_wait_p99_s", "heavy P99"),
    ("short_wait_p99_s", "short P99"),
    ("long_wait_p99_s", "long P99"),
    ("ttft_p99_s", "TTFT P99"),
    ("share_error_10s", "share error"),
    ("gps_lag_max_units", "GPS lag"),
    ("gap_max_units", "gap"),
    ("gap_over_bound_max", "gap/bound"),
    ("jain_10s", "Jain"),
    ("throughput_tokens_per_s", "tokens/s"),
    ("batch_utilisation", "utilisation"),
    ("kv_overflow_share", "KV overflow"),
)
"""Measures of the tables, and what they are called there."""


@dataclass(frozen=True)
class Plan:
    """What is compared.

    Attributes:
        folder: Output folder.
        traces: Multi-user traces of the user; without any the samples shipped are used.
        load: Offered over possible.
        seeds: Repetitions of the synthetic stream.
        count: Requests of a run; 0 is all of a trace.
        shape: `safe` or `paper`.
        engines: Number of engines.
        jobs: Processes; 0 is one a core.
        quiet: Shows no progress.
    """

    folder: Path
    traces: tuple[str, ...] = ()
    load: float = 0.95
    seeds: int = 10
    count: int = 5000
    shape: Literal["paper", "safe"] = "safe"
    engines: int = 1
    jobs: int = 0
    quiet: bool = False


def streams(plan: Plan) -> dict[str, list[StreamSpec]]:
    """Returns the streams by name, each with its repetitions, set to the load."""
    like = RunSpec(StreamSpec(), METHODS[0], plan.shape, plan.engines)
    first = StreamSpec("users", count=plan.count or 5000, by="work")
    rate = at_load(first, plan.load, like).rate
    repeated = [msgspec.structs.replace(first, seed=seed, rate=rate) for seed in range(plan.seeds)]
    found = {"synthetic": repeated}
    named = {"trace": plan.traces} if plan.traces else _samples()
    for name, paths in named.items():
        whole = StreamSpec("trace", count=plan.count, by="work", paths=paths)
        found[name] = [at_load(whole, plan.load, like)]
    return found


def _samples() -> dict[str, tuple[str, ...]]:
    return {"azure": AZURE_SAMPLE, "multi_tenant": MULTI_TENANT_SAMPLE}


def _run(plan: Plan, stream: StreamSpec, method: MethodSpec) -> RunSpec:
    """Returns a run; WFQ is told the capacity, the only method that must know it."""
    if method.name == "wfq":
        mean_cost = sum(stream_of(stream).cost) / max(1, len(stream_of(stream)))
        units = round(mean_cost * stream.rate / plan.load)
        method = msgspec.structs.replace(method, capacity=units)
    return RunSpec(stream, method, plan.shape, plan.engines, by_user=True)


def mean_measures(runs: list[Measures]) -> Measures:
    """Returns the mean of each measure over repetitions; worst cases stay worst cases."""
    found = {}
    for measure in dict.fromkeys(key for run in runs for key in run):
        values = [run[measure] for run in runs if measure in run]
        worst = measure.endswith("_max") or measure == "bound_violations"
        found[measure] = max(values) if worst else sum(values) / len(values)
    return found


def _gather(
    plan: Plan, results: Results, methods: list[MethodSpec], title: str
) -> dict[str, dict[MethodSpec, Measures]]:
    found = streams(plan)
    specs = [_run(plan, s, m) for own in found.values() for s in own for m in methods]
    run_all(specs, results, title=title, jobs=plan.jobs, quiet=plan.quiet)
    return {
        name: {m: mean_measures([results[_run(plan, s, m)] for s in own]) for m in methods}
        for name, own in found.items()
    }


def sweep_methods() -> dict[str, list[tuple[str, MethodSpec]]]:
    """Returns the settings of the trade-off: by parameter, label and method."""

    def fair(**changes: int) -> MethodSpec:
        return MethodSpec("fair_qba", tuple(sorted(changes.items())))

    return {
        "slack": [
            *((f"{milli / 1000:g}", fair(slack_milli=milli)) for milli in SLACKS_MILLI),
            ("inf", MethodSpec("qba")),
        ],
        "k": [(str(k), fair(quota_k=k)) for k in QUOTAS],
        "gamma": [(f"{bp / 10_000:g}", fair(aging_quantile_bp=bp)) for bp in GAMMAS_BP],
    }


def run(plan: Plan) -> Path:
    """Runs the comparison and writes tables, pictures and the report.

    Returns:
        Path of the report.
    """
    results = Results(plan.folder)
    table = _gather(plan, results, list(METHODS), "methods")
    sweeps = sweep_methods()
    settings = list(dict.fromkeys(m for own in sweeps.values() for _, m in own))
    traded = _gather(plan, results, settings, "slack, k, gamma")
    _write_tables(plan, table, traded)
    parts = [_head(plan), _bound_line(table, traded)]
    for name, rows in table.items():
        _draw_methods(plan, name, rows)
        parts += [f"## {name}", _method_table(rows), f"![{name}](methods_{name}.svg)"]
        parts += [f"![{name}](tradeoff_{name}.svg)", _trade_table(sweeps, traded[name])]
        _draw_tradeoff(plan, name, sweeps, traded[name])
    parts.append(recommendation(table, traded, sweeps))
    path = plan.folder / "report.md"
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def _bound_line(*found: dict[str, dict[MethodSpec, Measures]]) -> str:
    """Says how often the core's bound was passed: in every dispatch of every finite slack."""
    checked = [
        measures["bound_violations"]
        for table in found
        for rows in table.values()
        for method, measures in rows.items()
        if method.is_core and not policy_of(method).unbounded and "bound_violations" in measures
    ]
    return (
        f"Bound 2D + c_i + c_j, looked at after every dispatch for every pair of waiting users: "
        f"passed {count_text(round(sum(checked)), 'time')} in "
        f"{count_text(len(checked), 'setting')} of the core."
    )


def _write_tables(
    plan: Plan,
    table: dict[str, dict[MethodSpec, Measures]],
    traded: dict[str, dict[MethodSpec, Measures]],
) -> None:
    for name, found in (("methods", table), ("tradeoff", traded)):
        rows: list[dict[str, Any]] = []
        users: list[dict[str, Any]] = []
        for stream, own in found.items():
            for method, measures in own.items():
                where = {"stream": stream, "method": method.label}
                whole, by_user = split_by_user(measures)
                rows.append(where | whole)
                users += [where | {"user": user} | values for user, values in by_user.items()]
        write_table(plan.folder, name, rows)
        write_table(plan.folder, f"{name}_users", users)


def _head(plan: Plan) -> str:
    shape = "safe KV rule" if plan.shape == "safe" else "the paper's KV rule"
    return (
        "# Methods side by side\n\n"
        f"Load {plan.load:g} of what {plan.engines} engine(s) with {shape} can do; waits in "
        f"seconds; synthetic streams: {count_text(plan.seeds, 'seed')}. "
        "fcfs, psf, aa, qba, sfq and fair_qba are the service's core. "
        "Share error: in each 10 s, the largest difference of a user's share of cost from "
        "its ideal (GPS) share, averaged. GPS lag: cost units a user was behind the ideal at "
        "worst. Gap: largest difference in service of two users who both waited, and that over "
        "the bound 2D + c_i + c_j (D is 0 for all but fair_qba). dlpm is the deficit rule only: "
        "the traces have no prefixes. fair_qba placement=1 waits for what does not fit, as sfq "
        "does, where fair_qba lets others overtake. two_counter follows the abstract "
        "of Equinox, whose formulas could not be read."
    )


def _method_table(rows: dict[MethodSpec, Measures]) -> str:
    known = [c for c in COLUMNS if any(c[0] in measures for measures in rows.values())]
    body = [
        [method.label, *(measures.get(name, float("nan")) for name, _ in known)]
        for method, measures in rows.items()
    ]
    return markdown(["method", *(title for _, title in known)], body)


def _trade_table(
    sweeps: dict[str, list[tuple[str, MethodSpec]]], rows: dict[MethodSpec, Measures]
) -> str:
    names = ["wait_mean_s", "light_wait_p99_s", "long_wait_p99_s", "gap_max_units"]
    body = [
        [parameter, label, *(rows[method].get(name, float("nan")) for name in names)]
        for parameter, settings in sweeps.items()
        for label, method in settings
    ]
    return markdown(["parameter", "value", "mean wait", "light P99", "long P99", "gap"], body)


def _draw_methods(plan: Plan, name: str, rows: dict[MethodSpec, Measures]) -> None:
    series = ["light_wait_p99_s", "heavy_wait_p99_s", "wait_mean_s"]
    known = [s for s in series if any(s in measures for measures in rows.values())]
    bars = [
        plots.Bar(method.label, [measures.get(s, float("nan")) for s in known])
        for method, measures in rows.items()
    ]
    titles = dict(COLUMNS)
    plots.draw_bars(
        plan.folder,
        f"methods_{name}",
        f"Waits by method, {name}",
        "seconds",
        [titles[s] for s in known],
        bars,
    )


def _draw_tradeoff(
    plan: Plan,
    name: str,
    sweeps: dict[str, list[tuple[str, MethodSpec]]],
    rows: dict[MethodSpec, Measures],
) -> None:
    panels = []
    for measure, title in (
        ("light_wait_p99_s", "light users' P99 wait, s"),
        ("long_wait_p99_s", "long requests' P99 wait, s"),
        ("gap_max_units", "largest service gap, cost units"),
    ):
        points = [
            plots.Point(parameter, label, rows[m]["wait_mean_s"], rows[m][measure])
            for parameter, settings in sweeps.items()
            for label, m in settings
            if measure in rows[m]
        ]
        if points:
            panels.append((title, "mean wait, s", title, points))
    caption = "fair_qba with one parameter moved; slack in largest costs, inf is qba."
    plots.draw_tradeoffs(plan.folder, f"tradeoff_{name}", panels, caption)
