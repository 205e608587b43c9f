"""The HTTP port: `/metrics`, `/livez`, `/readyz`.

    /livez    200 while the process can answer at all; restart it when it does not
    /readyz   200 when calls should be sent here, else 503; says why, and what an answer promises
    /metrics  Prometheus text format

Reading requests is left to h11 (pure Python, no dependencies, strict, with limits); the rest is
one asyncio server on the loop of the service, so that what is shown is what the loop can see.  A
metrics page is collected on the loop, pool by pool, and formatted on a thread.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import h11
import msgspec

IDLE_SECONDS = 30.0
"""A connection without a request for so long is closed."""

CONNECTIONS_MAX = 64
HEADER_BYTES_MAX = 16 << 10
_READ_BYTES = 16 << 10
_ANY_IPV6, _ANY_IPV4 = "::", "0.0.0.0"  # noqa: S104 - only on purpose bound to
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"

_STATUS = {200: b"OK", 404: b"Not Found", 405: b"Method Not Allowed", 503: b"Service Unavailable"}


class Reply(NamedTuple):
    """An answer: status code, content type, body."""

    status: int
    content_type: str
    body: bytes


class Health(NamedTuple):
    """What `/readyz` says.

    Attributes:
        ready: Whether calls should be sent here.
        phase: Where the process is in its life.
        problems: What is wrong, by name, each with one sentence.
        durability: What an answer promises.
        sequence: Last durable sequence.
        head_hash: Hash of the record there, hexadecimal.
    """

    ready: bool
    phase: str
    problems: dict[str, str]
    durability: str
    sequence: int
    head_hash: str


class HttpServer:
    """Serves the three pages.

    Args:
        health: Gives what `/readyz` says now.
        metrics: Makes the metrics page: content type and body.
    """

    def __init__(
        self, health: Callable[[], Health], metrics: Callable[[], Awaitable[tuple[str, bytes]]]
    ) -> None:
        self._health = health
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def start(self, host: str, port: int) -> int:
        """Listens and returns the port; at `::` on IPv4 as well, as gRPC does.

        Raises:
            OSError: It cannot listen there.
        """
        if host == _ANY_IPV6:
            self._server = await asyncio.start_server(self._connected, sock=_any_address(port))
        else:
            self._server = await asyncio.start_server(self._connected, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stops listening and ends every connection."""
        if self._server is not None:
            self._server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= CONNECTIONS_MAX:
            # Whoever holds connections open must not be able to blind the probes.
            next(iter(self._tasks)).cancel()
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of one connection."""
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES_MAX)
        try:
            while True:
                async with asyncio.timeout(IDLE_SECONDS):
                    request = await _next_request(connection, reader)
                if request is None:
                    return
                reply = await self._reply(request)
                async with asyncio.timeout(IDLE_SECONDS):
                    await _send(connection, writer, reply, head=request.method == b"HEAD")
                if connection.our_state is not h11.DONE:
                    return
                connection.start_next_cycle()
        except (h11.ProtocolError, TimeoutError, ConnectionError):
            return
        finally:
            writer.close()

    async def _reply(self, request: h11.Request) -> Reply:
        if request.method not in {b"GET", b"HEAD"}:
            return Reply(405, _TEXT, b"Only GET and HEAD.\n")
        match request.target.split(b"?", 1)[0]:
            case b"/livez":
                return Reply(200, _TEXT, b"ok\n")
            case b"/readyz":
                return self._ready()
            case b"/metrics":
                content_type, body = await self._metrics()
                return Reply(200, content_type, body)
            case _:
                return Reply(404, _TEXT, b"There are /metrics, /livez and /readyz.\n")

    def _ready(self) -> Reply:
        health = self._health()
        body = msgspec.json.format(msgspec.json.encode(health._asdict()), indent=2) + b"\n"
        return Reply(200 if health.ready else 503, _JSON, body)


def _any_address(port: int) -> socket.socket:
    """Returns a socket that listens on both kinds of addresses, if this machine has both."""
    if socket.has_dualstack_ipv6():
        address = (_ANY_IPV6, port)
        return socket.create_server(address, family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server((_ANY_IPV4, port))


async def _next_request(
    connection: h11.Connection, reader: asyncio.StreamReader
) -> h11.Request | None:
    """Returns the next request, its body read and dropped; None when the caller has gone."""
    request = None
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_READ_BYTES))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.EndOfMessage):
            return request
        elif isinstance(event, h11.ConnectionClosed):
            return None


async def _send(
    connection: h11.Connection, writer: asyncio.StreamWriter, reply: Reply, *, head: bool
) -> None:
    headers = [
        ("Content-Type", reply.content_type),
        ("Content-Length", str(len(reply.body))),
        ("Cache-Control", "no-store"),
    ]
    response = h11.Response(status_code=reply.status, headers=headers, reason=_STATUS[reply.status])
    writer.write(connection.send(response) or b"")
    if not head:
        writer.write(connection.send(h11.Data(data=reply.body)) or b"")
    writer.write(connection.send(h11.EndOfMessage()) or b"")
    await writer.drain()
