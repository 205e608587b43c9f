"""PostgreSQL: python -m tests.bench.rivals.postgres_client replay SOCKET_FOLDER TRACE SERVERS UNIT

The rate and latency are measured with pgbench and the scripts in `postgres/`.
"""

import asyncio
import sys
from typing import Any

import asyncpg

from tests.bench.rivals import common

_TAKE = """
UPDATE jobs SET taken_until = now() + interval '10 minutes'
 WHERE id = (SELECT id FROM jobs WHERE taken_until IS NULL
             ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, body"""
_POLL_SECONDS = 0.005


async def replay(folder: str, trace: str, servers: int, unit: float) -> None:
    """Plays a trace through the table: first in, first out."""
    pool = await asyncpg.create_pool(
        host=folder, user="bench", database="postgres", min_size=servers + 2, max_size=servers + 2
    )

    async def put(arrival: common.Arrival) -> None:
        await pool.execute(
            "INSERT INTO jobs (user_id, cost, body) VALUES ($1, $2, $3)",
            arrival.user,
            arrival.cost,
            str(arrival.index),
        )

    async def take(_server: int) -> Any:
        row = await pool.fetchrow(_TAKE)
        if row is None:
            await asyncio.sleep(_POLL_SECONDS)
        return row

    async def done(_server: int, item: Any) -> None:
        await pool.execute("DELETE FROM jobs WHERE id = $1", item["id"])

    records = await common.replay(
        common.read_trace(trace),
        servers=servers,
        unit_seconds=unit,
        put=put,
        take=take,
        done=done,
        index_of=lambda row: int(row["body"]),
    )
    common.say(records=records)


if __name__ == "__main__":
    _, _mode, folder_, trace_, servers_, unit_ = sys.argv
    asyncio.run(replay(folder_, trace_, int(servers_), float(unit_)))
