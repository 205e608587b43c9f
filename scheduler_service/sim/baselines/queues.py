"""What all baselines share: one queue a user, and the order of a dispatch."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from scheduler_service.sim.method import NOTHING, STALLED

if TYPE_CHECKING:
    from scheduler_service.sim.model import RunLog, Workload

MICRO: Final = 1_000_000


class UserQueues:
    """One queue a user; a method says whose head goes next.

    The request that goes next is looked at before anything is charged: if it does not fit it
    waits and blocks, as the service does with `placement = stall`.

    Attributes:
        name: Name for reports.
        waiting: Requests that wait.
        metered: Whether the method charges tokens as they are served.
    """

    name = "queues"
    metered = False

    def __init__(self) -> None:
        self.waiting = 0

    def bind(self, workload: Workload, needs: list[int], log: RunLog) -> None:
        """Starts a run."""
        self._needs = needs
        self._log = log
        self._user = workload.user
        self._cost = workload.cost
        self._prompt = workload.prompt
        self._response = workload.predicted_response
        self._weight = workload.weights_milli
        self._queues: list[deque[int]] = [deque() for _ in workload.users]
        self._backlogged: list[int] = []  # users with waiting requests, in no special order
        self.waiting = 0
        self.started()

    def started(self) -> None:
        """Sets up the state of the method; queues and columns are in place."""

    def arrived(self, user: int, request: int, now_ns: int, *, was_empty: bool) -> None:
        """Learns that `request` was put at the tail of its user's queue."""

    def select(self, now_ns: int) -> int:
        """Returns the user whose head goes next; at least one user has a waiting request.

        May be asked again without a dispatch in between, and must then answer the same.
        """
        raise NotImplementedError

    def dispatched(self, user: int, request: int, now_ns: int) -> None:
        """Charges a dispatch; the request has left its queue."""

    def enqueue(self, request: int, now_ns: int) -> None:
        """Takes a request."""
        user = self._user[request]
        queue = self._queues[user]
        was_empty = not queue
        if was_empty:
            self._backlogged.append(user)
        queue.append(request)
        self.waiting += 1
        self.arrived(user, request, now_ns, was_empty=was_empty)

    def dispatch(self, engine: int, now_ns: int, free_tokens: int) -> int:
        """Returns the selected request if it fits."""
        if not self.waiting:
            return NOTHING
        user = self.select(now_ns)
        queue = self._queues[user]
        request = queue[0]
        if 0 <= free_tokens < self._needs[request]:
            return STALLED
        queue.popleft()
        self.waiting -= 1
        if not queue:
            self._backlogged.remove(user)
        self._log.start_ns[request] = now_ns
        self._log.order.append(request)
        self.dispatched(user, request, now_ns)
        return request

    def prefill_complete(self, request: int, now_ns: int) -> None:
        """Changes nothing."""

    def complete(self, request: int, now_ns: int) -> None:
        """Changes nothing: what a method learns of finished requests it learns as tokens."""

    def charge(self, request: int) -> int:
        """Returns the cost of `request` over its user's weight, rounded up, in micro units."""
        weight = self._weight[self._user[request]]
        return -(-self._cost[request] * MICRO * 1000 // weight)
