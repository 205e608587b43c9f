"""The suite's own arithmetic: rounds, ratios, verdicts, and the measures of fairness."""

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from tests.bench import machine
from tests.bench.load import Slice
from tests.bench.machine import Guard
from tests.bench.results import Measure, text
from tests.bench.rivals.common import Arrival
from tests.bench.rivals.fairness import Play, judge, largest_gap, make_play, max_min
from tests.bench.rounds import Cell, alternate

EMPTY = Slice({}, {}, {}, 0.0, 0.0, 0.0)


def a_slice(rate: float) -> Slice:
    return replace(EMPTY, series={"rpc": {"calls_per_s": rate, "calls": 1}}, server_cpu=0.5)


class FakeGuard:
    """Says what it was told to, then that nothing is lost."""

    limit = 10.0

    def __init__(self, *lost: float) -> None:
        self._lost = list(lost)

    def lost_percent(self) -> float:
        return self._lost.pop(0) if self._lost else 0.0

    settled_percent = lost_percent


def test_neighbours_stay_neighbours_in_every_round():
    """Every other round goes backwards, so that no cell is always the later one."""
    seen = []
    cells = [
        Cell(name, lambda name=name: seen.append(name) or a_slice(1.0)) for name in ("a", "b", "c")
    ]

    alternate(cells, rounds=2, guard=FakeGuard())

    assert seen == ["a", "b", "c", "c", "b", "a"]


def test_noisy_slices_are_repeated():
    """A slice beside a bad spin test is dropped; the next quiet one counts."""
    rates = iter([10.0, 20.0])
    cell = Cell("a", lambda: a_slice(next(rates)))

    found = alternate([cell], rounds=1, guard=FakeGuard(50.0, 0.0))

    assert [slice_.rate() for slice_ in found.slices["a"]] == [20.0]
    assert (found.dropped, found.noisy) == (1, 0)


def test_the_least_noisy_slice_is_kept_when_none_is_quiet():
    """A machine that is never quiet still gives a number, and says what it is worth."""
    rates = iter([10.0, 20.0, 30.0])
    cell = Cell("a", lambda: a_slice(next(rates)))

    found = alternate([cell], rounds=1, guard=FakeGuard(50, 0, 20, 0, 40, 0), attempts=3)

    assert [slice_.rate() for slice_ in found.slices["a"]] == [20.0]
    assert (found.dropped, found.noisy) == (2, 1)
    assert found.slices["a"][0].lost_percent == 20


class ScriptedGuard(Guard):
    """Finds the cores to do as much work as it was told, one pair of numbers after the other."""

    def __init__(self, *done: tuple[float, float], memory: Path | None = None) -> None:
        super().__init__(Path("unused"), memory=memory)
        self.script = list(done)

    def _done(self) -> list[float]:
        return list(self.script.pop(0) if len(self.script) > 1 else self.script[0])


@pytest.fixture
def no_pauses(monkeypatch):
    """Lets the guard go on at once."""
    monkeypatch.setattr(machine, "_PAUSE_SECONDS", 0.0)


def test_the_worse_core_counts_against_the_best_of_the_run(no_pauses):
    """Also when nothing takes the core away, and all of it is only slower."""
    first = [(100.0, 90.0)] * machine.SPINS_AT_FIRST
    guard = ScriptedGuard(*first, (100.0, 90.0), (54.0, 65.0), (200.0, 180.0), (90.0, 150.0))

    assert [round(guard.lost_percent()) for _ in range(4)] == [0, 40, 0, 50]
    assert guard.best == 180.0


def test_the_best_of_a_machine_is_remembered(no_pauses, tmp_path):
    """A run that begins in a slow hour knows of it."""
    fast = ScriptedGuard((100.0, 100.0), memory=tmp_path / "best")
    assert fast.lost_percent() == 0.0

    assert ScriptedGuard((60.0, 70.0), memory=tmp_path / "best").lost_percent() == 40.0


