"""A log decided again: the same policy gives the same waits, another one what it promises."""

import itertools

import msgspec
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from scheduler_service.cli.whatif import _draw
from scheduler_service.core import decisions as d
from scheduler_service.core.policy import PRESETS
from scheduler_service.sim import lettering, plots
from scheduler_service.sim.whatif import (
    Group,
    LogUnusableError,
    changed,
    groups,
    pools_of,
    read,
    replay,
)
from tests.support.driver import LONG, SHORT, Driver

SECOND_NS = 1_000_000_000


def logged_run(preset):
    """Two slots; a heavy user floods first, a light one comes later; returns the records."""
    driver = Driver(msgspec.structs.replace(PRESETS[preset], hand_over_ns=0), replica=False)
    held = []
    for number in range(60):
        driver.enqueue(f"h{number}", "heavy", 10, LONG if number % 5 == 0 else SHORT)
    for step in range(200):
        if step in range(20, 40):
            driver.enqueue(f"l{step}", "light", 10)
        while len(held) < 2 and (granted := driver.next(1)):
            held.append((driver.now_ns + SECOND_NS, granted[0].lease_id))
        driver.advance(0.5)
        while held and held[0][0] <= driver.now_ns:
            driver.complete(held.pop(0)[1])
    return driver.log


def test_the_policy_of_the_log_gives_the_waits_of_the_log():
    """With durations as they were, the model repeats what happened."""
    logged = read(logged_run("fcfs"), "pool")
    waits = replay(logged, logged.policy, {})

    assert logged.slots == 2
    assert len(logged.requests) == 80
    assert waits == [one.wait_ns for one in logged.requests]


def test_fairness_helps_the_light_user_and_the_heavy_one_pays():
    """From FCFS to `fair_qba`: the light user waits less, the heavy one longer."""
    logged = read(logged_run("fcfs"), "pool")
    other = changed(logged.policy, PRESETS["fair_qba"], {})
    found = {
        group.name: group
        for group in groups(logged, replay(logged, logged.policy, {}), replay(logged, other, {}))
    }

    assert found["light"].after_mean < found["light"].before_mean / 2
    assert found["heavy"].after_mean > found["heavy"].before_mean
    assert found["all"].requests == 80


def test_a_weight_moves_waits():
    """Three times the weight, less waiting."""
    logged = read(logged_run("sfq"), "pool")
    before = replay(logged, logged.policy, {})
    after = replay(logged, logged.policy, {"light": 5000})
    light = [i for i, one in enumerate(logged.requests) if one.user_id == "light"]

    assert sum(after[i] for i in light) < sum(before[i] for i in light)


def test_what_cannot_be_decided_again_is_said():
    """A log without a finished request, and a value out of range."""
    log = logged_run("sfq")
    assert pools_of(log) == ["pool"]
    with pytest.raises(LogUnusableError):
        read([x for x in log if not isinstance(x, d.Completed)], "pool")
    with pytest.raises(ValueError, match="quota_k"):
        changed(PRESETS["sfq"], None, {"quota_k": 0})


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Returns a function that draws groups of users, and gives the texts of the picture."""
    figures = []
    save = plots._save

    def kept(plt, figure, folder, name):
        save(plt, figure, folder, name)
        canvas = FigureCanvasAgg(figure)
        with lettering.any_script():
            canvas.draw()
            figures.append((figure, figure.get_tightbbox(canvas.get_renderer())))

    monkeypatch.setattr(plots, "_save", kept)

    def draw(users, unit_s):
        found = [Group(user, 1, 1, unit_s, unit_s, 2 * unit_s, unit_s, unit_s) for user in users]
        _draw(tmp_path, found, PRESETS["fair_qba"])
        return figures[-1]

    return draw


LONG_NAME = "tenant-" + "0123456789" * 12


def test_the_picture_holds_any_user(drawn, recwarn):
    """Nothing is cut, nothing overlaps, nothing is warned of: long names, other scripts, `$`."""
    figure, extent = drawn(["all", LONG_NAME, "山田太郎", "김철수", "$x_1$", "a\nb"], 5.52e-6)
    axis = figure.axes[0]
    with lettering.any_script():
        ticks = [label.get_window_extent() for label in axis.get_xticklabels()]
    names = [label.get_text() for label in axis.get_yticklabels()]
    width, height = figure.get_size_inches()
    inside = axis.get_window_extent().width / figure.bbox.width

    assert not recwarn.list
    assert extent.x0 >= -0.01
    assert extent.x1 <= width + 0.01
    assert extent.y0 >= -0.01
    assert extent.y1 <= height + 0.01
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(ticks))
    assert inside > 0.6
    assert names[2:5] == ["山田太郎", "김철수", "$x_1$"]
    assert "…" in names[1]
    assert names[1].endswith("789")


@pytest.mark.parametrize(
    ("unit_s", "unit", "values"),
    [
        (5.52e-6, "milliseconds", {"<0.1 ms"}),
        (0.25, "milliseconds", {"250 ms", "500 ms"}),
        (0.6, "seconds", {"600 ms", "1.20 s"}),
        (12.0, "seconds", {"12.0 s", "24.0 s"}),
        (0.0, "seconds", {"0 s"}),
    ],
)
def test_values_have_a_unit_that_fits(drawn, unit_s, unit, values):
    """No exponents: milliseconds below a second."""
    figure, _ = drawn(["all", "a"], unit_s)

    assert figure.axes[0].get_xlabel() == unit
    assert {text.get_text().strip() for text in figure.axes[0].texts} == values


def test_a_name_is_shortened_in_its_middle():
    """Wide characters count twice; what cannot be printed is replaced."""
    assert lettering.name("short") == "short"
    assert lettering.name("abcdefghij", 7) == "abcd…ij"
    assert lettering.name("山田太郎", 8) == "山田太郎"
    assert lettering.name("山田太郎", 7) == "山田…郎"
    assert lettering.name("a\nb") == "a�b"
    assert "\n" in lettering.title("word " * 40, 60)
