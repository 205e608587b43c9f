"""When a refused caller should come back: a hint that rises while refusing goes on.

The hint begins at one second.  It doubles when refusals have gone on for as long as the hint says,
up to a limit, and falls back when nothing was refused for twice as long.  Whole seconds: callers
add their own jitter.
"""

from scheduler_service.core.policy import SECOND_NS

_KEYS_MAX = 10_000


class _Level:
    __slots__ = ("last_ns", "rose_ns", "seconds")

    def __init__(self, now_ns: int) -> None:
        self.seconds = 1
        self.rose_ns = now_ns
        self.last_ns = now_ns


class RetryHints:
    """One hint for each thing that is full.

    Args:
        seconds_max: Largest hint, whole seconds, at least 1.
    """

    def __init__(self, seconds_max: int) -> None:
        self._seconds_max = seconds_max
        self._levels: dict[tuple[str, str], _Level] = {}

    def refused(self, reason: str, pool: str, now_ns: int) -> int:
        """Takes note of a refusal and returns the hint for it, whole seconds, at least 1."""
        key = (reason, pool)
        level = self._levels.get(key)
        if level is None:
            if len(self._levels) >= _KEYS_MAX:
                self._levels.clear()
            level = self._levels[key] = _Level(now_ns)
            return level.seconds
        span_ns = level.seconds * SECOND_NS
        if now_ns - level.last_ns > 2 * span_ns:
            level.seconds, level.rose_ns = 1, now_ns
        elif now_ns - level.rose_ns >= span_ns:
            level.seconds = min(level.seconds * 2, self._seconds_max)
            level.rose_ns = now_ns
        level.last_ns = now_ns
        return level.seconds
