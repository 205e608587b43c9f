"""The HTTP port speaks HTTP, within limits."""

import asyncio
import json

import pytest

from scheduler_service.obs import http
from scheduler_service.obs.http import Health, HttpServer


class Served:
    """What the server shows.

    Attributes:
        port: Where it listens.
        problems: What makes it unready.
    """

    port = 0

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}


@pytest.fixture
async def server():
    """A server that can be made unready."""

    served = Served()

    def health() -> Health:
        ready = not served.problems
        return Health(ready, "serving", served.problems, "sync", 17, "ab12")

    async def metrics() -> tuple[str, bytes]:
        return "text/plain; version=0.0.4", b"x 1\n"

    one = HttpServer(health, metrics)
    served.port = await one.start("127.0.0.1", 0)
    yield served
    await one.close()


async def _talk(port: int, *requests: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """Sends requests over one connection and returns (status, headers, body) of each answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers = []
    try:
        for request in requests:
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            size = 0 if request.startswith(b"HEAD") else int(headers["content-length"])
            answers.append((int(head[0].split()[1]), headers, await reader.readexactly(size)))
    finally:
        writer.close()
    return answers


def _get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


async def test_pages(server):
    """The three pages are served, over one connection, with a query or without."""
    live, ready, metrics, query = await _talk(
        server.port, _get("/livez"), _get("/readyz"), _get("/metrics"), _get("/metrics?x=1")
    )

    assert live[0] == ready[0] == metrics[0] == 200
    assert json.loads(ready[2]) == {
        "ready": True,
        "phase": "serving",
        "problems": {},
        "durability": "sync",
        "sequence": 17,
        "head_hash": "ab12",
    }
    assert (metrics[1]["content-type"], metrics[2]) == ("text/plain; version=0.0.4", b"x 1\n")
    assert query[2] == b"x 1\n"


async def test_not_ready(server):
    """A problem makes it 503 with the reason; liveness stays separate."""
    server.problems = {"log": "The decision log is not being written."}
    (ready, live) = await _talk(server.port, _get("/readyz"), _get("/livez"))

    assert ready[0] == 503
    assert json.loads(ready[2])["problems"] == server.problems
    assert live[0] == 200


async def test_others(server):
    """Unknown pages and other methods are refused; HEAD has no body."""
    unknown, post, head = await _talk(
        server.port, _get("/"), _get("/livez", "POST"), _get("/livez", "HEAD")
    )

    assert (unknown[0], post[0], head[0]) == (404, 405, 200)
    assert head[2] == b""


@pytest.mark.parametrize(
    "junk",
    [b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n\r\n", b"GET /" + b"x" * 100_000, b"\r\n\r\n"],
)
async def test_junk_closes_the_connection_only(server, junk):
    """What is not HTTP is cut off; the next caller is served."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(junk)
    writer.write_eof()
    await asyncio.wait_for(reader.read(), 5)
    writer.close()

    ((status, _, _),) = await _talk(server.port, _get("/livez"))
    assert status == 200


async def test_connections_are_limited(server, monkeypatch):
    """One too many closes the oldest: whoever holds connections cannot blind the probes."""
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 3)
    held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
    for _, writer in held:
        writer.write(_get("/livez"))
    for reader, _ in held:
        await reader.readuntil(b"ok\n")
    ((status, _, _),) = await _talk(server.port, _get("/livez"))
    left = await asyncio.wait_for(held[0][0].read(), 5)
    for _, one in held:
        one.close()

    assert status == 200
    assert left == b""


async def test_idle_connections_end(server, monkeypatch):
    """A connection that asks for nothing is closed."""
    monkeypatch.setattr(http, "IDLE_SECONDS", 0.01)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)

    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


@pytest.mark.parametrize("ipv6", [True, False])
async def test_any_address_takes_ipv4_as_well(monkeypatch, ipv6):
    """At `::` probes over IPv4 are answered, on machines with IPv6 and without."""
    if not ipv6:
        monkeypatch.setattr("socket.has_dualstack_ipv6", lambda: False)

    async def metrics() -> tuple[str, bytes]:
        return "text/plain", b""

    one = HttpServer(lambda: Health(True, "serving", {}, "sync", 0, ""), metrics)
    port = await one.start("::", 0)
    try:
        ((status, _, body),) = await _talk(port, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    finally:
        await one.close()

    assert (status, body) == (200, b"ok\n")
