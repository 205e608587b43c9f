"""What the log says about one request: its records, found by scanning a bounded part of it.

The scan begins at the acceptance, if it is remembered, and else as far back as `SCAN_BYTES` reach.
It runs on the thread of the readers; a group that does not contain the id is not taken apart.
"""

import asyncio
from typing import NamedTuple

from scheduler_service.app import codec
from scheduler_service.app.audit import DecisionLog
from scheduler_service.app.ports import StoredGroup
from scheduler_service.core import decisions as d

SCAN_BYTES = 256 << 20
"""Records looked at for one request."""

_PAGE_BYTES = 1 << 20


class Entry(NamedTuple):
    """A decision and its place in the log."""

    sequence: int
    decision: d.Decision


async def history_of(
    log: DecisionLog, pool: str, request_id: str, *, from_sequence: int = 0, until_ns: int = 0
) -> list[Entry]:
    """Returns what was decided about a request, oldest first; empty if nothing was found.

    Args:
        log: Where to look.
        pool: Pool of the request.
        request_id: The request.
        from_sequence: Its accept sequence; 0 if that is not known.
        until_ns: When it ended, nanoseconds; 0 if that is not known.
    """
    oldest, newest = log.head()
    after = max(from_sequence, oldest) - 1
    if not from_sequence:
        after = max(after, await _far_enough_back(log))
    needle, entries, scanned = request_id.encode(), [], 0
    while after < newest.sequence and scanned < SCAN_BYTES:
        groups = await log.in_thread(after, _PAGE_BYTES)
        if not groups:
            break
        for group in groups:
            scanned += len(group.frame)
            if needle in group.frame:
                entries += _matching(group, after, pool, request_id)
        after = groups[-1].end.sequence
        if 0 < until_ns < groups[-1].end.now_ns:
            break
        await asyncio.sleep(0)
    return entries


def _matching(group: StoredGroup, after: int, pool: str, request_id: str) -> list[Entry]:
    found = []
    needle = request_id.encode()
    for sequence, record in enumerate(codec.split_frame(group.frame), group.first_sequence):
        if sequence > after and needle in record:
            decision = codec.decode(record)
            if (
                getattr(decision, "request_id", None) == request_id
                and getattr(decision, "pool", None) == pool
            ):
                found.append(Entry(sequence, decision))
    return found


async def _far_enough_back(log: DecisionLog) -> int:
    """Returns a sequence with about `SCAN_BYTES` of records behind it, by bisection."""
    oldest, newest = log.head()
    low, high = oldest - 1, newest.sequence
    wanted = newest.log_bytes - SCAN_BYTES
    while high - low > 1:
        middle = (low + high) // 2
        groups = await log.in_thread(middle, 1)
        if groups and groups[0].end.log_bytes < wanted:
            low = groups[0].end.sequence
        else:
            high = middle
    return low


async def first_at(log: DecisionLog, start_ns: int) -> int:
    """Returns a sequence behind which everything from `start_ns` on is found, by bisection."""
    oldest, newest = log.head()
    low, high = oldest - 1, newest.sequence
    while high - low > 1:
        middle = (low + high) // 2
        groups = await log.in_thread(middle, 1)
        if groups and groups[0].end.now_ns < start_ns:
            low = groups[0].end.sequence
        else:
            high = middle
    return low