def test_a_slice_waits_for_a_quiet_moment(no_pauses):
    """It takes the first one."""
    first = [(100.0, 100.0)] * machine.SPINS_AT_FIRST
    guard = ScriptedGuard(*first, (50.0, 50.0), (60.0, 99.0), (90.0, 95.0), (10.0, 10.0))

    assert round(guard.settled_percent()) == 10
    assert [round(lost) for lost in guard.seen] == [50, 40, 10]


def test_it_does_not_wait_for_ever(no_pauses, monkeypatch):
    """A machine that is never quiet is measured all the same, and sooner once it is known."""
    clock = count()
    monkeypatch.setattr(machine.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(machine, "WAIT_SECONDS", 5)
    monkeypatch.setattr(machine, "WAIT_SECONDS_IN_ALL", 9)
    first = [(100.0, 100.0)] * machine.SPINS_AT_FIRST
    guard = ScriptedGuard(*first, (50.0, 50.0))
    looks = []
    for _ in range(3):
        assert guard.settled_percent() == 50.0
        looks.append(len(guard.seen))

    assert looks == [6, 9, 10]


def test_ratios_are_formed_inside_a_round():
    """What one round was slow in, both of its cells were slow in."""
    rates = {"a": iter([50.0, 5.0]), "b": iter([100.0, 10.0])}
    cells = [Cell(name, lambda name=name: a_slice(next(rates[name]))) for name in rates]

    found = alternate(cells, rounds=2, guard=FakeGuard())

    assert found.ratios("a", lambda s: s.rate(), "b") == [0.5, 0.5]
    assert found.ratios("a", lambda s: s.cpu_us(), "b") == [2.0, 2.0]


@pytest.mark.parametrize(
    ("value", "at_most", "verdict"),
    [(0.9, False, "goal"), (0.7, False, "accepted"), (0.6, False, "missed"),
     (0.6, True, "goal"), (0.7, True, "accepted"), (0.9, True, "missed")],
)  # fmt: skip
def test_verdicts(value, at_most, verdict):
    """A measure reaches its goal, is accepted, or misses both, whichever way is better."""
    accept, goal = (0.8, 0.6) if at_most else (0.7, 0.85)

    assert Measure("b", "w", value, "x", 0, 1, 5, accept, goal, at_most).verdict == verdict


def test_numbers_have_digits_that_mean_something():
    """Large numbers are whole, small ones have three digits."""
    assert [text(value) for value in (12_345.6, 123.4, 1.234, 0.1234, 7, "x")] == [
        "12,346", "123.4", "1.23", "0.123", "7", "x",
    ]  # fmt: skip


def test_max_min_shares():
    """Small demands are met; what they leave is shared equally by the rest."""
    assert max_min({"a": 10, "b": 60, "c": 90}, 100) == {"a": 10, "b": 45, "c": 45}


def a_play(*rows: tuple[float, str, int]) -> Play:
    arrivals = [Arrival(index, at, user, cost) for index, (at, user, cost) in enumerate(rows)]
    return Play(arrivals, 1.0, 10.0)


def test_gap_counts_only_while_both_wait():
    """A runs twice before B's first request; then B alone waits, which is no gap to A."""
    play = a_play((0, "a", 5), (0, "a", 5), (0, "b", 5), (0, "b", 5), (0, "b", 5))

    assert largest_gap(play, {0: 1, 1: 2, 2: 3, 3: 4, 4: 5}) == 10
    assert largest_gap(play, {0: 1, 2: 2, 1: 3, 3: 4, 4: 5}) == 5


def test_every_request_must_be_served_once():
    """A queue that loses or doubles a request is not judged at all."""
    play = a_play((0, "a", 5), (0, "b", 5))

    with pytest.raises(ValueError, match="exactly once"):
        judge(play, [(0, 1.0, 2.0), (0, 2.0, 3.0)])


def test_the_trace_is_played_at_the_load_that_is_stated():
    """Work arrives at 1.2 times of what the servers can do."""
    play = make_play(20.0)
    tokens = sum(arrival.cost for arrival in play.arrivals)

    assert tokens / (play.capacity * play.seconds) == pytest.approx(1.2)
    assert len({arrival.user for arrival in play.arrivals}) > 10
