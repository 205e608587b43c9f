"""The picture of the demo: who got how much, under first come first served and under fair_qba.

Both panels show the stretch in which all heavy users wait throughout under fair_qba, and count from
its beginning: there the users are entitled to the same, and the bound says how far two of them may
be apart.  The grey band is that wide and lies around what the heavy users got on average.
"""

from __future__ import annotations

import dataclasses
import io
import re
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from scheduler_service.core.phrases import count_text
from scheduler_service.demo.ledger import MICRO, Ledger, mean, p99
from scheduler_service.sim import lettering

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from scheduler_service.demo.arrivals import Replay

K: Final = 1000
SALT: Final = "fairsched"
_TOO_EXACT: Final = re.compile(r"(\d\.\d\d)\d+")
POINTS: Final = 250
"""Points of a line at most: more cannot be seen."""

TITLES: Final = {"fcfs": "First come, first served", "fair_qba": "Fairsched"}


@dataclasses.dataclass(frozen=True, slots=True)
class Theme:
    """Colours for light or dark pages.

    Attributes:
        ink: Text and axes.
        faint: Grid.
        light: Light users, and what is said in passing.
        heavy: Heavy users, heaviest first.
        band: The bound.
        ground: Behind everything.
    """

    ink: str
    faint: str
    light: str
    heavy: tuple[str, ...]
    band: str
    ground: str


