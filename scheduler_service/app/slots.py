"""How much one caller, and all together, may hold open: waiting calls and streams."""

from scheduler_service.app.limits import Limits
from scheduler_service.core.errors import LimitReached


class Slots:
    """Counts what is open.

    A peer is an authenticated caller, or without authentication one connection.

    Attributes:
        calls: Calls that wait.
        streams: Sessions and watches that are open.
    """

    def __init__(self, limits: Limits) -> None:
        self.calls = 0
        self.streams = 0
        self._limits = limits
        self._calls_by_peer: dict[str, int] = {}
        self._streams_by_peer: dict[str, int] = {}

    def take_call(self, peer: str) -> None:
        """Takes a place for a call that waits; `free_call` gives it back.

        Raises:
            LimitReached: CALLS_PARKED_FULL.
        """
        held = self._calls_by_peer.get(peer, 0)
        limits = self._limits
        if self.calls >= limits.parked_calls or held >= limits.parked_calls_per_peer:
            limit = min(limits.parked_calls, limits.parked_calls_per_peer)
            raise LimitReached(
                "CALLS_PARKED_FULL",
                "Too many calls wait already.",
                limitCalls=limit,
                peerCalls=held,
            )
        self.calls += 1
        self._calls_by_peer[peer] = held + 1

    def free_call(self, peer: str) -> None:
        """Gives the place of a waiting call back."""
        self.calls -= 1
        _drop(self._calls_by_peer, peer)

    def take_stream(self, peer: str) -> None:
        """Takes a place for a session; `free_stream` gives it back.

        Raises:
            LimitReached: STREAMS_FULL.
        """
        held = self._streams_by_peer.get(peer, 0)
        limits = self._limits
        if self.streams >= limits.streams or held >= limits.streams_per_peer:
            limit = min(limits.streams, limits.streams_per_peer)
            raise LimitReached(
                "STREAMS_FULL",
                "Too many sessions are open already.",
                limitStreams=limit,
                peerStreams=held,
            )
        self.streams += 1
        self._streams_by_peer[peer] = held + 1

    def free_stream(self, peer: str) -> None:
        """Gives the place of a session back."""
        self.streams -= 1
        _drop(self._streams_by_peer, peer)


def _drop(held: dict[str, int], peer: str) -> None:
    left = held[peer] - 1
    if left:
        held[peer] = left
    else:
        del held[peer]
