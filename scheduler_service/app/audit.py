"""Reading the decision log while it is written: pages, and streams that resume by sequence.

Nothing is pushed at readers and nothing is queued for them.  A reader is a cursor; it fetches the
next page when it has got rid of the one before.  Recent groups come from a ring in memory, older
ones from the store, read on a thread.  So a reader costs one page, however slow it is and however
far behind; it never holds the log back; and what it could not read in time is said to be trimmed.

Only durable groups reach the ring, so nobody sees what a crash could undo.

Readers that are behind take turns and rest between pages (`CatchUp`): half a million records of
backlog must not be felt by a dispatch.
"""

import asyncio
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

from scheduler_service.app import chain, codec
from scheduler_service.app.engine import Engine
from scheduler_service.app.memory import trimmed
from scheduler_service.app.ports import GENESIS_HASH, Group, Position, Store, StoredGroup
from scheduler_service.core.errors import NotReady, Unknown

RING_BYTES = 16 << 20
"""Records kept in memory: a minute or two of a busy service."""

PAGE_RECORDS = 64
"""Records handed to a reader at once; converting them takes well under a millisecond."""

PAGE_BYTES = 512 << 10
"""A page ends when it has so many bytes: its message stays far below the limit."""

BEHIND_RECORDS = 1024
"""A reader further from the end than this is behind and takes its time."""

STORE_PAGE_BYTES = 256 << 10
"""Records read from the store at once; one group may be larger."""

_RECORD_OVERHEAD = 64
_TRIM_TO = 0.9
"""When the ring is full a tenth of it goes at once, so that the rest is moved rarely."""


class Head(NamedTuple):
    """Where the log begins and ends.

    Attributes:
        oldest_sequence: First sequence still kept.
        newest: Position after the last durable record.
    """

    oldest_sequence: int
    newest: Position


class Page(NamedTuple):
    """Consecutive records.

    Attributes:
        first_sequence: Sequence of the first one.
        records: Encoded decisions.
        hashes: Chain hash before the first one, then the one after each.
    """

    first_sequence: int
    records: list[bytes]
    hashes: list[bytes]


class _Run(NamedTuple):
    """Consecutive records that were not handed out yet, and the chain hash before them."""

    first_sequence: int
    hash_before: bytes
    records: list[bytes]


class _Held(NamedTuple):
    """A group in the ring."""

    first_sequence: int
    hash_before: bytes
    records: list[bytes]
    size: int


@dataclass(slots=True)
class Cursor:
    """How far a reader has got.

    Attributes:
        sequence: Last sequence read; 0 before the first.
        chain_hash: Chain hash after it; empty if it is not known yet.
        rest: What was read from the store and not handed out yet.
        behind: Whether it is far from the end of the log.
    """

    sequence: int
    chain_hash: bytes = b""
    rest: _Run | None = None
    behind: bool = False


