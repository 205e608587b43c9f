"""Searches settings that meet an operator's goals on their own stream, and says what they cost.

A goal is an upper limit of a measure, as `light_wait_p99_s<2`.  The search is a grid over policy,
slack, k and gamma, then finer around the best; every setting is a real run of the core.  Among
settings that meet all goals the one of least mean wait is used; if none does, the one that misses
them least.

Fairness is not traded away unasked: only settings that are as fair as the default are considered,
which are those with a finite slack, and thus a bound, whose largest gap on the stream is at most
`GAP_FACTOR` times the default's.  `Plan.any_setting` lifts that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from scheduler_service.core.policy import PoolPolicy
from scheduler_service.sim.metrics import heavy_users
from scheduler_service.sim.pool import Results, run_all
from scheduler_service.sim.specs import MethodSpec, RunSpec, StreamSpec, policy_of, stream_of

if TYPE_CHECKING:
    from pathlib import Path

    from scheduler_service.sim.metrics import Measures

_GOAL: Final = re.compile(r"^\s*([a-z0-9_]+)\s*<=?\s*([0-9.]+)\s*$")
_ORDERS: Final = ("fcfs", "psf", "aa", "qba", "sfq")
_SLACKS: Final = (125, 250, 500, 1000, 2000, 4000)
_QUOTAS: Final = (2, 4, 8)
_GAMMAS: Final = (5000, 8000, 9500)

GAP_FACTOR: Final = 2.0
"""How much above the default's a largest gap may be for a setting to be as fair as the default."""

DEFAULT: Final = MethodSpec("fair_qba")
FCFS: Final = MethodSpec("fcfs")


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
        any_setting: Considers settings that are less fair than the default, too.
        jobs, quiet: See `pool.run_all`.
    """

    folder: Path
    stream: StreamSpec
    goals: tuple[Goal, ...]
    shape: Literal["paper", "safe"] = "safe"
    engines: int = 1
    jobs: int = 0
    quiet: bool = False
    any_setting: bool = False


class Choice(NamedTuple):
    """A setting with what it gave.

    Attributes:
        missed: By which parts of their limits it misses the goals, summed.
        as_fair: Whether it is as fair as the default.
    """

    method: MethodSpec
    measures: Measures
    missed: float
    as_fair: bool = True


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        plan: What was wanted.
        best: The setting to use.
        default, fcfs: What it stands beside.
        tried: All settings.
    """

    plan: Plan
    best: Choice
    default: Choice
    fcfs: Choice
    tried: list[Choice]

    @property
    def considered(self) -> list[Choice]:
        """The settings that the best one was taken from."""
        return considered(self.plan, self.tried)


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
    found = [MethodSpec(order) for order in _ORDERS] + [DEFAULT]
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


def as_fair(method: MethodSpec, measures: Measures, default: Measures) -> bool:
    """Returns whether a setting has a bound and gaps about as small as the default's."""
    if policy_of(method).unbounded:
        return False
    gap, usual = (found.get("gap_max_units", 0.0) for found in (measures, default))
    return gap <= GAP_FACTOR * usual


def considered(plan: Plan, tried: list[Choice]) -> list[Choice]:
    """Returns the choices that the plan allows; the default is always among them."""
    return [choice for choice in tried if plan.any_setting or choice.as_fair]


def _check_groups(plan: Plan) -> None:
    """Refuses goals for light or heavy users that the stream does not have."""
    stream = stream_of(plan.stream)
    users, heavy = len(set(stream.user)), len(heavy_users(stream))
    there = {"light": bool(heavy) and heavy < users, "heavy": bool(heavy)}
    for goal in plan.goals:
        group = goal.measure.partition("_")[0]
        if not there.get(group, True):
            why = (
                "it has a single user"
                if users < 2  # noqa: PLR2004 - one alone
                else f"all its {users} users ask for about the same, more than a fair share"
            )
            msg = (
                f"{goal.measure}: this stream has no {group} users, since {why}; "
                f"try {goal.measure.removeprefix(group + '_')}"
            )
            raise GoalError(msg)


def _check_measures(plan: Plan, there: Measures) -> None:
    """Refuses goals for measures that runs of this stream do not have."""
    unknown = [goal.measure for goal in plan.goals if goal.measure not in there]
    if unknown:
        msg = f"no measure {', '.join(unknown)} here; there are {', '.join(sorted(there))}"
        raise GoalError(msg)


def _run_all(
    plan: Plan, results: Results, methods: list[MethodSpec], title: str
) -> dict[MethodSpec, Measures]:
    specs = {m: RunSpec(plan.stream, m, plan.shape, plan.engines) for m in methods}
    run_all(specs.values(), results, title=title, jobs=plan.jobs, quiet=plan.quiet)
    return {method: results[spec] for method, spec in specs.items()}


def best_of(choices: list[Choice]) -> Choice:
    """Returns the choice that misses the goals least, and of these has the least mean wait."""
    return min(choices, key=lambda c: (c.missed, c.measures["wait_mean_s"], c.method.label))


def run(plan: Plan) -> Found:
    """Searches; goals are looked at before anything else is run than the default.

    Raises:
        GoalError: A goal names a measure that there is not.
    """
    _check_groups(plan)
    results = Results(plan.folder)
    default = _run_all(plan, results, [DEFAULT], "default")[DEFAULT]
    _check_measures(plan, default)

    def choices(methods: list[MethodSpec], title: str) -> list[Choice]:
        return [
            Choice(
                method,
                measures,
                sum(goal.missed_by(measures) for goal in plan.goals),
                as_fair(method, measures, default),
            )
            for method, measures in _run_all(plan, results, methods, title).items()
        ]

    tried = choices(_grid(), "grid")
    near = _around(best_of(considered(plan, tried)).method)
    known = {choice.method: choice for choice in tried}
    tried += choices([method for method in near if method not in known], "around the best")
    best = best_of(considered(plan, tried))
    return Found(plan, best, known[DEFAULT], known[FCFS], tried)
