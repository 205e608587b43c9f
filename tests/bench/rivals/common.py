"""What the clients of all rivals share; the standard library alone, since they run in another
environment than the service."""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple


class Arrival(NamedTuple):
    """One request of a trace: when it comes, seconds from the start; whose; how large."""

    index: int
    at_seconds: float
    user: str
    cost: int


Record = tuple[int, float, float]
"""Index of an arrival, and the seconds at which it was begun and ended."""


def read_trace(path: str) -> list[Arrival]:
    """Reads a trace as `fairness.write_trace` writes it."""
    return [Arrival(*row) for row in json.loads(Path(path).read_text())]


def say(**found: Any) -> None:
    """Prints the result: one line of JSON."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def latencies(times: list[float]) -> dict[str, float]:
    """Returns p50 and p99 of seconds, in milliseconds."""
    times = sorted(times)
    return {
        "p50_ms": times[len(times) // 2] * 1000,
        "p99_ms": times[min(len(times) - 1, len(times) * 99 // 100)] * 1000,
    }


async def replay(
    arrivals: list[Arrival],
    *,
    servers: int,
    unit_seconds: float,
    put: Callable[[Arrival], Awaitable[None]],
    take: Callable[[int], Awaitable[Any]],
    done: Callable[[int, Any], Awaitable[None]],
    index_of: Callable[[Any], int],
) -> list[Record]:
    """Plays a trace through a queue: arrivals at their times, `servers` that take one at a time.

    Args:
        arrivals: In order of time.
        servers: How many requests run at once.
        unit_seconds: How long a server is busy for one cost unit.
        put: Enqueues one.
        take: Returns the next item for a server, waiting a while for it; None if there was none.
        done: Completes an item.
        index_of: Returns the index of the arrival that an item is.
    """
    records: list[Record] = []
    zero = time.perf_counter()

    async def serve(server: int) -> None:
        while len(records) < len(arrivals):
            item = await take(server)
            if item is None:
                continue
            index = index_of(item)
            started = time.perf_counter() - zero
            await asyncio.sleep(arrivals[index].cost * unit_seconds)
            records.append((index, started, time.perf_counter() - zero))
            await done(server, item)

    working = [asyncio.create_task(serve(server)) for server in range(servers)]
    for arrival in arrivals:
        await asyncio.sleep(max(0.0, arrival.at_seconds - (time.perf_counter() - zero)))
        await put(arrival)
    await asyncio.gather(*working)
    return records
