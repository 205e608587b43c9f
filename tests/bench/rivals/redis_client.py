"""Redis: python -m tests.bench.rivals.redis_client replay PORT streams|lua TRACE SERVERS UNIT

The rate and latency of Redis are measured with a compiled client (`redis/load.cc`).
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import redis.asyncio

from tests.bench.rivals import common

SCRIPTS = Path(__file__).parent / "redis"
_POLL_SECONDS = 0.002


async def replay(port: int, shape: str, trace: str, servers: int, unit: float) -> None:
    """Plays a trace; `streams` is first in, first out, `lua` is fair between users."""
    client = redis.asyncio.Redis(port=port, decode_responses=True, max_connections=servers + 4)
    arrivals = common.read_trace(trace)
    if shape == "streams":
        await client.xgroup_create("t", "g", id="0", mkstream=True)

        async def put(arrival: common.Arrival) -> None:
            await client.xadd("t", {"index": arrival.index})

        async def take(server: int) -> Any:
            found = await client.xreadgroup("g", f"w{server}", {"t": ">"}, count=1, block=200)
            return found[0][1][0] if found else None

        async def done(_server: int, item: Any) -> None:
            await (
                client.pipeline(transaction=False)
                .xack("t", "g", item[0])
                .xdel("t", item[0])
                .execute()
            )

        def index_of(item: Any) -> int:
            return int(item[1]["index"])
    else:
        enqueue, take_script, complete = (
            client.register_script((SCRIPTS / f"{name}.lua").read_text())
            for name in ("enqueue", "take", "complete")
        )

        async def put(arrival: common.Arrival) -> None:
            await enqueue(["users", "state"], ["u:", arrival.user, arrival.index, arrival.cost])

        async def take(_server: int) -> Any:
            now = int(time.time() * 1000)
            found = await take_script(["users", "state", "leases", "held"], ["u:", 1, now, 600_000])
            if not found:
                await asyncio.sleep(_POLL_SECONDS)
            return found[0] if found else None

        async def done(_server: int, item: Any) -> None:
            await complete(["leases", "held"], [item])

        def index_of(item: Any) -> int:
            return int(item)

    records = await common.replay(
        arrivals,
        servers=servers,
        unit_seconds=unit,
        put=put,
        take=take,
        done=done,
        index_of=index_of,
    )
    common.say(records=records)


if __name__ == "__main__":
    _, _mode, port_, shape_, trace_, servers_, unit_ = sys.argv
    asyncio.run(replay(int(port_), shape_, trace_, int(servers_), float(unit_)))
