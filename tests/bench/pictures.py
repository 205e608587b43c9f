"""Pictures of the results; matplotlib is imported only here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.results import Measure, Results, Table

_BLUE, _GREEN, _RED, _GREY = "#2b6cb0", "#2f855a", "#c53030", "#a0aec0"
_COLOURS = {"goal": _GREEN, "accepted": _BLUE, "missed": _RED}


def draw(results: Results, folder: Path) -> list[Path]:
    """Draws what there is to draw; returns the files (none without matplotlib)."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an extra that only pictures need
    except ImportError:
        return []
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "fairsched"
    import matplotlib.pyplot as plt  # noqa: PLC0415 - after its backend is chosen

    drawn = []
    for name, picture in _PICTURES.items():
        figure = picture(results, plt)
        if figure is None:
            continue
        figure.tight_layout()
        path = folder / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None})
        figure.savefig(folder / f"{name}.png", dpi=130)
        plt.close(figure)
        drawn.append(path)
    return drawn


def _against_limits(results: Results, plt: Any) -> Any:
    """Every measure as a multiple of what is asked: right of 1 is good."""
    asked = [m for m in results.measures if m.accept]
    if not asked:
        return None
    figure, axes = plt.subplots(figsize=(9, 0.42 * len(asked) + 1.4))
    for row, measure in enumerate(reversed(asked)):
        part = _part(measure, measure.value)
        axes.barh(row, part, color=_COLOURS.get(measure.verdict, _GREY), height=0.6)
        if measure.goal:
            axes.plot(_part(measure, measure.goal), row, "k|", markersize=12)
        axes.text(
            max(part, 0.02) + 0.02,
            row,
            f"{measure.value:,.3g} {measure.unit}",
            va="center",
            fontsize=8,
        )
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(asked)), [m.what for m in reversed(asked)], fontsize=8)
    axes.set_xlim(0, max(3.0, *(min(_part(m, m.value), 6) for m in asked)) * 1.15)
    axes.set_xlabel("measured / asked for (inverted where less is better); the tick is the goal")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _part(measure: Measure, value: float) -> float:
    assert measure.accept
    return measure.accept / value if measure.at_most and value else value / measure.accept


def _table(results: Results, benchmark: str, starts: str = "") -> Table | None:
    return next(
        (t for t in results.tables if t.benchmark == benchmark and t.title.startswith(starts)), None
    )


def _core_growth(results: Results, plt: Any) -> Any:
    table = _table(results, "core-users")
    if table is None:
        return None
    figure, axes = plt.subplots(figsize=(6, 3.6))
    users = [row[0] for row in table.rows]
    axes.plot(users, [row[2] for row in table.rows], "o-", color=_BLUE, label="dispatch")
    axes.plot(users, [row[4] for row in table.rows], "o--", color=_GREY, label="enqueue")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("backlogged users")
    axes.set_ylabel("microseconds a decision")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _open_loop(results: Results, plt: Any) -> Any:
    table = _table(results, "open-loop")
    if table is None:
        return None
    figure, axes = plt.subplots(figsize=(6, 3.6))
    for shape, colour in (("unary", _BLUE), ("sessions", _GREEN)):
        rows = [row for row in table.rows if row[0] == shape]
        for column, style, name in ((6, "o-", "p50"), (7, "o--", "p99")):
            axes.plot(
                [row[2] for row in rows],
                [row[column] for row in rows],
                style,
                color=colour,
                label=f"{shape}, whole lifecycle {name}",
            )
    axes.set_xlabel("arrivals a second (50, 80, 95 % of capacity)")
    axes.set_ylabel("ms from the intended time")
    axes.set_yscale("log")
    axes.set_xscale("log")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _rivals(results: Results, plt: Any) -> Any:
    table = _table(results, "rivals", "Lifecycles")
    if table is None or not table.rows:
        return None
    figure, axes = plt.subplots(figsize=(8, 0.36 * len(table.rows) + 1.2))
    rows = sorted(table.rows, key=lambda row: row[3])
    for number, row in enumerate(rows):
        ours = str(row[0]).startswith("fairsched")
        axes.barh(number, row[3], color=_BLUE if ours else _GREY, height=0.65)
        axes.text(row[3], number, f" {row[3]:,.0f}/s", va="center", fontsize=8)
    axes.set_yticks(
        range(len(rows)), [f"{row[0]} ({row[1]}, {row[2]})" for row in rows], fontsize=8
    )
    axes.set_xscale("log")
    axes.set_xlabel("lifecycles a second (enqueue, take, complete), log scale")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _rivals_fairness(results: Results, plt: Any) -> Any:
    table = _table(results, "rivals-fairness")
    if table is None or not table.rows:
        return None
    figure, axes = plt.subplots(figsize=(8, 3.8))
    names = [str(row[0]) for row in table.rows]
    light, heavy = (
        table.columns.index(f"{kind} users' mean wait, s") for kind in ("light", "heavy")
    )
    places = range(len(names))
    axes.bar(
        [p - 0.2 for p in places],
        [row[light] for row in table.rows],
        0.4,
        color=_GREEN,
        label="light users",
    )
    axes.bar(
        [p + 0.2 for p in places],
        [row[heavy] for row in table.rows],
        0.4,
        color=_GREY,
        label="heavy users",
    )
    axes.set_xticks(list(places), names, rotation=20, ha="right", fontsize=8)
    axes.set_ylabel("mean wait, s")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


_PICTURES: dict[str, Callable[[Results, Any], Any]] = {
    "against_limits": _against_limits,
    "core_growth": _core_growth,
    "open_loop": _open_loop,
    "rivals": _rivals,
    "rivals_fairness": _rivals_fairness,
}
