"""Callers that wait for something to happen to one request.

They are told in the turn of the decision and read the state as it is then; what they say about it
must, like everything, wait until it is durable.
"""

from collections.abc import Callable
from typing import Any

from scheduler_service.app.engine import Engine
from scheduler_service.core import decisions as d

Wake = Callable[[], None]
"""Called in the turn of a decision; must not wait or decide."""

_CHANGES = (
    d.Dispatched,
    d.LeaseEnded,
    d.Completed,
    d.CancelRequested,
    d.Ended,
    d.Requeued,
    d.DeadLetterDropped,
)


class RequestWatch:
    """Who waits for which request."""

    def __init__(self, engine: Engine) -> None:
        self._watched: dict[tuple[str, str], list[Wake]] = {}
        engine.on(_CHANGES, self._changed)

    def __len__(self) -> int:
        return len(self._watched)

    def watch(self, pool: str, request_id: str, wake: Wake) -> None:
        """Calls `wake` from now on whenever something happens to the request."""
        self._watched.setdefault((pool, request_id), []).append(wake)

    def unwatch(self, pool: str, request_id: str, wake: Wake) -> None:
        """Ends a watch."""
        key = (pool, request_id)
        wakes = self._watched[key]
        wakes.remove(wake)
        if not wakes:
            del self._watched[key]

    def wake_all(self) -> None:
        """Wakes everybody, for instance since the service is stopping."""
        for wakes in list(self._watched.values()):
            for wake in list(wakes):
                wake()

    def _changed(self, decision: Any) -> None:
        if self._watched:
            for wake in self._watched.get((decision.pool, decision.request_id), ()):
                wake()
