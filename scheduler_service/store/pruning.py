"""Dropping old groups, and giving their space back, in steps of a few milliseconds.

A group may go when it is older than the age limit or the log is larger than the size limit, and a
snapshot that is kept does not need it.  Age is counted in engine time against the newest record, so
nothing is dropped from a log that nobody writes to.

Space: pages of dropped groups and ended payloads are reused by what comes next.  They are given
back to the file system when more than half of the file is unused, or when the service is idle.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from scheduler_service.app.ports import Position
from scheduler_service.store import database
from scheduler_service.store.snapshots import SnapshotFiles

STEP_GROUPS = 256
STEP_BYTES = 1 << 20

VACUUM_PAGES = 64
VACUUM_PAGES_IDLE = 512
FREE_PAGES_IDLE = 256
"""Idle: a file with fewer unused pages (1 MiB) is left as it is."""

FREE_PAGES_BUSY = 16_384
"""Busy: a file with fewer unused pages (64 MiB), or less than half unused, is left as it is."""

_OLDEST = (
    "SELECT last_sequence, chain_hash, now_ns, log_bytes FROM log ORDER BY last_sequence LIMIT ?"
)


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of the log is kept.

    Attributes:
        max_age_ns: Older groups may go; 0 is no limit.
        max_bytes: The oldest groups may go while there are more bytes of records; 0 is no limit.
    """

    max_age_ns: int = 24 * 3600 * 1_000_000_000
    max_bytes: int = 8 << 30


class Pruner:
    """Drops groups through the writer's connection, on the writer's thread.

    Attributes:
        base: Position the log begins after.
        pruned_groups: Groups dropped since the store was opened.
    """

    def __init__(
        self, connection: sqlite3.Connection, snapshots: SnapshotFiles, retention: Retention
    ) -> None:
        self.base = database.load_base(connection)
        self.pruned_groups = 0
        self._connection = connection
        self._snapshots = snapshots
        self._retention = retention
        self._oldest: Position | None = None

    def step(self, head: Position) -> bool:
        """Drops what the retention no longer covers; returns whether more is due."""
        if not self._exceeds(self._oldest_group(), head):
            return False
        floor = self._snapshots.prune_floor()
        last = 0
        for end in self._candidates():
            if end.sequence > floor or not self._exceeds(end, head):
                break
            last = end.sequence
        return self.drop(last + 1, head, STEP_GROUPS) > 0

    def _exceeds(self, end: Position | None, head: Position) -> bool:
        """Whether the retention lets a group go that ends at `end`."""
        if end is None or end.sequence >= head.sequence:
            return False
        too_old = 0 < self._retention.max_age_ns < head.now_ns - end.now_ns
        too_many = 0 < self._retention.max_bytes < head.log_bytes - end.log_bytes
        return too_old or too_many

    def drop(self, before_sequence: int, head: Position, max_groups: int) -> int:
        """Drops the oldest groups that end before `before_sequence`, never the last of the log.

        One transaction without a sync of its own: undone by a power cut, it is done again.
        """
        doomed: list[Position] = []
        for end in self._candidates()[:max_groups]:
            if end.sequence >= min(before_sequence, head.sequence):
                break
            doomed.append(end)
            if end.log_bytes - self.base.log_bytes >= STEP_BYTES:
                break
        if not doomed:
            return 0
        with _relaxed(self._connection) as run:
            run("BEGIN IMMEDIATE")
            run("DELETE FROM log WHERE last_sequence <= ?", (doomed[-1].sequence,))
            database.save_base(self._connection, doomed[-1])
            run("COMMIT")
        self.base = doomed[-1]
        self._oldest = None
        self.pruned_groups += len(doomed)
        return len(doomed)

    def forget(self) -> None:
        """Reads the log's beginning anew, after something else changed it."""
        self.base = database.load_base(self._connection)
        self._oldest = None

    def vacuum(self, *, idle: bool) -> bool:
        """Gives unused pages back to the file system; returns whether more is due."""
        free = database.integer_pragma(self._connection, "freelist_count")
        if free <= (FREE_PAGES_IDLE if idle else FREE_PAGES_BUSY):
            return False
        if not idle and free * 2 < database.integer_pragma(self._connection, "page_count"):
            return False
        pages = VACUUM_PAGES_IDLE if idle else VACUUM_PAGES
        self._connection.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()
        return True

    def _oldest_group(self) -> Position | None:
        if self._oldest is None:
            row = self._connection.execute(_OLDEST, (1,)).fetchone()
            self._oldest = Position(*row) if row else None
        return self._oldest

    def _candidates(self) -> list[Position]:
        rows = self._connection.execute(_OLDEST, (STEP_GROUPS,)).fetchall()
        return [Position(*row) for row in rows]


@contextmanager
def _relaxed(connection: sqlite3.Connection) -> Iterator[Callable[..., sqlite3.Cursor]]:
    """Runs a transaction that needs no sync of its own and whose rows need no overwriting."""
    run = connection.execute
    synchronous = database.integer_pragma(connection, "synchronous")
    run(f"PRAGMA synchronous = {min(synchronous, 1)}")
    run("PRAGMA secure_delete = FAST").fetchall()
    try:
        yield run
    finally:
        if connection.in_transaction:
            run("ROLLBACK")
        run("PRAGMA secure_delete = ON").fetchall()
        run(f"PRAGMA synchronous = {synchronous}")
