"""What a gateway does while the service is down: refuse, or pass through up to a local limit.

Fairness needs the service.  Without it a gateway can only choose between refusing what comes
(`Closed`, the default) and letting a bounded number of requests through unordered (`Open`).  Both
are counted, so that an operator sees how often it happened.
"""

import dataclasses
import threading


@dataclasses.dataclass(frozen=True, slots=True)
class Closed:
    """Refuses: `acquire` raises `UnavailableError`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Open:
    """Passes through: `acquire` gives a local turn without a lease.

    Attributes:
        max_local_in_flight: Local turns at once in this client, at least 1; beyond it refuses.
    """

    max_local_in_flight: int

    def __post_init__(self) -> None:
        if self.max_local_in_flight < 1:
            msg = f"max_local_in_flight must be at least 1, not {self.max_local_in_flight}"
            raise ValueError(msg)


OnUnavailable = Closed | Open


class LocalTurns:
    """Counts the turns that a client gives without the service.  Safe between threads.

    Attributes:
        in_flight_count: Local turns that are under way.
        passed_count: Local turns given so far.
        refused_count: Requests refused since the service was down and no local turn was free.
    """

    def __init__(self, on_unavailable: OnUnavailable) -> None:
        self._limit = on_unavailable.max_local_in_flight if isinstance(on_unavailable, Open) else 0
        self._guard = threading.Lock()
        self.in_flight_count = 0
        self.passed_count = 0
        self.refused_count = 0

    def take(self) -> bool:
        """Returns whether a local turn was free, and takes it."""
        with self._guard:
            if self.in_flight_count >= self._limit:
                self.refused_count += 1
                return False
            self.in_flight_count += 1
            self.passed_count += 1
            return True

    def release(self) -> None:
        """Gives a local turn back."""
        with self._guard:
            assert self.in_flight_count > 0
            self.in_flight_count -= 1