LIGHT: Final = Theme(
    "#1f2328", "#d1d9e0", "#6e7781", ("#cf222e", "#0969da", "#8250df", "#bc4c00"),
    "#dde3e9", "#ffffff",
)  # fmt: skip
DARK: Final = Theme(
    "#e6edf3", "#30363d", "#8b949e", ("#ff7b72", "#58a6ff", "#d2a8ff", "#ffa657"),
    "#30363d", "#0d1117",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Stretch:
    """The part of the time line that is shown.

    Attributes:
        start_s: Where it begins and counting starts.
        end_s: Where it ends.
        heavy: Heavy users, heaviest first.
        bound_micros: How far two waiting users may be apart.
    """

    start_s: float
    end_s: float
    heavy: list[str]
    bound_micros: int


def stretch_of(replay: Replay, run: Ledger, bound_micros: int) -> Stretch:
    """Returns the part in which all heavy users wait throughout; all of it if that is short."""
    heavy = sorted(replay.heavy, key=lambda user: (-run.users[user].cost, user))
    start, end = run.together(heavy) if heavy else (0.0, 0.0)
    end = min(end, replay.length_s)
    if end - start < replay.length_s / 5:
        start, end = 0.0, replay.length_s
    return Stretch(start, end, heavy, bound_micros)


def draw(
    replay: Replay, runs: list[Ledger], bound_micros: int, caption: str, theme: Theme = LIGHT
) -> Any:
    """Returns the figure.

    Args:
        replay: What was replayed.
        runs: The runs, left to right; the last one is fair_qba.
        bound_micros: What two waiting users may differ by under the last run's policy.
        caption: Stands below.
        theme: Colours.
    """
    style: Any = {
        "svg.hashsalt": SALT, "svg.fonttype": "path", "font.size": 10,
        "text.color": theme.ink, "axes.labelcolor": theme.ink,
        "axes.edgecolor": theme.faint, "xtick.color": theme.ink, "ytick.color": theme.ink,
        "figure.facecolor": theme.ground, "axes.facecolor": theme.ground,
    }  # fmt: skip
    stretch = stretch_of(replay, runs[-1], bound_micros)
    with mpl.rc_context(style), lettering.any_script(stretch.heavy):
        figure, axes = plt.subplots(1, len(runs), figsize=(11, 5.2), sharex=True, sharey=True)
        for panel, run in zip(axes, runs, strict=True):
            _panel(panel, replay, run, stretch, theme)
        since = f" since second {stretch.start_s:.0f}" if stretch.start_s else ""
        axes[0].set_ylabel(f"cost dispatched{since}, thousand tokens")
        figure.text(0.01, 0.012, caption, ha="left", va="bottom", fontsize=8, color=theme.light)
        figure.tight_layout(rect=(0, 0.06, 1, 1), w_pad=2.5)
    return figure


def save(figure: Any, path: Path, theme: Theme = LIGHT) -> None:
    """Writes the figure; the same figure gives the same bytes."""
    if path.suffix != ".svg":
        with lettering.any_script():
            figure.savefig(path, metadata={"Software": None}, dpi=160, facecolor=theme.ground)
        return
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": SALT}), lettering.any_script():
        figure.savefig(text, format="svg", metadata={"Date": None}, facecolor=theme.ground)
    path.write_text(_TOO_EXACT.sub(r"\1", text.getvalue()))


def _panel(panel: Axes, replay: Replay, run: Ledger, stretch: Stretch, theme: Theme) -> None:
    light = [user for user in run.users if user not in replay.heavy]
    for user in light:
        _line(panel, run, user, stretch, color=theme.light, linewidth=0.8)
    panel.plot([], [], color=theme.light, linewidth=0.8, label=count_text(len(light), "light user"))
    for user, color in zip(stretch.heavy, theme.heavy * len(stretch.heavy), strict=False):
        got = _line(panel, run, user, stretch, color=color, linewidth=2.2)
        panel.plot([], [], color=color, linewidth=2.2, label=f"{lettering.name(user)}: {got:.0f} k")
    _band(panel, run, stretch, theme)
    for moment in run.killed_at_s:
        if stretch.start_s < moment < stretch.end_s:
            panel.axvline(moment, color=theme.light, linewidth=1, linestyle=(0, (2, 2)))
            panel.annotate(
                "scheduler killed,\nrestarted", (moment, 0.69), xycoords=("data", "axes fraction"),
                xytext=(4, 0), textcoords="offset points", va="top", fontsize=8,
                color=theme.light,
            )  # fmt: skip
    waits = run.waits(light)
    panel.set_title(TITLES.get(run.policy, run.policy), loc="left", fontweight="bold", pad=22)
    panel.text(
        0, 1.025, f"light users wait {mean(waits):.1f} s on average, P99 {p99(waits):.0f} s",
        transform=panel.transAxes, fontsize=10,
    )  # fmt: skip
    panel.set_xlabel("seconds of the trace")
    panel.set_xlim(stretch.start_s, stretch.end_s)
    panel.set_ylim(0, None)
    panel.grid(color=theme.faint, linewidth=0.5)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(
        loc="upper left", fontsize=9, facecolor=theme.ground, edgecolor="none", framealpha=0.9
    )


def _line(panel: Axes, run: Ledger, user: str, stretch: Stretch, **look: Any) -> float:
    """Draws what a user got since the beginning of the stretch, and returns it at its end."""
    ledger = run.users[user]
    before = ledger.dispatched_by(stretch.start_s)
    inside = _thinned([p for p in ledger.points if stretch.start_s < p[0] <= stretch.end_s])
    got = (ledger.dispatched_by(stretch.end_s) - before) / K
    times = [stretch.start_s, *(when for when, _ in inside), stretch.end_s]
    costs = [0.0, *((done - before) / K for _, done in inside), got]
    panel.plot(times, costs, drawstyle="steps-post", **look)
    return got


def _thinned(points: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Returns at most about POINTS points: the last of each stretch of time."""
    if len(points) <= POINTS:
        return points
    width = (points[-1][0] - points[0][0]) / POINTS
    return list(
        {int((when - points[0][0]) / width): (when, done) for when, done in points}.values()
    )


def _band(panel: Axes, run: Ledger, stretch: Stretch, theme: Theme) -> None:
    """Draws how far two users that both wait may be apart, around what heavy users got."""
    if not stretch.heavy or stretch.bound_micros <= 0:
        return
    steps = 200
    length = stretch.end_s - stretch.start_s
    moments = [stretch.start_s + length * step / steps for step in range(steps + 1)]
    ledgers = [run.users[user] for user in stretch.heavy]
    before = mean([one.dispatched_by(stretch.start_s) for one in ledgers])
    middle = [mean([one.dispatched_by(at) for one in ledgers]) - before for at in moments]
    half = stretch.bound_micros / MICRO / 2
    panel.fill_between(
        moments, [max(0.0, m - half) / K for m in middle], [(m + half) / K for m in middle],
        color=theme.band, linewidth=0, zorder=0,
        label="bound between two waiting users",
    )  # fmt: skip
