"""Pictures of results, SVG and PNG, readable in print: one colour and one dash a method.

SVG files are the same bytes for the same data: ids are salted with a constant and no date is
written.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scheduler_service.sim import lettering

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from scheduler_service.sim.reproduce.sweeps import Cell

_COLOURS: Final = {
    "FCFS": "#4d4d4d",
    "PSF": "#d55e00",
    "AA": "#cc79a7",
    "QBA": "#0072b2",
}
_OTHERS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#4d4d4d")
_WIDE: Final = 20.0  # ratio of values from which an axis is logarithmic
_DASHES: Final = ("-", "--", "-.", ":")
_BARS_TITLE: Final = 80  # columns of a title of bars
_PANEL_TITLE: Final = 40  # columns of a title of a panel
_CAPTION: Final = 17  # columns of a caption, an inch


Line = tuple[str, list[float], list[float], list[float], list[float]]
"""Name, x, y, and the ends of its band, which may be empty."""


class Panel(NamedTuple):
    """One panel of a picture.

    Attributes:
        title: Above the panel.
        x_label, y_label: Axes.
        lines: The lines.
        flat: Lines that do not depend on x are drawn dashed and thin.
        log: Whether y is logarithmic.
    """

    title: str
    x_label: str
    y_label: str
    lines: list[Line]
    flat: frozenset[str] = frozenset()
    log: bool = False


def panel_of(
    cells: Sequence[Cell],
    experiment: str,
    measure: str,
    title: str,
    x_label: str,
    flat: frozenset[str] = frozenset(),
) -> Panel:
    """Returns the panel of one measure of an experiment."""
    lines = []
    own = [c for c in cells if (c.experiment, c.measure) == (experiment, measure)]
    for name in dict.fromkeys(c.line for c in own):
        points = sorted((c for c in own if c.line == name and math.isfinite(c.value)), key=_x)
        lines.append(
            (
                name,
                [c.x for c in points],
                [c.value for c in points],
                [c.low for c in points],
                [c.high for c in points],
            )
        )
    return Panel(title, x_label, "seconds", lines, flat)


def _x(cell: Cell) -> float:
    return cell.x


def _pyplot() -> Any:
    import matplotlib as mpl  # noqa: PLC0415 - optional, of the extra `sim`

    mpl.use("Agg")
    mpl.rcParams.update(
        {
            "svg.hashsalt": "fairsched",
            "svg.fonttype": "none",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "legend.frameon": False,
        }
    )
    import matplotlib.pyplot as plt  # noqa: PLC0415 - after `use`

    return plt


def _save(plt: Any, figure: Any, folder: Path, name: str) -> None:
    """Lays out and writes a figure; called within `lettering.any_script`."""
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    figure.savefig(folder / f"{name}.png", dpi=150, metadata={"Software": None})
    plt.close(figure)


def draw_panels(folder: Path, name: str, panels: Sequence[Panel], caption: str = "") -> None:
    """Draws panels side by side into `name.svg` and `name.png`."""
    plt = _pyplot()
    width = 4.2 * len(panels)
    with lettering.any_script([caption, *(panel.title for panel in panels)]):
        figure, axes = plt.subplots(1, len(panels), figsize=(width, 3.4), squeeze=False)
        for axis, panel in zip(axes[0], panels, strict=True):
            _draw_panel(axis, panel)
        _lay_out(figure, width, caption)
        _save(plt, figure, folder, name)


def _draw_panel(axis: Any, panel: Panel) -> None:
    for i, (line, x, y, low, high) in enumerate(panel.lines):
        colour = _COLOURS.get(line, _OTHERS[i % len(_OTHERS)])
        dash = "--" if line in panel.flat else _DASHES[i // len(_OTHERS) % len(_DASHES)]
        marker = None if line in panel.flat or len(x) > 40 else "o"  # noqa: PLR2004 - more points than that run together
        axis.plot(x, y, dash, color=colour, marker=marker, markersize=3, label=line, lw=1.4)
        if low and line not in panel.flat:
            axis.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)
    axis.set_title(lettering.title(panel.title, _PANEL_TITLE))
    axis.set_xlabel(panel.x_label)
    axis.set_ylabel(panel.y_label)
    if panel.log:
        lettering.logarithmic(axis)
    else:
        least, most = axis.get_ylim()
        axis.set_ylim(min(0.0, least), most + 0.04 * abs(most))
    axis.legend(fontsize=8)


def _lay_out(figure: Any, width: float, caption: str) -> None:
    """Puts the caption below, in as many lines as the width needs, and the panels above it."""
    caption = lettering.title(caption, round(width * _CAPTION))
    if caption:
        figure.text(0.01, 0.005, caption, fontsize=7, color="#555555")
    lines = caption.count("\n") + 1 if caption else 0
    figure.tight_layout(rect=(0, 0.03 * lines, 1, 1))


class Bar(NamedTuple):
    """One group of bars: a name and a value for each series."""

    name: str
    values: list[float]


def draw_bars(
    folder: Path, name: str, title: str, y_label: str, series: Sequence[str], bars: Sequence[Bar]
) -> None:
    """Draws grouped horizontal bars; long names stay readable."""
    plt = _pyplot()
    title = lettering.title(title, _BARS_TITLE)
    names = [lettering.name(bar.name) for bar in bars]
    unit, factor = lettering.unit_of(y_label, [v for bar in bars for v in bar.values])
    height = 1.1 + 0.15 * title.count("\n") + 0.22 * len(bars) * max(1, len(series))
    with lettering.any_script([title, *names]):
        figure, axis = plt.subplots(figsize=(7.5, height), layout="constrained")
        size = 0.8 / len(series)
        for i, label in enumerate(series):
            at = [row + i * size for row in range(len(bars))]
            values = [bar.values[i] * factor for bar in bars]
            axis.barh(at, values, size * 0.92, label=label, color=_OTHERS[i % len(_OTHERS)])
            for y, value in zip(at, values, strict=True):
                if math.isfinite(value):
                    text = f" {lettering.number(value, unit)}"
                    axis.text(value, y, text, va="center", fontsize=7)
        axis.set_yticks([row + 0.4 - size / 2 for row in range(len(bars))], names)
        axis.invert_yaxis()
        axis.margins(x=0.1, y=0.3 / (len(bars) + 1))
        axis.locator_params(axis="x", nbins=7)
        axis.set_xlabel(unit)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        axis.grid(visible=False, axis="y")
        if len(series) > 1:
            figure.legend(fontsize=8, loc="outside lower right", ncols=len(series))
        _save(plt, figure, folder, name)


class Point(NamedTuple):
    """One setting in a trade-off picture."""

    group: str
    label: str
    x: float
    y: float


def draw_tradeoffs(
    folder: Path, name: str, panels: Sequence[tuple[str, str, str, Sequence[Point]]], caption: str
) -> None:
    """Draws scatter panels; points of one group are joined, each point has its label.

    Args:
        folder: Output folder.
        name: File name without its end.
        panels: (title, x label, y label, points).
        caption: Below the picture.
    """
    plt = _pyplot()
    width = 5.2 * len(panels)
    with lettering.any_script([caption, *(title for title, *_ in panels)]):
        figure, axes = plt.subplots(1, len(panels), figsize=(width, 4.4), squeeze=False)
        for axis, (title, x_label, y_label, points) in zip(axes[0], panels, strict=True):
            _draw_points(axis, points)
            axis.set_title(lettering.title(title, _PANEL_TITLE))
            axis.set_xlabel(x_label)
            axis.set_ylabel(y_label)
            axis.legend(fontsize=8)
        _lay_out(figure, width, caption)
        _save(plt, figure, folder, name)


def _draw_points(axis: Any, points: Sequence[Point]) -> None:
    for i, group in enumerate(dict.fromkeys(point.group for point in points)):
        own = [point for point in points if point.group == group]
        colour = _OTHERS[i % len(_OTHERS)]
        axis.plot(
            [p.x for p in own], [p.y for p in own], "o-", color=colour, lw=1, ms=4, label=group
        )
        for point in own:
            axis.annotate(
                point.label,
                (point.x, point.y),
                fontsize=6.5,
                color=colour,
                xytext=(3, 3),
                textcoords="offset points",
            )
    heights = [point.y for point in points]
    if min(heights) > 0 and max(heights) > _WIDE * min(heights):
        lettering.logarithmic(axis)
