"""What lies under the synchronous client: a channel for the generated stubs, with manners.

The twin of `fairsched.async_calls` for threads; see there.  Safe to share between threads.
"""

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, Self, TypeVar, cast

import grpc

from fairsched import errors
from fairsched.async_calls import forked
from fairsched.connection import Connection

Response = TypeVar("Response")
Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]


class SyncCalls:
    """A lazily opened channel, as far as generated stubs need one."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._channel: grpc.Channel | None = None
        self._process = 0
        self._closed = False
        self._guard = threading.Lock()

    def as_channel(self) -> grpc.Channel:
        """Returns itself under the type that generated stubs ask for."""
        return cast("grpc.Channel", self)

    def channel(self) -> grpc.Channel:
        """Returns the channel; opens it at the first call.

        Raises:
            MisuseError: In a forked child, or after `close`.
        """
        if self._closed:
            msg = "this client is closed"
            raise errors.MisuseError(msg)
        if self._process and os.getpid() != self._process:
            raise errors.MisuseError(forked(self._process))
        with self._guard:
            if self._channel is None:
                self._process = os.getpid()
                self._channel = self.connection.sync_channel()
            return self._channel

    def close(self) -> None:
        """Closes the connection; calls under way are cancelled."""
        self._closed = True
        channel, self._channel = self._channel, None
        if channel is not None and os.getpid() == self._process:
            channel.close()

    def unary_unary(
        self,
        method: str,
        request_serializer: Encode,
        response_deserializer: Decode,
        _registered_method: bool = False,
    ) -> "SyncUnary":
        """Returns one unary call of a stub."""
        return SyncUnary(self, method, request_serializer, response_deserializer)

    def unary_stream(
        self,
        method: str,
        request_serializer: Encode,
        response_deserializer: Decode,
        _registered_method: bool = False,
    ) -> "SyncServerStream":
        """Returns one call of a stub that answers with a stream."""
        return SyncServerStream(self, method, request_serializer, response_deserializer)

    def stream_stream(
        self,
        method: str,
        request_serializer: Encode,
        response_deserializer: Decode,
        _registered_method: bool = False,
    ) -> "SyncSession":
        """Returns one call of a stub that streams both ways."""
        return SyncSession(self, method, request_serializer, response_deserializer)


class _Method:
    def __init__(self, calls: SyncCalls, method: str, encode: Encode, decode: Decode) -> None:
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


class SyncUnary(_Method):
    """One unary call."""

    def __call__(
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
            return call(
                request,
                timeout=connection.timeout if timeout is None else timeout,
                metadata=connection.metadata(),
                wait_for_ready=wait_for_ready,
            )
        except grpc.RpcError as error:
            raise errors.from_rpc_error(error) from error

    def start(
        self,
        request: Any,
        *,
        timeout: float | None = None,
        wait_for_ready: bool | None = None,
    ) -> "Pending[Any]":
        """Begins the call; see `__call__`."""
        connection = self._calls.connection
        return Pending(
            self._open("unary_unary").future(
                request,
                timeout=connection.timeout if timeout is None else timeout,
                metadata=connection.metadata(),
                wait_for_ready=wait_for_ready,
            )
        )


class Pending(Generic[Response]):
    """A unary call under way, which another thread may cancel."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def result(self) -> Response:
        """Waits for the answer.

        Raises:
            CallError: The typed error; `CallError` with CANCELLED if it was cancelled.
        """
        try:
            return cast("Response", self._call.result())
        except grpc.FutureCancelledError:
            raise errors.CallError(grpc.StatusCode.CANCELLED, "cancelled") from None
        except grpc.RpcError as error:
            raise errors.from_rpc_error(error) from error

    def cancel(self) -> None:
        """Gives up waiting; the service sees it."""
        self._call.cancel()


class SyncStream(Iterator[Response], Generic[Response]):
    """A running stream: iterate for what comes, `cancel` when done with it (from any thread)."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Response:
        try:
            return cast("Response", next(self._call))
        except grpc.RpcError as error:
            raise errors.from_rpc_error(error) from error

    def cancel(self) -> None:
        """Drops the stream; the service sees it."""
        self._call.cancel()


class SyncServerStream(_Method):
    """One call that answers with a stream."""

    def __call__(
        self,
        request: Any,
        *,
        timeout: float | None = None,
        wait_for_ready: bool | None = None,
    ) -> SyncStream[Any]:
        """Starts the stream; without `timeout` it has no deadline."""
        call = self._open("unary_stream")
        return SyncStream(
            call(
                request,
                timeout=timeout,
                metadata=self._calls.connection.metadata(),
                wait_for_ready=wait_for_ready,
            )
        )


class SyncSession(_Method):
    """One call that streams both ways."""

    def __call__(
        self,
        requests: Iterator[Any],
        *,
        timeout: float | None = None,
        wait_for_ready: bool | None = None,
    ) -> SyncStream[Any]:
        """Starts the stream that sends what `requests` yields."""
        call = self._open("stream_stream")
        return SyncStream(
            call(
                requests,
                timeout=timeout,
                metadata=self._calls.connection.metadata(),
                wait_for_ready=wait_for_ready,
            )
        )
