"""What a search for settings found, in words and tables: for the terminal and the report."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from scheduler_service.sim.tables import cell, markdown, write_table
from scheduler_service.sim.tune import GAP_FACTOR, Choice, best_of

if TYPE_CHECKING:
    from pathlib import Path

    from scheduler_service.sim.metrics import Measures
    from scheduler_service.sim.specs import MethodSpec
    from scheduler_service.sim.tune import Found

_SHOWN: Final = (
    "wait_mean_s",
    "wait_p99_s",
    "light_wait_p99_s",
    "heavy_wait_p99_s",
    "short_wait_p99_s",
    "long_wait_p99_s",
    "gap_max_units",
)

SHORT: Final = (
    ("wait_mean_s", "mean wait"),
    ("light_wait_p99_s", "light users' P99"),
    ("long_wait_p99_s", "long P99"),
    ("gap_max_units", "largest gap"),
)
"""What the terminal shows of each setting, seconds and cost units."""


def settings_text(method: MethodSpec) -> str:
    """Returns the setting as the fields of a pool's policy that are to be set."""
    lines = [f'preset = "{method.name}"']
    lines += [f"{key} = {value}" for key, value in method.changes]
    return "\n".join(lines)


def side_by_side(found: Found, best: str) -> list[tuple[str, Choice]]:
    """Returns the chosen setting, here called `best`, the default and FCFS, with their names."""
    return [(best, found.best), ("default: fair_qba", found.default), ("fcfs", found.fcfs)]


def short_table(found: Found) -> tuple[list[str], list[list[str]]]:
    """Returns head and rows of the comparison; measures that the stream has not are left out."""
    known = [(name, title) for name, title in SHORT if name in found.default.measures]
    rows = [
        [title, *(number(choice.measures, name) for name, _ in known)]
        for title, choice in side_by_side(found, "chosen")
    ]
    return ["setting", *(title for _, title in known)], rows


def number(measures: Measures, name: str) -> str:
    """Returns a measure as a person reads it."""
    value = measures.get(name, float("nan"))
    known = not math.isnan(value)
    return f"{value:,.0f}" if name == "gap_max_units" and known else cell(value)


def why(found: Found) -> str:
    """Says why this setting was chosen, and what was not considered."""
    plan, best, default = found.plan, found.best, found.default
    able = found.considered
    pool = "all that were tried, fair or not"
    if not plan.any_setting:
        gap = number(default.measures, "gap_max_units")
        pool = (
            "the settings as fair as the default: a finite slack, and a largest gap of at most "
            f"{GAP_FACTOR:g} times the default's" + (f" of {gap}" if gap != "-" else "")
        )
    if plan.goals:
        met = sum(goal.missed_by(best.measures) == 0 for goal in plan.goals)
        meeting = sum(choice.missed == 0 for choice in able)
        reason = f"Goals met: {met} of {len(plan.goals)}; settings that meet all: {meeting} "
        reason += f"of {len(able)}. Chosen: " + (
            "the least mean wait" if meeting else "the nearest"
        )
    else:
        reason = "No goals. Chosen: the least mean wait"
    cost = best.measures["wait_mean_s"] / max(default.measures["wait_mean_s"], 1e-9) - 1
    parts = [
        f"{reason} among {pool}; {len(able)} of {len(found.tried)}.",
        f"Mean wait is {cost:+.0%} against the default.",
    ]
    return " ".join([*parts, *_left_out(found)])


def _left_out(found: Found) -> list[str]:
    """Says what a less fair setting would have given, if it would have been taken."""
    least = best_of(found.tried)
    if least.method == found.best.method:
        return []
    text = f"Not considered, since it is less fair: {least.method.label}, mean wait "
    text += f"{number(least.measures, 'wait_mean_s')} s"
    if "gap_max_units" in least.measures:
        text += f", largest gap {number(least.measures, 'gap_max_units')}"
    if found.plan.goals:
        met = sum(goal.missed_by(least.measures) == 0 for goal in found.plan.goals)
        text += f", goals met: {met} of {len(found.plan.goals)}"
    return [f"{text}; --any considers all."]


def write(found: Found) -> Path:
    """Writes all settings tried and the report, and returns the report's path."""
    folder = found.plan.folder
    rows: list[dict[str, Any]] = [
        {"method": c.method.label, "goals_missed_by": c.missed, "as_fair": c.as_fair, **c.measures}
        for c in found.tried
    ]
    write_table(folder, "tried", rows)
    path = folder / "report.md"
    path.write_text(_report(found), encoding="utf-8")
    return path


def _report(found: Found) -> str:
    best, goals = found.best, found.plan.goals
    shown = [name for name in _SHOWN if name in best.measures]
    rows = [
        [title, *(choice.measures.get(name, float("nan")) for name in shown)]
        for title, choice in side_by_side(found, f"use: {best.method.label}")
    ]
    parts = ["# What to set", f"```toml\n{settings_text(best.method)}\n```", why(found)]
    if goals:
        body = [
            [g.measure, g.limit, best.measures[g.measure], g.missed_by(best.measures) == 0]
            for g in goals
        ]
        parts.append(markdown(["goal", "at most", "here", "met"], body))
    parts.append(markdown(["setting", *shown], rows))
    return "\n\n".join(parts) + "\n"
