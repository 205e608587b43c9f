"""What the comparison recommends: the defaults, what they cost, and what would do better."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scheduler_service.sim.specs import MethodSpec

if TYPE_CHECKING:
    from scheduler_service.sim.metrics import Measures

LIGHT_TOLERANCE: Final = 1.1
"""How much above SFQ's light users' P99 may be for a setting to be recommended."""

GAP_TOLERANCE: Final = 2.0
"""How much above SFQ's largest service gap may be for a setting to be recommended."""


def recommendation(
    table: dict[str, dict[MethodSpec, Measures]],
    traded: dict[str, dict[MethodSpec, Measures]],
    sweeps: dict[str, list[tuple[str, MethodSpec]]],
) -> str:
    """Says what the default costs and gains on each stream, and what would do better."""
    lines = ["## Recommendation", ""]
    default, fair, paper = MethodSpec("fair_qba"), MethodSpec("sfq"), MethodSpec("qba")
    for name, rows in table.items():
        own, sfq, qba = rows[default], rows[fair], rows[paper]
        waits = (
            f"- {name}: fair_qba (slack 0.5, k 5, gamma 0.8) has mean wait "
            f"{own['wait_mean_s']:.2f} s, sfq {sfq['wait_mean_s']:.2f}, qba "
            f"{qba['wait_mean_s']:.2f}, fcfs {rows[MethodSpec('fcfs')]['wait_mean_s']:.2f}"
        )
        parts = [waits]
        if "light_wait_p99_s" in own:
            parts.append(
                f"light users' P99 {own['light_wait_p99_s']:.2f} s, sfq "
                f"{sfq['light_wait_p99_s']:.2f}, qba {qba['light_wait_p99_s']:.2f}"
            )
        parts.append(_better(traded[name], sweeps, sfq, own))
        lines.append("; ".join(parts) + ".")
    return "\n".join(lines)


def _better(
    rows: dict[MethodSpec, Measures],
    sweeps: dict[str, list[tuple[str, MethodSpec]]],
    sfq: Measures,
    default: Measures,
) -> str:
    """Returns the setting of least mean wait that stays about as fair as SFQ."""
    key = "light_wait_p99_s" if "light_wait_p99_s" in sfq else "wait_p99_s"
    settings = dict.fromkeys(method for own in sweeps.values() for _, method in own)
    able = [
        m
        for m in settings
        if rows[m][key] <= LIGHT_TOLERANCE * sfq[key]
        and rows[m].get("gap_max_units", 0.0) <= GAP_TOLERANCE * sfq.get("gap_max_units", 0.0)
    ]
    rule = (
        f"among the settings with {key} within {LIGHT_TOLERANCE - 1:.0%} of sfq's and a service "
        f"gap at most {GAP_TOLERANCE:g} times sfq's"
    )
    if not able:
        return f"{rule} there is none"
    best = min(able, key=lambda method: rows[method]["wait_mean_s"])
    least = rows[best]["wait_mean_s"]
    above = default["wait_mean_s"] / least - 1
    return (
        f"{rule}, {best.label} has the least mean wait, {least:.2f} s (the default: {above:+.0%})"
    )
