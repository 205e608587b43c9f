"""What a gateway counts of its users' requests, a window of a few seconds at a time."""

import collections
import dataclasses
import statistics
from collections.abc import Iterator

from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb


@dataclasses.dataclass(slots=True)
class Window:
    """One user in one window.

    Attributes:
        cost: Cost units of the requests that were dispatched and are done.
        waits: Time from acceptance to the first dispatch of each of them, seconds.
        other: Requests that ended in another way, were refused, or could not be followed.
    """

    cost: int = 0
    waits: list[float] = dataclasses.field(default_factory=list)
    other: int = 0


class Tally:
    """Counts by user since the last look."""

    def __init__(self) -> None:
        self._windows: dict[str, Window] = collections.defaultdict(Window)

    def note(self, info: pb.RequestInfo) -> None:
        """Counts an ended request."""
        window = self._windows[info.user_id]
        if info.state == decision_pb2.REQUEST_STATE_SUCCEEDED:
            window.cost += info.cost
            waited = info.first_dispatch_time.ToNanoseconds() - info.enqueue_time.ToNanoseconds()
            window.waits.append(waited / 1e9)
        else:
            window.other += 1

    def fail(self, user_id: str) -> None:
        """Counts a request that the service refused or no longer knows."""
        self._windows[user_id].other += 1

    def lines(self) -> Iterator[str]:
        """Yields a line a user and begins a new window."""
        windows, self._windows = self._windows, collections.defaultdict(Window)
        total = sum(window.cost for window in windows.values()) or 1
        for user_id, window in sorted(windows.items()):
            waits = sorted(window.waits) or [0.0]
            yield (
                f"user={user_id} done={len(window.waits)} other={window.other} cost={window.cost} "
                f"share={window.cost / total:.0%} wait_mean={statistics.fmean(waits):.2f}s "
                f"wait_p99={waits[-(-99 * len(waits) // 100) - 1]:.2f}s"
            )