class DecisionLog:
    """The durable decisions, for readers.

    Args:
        engine: Whose groups are published.
        store: Where older groups are.
        ring_bytes: Records kept in memory.
    """

    def __init__(self, engine: Engine, store: Store, ring_bytes: int = RING_BYTES) -> None:
        self._engine = engine
        self._store = store
        self._ring_bytes = ring_bytes
        self._held: list[_Held] = []
        self._starts: list[int] = []
        self._size = 0
        self._end = engine.log.durable
        self._arrived = asyncio.Event()
        self._awaited = False
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fairsched-audit")
        engine.publishers.append(self._published)

    def close(self) -> None:
        """Ends the reading thread; readers that wait are woken."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.wake()

    def wake(self) -> None:
        """Wakes every reader that waits, to look at what has changed."""
        if self._awaited:
            self._arrived.set()
            self._arrived, self._awaited = asyncio.Event(), False

    @property
    def ring_bytes(self) -> int:
        """Bytes of records in memory."""
        return self._size

    def head(self) -> Head:
        """Returns where the log begins and ends."""
        return Head(self._store.base().sequence + 1, self._engine.log.durable)

    def require(self, after_sequence: int) -> None:
        """Checks that a reader can begin behind `after_sequence`.

        Raises:
            Trimmed: SEQUENCE_TRIMMED.
            Unknown: SEQUENCE_UNKNOWN, if the log does not go that far: it was cut off or replaced.
        """
        base = self._store.base()
        if after_sequence < base.sequence:
            raise trimmed(after_sequence, base)
        newest = self._engine.log.durable.sequence
        if after_sequence > newest:
            raise Unknown(
                "SEQUENCE_UNKNOWN",
                f"The log ends at sequence {newest}.",
                sequence=after_sequence,
                newestSequence=newest,
            )

    # -- reading ------------------------------------------------------------------------------

    async def next_page(self, cursor: Cursor, limit: int = PAGE_RECORDS) -> Page | None:
        """Returns up to `limit` records behind the cursor and moves it; None at the end.

        Raises:
            Trimmed: The log was pruned past the cursor.
            StoreDamaged: The records cannot be read.
        """
        left = self._engine.log.durable.sequence - cursor.sequence
        cursor.behind = left > BEHIND_RECORDS
        if left <= 0:
            return None
        run, cursor.rest = cursor.rest, None
        if run is None:
            run = self._from_ring(cursor) or await self._from_store(cursor)
        return _hand_out(cursor, run, limit)

    async def wait(self, after_sequence: int, timeout_seconds: float) -> None:
        """Waits until something behind `after_sequence` is durable, or for the timeout.

        Raises:
            NotReady: LOG_STALLED: nothing will follow.
        """
        if self._engine.failed is not None:
            raise NotReady("LOG_STALLED", "The decision log has failed; the service is stopping.")
        if self._engine.log.durable.sequence > after_sequence:
            return
        try:
            async with asyncio.timeout(timeout_seconds):
                self._awaited = True
                await self._arrived.wait()
        except TimeoutError:
            return

    async def record(self, sequence: int) -> tuple[bytes, bytes]:
        """Returns the record of one sequence, and the chain hash before it.

        Raises:
            Trimmed: SEQUENCE_TRIMMED.
            Unknown: SEQUENCE_UNKNOWN.
        """
        self.require(max(sequence, 1))
        page = await self.next_page(Cursor(max(sequence, 1) - 1), limit=1)
        assert page is not None
        return page.records[0], page.hashes[0]

    async def in_thread(self, after_sequence: int, max_bytes: int) -> list[StoredGroup]:
        """Returns whole groups from the store, read on the thread of the readers."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._read, after_sequence, max_bytes)

    def _read(self, after_sequence: int, max_bytes: int) -> list[StoredGroup]:
        return self._store.read(after_sequence, max_bytes=max_bytes)

    def _from_ring(self, cursor: Cursor) -> _Run | None:
        wanted = cursor.sequence + 1
        if not self._starts or self._starts[0] > wanted:
            return None
        held = self._held[bisect_right(self._starts, wanted) - 1]
        skip = wanted - held.first_sequence
        chain_hash = cursor.chain_hash
        if not chain_hash:
            chain_hash = chain.extend(held.hash_before, held.records[:skip])
        return _Run(wanted, chain_hash, held.records[skip:] if skip else held.records)

    async def _from_store(self, cursor: Cursor) -> _Run:
        after = cursor.sequence
        groups = await self.in_thread(after, STORE_PAGE_BYTES)
        records: list[bytes] = []
        for group in groups:
            records += codec.split_frame(group.frame)
        first = groups[0].first_sequence
        skip = after + 1 - first
        chain_hash = cursor.chain_hash
        if not chain_hash:
            before = await self._hash_before(first)
            chain_hash = chain.extend(before, records[:skip])
        return _Run(after + 1, chain_hash, records[skip:])

    async def _hash_before(self, first_sequence: int) -> bytes:
        """Returns the chain hash before a group that begins at `first_sequence`."""
        before = first_sequence - 1
        base = self._store.base()
        if before == base.sequence:
            return base.chain_hash if before else GENESIS_HASH
        groups = await self.in_thread(before - 1, 1)
        return groups[0].end.chain_hash

    # -- the ring -----------------------------------------------------------------------------

    def _published(self, group: Group) -> None:
        if not group.records:
            return
        size = group.end.log_bytes - self._end.log_bytes + _RECORD_OVERHEAD * len(group.records)
        self._held.append(_Held(group.first_sequence, self._end.chain_hash, group.records, size))
        self._starts.append(group.first_sequence)
        self._end = group.end
        self._size += size
        if self._size > self._ring_bytes:
            self._trim()
        self.wake()

    def _trim(self) -> None:
        count = 0
        while self._size > self._ring_bytes * _TRIM_TO and count < len(self._held) - 1:
            self._size -= self._held[count].size
            count += 1
        del self._held[:count], self._starts[:count]


def _hand_out(cursor: Cursor, run: _Run, limit: int) -> Page:
    """Returns the first records of a run as a page; the cursor keeps the rest."""
    chain_hash, size = run.hash_before, 0
    hashes = [chain_hash]
    for record in run.records[:limit]:
        if size >= PAGE_BYTES:
            break
        size += len(record)
        chain_hash = sha256(chain_hash + record).digest()
        hashes.append(chain_hash)
    count = len(hashes) - 1
    cursor.sequence = run.first_sequence + count - 1
    cursor.chain_hash = chain_hash
    if count < len(run.records):
        cursor.rest = _Run(cursor.sequence + 1, chain_hash, run.records[count:])
    return Page(run.first_sequence, run.records[:count], hashes)


class CatchUp:
    """Limits what all readers that are behind take of the loop's time, while it is needed.

    Args:
        engine: Whether anything but reading goes on is seen from its commits.
        share: Part of the time that reading may take while the service is busy, above 0, at most 1.
    """

    def __init__(self, engine: Engine, share: float = 0.2) -> None:
        self._engine = engine
        self._rest_factor = 1 / share - 1
        self._turn = asyncio.Lock()
        self._groups = 0

    async def rest(self, work_ns: int) -> None:
        """Lets others work after a page took `work_ns`; no longer than needed when none do."""
        async with self._turn:
            await asyncio.sleep(0)
            log = self._engine.log
            busy = log.group_count != self._groups or log.pending_count > 0
            self._groups = log.group_count
            if busy:
                await asyncio.sleep(work_ns * self._rest_factor / 1e9)
