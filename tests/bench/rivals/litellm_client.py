"""LiteLLM's scheduler, its queue in Redis: python -m tests.bench.rivals.litellm_client MODE PORT …

    rate PORT COUNT CALLERS      calls that wait for their turn; there is nothing to complete
    latency PORT COUNT           one at a time
    replay PORT TRACE SERVERS UNIT

Used as its router does: `wait_for_turn` with what deployments are free.  Every request has the same
priority; requests of equal priority are ordered by their id, which the router draws at random.
"""

import asyncio
import os
import sys
import time
import uuid

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from litellm.caching.caching import RedisCache
from litellm.scheduler import FlowItem, Scheduler

from tests.bench.rivals import common

_TIMEOUT_SECONDS = 600.0


def scheduler_on(port: int) -> Scheduler:
    """Returns a scheduler that keeps its queue in Redis."""
    return Scheduler(redis_cache=RedisCache(host="127.0.0.1", port=port))


def item() -> FlowItem:
    """Returns a request as the router makes it."""
    return FlowItem(priority=0, request_id=str(uuid.uuid4()), model_name="m")


async def nothing_free() -> list[str]:
    """Has the queue decide."""
    return []


async def rate(port: int, count: int, callers: int) -> None:
    """Measures turns a second."""
    scheduler, left = scheduler_on(port), count
    began = time.perf_counter()

    async def call() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await scheduler.wait_for_turn(item(), _TIMEOUT_SECONDS, nothing_free)

    await asyncio.gather(*(call() for _ in range(callers)))
    common.say(rate=count / (time.perf_counter() - began))


async def latency(port: int, count: int) -> None:
    """Measures one turn on an idle queue."""
    scheduler, times = scheduler_on(port), []
    for _ in range(count):
        began = time.perf_counter()
        await scheduler.wait_for_turn(item(), _TIMEOUT_SECONDS, nothing_free)
        times.append(time.perf_counter() - began)
    common.say(**common.latencies(times))


async def replay(port: int, trace: str, servers: int, unit: float) -> None:
    """Plays a trace: a deployment is healthy while one of the servers is free."""
    scheduler, arrivals = scheduler_on(port), common.read_trace(trace)
    free, slots = servers, asyncio.Semaphore(servers)
    records: list[common.Record] = []
    zero = time.perf_counter()

    async def healthy() -> list[str]:
        return ["deployment"] if free > 0 else []

    async def request(arrival: common.Arrival) -> None:
        nonlocal free
        await scheduler.wait_for_turn(item(), _TIMEOUT_SECONDS, healthy)
        free -= 1
        async with slots:
            started = time.perf_counter() - zero
            await asyncio.sleep(arrival.cost * unit)
            records.append((arrival.index, started, time.perf_counter() - zero))
        free += 1

    running = []
    for arrival in arrivals:
        await asyncio.sleep(max(0.0, arrival.at_seconds - (time.perf_counter() - zero)))
        running.append(asyncio.create_task(request(arrival)))
    await asyncio.gather(*running)
    common.say(records=records)


if __name__ == "__main__":
    _, mode_, port_, *rest_ = sys.argv
    run = {
        "rate": lambda: rate(int(port_), int(rest_[0]), int(rest_[1])),
        "latency": lambda: latency(int(port_), int(rest_[0])),
        "replay": lambda: replay(int(port_), rest_[0], int(rest_[1]), float(rest_[2])),
    }[mode_]
    asyncio.run(run())
