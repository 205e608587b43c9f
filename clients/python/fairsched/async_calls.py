"""What lies under the asynchronous client: a channel for the generated stubs, with manners.

`AsyncCalls` stands where a generated stub expects a channel.  It opens the real one at the first
call, sends the token, sets a deadline where the caller states none, and raises the typed errors of
`fairsched.errors`.  A plain wrapper rather than interceptors: those cost about 30 us a call each.

It refuses what gRPC answers with a hang or a flood of log lines: use after a fork, from a second
event loop, or after closing.  gRPC's asyncio side shares one poller in the process, so there is one
loop for all clients; a loop that was closed gives way to the next one.
"""

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, Self, TypeVar, cast

import grpc
from grpc import aio

from fairsched import errors
from fairsched.connection import Connection

Request = TypeVar("Request")
Response = TypeVar("Response")
Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]

_guard = threading.Lock()
_open: "weakref.WeakSet[AsyncCalls]" = weakref.WeakSet()


class AsyncCalls:
    """A lazily opened channel, as far as generated stubs need one."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.loop: asyncio.AbstractEventLoop | None = None
        self._channel: aio.Channel | None = None
        self._process = 0
        self._closed = False

    def as_channel(self) -> aio.Channel:
        """Returns itself under the type that generated stubs ask for."""
        return cast("aio.Channel", self)

    def channel(self) -> aio.Channel:
        """Returns the channel; opens it at the first call.

        Raises:
            MisuseError: In a forked child, from another event loop, or after `close`.
        """
        if self._channel is None:
            return self._connect()
        if os.getpid() != self._process:
            raise errors.MisuseError(forked(self._process))
        if asyncio.get_running_loop() is not self.loop:
            msg = (
                "this client belongs to another event loop; use it there, or open one client a "
                "process and hand work to it with asyncio.run_coroutine_threadsafe"
            )
            raise errors.MisuseError(msg)
        return self._channel

    def _connect(self) -> aio.Channel:
        if self._closed:
            msg = "this client is closed"
            raise errors.MisuseError(msg)
        loop = asyncio.get_running_loop()
        with _guard:
            for other in _open:
                if other.loop is not loop and other.loop is not None and not other.loop.is_closed():
                    msg = (
                        "an AsyncFairsched is open on another event loop of this process, and "
                        "gRPC serves one loop a process: share that one, close it first, or use "
                        "the synchronous Fairsched"
                    )
                    raise errors.MisuseError(msg)
            self.loop = loop
            _open.add(self)
        self._process = os.getpid()
        self._channel = self.connection.async_channel()
        return self._channel

    async def close(self) -> None:
        """Closes the connection; calls under way are cancelled."""
        self._closed = True
        channel, self._channel = self._channel, None
        if channel is not None:
            _open.discard(self)
            if os.getpid() == self._process:
                await channel.close(None)

    def unary_unary(
        self,
        method: str,
        request_serializer: Encode,
        response_deserializer: Decode,
        _registered_method: bool = False,
    ) -> "AsyncUnary":
        """Returns one unary call of a stub."""
        return AsyncUnary(self, method, request_serializer, response_deserializer)

    def unary_stream(
        self,
        method: str,
        request_serializer: Encode,
        response_deserializer: Decode,
        _registered_method: bool = False,
    ) -> "AsyncServerStream":
        """Returns one call of a stub that answers with a stream."""
        return AsyncServerStream(self, method, request_serializer, response_deserializer)

    def stream_stream(
        self,
        method: str,
        request_serializer: Encode,
        response_deserializer: Decode,
        _registered_method: bool = False,
    ) -> "AsyncSession":
        """Returns one call of a stub that streams both ways."""
        return AsyncSession(self, method, request_serializer, response_deserializer)


class _Method:
    def __init__(self, calls: AsyncCalls, method: str, encode: Encode, decode: Decode) -> None:
        self._calls = calls
        self._method = method
        self._encode = encode
        self._decode = decode
        self._opened: Any = None

    def _open(self, kind: str) -> Any:
        channel = self._calls.channel()
        if self._opened is None:
            open_call = getattr(channel, kind)
            self._opened = open_call(
                self._method,
                request_serializer=self._encode,
                response_deserializer=self._decode,
            )
        return self._opened


class AsyncUnary(_Method):
    """One unary call."""

    async def __call__(
        self,
        request: Any,
        *,
        timeout: float | None = None,
        wait_for_ready: bool | None = None,
    ) -> Any:
        """Calls and returns the answer.

        Args:
            request: The message.
            timeout: Deadline in seconds; None takes the client's.
            wait_for_ready: True waits for a connection until the deadline.

        Raises:
            CallError: The typed error of `fairsched.errors`.
        """
        call = self._open("unary_unary")
        connection = self._calls.connection
        try:
            return await call(
                request,
                timeout=connection.timeout if timeout is None else timeout,
                metadata=connection.metadata(),
                wait_for_ready=wait_for_ready,
            )
        except aio.AioRpcError as error:
            raise errors.from_rpc_error(error) from error


class AsyncStream(AsyncIterator[Response], Generic[Request, Response]):
    """A running stream: iterate for what comes, `cancel` when done with it."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Response:
        try:
            message = await self._call.read()
        except aio.AioRpcError as error:
            raise errors.from_rpc_error(error) from error
        if message is aio.EOF:
            await self._check()
            raise StopAsyncIteration
        return cast("Response", message)

    async def _check(self) -> None:
        code = await self._call.code()
        if code is not grpc.StatusCode.OK:
            trailers = await self._call.trailing_metadata() or ()
            raise errors.from_status(
                code, await self._call.details(), [(key, value) for key, value in trailers]
            )

    async def write(self, message: Request) -> None:
        """Sends a message; waits while the peer is slow."""
        try:
            await self._call.write(message)
        except aio.AioRpcError as error:
            raise errors.from_rpc_error(error) from error
        except asyncio.InvalidStateError:
            await self._check()
            raise

    async def done_writing(self) -> None:
        """Says that nothing more will be sent."""
        try:
            await self._call.done_writing()
        except aio.AioRpcError as error:
            raise errors.from_rpc_error(error) from error
        except asyncio.InvalidStateError:
            await self._check()

    def cancel(self) -> None:
        """Drops the stream; the service sees it."""
        self._call.cancel()


class AsyncServerStream(_Method):
    """One call that answers with a stream."""

    def __call__(
        self,
        request: Any,
        *,
        timeout: float | None = None,
        wait_for_ready: bool | None = None,
    ) -> AsyncStream[Any, Any]:
        """Starts the stream; without `timeout` it has no deadline."""
        call = self._open("unary_stream")
        return AsyncStream(
            call(
                request,
                timeout=timeout,
                metadata=self._calls.connection.metadata(),
                wait_for_ready=wait_for_ready,
            )
        )


class AsyncSession(_Method):
    """One call that streams both ways."""

    def __call__(
        self, *, timeout: float | None = None, wait_for_ready: bool | None = None
    ) -> AsyncStream[Any, Any]:
        """Starts the stream; without `timeout` it has no deadline."""
        call = self._open("stream_stream")
        return AsyncStream(
            call(
                timeout=timeout,
                metadata=self._calls.connection.metadata(),
                wait_for_ready=wait_for_ready,
            )
        )


def forked(process: int) -> str:
    """Returns what to say when the client of `process` is used in its child."""
    return (
        f"this client was opened in process {process} and is used in process {os.getpid()}: gRPC "
        "does not survive a fork; open a client in each process, and start processes with spawn"
    )
