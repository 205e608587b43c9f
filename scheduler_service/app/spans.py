"""Stretches of time in which something was held back, kept in bounded memory."""

from collections import deque
from typing import NamedTuple

SPANS_MAX = 32
"""Closed spans that are kept apart; older ones are run together."""


class _Span(NamedTuple):
    """Blocked for `blocked_ns` of the time from `start_ns` to `end_ns`."""

    start_ns: int
    end_ns: int
    blocked_ns: int

    def since(self, time_ns: int) -> int:
        if time_ns <= self.start_ns:
            return self.blocked_ns
        if time_ns >= self.end_ns:
            return 0
        return self.blocked_ns * (self.end_ns - time_ns) // (self.end_ns - self.start_ns)


class Spans:
    """Spans of one cause, and the one that is open.

    Attributes:
        closed: Those that have ended, oldest first.
        open_ns: When the open one began; 0 if there is none.
    """

    __slots__ = ("closed", "open_ns")

    def __init__(self) -> None:
        self.closed: deque[_Span] = deque()
        self.open_ns = 0

    def open(self, now_ns: int) -> None:
        """Begins a span, if none is open."""
        self.open_ns = self.open_ns or now_ns

    def close(self, now_ns: int) -> None:
        """Ends the open span, if there is one."""
        if not self.open_ns:
            return
        self.closed.append(_Span(self.open_ns, now_ns, now_ns - self.open_ns))
        self.open_ns = 0
        if len(self.closed) > SPANS_MAX:
            first, second = self.closed.popleft(), self.closed.popleft()
            blocked_ns = first.blocked_ns + second.blocked_ns
            self.closed.appendleft(_Span(first.start_ns, second.end_ns, blocked_ns))

    def since(self, time_ns: int, now_ns: int) -> int:
        """Returns nanoseconds blocked from `time_ns` to `now_ns`."""
        total = sum(span.since(time_ns) for span in self.closed)
        return total + (now_ns - max(self.open_ns, time_ns) if self.open_ns else 0)
