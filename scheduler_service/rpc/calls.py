"""What every RPC shares: who calls, whether the service is ready, errors, and a measurement.

`call` wraps a method once, when its class is made; nothing wraps calls while they run (an
interceptor would cost more than the rest of a call).  A method gets the request, the context and
the caller, and either returns its answer or raises a `SchedulerError`.

Errors, too, are told only when everything decided before them is durable: "the queue is full"
shows state as much as an answer does.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import grpc

from scheduler_service.app import clock
from scheduler_service.app.application import Application
from scheduler_service.app.observation import Observation
from scheduler_service.app.ports import Reporter
from scheduler_service.app.readiness import Readiness
from scheduler_service.core.errors import (
    InvalidCommand,
    NotReady,
    SchedulerError,
    Unauthenticated,
)
from scheduler_service.rpc import status
from scheduler_service.rpc.identity import Identity
from scheduler_service.rpc.security import Access
from scheduler_service.rpc.user_ids import UserIds

Context = grpc.aio.ServicerContext[Any, Any]

_REQUEST = TypeVar("_REQUEST")
_REPLY = TypeVar("_REPLY")
_SERVICER = TypeVar("_SERVICER", bound="Servicer")

_SHOWS_NO_STATE = (InvalidCommand, Unauthenticated)
_NANOS_PER_SECOND = 1e9


class Observer(Protocol):
    """Receives one measurement for every call; never waits, never raises."""

    def called(self, rpc: str, code: str, duration_ns: int) -> None:
        """Takes note of a call that has ended with this gRPC code."""

    def refused(self, rpc: str, pool: str, reason: str) -> None:
        """Takes note of a call, or an item of one, that was refused for this reason."""


class NoObserver:
    """Measures nothing."""

    def called(self, rpc: str, code: str, duration_ns: int) -> None:
        """Does nothing."""

    def refused(self, rpc: str, pool: str, reason: str) -> None:
        """Does nothing."""


@dataclass(slots=True)
class Runtime:
    """What all servicers share; it is there before the log has been replayed.

    Attributes:
        access: Says who calls.
        readiness: Whether calls can be answered.
        report: Receives rare events.
        observer: Receives measurements.
        user_ids: Turns user ids of callers into those the core sees.
        application: The use cases, once the log has been replayed.
        observation: What only looks, from then on.
        running_count: Calls that run now, streams included.
    """

    access: Access
    readiness: Readiness
    report: Reporter
    observer: Observer = field(default_factory=NoObserver)
    user_ids: UserIds = field(default_factory=UserIds)
    application: Application | None = None
    observation: Observation | None = None
    running_count: int = 0

    @property
    def app(self) -> Application:
        """The use cases.

        Raises:
            NotReady: REPLAYING, DRAINING.
        """
        self.readiness.require()
        assert self.application is not None  # noqa: S101 - set before the phase says serving
        return self.application

    @property
    def seen(self) -> Observation:
        """What only looks.

        Raises:
            NotReady: REPLAYING, DRAINING.
        """
        self.readiness.require()
        assert self.observation is not None  # noqa: S101 - set before the phase says serving
        return self.observation

    async def settled(self, error: SchedulerError) -> SchedulerError:
        """Returns the error to tell, once everything it may show is durable."""
        if self.application is None or isinstance(error, _SHOWS_NO_STATE):
            return error
        try:
            await self.application.engine.durable()
        except NotReady as stalled:
            return stalled
        return error

    def retry_seconds(self, error: SchedulerError) -> int:
        """Returns after how many seconds a refused call is worth repeating; 0 if it is not."""
        if self.application is None:
            return status.NOT_READY_SECONDS if isinstance(error, NotReady) else 0
        hints = self.application.hints
        return status.retry_seconds(error, hints, self.application.engine.now_ns())


class Servicer:
    """Base of the servicers."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime


def call(
    method: Callable[[_SERVICER, _REQUEST, Context, Identity], Awaitable[_REPLY]],
) -> Callable[[_SERVICER, _REQUEST, Context], Awaitable[_REPLY]]:
    """Makes a gRPC method of one that takes the caller and raises errors of the core.

    The method is named like its RPC.
    """
    rpc = method.__name__

    @functools.wraps(method)
    async def serve(self: _SERVICER, request: _REQUEST, context: Context) -> _REPLY:
        runtime = self.runtime
        began_ns = clock.monotonic_ns()
        code = "OK"
        runtime.running_count += 1
        try:
            caller = runtime.access.caller(context, rpc)
            return await method(self, request, context, caller)
        except SchedulerError as error:
            code = status.code_of(error).name
            told = await runtime.settled(error)
            code = status.code_of(told).name
            runtime.observer.refused(rpc, told.metadata.get("pool", ""), told.reason)
            await status.abort(context, told, runtime.retry_seconds(told))
        except asyncio.CancelledError:
            code = "CANCELLED"
            raise
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it was, a caller gets a clean status
            code = "INTERNAL"
            runtime.report("rpc.failed", rpc=rpc, error=repr(error))
            stalled = _stalled(runtime)
            if stalled is not None:
                await status.abort(context, stalled, status.NOT_READY_SECONDS)
            await context.abort(grpc.StatusCode.INTERNAL, "The call has failed; see the log.")
        finally:
            runtime.running_count -= 1
            runtime.observer.called(rpc, code, clock.monotonic_ns() - began_ns)

    return serve


def _stalled(runtime: Runtime) -> NotReady | None:
    """Returns the error to tell when the service itself has failed."""
    app = runtime.application
    if app is None or app.engine.failed is None:
        return None
    return NotReady("LOG_STALLED", "The service has failed and is stopping.")


def peer_of(context: Context, caller: Identity) -> str:
    """Returns what a caller's open calls are counted by: its name, or else its connection."""
    return caller.name or str(context.peer())


def remaining_ns(context: Context) -> int | None:
    """Returns how long the caller still waits, nanoseconds; None if it has no deadline."""
    remaining = context.time_remaining()
    return None if remaining is None else int(remaining * _NANOS_PER_SECOND)
