"""The sequential model of the fairness article: dispatches one by one, without an engine.

Each dispatch occupies the one server for its cost; what is sent next may depend on what was
dispatched, so that users who leave and rejoin on purpose can be played.  Methods are driven
through the same calls as in the simulator; those that charge as served are told of all tokens
when the dispatch ends.

Source:
    SFQ §1.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from scheduler_service.sim.bound import MICRO, GapMeter
from scheduler_service.sim.method import ANY_SIZE
from scheduler_service.sim.model import NS_PER_SECOND, RunLog, Workload

if TYPE_CHECKING:
    from scheduler_service.sim.method import MeteredMethod, Method

UNITS_PER_SECOND: Final = 25_000


class Sequential:
    """One server that takes one request at a time.

    Args:
        method: A fresh method.
        plan: (user, cost) of all requests there may be, in the order in which users send theirs.
        users: Number of users.

    Attributes:
        now_ns: The time, which moves by the cost of each dispatch.
        given: Cost dispatched to each user.
        gaps: The service gaps so far.
        history: (user, cost) of each dispatch.
    """

    def __init__(self, method: Method, plan: list[tuple[int, int]], users: int) -> None:
        count = len(plan)
        self.method = method
        self.now_ns = 0
        self.given = [0] * users
        self.gaps = GapMeter(users)
        self.history: list[tuple[int, int]] = []
        self.waiting = [0] * users
        self._own: list[list[int]] = [[] for _ in range(users)]
        for request, (user, _) in enumerate(plan):
            self._own[user].append(request)
        self._sent = [0] * users
        cost = [cost for _, cost in plan]
        half = [max(1, c // 2) for c in cost]
        self._stream = Workload(
            name="sequential",
            users=[chr(ord("A") + user) for user in range(users)],
            weights_milli=[1000] * users,
            arrival_ns=[0] * count,
            user=[user for user, _ in plan],
            prompt=half,
            response=[max(1, c - h) for c, h in zip(cost, half, strict=True)],
            predicted_response=[max(1, c - h) for c, h in zip(cost, half, strict=True)],
            cost=cost,
            long=[False] * count,
            predicted_long=[False] * count,
        )
        log = RunLog([-1] * count, [-1] * count, [-1] * count)
        method.bind(self._stream, [1] * count, log)

    def left(self, user: int) -> int:
        """Returns how many requests of the plan a user has not sent."""
        return len(self._own[user]) - self._sent[user]

    def send(self, user: int, count: int = 1) -> None:
        """Lets a user send its next requests."""
        for _ in range(count):
            request = self._own[user][self._sent[user]]
            self._sent[user] += 1
            self.waiting[user] += 1
            self.gaps.arrive(user)
            self.method.enqueue(request, self.now_ns)

    def idle(self, units: int) -> None:
        """Lets the time pass in which the server could have done `units` of work."""
        self.now_ns += units * NS_PER_SECOND // UNITS_PER_SECOND

    def dispatch(self, slack: int = 0) -> tuple[int, int]:
        """Dispatches one request and serves it.

        Args:
            slack: Slack for the bound, micro cost units.

        Returns:
            The user and the cost.
        """
        request = self.method.dispatch(0, self.now_ns, ANY_SIZE)
        assert request >= 0, "something waits, so something goes"
        user, cost = self._stream.user[request], self._stream.cost[request]
        self.waiting[user] -= 1
        self.given[user] += cost
        self.gaps.dispatch(user, cost * MICRO, slack)
        self.history.append((user, cost))
        self.idle(cost)
        if self.method.metered:
            metered = cast("MeteredMethod", self.method)
            metered.served_prompt(request, self._stream.prompt[request])
            metered.served_output(request, self._stream.response[request])
        self.method.prefill_complete(request, self.now_ns)
        self.method.complete(request, self.now_ns)
        return user, cost
