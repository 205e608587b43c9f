"""The end of a service: what was decided is kept, and a snapshot is made if there is time."""

import asyncio

from scheduler_service.app.clock import monotonic_ns
from scheduler_service.app.engine import Engine
from scheduler_service.app.ports import Reporter, StoreFailed
from scheduler_service.core.policy import SECOND_NS
from scheduler_service.store.schedule import SnapshotSchedule

WORTH_RECORDS, WORTH_BYTES = 1000, 1 << 20
"""Less than this is replayed sooner than a snapshot is made at the end."""

COMMIT_SECONDS_MIN = 1.0
"""The last commit may take so long, also when the grace time is over."""


def left_seconds(deadline_ns: int) -> float:
    """Returns how long it is until a moment of monotonic time, seconds, at least 0."""
    return max(deadline_ns - monotonic_ns(), 0) / SECOND_NS


async def keep(engine: Engine, deadline_ns: int, report: Reporter) -> bool:
    """Commits what was decided; returns whether that was possible.

    A log that stands still is given up when the grace time is over: nobody was told what is lost.
    """
    if engine.failed is not None:
        return False
    try:
        async with asyncio.timeout(max(left_seconds(deadline_ns), COMMIT_SECONDS_MIN)):
            await engine.log.drain()
    except (TimeoutError, StoreFailed) as error:
        report("log.given_up", pending=engine.log.pending_count, error=repr(error))
        return False
    await engine.close()
    head = engine.log.durable
    report("log.closed", sequence=head.sequence, chain_hash=head.chain_hash.hex())
    return True


async def last_snapshot(
    before: SnapshotSchedule, engine: Engine, deadline_ns: int, report: Reporter
) -> None:
    """Makes a snapshot, if it is worth it and done in time; those `before` have ended."""
    snapshots = before.again(records=WORTH_RECORDS, log_bytes=WORTH_BYTES)
    if not snapshots.consider(engine.log.durable):
        return
    try:
        async with asyncio.timeout(left_seconds(deadline_ns)):
            await snapshots.finish()
    except TimeoutError:
        report("snapshot.given_up", sequence=engine.log.durable.sequence)
        await snapshots.close()
