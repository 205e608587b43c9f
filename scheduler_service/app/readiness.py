"""Whether the service can do its work, and if not, why.

Phases follow each other; problems come and go while it serves.  Everything that tells the outside
(gRPC health, the HTTP probes, refusals) reads this one place.
"""

import enum
from typing import TYPE_CHECKING

from scheduler_service.core.errors import NotReady

if TYPE_CHECKING:
    from collections.abc import Callable


class Phase(enum.StrEnum):
    """Where the process is in its life."""

    REPLAYING = "replaying"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPED = "stopped"


class Readiness:
    """The phase, and the problems found while serving.

    Attributes:
        phase: Where the process is in its life.
        problems: What is wrong, by name, each with one sentence.
        listeners: Called after every change.
    """

    def __init__(self) -> None:
        self.phase = Phase.REPLAYING
        self.problems: dict[str, str] = {}
        self.listeners: list[Callable[[], None]] = []

    @property
    def ready(self) -> bool:
        """Whether calls should be sent here."""
        return self.phase is Phase.SERVING and not self.problems

    @property
    def reason(self) -> str:
        """Why it is not ready; empty when it is."""
        if self.phase is not Phase.SERVING:
            return self.phase.value
        return "; ".join(self.problems.values())

    def enter(self, phase: Phase) -> None:
        """Goes on to another phase."""
        if phase is not self.phase:
            self.phase = phase
            self._tell()

    def problem(self, name: str, sentence: str | None) -> None:
        """Notes a problem, or with None that there is none of that name any more."""
        if sentence == self.problems.get(name):
            return
        if sentence is None:
            del self.problems[name]
        else:
            self.problems[name] = sentence
        self._tell()

    def require(self) -> None:
        """Checks that calls can be answered; a problem alone does not refuse them.

        Raises:
            NotReady: REPLAYING, DRAINING.
        """
        if self.phase is Phase.SERVING:
            return
        if self.phase is Phase.REPLAYING:
            raise NotReady("REPLAYING", "The service is starting: it replays its log.")
        raise NotReady("DRAINING", "The service is stopping.")

    def _tell(self) -> None:
        for listener in self.listeners:
            listener()
