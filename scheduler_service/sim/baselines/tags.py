"""Methods by virtual time: SFQ with another rule for returning users, and WFQ.

`StartTags("reset")` is the loophole of SFQ §2.4: every return starts at `v`.  `StartTags("none")`
is the negative control: a returning user keeps an old, small meter and has banked priority.
`FinishTags` is WFQ: it dispatches the smallest finish tag, and gets its virtual time from a fluid
GPS server of a stated capacity that is simulated beside it.

Source:
    SFQ §2.4, §3.3, §6.1, references [3] and [4].
"""

from __future__ import annotations

from typing import Final, Literal

from scheduler_service.sim.baselines.queues import UserQueues
from scheduler_service.sim.model import NS_PER_SECOND

Return = Literal["max", "reset", "none"]

GPS_UNITS_PER_SECOND: Final = 25_000
"""Capacity of the fluid server beside WFQ, cost units a second: about what the paper's engine
reaches (QBA §IV-E)."""


class StartTags(UserQueues):
    """Start-time fair queueing at slack 0, with a choice of the rule on return.

    Args:
        on_return: `max` is SFQ's rule, `reset` is S = v, `none` leaves the meter alone.
    """

    def __init__(self, on_return: Return = "max") -> None:
        super().__init__()
        self._on_return = on_return
        names = {"max": "sfq_reference", "reset": "sfq_reset", "none": "sfq_no_rejoin"}
        self.name = names[on_return]

    def started(self) -> None:
        """All meters and virtual time are 0."""
        self.virtual_time = 0
        self.meters = [0] * len(self._queues)
        self._largest = 0

    def arrived(self, user: int, request: int, now_ns: int, *, was_empty: bool) -> None:
        """Lets a user rejoin."""
        if not was_empty or self._on_return == "none":
            return
        if self._on_return == "reset":
            self.meters[user] = self.virtual_time
        else:
            self.meters[user] = max(self.meters[user], self.virtual_time)

    def select(self, now_ns: int) -> int:
        """Returns the user with the smallest meter; ties by user."""
        return min(self._backlogged, key=lambda user: (self.meters[user], user))

    def dispatched(self, user: int, request: int, now_ns: int) -> None:
        """Advances virtual time, charges, and closes the busy period if nothing waits."""
        self.virtual_time = max(self.virtual_time, self.meters[user])
        self.meters[user] += self.charge(request)
        self._largest = max(self._largest, self.meters[user])
        if not self.waiting and self._on_return != "none":
            self.virtual_time = max(self.virtual_time, self._largest)


class FluidClock:
    """Virtual time of a GPS server: dV/dt = capacity / (weight of the users busy in GPS).

    A user is busy in GPS until V reaches the finish tag of its last request.

    Args:
        units_per_second: Capacity of the fluid server in cost units a second.
        weights_milli: Weight of each user in thousandths.

    Attributes:
        value: Virtual time in cost units at weight 1.
    """

    def __init__(self, units_per_second: float, weights_milli: list[int]) -> None:
        self._rate = units_per_second / NS_PER_SECOND
        self._weight = weights_milli
        self._busy: dict[int, float] = {}  # user -> finish tag of its last request
        self._now_ns = 0
        self.value = 0.0

    def advance(self, now_ns: int) -> None:
        """Moves to `now_ns`; users that GPS would have finished by then leave."""
        left = float(now_ns - self._now_ns)
        self._now_ns = now_ns
        while self._busy and left > 0:
            slope = self._rate * 1000 / sum(self._weight[user] for user in self._busy)
            first = min(self._busy.values())
            if self.value + slope * left < first:
                self.value += slope * left
                return
            left -= (first - self.value) / slope
            self.value = first
            self._busy = {user: tag for user, tag in self._busy.items() if tag > first}

    def tag(self, user: int, cost: int) -> float:
        """Returns the finish tag of a request of `cost` units that arrives now."""
        start = max(self.value, self._busy.get(user, 0.0))
        self._busy[user] = start + cost * 1000 / self._weight[user]
        return self._busy[user]


class FinishTags(UserQueues):
    """Weighted fair queueing: the smallest finish tag under GPS goes first.

    Args:
        units_per_second: Capacity of the fluid server, cost units a second.
    """

    name = "wfq"

    def __init__(self, units_per_second: float = GPS_UNITS_PER_SECOND) -> None:
        super().__init__()
        self._units = units_per_second

    def started(self) -> None:
        """The fluid server is empty."""
        self._clock = FluidClock(self._units, self._weight)
        self._tags: dict[int, float] = {}

    def arrived(self, user: int, request: int, now_ns: int, *, was_empty: bool) -> None:
        """Tags the request."""
        self._clock.advance(now_ns)
        self._tags[request] = self._clock.tag(user, self._cost[request])

    def select(self, now_ns: int) -> int:
        """Returns the user whose head has the smallest finish tag; ties by user."""
        return min(self._backlogged, key=lambda user: (self._tags[self._queues[user][0]], user))

    def dispatched(self, user: int, request: int, now_ns: int) -> None:
        """Forgets the tag: the next one was made when its request arrived."""
        del self._tags[request]
