"""Report and pictures of the study of output caps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from scheduler_service.sim import plots
from scheduler_service.sim.cap_measures import TIME_PREFIX
from scheduler_service.sim.metrics import split_by_user
from scheduler_service.sim.tables import markdown

if TYPE_CHECKING:
    from pathlib import Path

    from scheduler_service.sim.metrics import Measures


class Setting(NamedTuple):
    """One run over a stream."""

    policy: str
    caps: str
    learning: str


Runs = dict[Setting, "Measures"]

_ERRORS: Final = (
    ("est_ratio_mean", "mean ratio"),
    ("est_ratio_p50", "P50"),
    ("est_ratio_p95", "P95"),
    ("est_total", "sum over sum"),
    ("est_too_low", "too low"),
    ("est_too_high", "too high"),
)
_FAIRNESS: Final = (
    ("charged_share_error_10s", "share error, charged"),
    ("real_share_error_10s", "share error, real"),
    ("late_real_share_error_10s", "2nd half"),
    ("charged_gap_max_units", "gap, charged"),
    ("real_gap_max_units", "gap, real"),
    ("real_gap_over_bound_max", "real gap/bound"),
    ("real_misplaced", "misplaced"),
    ("real_user_share_error_max", "worst user"),
    ("wait_mean_s", "mean wait"),
    ("light_wait_p99_s", "light P99"),
    ("heavy_wait_p99_s", "heavy P99"),
)
_USERS_AS_GROUPS: Final = 5
_TITLES: Final = {
    "none": "prior alone",
    "pool": "pool's ratio",
    "user": "users' ratios",
    "known": "output known",
}


def over_time(measures: Measures) -> list[tuple[float, float]]:
    """Returns (seconds, estimated over real cost) in order of time."""
    return sorted(
        (float(name.removeprefix(TIME_PREFIX)), value)
        for name, value in measures.items()
        if name.startswith(TIME_PREFIX)
    )


def write(folder: Path, head: str, found: dict[str, Runs]) -> Path:
    """Writes `report.md` and its pictures, and returns the report's path."""
    parts = [head, _LEGEND]
    for name, runs in found.items():
        _draw_time(folder, name, runs)
        parts += [
            f"## {name}",
            _summary(runs),
            f"![{name}: estimated over real cost](caps_time_{name}.svg)",
            _error_table(runs),
        ]
        if _draw_shares(folder, name, runs):
            parts.append(f"![{name}: share error of real cost](caps_share_{name}.svg)")
        parts.append(_fairness_table(runs))
    path = folder / "report.md"
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


_LEGEND: Final = (
    "Ratios are of estimated to real cost; too low and too high are the sums of the amounts, over "
    "the sum of real costs. Share error: in each 10 s, the largest difference of a user's share of "
    "cost from its ideal (GPS) share, averaged; gap: the largest difference in service of two "
    "users who both waited, cost units, and that over 2D + c_i + c_j, here with real costs, for "
    "which nothing is promised. Misplaced: part of the real cost that went to other users than "
    "the ideal would have given it to, over the whole run; worst user: the largest such part of "
    "one user. Waits in seconds; a user is heavy that asks for more than its fair share."
)


def groups_of(measures: Measures) -> dict[str, str]:
    """Returns what errors are shown for: title and prefix of the measures."""
    found = {"all": "", "all, 2nd half": "late_"}
    if "light_est_total" in measures:
        return found | {"light": "light_", "heavy": "heavy_"}
    users = split_by_user(measures)[1]
    if 1 < len(users) <= _USERS_AS_GROUPS:
        found |= {user: f"user/{user}/" for user in users}
    return found


def _errors_of(runs: Runs) -> Runs:
    """Returns the last policy's runs without those whose estimate is the truth."""
    policy = list(runs)[-1].policy
    return {s: m for s, m in runs.items() if s.policy == policy and s.learning != "known"}


