"""Methods that count requests, not cost: first come, round robin, stride.

Source:
    SFQ reference [5] for stride scheduling: pass values, strides inversely proportional to
    tickets, and the remainder that a client keeps while it is away.
"""

from __future__ import annotations

from collections import deque
from fractions import Fraction
from typing import Final

from scheduler_service.sim.baselines.queues import UserQueues


class FirstCome(UserQueues):
    """Dispatches in order of arrival, whoever sent it."""

    name = "fifo"

    def select(self, now_ns: int) -> int:
        """Returns the user with the oldest head."""
        return self._user[min(self._queues[user][0] for user in self._backlogged)]


class RoundRobin(UserQueues):
    """Takes one request of each backlogged user in turn."""

    name = "round_robin"

    def started(self) -> None:
        """Empties the ring."""
        self._ring: deque[int] = deque()

    def arrived(self, user: int, request: int, now_ns: int, *, was_empty: bool) -> None:
        """Puts a newly backlogged user at the tail."""
        if was_empty:
            self._ring.append(user)

    def select(self, now_ns: int) -> int:
        """Returns the user at the head of the ring."""
        return self._ring[0]

    def dispatched(self, user: int, request: int, now_ns: int) -> None:
        """Moves the user to the tail, or out."""
        self._ring.popleft()
        if self._queues[user]:
            self._ring.append(user)


class Stride(UserQueues):
    """Stride scheduling with one request as the quantum: tickets are weights.

    The global pass advances by `stride1 / tickets of the backlogged` a quantum; a client that
    leaves keeps how far it was ahead of it and returns with that.
    """

    name = "stride"
    _STRIDE1: Final = 1_000_000

    def started(self) -> None:
        """Nobody has run: all are at pass 0 plus one stride."""
        self._global = Fraction(0)
        self._ahead = [Fraction(self._STRIDE1, weight) for weight in self._weight]
        self._pass = [Fraction(0)] * len(self._weight)

    def arrived(self, user: int, request: int, now_ns: int, *, was_empty: bool) -> None:
        """Lets a client join at the global pass plus what it was ahead."""
        if was_empty:
            self._pass[user] = self._global + self._ahead[user]

    def select(self, now_ns: int) -> int:
        """Returns the client with the smallest pass; ties by user."""
        return min(self._backlogged, key=lambda user: (self._pass[user], user))

    def dispatched(self, user: int, request: int, now_ns: int) -> None:
        """Advances the client by its stride and the reference by the global stride."""
        tickets = sum(self._weight[other] for other in self._backlogged)
        if not self._queues[user]:
            tickets += self._weight[user]
        self._global += Fraction(self._STRIDE1, tickets)
        self._pass[user] += Fraction(self._STRIDE1, self._weight[user])
        if not self._queues[user]:
            self._ahead[user] = self._pass[user] - self._global
