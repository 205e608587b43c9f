"""`grpc.health.v1`: what the readiness says, for the whole server and for each of its services.

Unknown names are NOT_FOUND.  Everything is NOT_SERVING while the log is replayed, while the service
stops, and while it stands still.
"""

import asyncio
from typing import TYPE_CHECKING

from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio

from scheduler_service.app.readiness import Phase, Readiness

if TYPE_CHECKING:
    import grpc

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """Keeps the health service in step with the readiness.

    Args:
        readiness: What to tell.
        services: Full names of the services; the empty name stands for the whole server.
    """

    def __init__(self, readiness: Readiness, services: tuple[str, ...]) -> None:
        self._readiness = readiness
        self._names = ("", *services)
        self._servicer = aio.HealthServicer()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        readiness.listeners.append(self._changed.set)

    def add_to(self, server: "grpc.aio.Server") -> None:
        """Serves health on one more server."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def start(self) -> None:
        """Says how things are, and follows from now on."""
        await self._tell()
        self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Says NOT_SERVING for good."""
        if self._task is not None:
            self._task.cancel()
        await self._servicer.enter_graceful_shutdown()

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._readiness.phase in {Phase.DRAINING, Phase.STOPPED}:
                await self._servicer.enter_graceful_shutdown()
            await self._tell()

    async def _tell(self) -> None:
        status = _SERVING if self._readiness.ready else _NOT_SERVING
        for name in self._names:
            await self._servicer.set(name, status)
