"""The fluid ideal: generalised processor sharing, and the shares it gives.

GPS serves every user that has work at a rate proportional to its weight, infinitely finely.  It
is not a method that could be run but the reference: `ideal_shares` lets a fluid server do, at
each dispatch of a run, exactly as much work as was dispatched, so that its result differs from
the run's only in who got it.

Source:
    SFQ §6.1, reference [4].
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from scheduler_service.sim.model import NS_PER_SECOND

if TYPE_CHECKING:
    from scheduler_service.sim.model import RunLog, Workload


INTERVAL_NS: Final = 10 * NS_PER_SECOND
"""Length of the intervals over which shares are compared."""


def max_min(demand: list[float], weight: list[float], capacity: float) -> list[float]:
    """Returns the weighted max-min shares of `capacity`.

    Nobody gets more than its demand; what it leaves goes to the others by weight.

    Args:
        demand: What each user could use, at least 0.
        weight: Weight of each user, above 0.
        capacity: What is to be divided.

    Returns:
        One share a user; their sum is the smaller of capacity and total demand.

    Complexity:
        O(n log n) in the number of users.
    """
    share = [0.0] * len(demand)
    left, weights = capacity, sum(weight)
    for user in sorted(range(len(demand)), key=lambda u: demand[u] / weight[u]):
        fair = left * weight[user] / weights if weights > 0 else 0.0
        share[user] = min(demand[user], max(0.0, fair))
        left -= share[user]
        weights -= weight[user]
    return share


class FluidServer:
    """A GPS server that is told how much work to do.

    Args:
        weights: Weight of each user.

    Attributes:
        served: Work done for each user so far.
        backlog: Work of each user that has arrived and is not done.
    """

    def __init__(self, weights: list[float]) -> None:
        self._weights = weights
        self.served = [0.0] * len(weights)
        self.backlog = [0.0] * len(weights)

    def arrive(self, user: int, work: float) -> None:
        """Adds work of `user`."""
        self.backlog[user] += work

    def serve(self, work: float) -> None:
        """Does `work`, or all there is if that is less, by weight among users with a backlog."""
        busy = [user for user, backlog in enumerate(self.backlog) if backlog > 0]
        weights = [self._weights[user] for user in busy]
        for user, share in zip(
            busy, max_min([self.backlog[user] for user in busy], weights, work), strict=True
        ):
            self.served[user] += share
            self.backlog[user] = max(0.0, self.backlog[user] - share)


@dataclass(frozen=True, slots=True)
class Shares:
    """Cost that users were dispatched, beside what GPS would have given them.

    Attributes:
        got, ideal: Cost units of each user, up to the last arrival.
        lag: Largest amount by which any user was behind GPS at any dispatch, cost units.
        intervals: The same (got, ideal) for each `INTERVAL_NS` of the run.
    """

    got: list[float]
    ideal: list[float]
    lag: float
    intervals: list[tuple[list[float], list[float]]]


def ideal_shares(workload: Workload, log: RunLog) -> Shares:
    """Compares what users were dispatched with what GPS would have given them.

    Looks at the run up to its last arrival: after that everything waiting is served, and every
    method ends at the same shares.

    Args:
        workload: The stream.
        log: A run over it.
    """
    fluid = FluidServer([weight / 1000 for weight in workload.weights_milli])
    got = [0.0] * len(workload.users)
    arrived, count, lag = 0, len(workload), 0.0
    end_ns = workload.arrival_ns[-1] if count else 0
    marks: list[tuple[list[float], list[float]]] = []
    for request in log.order:
        now_ns = log.start_ns[request]
        if now_ns > end_ns:
            break
        while len(marks) < now_ns // INTERVAL_NS:
            marks.append((list(got), list(fluid.served)))
        while arrived < count and workload.arrival_ns[arrived] <= now_ns:
            fluid.arrive(workload.user[arrived], workload.cost[arrived])
            arrived += 1
        got[workload.user[request]] += workload.cost[request]
        fluid.serve(workload.cost[request])
        lag = max(lag, *(ideal - real for ideal, real in zip(fluid.served, got, strict=True)))
    marks.append((list(got), list(fluid.served)))
    zero = [0.0] * len(got)
    steps = [
        (_difference(after[0], before[0]), _difference(after[1], before[1]))
        for before, after in pairwise([(zero, zero), *marks])
    ]
    return Shares(got, fluid.served, lag, steps)


def _difference(after: list[float], before: list[float]) -> list[float]:
    return [a - b for a, b in zip(after, before, strict=True)]
