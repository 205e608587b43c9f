"""The fairness bound, measured on a run: who got ahead of whom, and by how much at most.

For two users that wait throughout an interval, `|W_i - W_j| <= 2 D + c_i + c_j`: W in charges, c
each user's own largest charge, D the largest slack, all since the busy period began.  Here every
pair of users is followed through every stretch in which both wait, for every interval inside it:
the largest difference over all intervals is the range of `W_i - W_j` over the stretch.

This looks at arrivals and dispatches only, knows no meter, and shares no code with the core.

Source:
    SFQ §3.2; the bound with slack is in the documentation of the core's policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from scheduler_service.sim.model import RunLog, Workload

MICRO: Final = 1_000_000


@dataclass(slots=True)
class GapReport:
    """The largest service gaps of a run.

    Attributes:
        gap_micros: Largest difference between two users that both waited throughout.
        bound_micros: The bound that applied to it.
        worst_ratio: Largest gap over its bound, over all pairs and moments; above 1 is a breach.
        violations: Dispatches after which some pair was beyond its bound.
        pair: The users of `worst_ratio`.
    """

    gap_micros: int = 0
    bound_micros: int = 0
    worst_ratio: float = 0.0
    violations: int = 0
    pair: tuple[int, int] = (-1, -1)


class GapMeter:
    """Follows all pairs of users through a run.

    Complexity:
        O(users) a dispatch.
    """

    def __init__(self, users: int) -> None:
        self.report = GapReport()
        self._waiting = [0] * users
        self._total = 0
        self._pairs: dict[tuple[int, int], list[int]] = {}  # pair -> difference, lowest, highest
        self._largest = [0] * users  # largest charge of each user in this busy period
        self._slack = 0

    def arrive(self, user: int) -> None:
        """Adds a waiting request; a user that had none starts stretches with all that wait."""
        if not self._waiting[user]:
            for other, waiting in enumerate(self._waiting):
                if waiting:
                    self._pairs[min(user, other), max(user, other)] = [0, 0, 0]
        self._waiting[user] += 1
        self._total += 1

    def dispatch(self, user: int, charge: int, slack: int) -> None:
        """Takes a charged dispatch of `user`, decided with `slack` micro cost units."""
        self._slack = max(self._slack, slack)
        self._largest[user] = max(self._largest[user], charge)
        for other, waiting in enumerate(self._waiting):
            if waiting and other != user:
                self._advance(
                    min(user, other), max(user, other), charge if user < other else -charge
                )
        self.leave(user)

    def leave(self, user: int) -> None:
        """Removes a waiting request, dispatched or not."""
        self._waiting[user] -= 1
        self._total -= 1
        if not self._waiting[user]:
            for pair in [pair for pair in self._pairs if user in pair]:
                del self._pairs[pair]
        if not self._total:
            self._largest = [0] * len(self._largest)
            self._slack = 0

    def _advance(self, low: int, high: int, change: int) -> None:
        state = self._pairs[low, high]
        state[0] += change
        state[1], state[2] = min(state[1], state[0]), max(state[2], state[0])
        gap = state[2] - state[1]
        bound = 2 * self._slack + self._largest[low] + self._largest[high]
        report = self.report
        if gap > bound:
            report.violations += 1
        if gap > report.gap_micros:
            report.gap_micros, report.bound_micros = gap, bound
        if gap > report.worst_ratio * bound:
            report.worst_ratio, report.pair = gap / bound, (low, high)


def service_gap(workload: Workload, log: RunLog, slack: dict[int, int] | None = None) -> GapReport:
    """Returns the largest gaps of a run.

    Args:
        workload: The stream.
        log: A run over it.
        slack: Slack in micro cost units with which each request was dispatched, overtaking
            included; none is 0 throughout.
    """
    meter = GapMeter(len(workload.users))
    slack = slack or {}
    arrived, count = 0, len(workload)
    for request in log.order:
        while arrived < count and workload.arrival_ns[arrived] <= log.start_ns[request]:
            meter.arrive(workload.user[arrived])
            arrived += 1
        user = workload.user[request]
        charge = -(-workload.cost[request] * MICRO * 1000 // workload.weights_milli[user])
        meter.dispatch(user, charge, slack.get(request, 0))
    return meter.report
