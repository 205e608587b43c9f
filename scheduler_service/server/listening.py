"""gRPC servers: their options, and the addresses they listen at."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection

from scheduler_service.app.ports import Reporter
from scheduler_service.config import Settings, split_address

Server = grpc.aio.Server

_MILLIS = 1000
_QUIET_SECONDS = 0.1
_FREQUENT = frozenset({"Enqueue", "NextDispatch", "Complete"})
_ANY_IPV6, _ANY_IPV4 = "::", "0.0.0.0"  # noqa: S104 - compared with, and only on purpose bound to


class AddressTakenError(OSError):
    """Somebody else listens there, or this machine has no such address."""


@dataclass(frozen=True, slots=True)
class Listening:
    """Where the service listens.

    Attributes:
        port: Of gRPC; 0 for a socket file.
        admin_port: Of AdminService and AuditService; `port` unless they have their own.
        http_port: Of /metrics and the probes; 0 if there are none.
    """

    port: int
    admin_port: int
    http_port: int = 0


def make_server(settings: Settings) -> Server:
    """Makes a server, to which services can be added.

    For every call `grpc.aio` looks at one future of each method that is registered, and at one for
    all that are not.  Few are: those that are called for each request.  The rest is found by name.
    """
    server = grpc.aio.server(options=options(settings))
    register = server.add_registered_method_handlers

    def register_frequent(
        service_name: str, method_handlers: "Mapping[str, grpc.RpcMethodHandler[Any, Any]]"
    ) -> None:
        frequent = {name: method_handlers[name] for name in method_handlers if name in _FREQUENT}
        register(service_name, frequent)

    # What adds a service, generated or of a library, calls this.
    server.add_registered_method_handlers = register_frequent  # type: ignore[method-assign]
    return server


def options(settings: Settings) -> list[tuple[str, int]]:
    """Returns the channel arguments of a server.

    Two processes never share a port.  Clients may keep idle calls and connections alive by pings as
    often as `keepalive_min_seconds`; a connection that answers no ping is closed, so that a caller
    whose machine has gone, or whose process stands still, is noticed.
    """
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", settings.concurrent_streams),
        ("grpc.max_receive_message_length", settings.message_bytes),
        ("grpc.max_send_message_length", settings.message_bytes),
        ("grpc.keepalive_time_ms", settings.keepalive_seconds * _MILLIS),
        ("grpc.keepalive_timeout_ms", settings.keepalive_timeout_seconds * _MILLIS),
        # What a process that stands still runs into: its machine acknowledges what it is sent.
        ("grpc.http2.ping_timeout_ms", settings.keepalive_timeout_seconds * _MILLIS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        (
            "grpc.http2.min_ping_interval_without_data_ms",
            settings.keepalive_min_seconds * _MILLIS,
        ),
    ]


def bind(
    server: Server,
    address: str,
    credentials: grpc.ServerCredentials | None,
    report: Reporter,
) -> int:
    """Makes `server` listen at `address` and returns its port.

    Raises:
        AddressTakenError: It cannot.
    """
    host, port = split_address(address)
    try:
        return _add(server, address, credentials)
    except RuntimeError as error:
        if host != _ANY_IPV6:
            message = f"cannot listen at {address}: {error}"
            raise AddressTakenError(message) from error
    fallback = f"{_ANY_IPV4}:{port}"
    report("server.ipv4_only", address=address, fallback=fallback)
    try:
        return _add(server, fallback, credentials)
    except RuntimeError as error:
        message = f"cannot listen at {fallback}: {error}"
        raise AddressTakenError(message) from error


def _add(server: Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    if credentials is None:
        return server.add_insecure_port(address)
    return server.add_secure_port(address, credentials)


def add_reflection(server: Server, services: Sequence[str]) -> None:
    """Serves reflection for these services and for itself."""
    names = (*services, reflection.SERVICE_NAME, "grpc.health.v1.Health")
    reflection.enable_server_reflection(names, server)


def add_channelz(server: Server, report: Reporter) -> None:
    """Serves channelz, if it is installed."""
    try:
        module = import_module("grpc_channelz.v1.channelz")
    except ImportError:
        report("server.channelz_missing", package="grpcio-channelz")
        return
    module.add_channelz_servicer(server)


async def stop(servers: Sequence[Server], grace: float, running: Callable[[], int]) -> None:
    """Stops servers; calls that run may finish.

    Two kinds of calls would use up the grace time and are cut off once no other runs: watches of
    the health, which never end, and a call that arrived just when gRPC shut down, which it keeps
    and never hands out.

    Args:
        servers: The servers.
        grace: How long calls may go on, seconds.
        running: Returns how many calls run.
    """
    stopped = asyncio.gather(*(server.stop(grace) for server in servers))
    quiet = asyncio.ensure_future(_quiet(running))
    await asyncio.wait((stopped, quiet), return_when=asyncio.FIRST_COMPLETED)
    quiet.cancel()
    if not stopped.done():
        await asyncio.gather(*(server.stop(None) for server in servers))
    await stopped


async def _quiet(running: Callable[[], int]) -> None:
    """Waits until no call runs, and their answers have had time to leave."""
    looks = 0
    while looks < 2:  # noqa: PLR2004 - none ran at either end of a pause
        await asyncio.sleep(_QUIET_SECONDS)
        looks = 0 if running() else looks + 1
