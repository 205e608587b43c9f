"""Messages of many worker sessions that come in one turn of the loop, decided together.

First the completions of some of them, then what each of these asks for: code and data that the
same work needs stay in the processor's caches, which saves up to a twentieth of an item.
"""

import asyncio
from typing import Protocol

from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.rpc.finishing import Completions, Finishing

_AT_ONCE = 200
"""Completions taken in one go; many more would not fit into the caches together."""


class Session(Protocol):
    """An open session, as far as a turn knows it."""

    def begin(self, message: pb.WorkerSessionRequest) -> Completions | None:
        """Begins with a message; returns its completions.

        Raises:
            SchedulerError: The stream ends with it.
        """

    def go_on(self, message: pb.WorkerSessionRequest) -> None:
        """Goes on with a message after its completions.

        Raises:
            SchedulerError: The stream ends with it.
        """

    def end(self, error: Exception) -> None:
        """Ends the stream."""

    def wake(self) -> None:
        """Has what there is to say sent."""


_Message = tuple[Session, pb.WorkerSessionRequest]


class Turn:
    """The messages of the turn, in the order in which they came.

    Args:
        finishing: Takes completions.
    """

    def __init__(self, finishing: Finishing) -> None:
        self._finishing = finishing
        self._loop = asyncio.get_running_loop()
        self._messages: list[_Message] = []

    def add(self, session: Session, message: pb.WorkerSessionRequest) -> None:
        """Has a good message decided at the end of the turn."""
        if not self._messages:
            self._loop.call_soon(self.decide)
        self._messages.append((session, message))

    def decide(self) -> None:
        """Decides what has come until now."""
        messages, self._messages = self._messages, []
        taken: list[_Message] = []
        stated: list[Completions] = []
        size = 0
        for session, message in messages:
            count = len(message.completions)
            if taken and size + count > _AT_ONCE:
                self._decide(stated, taken)
                stated, taken, size = [], [], 0
            try:
                completions = session.begin(message)
            except Exception as error:  # noqa: BLE001 - any: it ends this session, and no other
                session.end(error)
                continue
            taken.append((session, message))
            if completions is not None:
                stated.append(completions)
                size += count
        self._decide(stated, taken)

    def _decide(self, stated: list[Completions], taken: list[_Message]) -> None:
        try:
            if stated:
                self._finishing.complete_all(stated)
        except Exception as error:  # noqa: BLE001 - any: some completions have no answer, so none
            for session, _ in taken:
                session.end(error)
            return
        for session, message in taken:
            try:
                session.go_on(message)
            except Exception as error:  # noqa: BLE001 - any: it ends this session, and no other
                session.end(error)
            session.wake()
