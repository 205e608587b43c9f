"""The only module of the service that reads time.

Engine time is `max(wall time at start, time of the last record)` plus the monotonic time since.  It
is close to wall time, so that people can read it; it never goes back, neither while the service
runs nor over a restart; and a step of the wall clock while it runs changes nothing.
"""

import time


def monotonic_ns() -> int:
    """Returns monotonic time in nanoseconds, for measuring durations only."""
    return time.monotonic_ns()


def wall_ns() -> int:
    """Returns wall time in nanoseconds since 1970, for people; nothing is decided by it."""
    return time.time_ns()


class SystemClock:
    """Engine time.

    Args:
        last_ns: Time of the last record of the log; 0 without one.

    Attributes:
        start_ns: Engine time when the clock was made.
        downtime_ns: How long nothing was recorded before; 0 if the wall clock was set back over
            it.  A live lease has a record within its own duration, so extending leases by
            this never gives one more than its duration too much.
    """

    __slots__ = ("_offset_ns", "downtime_ns", "start_ns")

    def __init__(self, last_ns: int = 0) -> None:
        self.start_ns = max(time.time_ns(), last_ns)
        self.downtime_ns = self.start_ns - last_ns if last_ns else 0
        self._offset_ns = self.start_ns - time.monotonic_ns()

    def now_ns(self) -> int:
        """Returns engine time; never less than any earlier answer."""
        return time.monotonic_ns() + self._offset_ns


class ManualClock:
    """Engine time that moves only when told to, for tests and simulations."""

    __slots__ = ("_now_ns",)

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        """Returns the time it was last set to."""
        return self._now_ns

    def advance(self, duration_ns: int) -> int:
        """Moves on by `duration_ns`, at least 0, and returns the new time."""
        assert duration_ns >= 0
        self._now_ns += duration_ns
        return self._now_ns
