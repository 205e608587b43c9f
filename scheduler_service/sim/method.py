"""What the simulator asks of a scheduling method; the service's core and every baseline obey it.

A method sees requests as numbers (`model.Workload`).  It is told of arrivals, prefills and
completions, and asked for one request at a time: each dispatch is a fresh selection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from scheduler_service.sim.model import RunLog, Workload

NOTHING: Final = -1
"""Answer of `dispatch`: nothing can go now, whoever asks."""

STALLED: Final = -2
"""Answer of `dispatch`: what should go next does not fit the engine that asks."""

ANY_SIZE: Final = -1
"""`free_tokens` of an engine that can take the first chunk of any request."""


class Method(Protocol):
    """A scheduling method.

    Attributes:
        name: Name for reports.
        waiting: Requests that wait, redeliveries included.
        metered: Whether the method charges tokens as they are served (then it is a
            `MeteredMethod`).
    """

    name: str
    waiting: int
    metered: bool

    def bind(self, workload: Workload, needs: list[int], log: RunLog) -> None:
        """Starts a run over `workload`; `needs[i]` is the KV space request i must find free."""

    def enqueue(self, request: int, now_ns: int) -> None:
        """Takes a request that arrived at `now_ns`."""

    def dispatch(self, engine: int, now_ns: int, free_tokens: int) -> int:
        """Returns the request that goes to `engine`, `NOTHING` or `STALLED`.

        Args:
            engine: Number of the engine that asks.
            now_ns: Time of the batch boundary.
            free_tokens: KV space it can give, or `ANY_SIZE`.
        """

    def prefill_complete(self, request: int, now_ns: int) -> None:
        """Learns that the prompt of `request` is processed."""

    def complete(self, request: int, now_ns: int) -> None:
        """Learns that `request` is finished."""


class MeteredMethod(Method, Protocol):
    """A method that charges tokens inside the engine, as they are served."""

    def served_prompt(self, request: int, tokens: int) -> None:
        """Learns that prompt tokens were processed."""

    def served_output(self, request: int, tokens: int) -> None:
        """Learns of response tokens outside the full blocks; negative takes some back."""

    def decoding(self, request: int, change: int) -> None:
        """Learns that a request begins (+1) or ends (-1) to get a block in every batch."""

    def decoded(self, tokens: int) -> None:
        """Learns that every decoding request got `tokens` response tokens."""
