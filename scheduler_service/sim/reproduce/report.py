"""The Markdown report: published against ours, what holds, what does not and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler_service.sim.tables import markdown, write_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scheduler_service.sim.reproduce.experiments import Outcome, Plan


def write(plan: Plan, outcomes: Sequence[Outcome]) -> Path:
    """Writes `report.md` and the result tables, and returns the report's path."""
    write_table(plan.folder, "results", [c._asdict() for out in outcomes for c in out.cells])
    compared = [c._asdict() for out in outcomes for c in out.comparisons]
    write_table(plan.folder, "published", compared)
    stated = [{"experiment": out.name, **c._asdict()} for out in outcomes for c in out.checks]
    write_table(plan.folder, "checks", stated)
    parts = [_head(plan, outcomes)]
    parts += [_section(out) for out in outcomes]
    path = plan.folder / "report.md"
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def _head(plan: Plan, outcomes: Sequence[Outcome]) -> str:
    compared = [c for out in outcomes for c in out.comparisons]
    stated = [c for out in outcomes for c in out.checks]
    within, held = sum(c.holds for c in compared), sum(c.holds for c in stated)
    engine = (
        f"Seeds: {plan.seeds}. The engine is the one of the QBA paper, with its admission rule; "
        "the policies are the service's own core behind its commands."
    )
    numbers = "Published numbers within tolerance (10 % for means, 15 % for P99s)"
    lines = [
        "# Reproduction report",
        "",
        engine,
        "",
        f"- {numbers}: {within} of {len(compared)}.",
        f"- Statements that hold: {held} of {len(stated)}.",
    ]
    if plan.seeds < 100:  # noqa: PLR2004 - seeds of the paper
        lines.append(
            "- Fewer than the paper's 100 seeds: one seed's mean wait varies by about its own "
            "size, so numbers here may miss the tolerance by chance."
        )
    failed = [
        f"  - {out.name}: {c.statement} ({c.detail})"
        for out in outcomes
        for c in out.checks
        if not c.holds
    ]
    if failed:
        lines += ["- Statements that do not hold here:", *failed]
    return "\n".join(lines)


def _section(out: Outcome) -> str:
    parts = [f"## {out.title}"]
    parts += [f"![{name}]({name}.svg)" for name in out.pictures]
    if out.comparisons:
        rows = [
            [c.line, c.x, c.measure, c.published, c.ours, f"{c.deviation:+.1%}", c.holds]
            for c in out.comparisons
        ]
        header = ["policy", "x", "measure", "published", "ours", "deviation", "within"]
        parts.append(markdown(header, rows))
    if out.checks:
        rows = [[c.statement, c.holds, c.detail] for c in out.checks]
        parts.append(markdown(["statement", "holds", "measured"], rows))
    for table in out.tables:
        parts += [f"{table.title}:", markdown(table.header, table.rows)]
    parts += out.notes
    return "\n\n".join(parts)
