"""Callers that wait for something to happen to one request.

They are told in the turn of the decision, so they read the state as it is then; what they say about
it must, like everything, wait until it is durable.
"""

import asyncio

from scheduler_service.app.engine import Engine
from scheduler_service.core import decisions as d

_CHANGES = {
    d.Dispatched,
    d.LeaseEnded,
    d.Completed,
    d.CancelRequested,
    d.Ended,
    d.Requeued,
    d.DeadLetterDropped,
}


class RequestWatch:
    """Who waits for which request."""

    def __init__(self, engine: Engine) -> None:
        self._watched: dict[tuple[str, str], list[asyncio.Event]] = {}
        engine.listeners.append(self._decided)

    def __len__(self) -> int:
        return len(self._watched)

    def watch(self, pool: str, request_id: str, event: asyncio.Event) -> None:
        """Sets `event` from now on whenever something happens to the request."""
        self._watched.setdefault((pool, request_id), []).append(event)

    def unwatch(self, pool: str, request_id: str, event: asyncio.Event) -> None:
        """Ends a watch."""
        key = (pool, request_id)
        events = self._watched[key]
        events.remove(event)
        if not events:
            del self._watched[key]

    def wake_all(self) -> None:
        """Wakes everybody, for instance since the service is stopping."""
        for events in self._watched.values():
            for event in events:
                event.set()

    def _decided(self, _before: int, decisions: list[d.Decision]) -> None:
        watched = self._watched
        if not watched:
            return
        for decision in decisions:
            if type(decision) in _CHANGES:
                events = watched.get((decision.pool, decision.request_id))  # type: ignore[union-attr]
                if events is not None:
                    for event in events:
                        event.set()
