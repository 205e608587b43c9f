"""Searches settings that meet an operator's goals on their own stream, and says what they cost.

A goal is an upper limit of a measure, as `light_wait_p99_s<2`.  The search is a grid over policy,
slack, k and gamma, then finer around the best; every setting is a real run of the core.  Among
settings that meet all goals the one of least mean wait is used; if none does, the one that misses
them least.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scheduler_service.core.policy import PoolPolicy
from scheduler_service.sim.pool import Results, run_all
from scheduler_service.sim.specs import MethodSpec, RunSpec, StreamSpec
from scheduler_service.sim.tables import markdown, write_table

if TYPE_CHECKING:
    from pathlib import Path

    from scheduler_service.sim.metrics import Measures

_GOAL: Final = re.compile(r"^\s*([a-z0-9_]+)\s*<=?\s*([0-9.]+)\s*$")
_ORDERS: Final = ("fcfs", "psf", "aa", "qba", "sfq")
_SLACKS: Final = (125, 250, 500, 1000, 2000, 4000)
_QUOTAS: Final = (2, 4, 8)
_GAMMAS: Final = (5000, 8000, 9500)
_SHOWN: Final = (
    "wait_mean_s",
    "wait_p99_s",
    "light_wait_p99_s",
    "heavy_wait_p99_s",
    "short_wait_p99_s",
    "long_wait_p99_s",
    "gap_max_units",
)


class Goal(NamedTuple):
    """An upper limit of a measure."""

    measure: str
    limit: float

    def missed_by(self, measures: Measures) -> float:
        """Returns by which part of the limit it is missed, 0 if it is met."""
        return max(0.0, measures[self.measure] / self.limit - 1)


class GoalError(ValueError):
    """A goal cannot be read, or names a measure that runs of this stream do not have."""


def parse_goal(text: str) -> Goal:
    """Reads `measure<limit`.

    Raises:
        GoalError: The text has another form.
    """
    found = _GOAL.match(text)
    if not found or float(found[2]) <= 0:
        msg = f"{text!r} is no goal; write for example light_wait_p99_s<2"
        raise GoalError(msg)
    return Goal(found[1], float(found[2]))


@dataclass(frozen=True)
class Plan:
    """What is tuned.

    Attributes:
        folder: Output folder.
        stream: The stream, at the load it is to be tuned for.
        goals: Upper limits.
        shape, engines: See `RunSpec`.
        jobs, quiet: See `pool.run_all`.
    """

    folder: Path
    stream: StreamSpec
    goals: tuple[Goal, ...]
    shape: str = "safe"
    engines: int = 1
    jobs: int = 0
    quiet: bool = False


class Choice(NamedTuple):
    """A setting with what it gave."""

    method: MethodSpec
    measures: Measures
    missed: float


def fair(slack: int, quota: int, gamma: int) -> MethodSpec:
    """Returns fair_qba with those settings; what is the default is not named."""
    default = PoolPolicy()
    changes = {
        "aging_quantile_bp": (gamma, default.aging_quantile_bp),
        "quota_k": (quota, default.quota_k),
        "slack_milli": (slack, default.slack_milli),
    }
    named = tuple((key, value) for key, (value, usual) in changes.items() if value != usual)
    return MethodSpec("fair_qba", named)


def _grid() -> list[MethodSpec]:
    found = [MethodSpec(order) for order in _ORDERS] + [MethodSpec("fair_qba")]
    found += [fair(s, k, g) for s in _SLACKS for k in _QUOTAS for g in _GAMMAS]
    found += [MethodSpec("qba", (("quota_k", k),)) for k in _QUOTAS]
    return list(dict.fromkeys(found))


def _around(best: MethodSpec) -> list[MethodSpec]:
    """Returns settings beside the best one: the last refinement."""
    if best.name != "fair_qba":
        return []
    now = {"slack_milli": 500, "quota_k": 5, "aging_quantile_bp": 8000} | dict(best.changes)
    slack, quota, gamma = now["slack_milli"], now["quota_k"], now["aging_quantile_bp"]
    near = {
        *((round(slack * factor), quota, gamma) for factor in (0.7, 1.4)),
        *((slack, max(1, quota + step), gamma) for step in (-1, 1, 2)),
        *((slack, quota, min(10_000, max(1, gamma + step))) for step in (-1000, 1000)),
    }
    return [fair(*setting) for setting in sorted(near)]


def _choices(plan: Plan, results: Results, methods: list[MethodSpec], title: str) -> list[Choice]:
    specs = {m: RunSpec(plan.stream, m, plan.shape, plan.engines) for m in methods}  # type: ignore[arg-type]
    run_all(specs.values(), results, title=title, jobs=plan.jobs, quiet=plan.quiet)
    found = []
    for method, spec in specs.items():
        measures = results[spec]
        unknown = [goal.measure for goal in plan.goals if goal.measure not in measures]
        if unknown:
            msg = f"no measure {', '.join(unknown)} here; there are {', '.join(sorted(measures))}"
            raise GoalError(msg)
        missed = sum(goal.missed_by(measures) for goal in plan.goals)
        found.append(Choice(method, measures, missed))
    return found


def best_of(choices: list[Choice]) -> Choice:
    """Returns the choice that misses the goals least, and of these has the least mean wait."""
    return min(choices, key=lambda c: (c.missed, c.measures["wait_mean_s"], c.method.label))


def run(plan: Plan) -> tuple[Choice, Path]:
    """Searches, writes all settings tried and a report.

    Returns:
        The setting to use, and the path of the report.

    Raises:
        GoalError: A goal names a measure that there is not.
    """
    results = Results(plan.folder)
    tried = _choices(plan, results, _grid(), "grid")
    tried += _choices(plan, results, _around(best_of(tried).method), "around the best")
    best = best_of(tried)
    rows: list[dict[str, Any]] = [
        {"method": c.method.label, "goals_missed_by": c.missed, **c.measures} for c in tried
    ]
    write_table(plan.folder, "tried", rows)
    path = plan.folder / "report.md"
    path.write_text(_report(plan, best, tried), encoding="utf-8")
    return best, path


def settings_text(method: MethodSpec) -> str:
    """Returns the setting as the fields of a pool's policy that are to be set."""
    lines = [f'preset = "{method.name}"']
    lines += [f"{key} = {value}" for key, value in method.changes]
    return "\n".join(lines)


