"""Engine time never goes back, whatever the wall clock does."""

import time

import pytest

from scheduler_service.app import clock


class Clocks:
    """Stands in for the machine's clocks."""

    def __init__(self, monkeypatch):
        self.wall, self.monotonic = 5_000, 70
        monkeypatch.setattr(time, "time_ns", lambda: self.wall)
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.monotonic)


@pytest.fixture
def clocks(monkeypatch):
    return Clocks(monkeypatch)


def test_without_a_log_engine_time_is_wall_time(clocks):
    """Without a log engine time is wall time."""
    engine = clock.SystemClock()

    assert (engine.now_ns(), engine.downtime_ns) == (5_000, 0)


def test_it_moves_with_the_monotonic_clock_only(clocks):
    """It moves with the monotonic clock only."""
    engine = clock.SystemClock()
    clocks.wall -= 3_600
    clocks.monotonic += 10
    assert engine.now_ns() == 5_010
    clocks.wall += 100_000

    assert engine.now_ns() == 5_010


def test_downtime_is_counted(clocks):
    """Downtime is counted."""
    engine = clock.SystemClock(last_ns=4_000)

    assert (engine.now_ns(), engine.downtime_ns) == (5_000, 1_000)


def test_a_wall_clock_set_back_over_a_restart_does_not_take_time_back(clocks):
    """A wall clock set back over a restart does not take time back."""
    engine = clock.SystemClock(last_ns=9_000)

    assert (engine.now_ns(), engine.downtime_ns, engine.start_ns) == (9_000, 0, 9_000)


def test_a_manual_clock_moves_when_told_and_never_back():
    """A manual clock moves when told and never back."""
    manual = clock.ManualClock(5)
    assert (manual.advance(3), manual.now_ns()) == (8, 8)
    with pytest.raises(AssertionError):
        manual.advance(-1)


def test_the_other_readings_are_those_of_the_machine(clocks):
    """The other readings are those of the machine."""
    assert (clock.monotonic_ns(), clock.wall_ns()) == (70, 5_000)