def _error_table(runs: Runs) -> str:
    body = [
        [setting.caps, setting.learning, title, *(measures[prefix + name] for name, _ in _ERRORS)]
        for setting, measures in _errors_of(runs).items()
        for title, prefix in groups_of(measures).items()
    ]
    return markdown(["caps", "learned", "users", *(title for _, title in _ERRORS)], body)


def _fairness_table(runs: Runs) -> str:
    known = [c for c in _FAIRNESS if any(c[0] in measures for measures in runs.values())]
    body = [
        [*setting, *(measures.get(name, float("nan")) for name, _ in known)]
        for setting, measures in runs.items()
    ]
    return markdown(["policy", "caps", "learned", *(title for _, title in known)], body)


def _summary(runs: Runs) -> str:
    """Says in words what the default policy does with users' ratios, and what the truth gives."""
    lines = []
    policy = list(runs)[-1].policy
    for caps in dict.fromkeys(s.caps for s in runs):
        none, user, truth = (
            runs[Setting(policy, caps, learning)] for learning in ("none", "user", "known")
        )
        line = (
            f"- Caps {caps} ({user['cut_responses']:.0f} responses cut): estimates sum to "
            f"{none['est_total']:.2f} times the real cost with the prior alone, "
            f"{user['est_total']:.2f} with users' ratios, {user['late_est_total']:.2f} in the "
            "second half"
        )
        if "real_share_error_10s" in user:
            line += (
                f". Under {policy} the share error of real cost is "
                f"{none['real_share_error_10s']:.1%}, then {user['real_share_error_10s']:.1%} "
                f"({user['late_real_share_error_10s']:.1%} in the second half); were outputs "
                f"known, {truth['real_share_error_10s']:.1%}"
            )
        if "light_wait_p99_s" in user:
            waits = [run["light_wait_p99_s"] for run in (none, user, truth)]
            line += (
                f". Light users' P99 wait: {waits[0]:.1f} s, {waits[1]:.1f} s; "
                f"known {waits[2]:.1f} s"
            )
        lines.append(f"{line}.")
    return "\n".join(lines)


def _draw_time(folder: Path, name: str, runs: Runs) -> None:
    shown = _errors_of(runs)
    panels = []
    for caps in dict.fromkeys(s.caps for s in shown):
        lines: list[plots.Line] = []
        for setting, measures in shown.items():
            if setting.caps == caps:
                steps = over_time(measures)
                times = [at_s / 60 for at_s, _ in steps]
                lines.append((_TITLES[setting.learning], times, [r for _, r in steps], [], []))
        lines.append(("real cost", lines[0][1], [1.0] * len(lines[0][1]), [], []))
        title = "each user's P99" if caps == "user_p99" else f"{caps} tokens"
        flat = frozenset({"real cost"})
        y_label = "estimated over real cost"
        panels.append(plots.Panel(f"Caps: {title}", "minutes", y_label, lines, flat))
    caption = f"{name}: sum of estimates over sum of real costs, by time of arrival."
    plots.draw_panels(folder, f"caps_time_{name}", panels, caption)


def _draw_shares(folder: Path, name: str, runs: Runs) -> bool:
    """Draws share errors; returns whether there were several users to share."""
    measure = "real_share_error_10s"
    if any(measure not in measures for measures in runs.values()):
        return False
    learned = list(dict.fromkeys(s.learning for s in runs))
    bars = [
        plots.Bar(
            f"{caps}, {policy}",
            [100 * runs[Setting(policy, caps, learning)][measure] for learning in learned],
        )
        for caps in dict.fromkeys(s.caps for s in runs)
        for policy in dict.fromkeys(s.policy for s in runs)
    ]
    title = f"Share error of real cost, {name}"
    series = [_TITLES[learning] for learning in learned]
    plots.draw_bars(folder, f"caps_share_{name}", title, "per cent, mean over 10 s", series, bars)
    return True