def _report(plan: Plan, best: Choice, tried: list[Choice]) -> str:
    by_method = {choice.method: choice for choice in tried}
    default, fcfs = by_method[MethodSpec("fair_qba")], by_method[MethodSpec("fcfs")]
    met = sum(goal.missed_by(best.measures) == 0 for goal in plan.goals)
    shown = [name for name in _SHOWN if name in best.measures]
    rows = [
        [title, *(choice.measures.get(name, float("nan")) for name in shown)]
        for title, choice in (
            (f"use: {best.method.label}", best),
            ("default: fair_qba", default),
            ("fcfs", fcfs),
        )
    ]
    able = sum(choice.missed == 0 for choice in tried)
    goals = [
        [g.measure, g.limit, best.measures[g.measure], g.missed_by(best.measures) == 0]
        for g in plan.goals
    ]
    cost = best.measures["wait_mean_s"] / max(default.measures["wait_mean_s"], 1e-9) - 1
    summary = (
        f"{met} of {len(plan.goals)} goals are met; {able} of {len(tried)} settings meet all. "
        f"Mean wait is {cost:+.0%} against the default."
    )
    parts = ["# What to set", f"```toml\n{settings_text(best.method)}\n```", summary]
    if goals:
        parts.append(markdown(["goal", "at most", "here", "met"], goals))
    parts.append(markdown(["setting", *shown], rows))
    return "\n\n".join(parts) + "\n"
