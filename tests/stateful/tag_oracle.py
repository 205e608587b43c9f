"""The article's source algorithm: a start and a finish tag on every request, exact rationals.

This is SFQ as the 1996 paper has it (SFQ §2.1): other data and other rules than one meter a user,
and the same answers.  It is driven by commands, not by the log.
"""

from fractions import Fraction
from typing import NamedTuple


class Tagged(NamedTuple):
    """A waiting request; sorts by start tag, then user id, then arrival."""

    start: Fraction
    user: str
    arrival: int
    finish: Fraction


class TagOracle:
    """SFQ by tags.

    Attributes:
        virtual_time: Start tag of the request dispatched last, or the largest finish tag after
            the pool was idle.
        served: Finish tag of each user's last dispatched request, at least v when it joined.
    """

    def __init__(self) -> None:
        self.virtual_time = Fraction(0)
        self.served: dict[str, Fraction] = {}
        self.queues: dict[str, list[tuple[int, Fraction]]] = {}
        self.finish_max = Fraction(0)
        self.arrivals = 0

    def enqueue(self, user: str, cost: int, weight: Fraction) -> int:
        """A request arrives; returns its arrival number."""
        queue = self.queues.setdefault(user, [])
        if not queue:
            self.served[user] = max(self.virtual_time, self.served.get(user, Fraction(0)))
        self.arrivals += 1
        queue.append((self.arrivals, cost / weight))
        return self.arrivals

    def tags(self) -> list[Tagged]:
        """Tags of everything that waits: S(j) = max(v(A), F(j-1)), F(j) = S(j) + l / w."""
        found = []
        for user, queue in self.queues.items():
            start = self.served.get(user, Fraction(0))
            for arrival, length in queue:
                found.append(Tagged(start, user, arrival, start + length))
                start += length
        return found

    def dispatch(self) -> int | None:
        """Sends the request with the smallest start tag; returns its arrival number."""
        waiting = self.tags()
        if not waiting:
            return None
        best = min(waiting)
        self._remove(best.user, best.arrival)
        self.virtual_time = best.start
        self.served[best.user] = best.finish
        self.finish_max = max(self.finish_max, best.finish)
        self._close()
        return best.arrival

    def cancel(self, arrival: int) -> bool:
        """Takes a waiting request out, without a trace in any tag of what was sent."""
        for user, queue in self.queues.items():
            if any(number == arrival for number, _ in queue):
                self._remove(user, arrival)
                self._close()
                return True
        return False

    def _remove(self, user: str, arrival: int) -> None:
        self.queues[user] = [item for item in self.queues[user] if item[0] != arrival]

    def _close(self) -> None:
        if not any(self.queues.values()):
            self.virtual_time = max(self.virtual_time, self.finish_max)
