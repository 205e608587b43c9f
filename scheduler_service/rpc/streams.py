"""What both sessions share: one bidirectional stream, read and written at the same time.

    reading   a message is decided before the next is read; what there is to say is collected
    writing   what was collected until now is sent as soon as it is durable, in as few messages as
              their size allows

So messages grow exactly as fast as the disk and the network are slow.  When the peer does not take
what is sent, a bounded number of its messages is decided and then it is not read any more.

A stream ends when the peer closes its side (what was collected is still sent), breaks off, does
something wrong, or when the service stops.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import grpc

from scheduler_service.app.application import Application
from scheduler_service.core.errors import NotReady
from scheduler_service.rpc.calls import Context, Runtime, peer_of
from scheduler_service.rpc.identity import Identity

RESULTS_MAX = 4000
"""Results collected before a stream is not read any more; its message stays far below 4 MiB."""

_IN = TypeVar("_IN")
_OUT = TypeVar("_OUT")


class Stream(ABC, Generic[_IN, _OUT]):
    """One open session.

    Args:
        app: The use cases.
        context: The call.
        caller: Who calls.

    Attributes:
        loop: The event loop.
    """

    def __init__(self, app: Application, context: Context, caller: Identity) -> None:
        self.app = app
        self.caller = caller
        self._context = context
        self.loop = asyncio.get_running_loop()
        self._due: asyncio.Future[None] = self.loop.create_future()
        self._collected: _OUT | None = None
        self._idle = False
        self._room = asyncio.Event()
        self._unsent = 0
        self._results = 0
        self._reading = True
        self._reader: asyncio.Task[None] | None = None
        self._error: Exception | None = None

    # -- what a kind of session does ----------------------------------------------------------

    @abstractmethod
    def take(self, message: _IN) -> int:
        """Decides one message of the peer, in this turn; returns how many results it has.

        Raises:
            SchedulerError: The stream ends with it.
        """

    @abstractmethod
    def has_news(self) -> bool:
        """Whether there is something to say."""

    @abstractmethod
    def collect(self) -> _OUT:
        """Returns what there is to say; it is not said again."""

    @abstractmethod
    def messages(self, news: _OUT) -> Iterable[Any]:
        """Returns the messages that say it; it is durable."""

    @abstractmethod
    def close(self) -> None:
        """Gives up what the stream held, however it ended."""

    def sent(self, news: _OUT, /) -> None:
        """Takes note that all of it was handed to the transport."""

    # -- what all of them do ------------------------------------------------------------------

    def wake(self) -> None:
        """Has what there is to say collected at the end of the turn, unless the writer is busy."""
        if self._idle:
            self._idle = False
            self.loop.call_soon(self._collect)

    def end(self, error: Exception) -> None:
        """Ends the stream with an error, after what was collected."""
        if self._error is None:
            self._error = error
        if self._reader is not None:
            self._reader.cancel()

    async def run(self) -> None:
        """Serves the stream until it ends.

        Raises:
            SchedulerError: What the peer is told at the end.
        """
        self.app.streams.add(self._stop)
        self._reader = asyncio.create_task(self._read_all())
        writer = asyncio.create_task(self._write_all())
        try:
            await asyncio.wait({self._reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            if self._reader.done():
                self._reading = False
                self.wake()
            await writer
            self._raise_error()
        finally:
            self.app.streams.discard(self._stop)
            for task in (self._reader, writer):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
            self.close()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
        assert self._reader is not None  # noqa: S101 - run() has made it
        if self._reader.done() and not self._reader.cancelled():
            self._reader.result()

    def _stop(self) -> None:
        self.end(NotReady("DRAINING", "The service is stopping."))

    async def _read_all(self) -> None:
        context, limit = self._context, self.app.limits.session_outbox
        while True:
            message = await context.read()
            if message is grpc.aio.EOF:
                return
            self._results += self.take(message)
            self.wake()
            self._unsent += 1
            while self._unsent >= limit or self._results >= RESULTS_MAX:
                self._room.clear()
                await self._room.wait()

    def _make_room(self) -> None:
        self._unsent = self._results = 0
        if not self._room.is_set():
            self._room.set()

    def _collect(self) -> None:
        """Collects what there is to say; the writer goes on when it is durable."""
        if self._due.done():
            return  # the writer has ended meanwhile
        try:
            if self.has_news():
                self._make_room()
                self._collected = self.collect()
                self.app.engine.wake_when_durable(self._due)
            elif self._reading:
                self._make_room()
                self._idle = True
            else:
                self._due.set_result(None)
        except Exception as error:  # noqa: BLE001 - called back, it would end nothing: the writer does
            self._due.set_exception(error)

    async def _write_all(self) -> None:
        write = self._context.write
        while True:
            self._due = self.loop.create_future()
            self._collect()
            await self._due
            news, self._collected = self._collected, None
            if news is None:
                return
            for message in self.messages(news):
                await write(message)
            self.sent(news)


async def serve(stream: Stream[Any, Any], runtime: Runtime, context: Context) -> None:
    """Serves a stream within what its caller may hold open.

    Raises:
        LimitReached: STREAMS_FULL.
        SchedulerError: What the peer is told at the end.
    """
    app = runtime.app
    peer = peer_of(context, stream.caller)
    app.slots.take_stream(peer)
    try:
        await stream.run()
    finally:
        app.slots.free_stream(peer)
