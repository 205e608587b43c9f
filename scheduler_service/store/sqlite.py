"""The default store: one SQLite database in a data directory.

What happens in `append`, and what a crash at each point leaves:

1. Rows are written to the write-ahead file.       The group is absent: no commit mark.
2. The commit mark is written.                     Present if the mark reached the disk whole.
3. The file is synced (durability `sync`).         Present.
4. `append` returns, the group is acknowledged.    Present.

Checkpoints, pruning and vacuuming happen in `upkeep`, between groups, and in `store.background`.
"""

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterable
from typing import TypeVar

from scheduler_service.app import clock, codec
from scheduler_service.app.ports import (
    Durability,
    Group,
    Payload,
    Position,
    Reporter,
    StoredGroup,
    StoreError,
    StoreFailed,
    Usage,
)
from scheduler_service.store import database
from scheduler_service.store.background import Background
from scheduler_service.store.directory import DataDirectory
from scheduler_service.store.journal import torn_tail_offset
from scheduler_service.store.pruning import Pruner, Retention
from scheduler_service.store.reader import LogReader, select_payloads
from scheduler_service.store.snapshots import SnapshotFiles

SYNC_INTERVAL_NS = 100_000_000
"""Durability `async`: how often the write-ahead file is synced."""

JOURNAL_MAX_BYTES = 64 << 20
"""When the write-ahead file has grown to this, a checkpoint no longer waits for the background."""

_PAYLOAD_ROWS = 64
_COMMIT_OVERHEAD_BYTES = 3 * database.PAGE_BYTES
_PRUNE_CHECK_NS = 1_000_000_000
_IDLE_STEPS_BEFORE_TRUNCATE = 10
_TRUNCATE_TIMEOUT_MS = 20

_INSERT_GROUP = "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?)"
_DELETE_PAYLOADS = "DELETE FROM payload WHERE request_sequence IN (SELECT value FROM json_each(?))"
_DELETED_BYTES = (
    "SELECT coalesce(sum(length(payload) + length(metadata)), 0) FROM payload"
    " WHERE request_sequence IN (SELECT value FROM json_each(?))"
)
_INSERT_PAYLOADS = [
    "INSERT OR REPLACE INTO payload VALUES " + ", ".join(["(?, ?, ?)"] * rows)  # noqa: S608 - placeholders only
    for rows in range(_PAYLOAD_ROWS + 1)
]


_T = TypeVar("_T")


class SqliteStore:
    """A `Store` in a data directory that this process has to itself.

    Args:
        directory: Where it lives; made if it does not exist.
        durability: What `append` promises.
        retention: How much of the log is kept.
        report: Receives rare events.
        sync_interval_ns: Durability `async` only.

    Raises:
        StoreLocked: Another process has the directory.
        StoreRefused, StoreDamaged, StoreFailed: The database cannot be used.
    """

    def __init__(
        self,
        directory: DataDirectory,
        *,
        durability: Durability = Durability.SYNC,
        retention: Retention | None = None,
        report: Reporter,
        sync_interval_ns: int = SYNC_INTERVAL_NS,
    ) -> None:
        try:
            directory.create()
            self._lock = directory.lock()
        except OSError as error:
            raise StoreFailed(f"{error.filename or directory.path}: {error.strerror}") from error
        self._directory = directory
        self._durability = durability
        self._report = report
        self._failure: StoreError | None = None
        self._closed = False
        self._bytes_since_checkpoint = 0
        self._bytes_since_truncate = 0
        self._idle_steps = 0
        self._pruning = False
        self._prune_checked_ns = 0
        with contextlib.ExitStack() as undo:
            undo.callback(self._lock.release)
            self._writer = database.open_writer(directory.log_path, durability)
            undo.callback(self._writer.close)
            self._background = Background(directory, durability, sync_interval_ns)
            undo.callback(self._background.close)
            self._report_torn_tail()
            self._head = self._guarded(lambda: database.load_head(self._writer))
            snapshots = SnapshotFiles(directory.path)
            self._pruner = self._guarded(
                lambda: Pruner(self._writer, snapshots, retention or Retention())
            )
            self._reader = LogReader(directory.log_path)
            undo.pop_all()

    # ----- asked by any thread

    @property
    def name(self) -> str:
        """Name of the database file."""
        return self._directory.log_path.name

    @property
    def durability(self) -> Durability:
        """What `append` promises."""
        return self._durability

    def head(self) -> Position:
        """Returns the position after the last appended group."""
        return self._head

    def base(self) -> Position:
        """Returns the position the log begins after."""
        return self._pruner.base

    def read(self, after_sequence: int, *, max_bytes: int) -> list[StoredGroup]:
        """Returns whole groups from the one that holds `after_sequence` + 1 (see `Store`)."""
        return self._reader.read(after_sequence, max_bytes=max_bytes)

    def payloads(self, keys: Iterable[int]) -> dict[int, Payload]:
        """Returns the payloads of these accept sequences."""
        return self._reader.payloads(keys)

    def payload_keys(self) -> list[int]:
        """Returns the accept sequences of all payloads, sorted."""
        return self._reader.payload_keys()

    def usage(self) -> Usage:
        """Returns sizes of a moment ago."""
        seen, pruner = self._background, self._pruner
        return Usage(
            self._head.log_bytes - pruner.base.log_bytes,
            seen.file_bytes,
            seen.journal_bytes,
            seen.free_bytes,
            seen.checkpoint_count,
            pruner.pruned_groups,
            seen.full_count,
        )

    # ----- asked by the committer's thread

    def append(self, group: Group) -> dict[int, Payload]:
        """Makes a group durable and returns the payloads it fetches.

        Raises:
            StoreFailed: The group may or may not be kept; the store takes no other.
        """
        if self._background.failure is not None:
            self._failure = self._background.failure
        if self._failure is not None:
            raise StoreFailed(f"the store has failed: {self._failure}") from self._failure
        assert group.first_sequence == self._head.sequence + 1
        fetched = self._guarded(lambda: self._write(group))
        self._head = group.end
        size = sum(map(len, group.records)) + _COMMIT_OVERHEAD_BYTES
        for _, payload in group.puts:
            size += len(payload.payload) + len(payload.metadata)
        self._bytes_since_checkpoint += size
        self._bytes_since_truncate += size
        self._idle_steps = 0
        self._background.appended(self._bytes_since_checkpoint)
        return fetched

    def _write(self, group: Group) -> dict[int, Payload]:
        run = self._writer.execute
        if not group.puts and not group.deletes:
            if group.records:
                run(_INSERT_GROUP, _row(group))
            return select_payloads(self._writer, group.fetches) if group.fetches else {}
        run("BEGIN IMMEDIATE")
        if group.records:
            run(_INSERT_GROUP, _row(group))
        for start in range(0, len(group.puts), _PAYLOAD_ROWS):
            rows = group.puts[start : start + _PAYLOAD_ROWS]
            values: list[object] = []
            for key, payload in rows:
                values += (key, payload.payload, payload.metadata)
            run(_INSERT_PAYLOADS[len(rows)], values)
        fetched = select_payloads(self._writer, group.fetches) if group.fetches else {}
        if group.deletes:
            # What is deleted is overwritten, so it goes through the journal once more.
            keys = (json.dumps(group.deletes),)
            self._bytes_since_checkpoint += run(_DELETED_BYTES, keys).fetchone()[0]
            run(_DELETE_PAYLOADS, keys)
        run("COMMIT")
        return fetched

    def cut_tail(self, last_sequence: int) -> Position:
        """Drops every group behind `last_sequence`, which ends a group; returns the new head."""

        def cut() -> Position:
            self._writer.execute("DELETE FROM log WHERE last_sequence > ?", (last_sequence,))
            return database.load_head(self._writer)

        self._head = self._guarded(cut)
        assert self._head.sequence == last_sequence
        return self._head

    def restart_at(self, position: Position) -> None:
        """Drops all groups and goes on behind `position`, which lies behind them all."""
        assert position.sequence > self._head.sequence

        def restart() -> None:
            self._writer.execute("BEGIN IMMEDIATE")
            self._writer.execute("DELETE FROM log")
            database.save_base(self._writer, position)
            self._writer.execute("COMMIT")
            self._pruner.forget()

        self._guarded(restart)
        self._head = position

    def prune(self, before_sequence: int, *, max_groups: int) -> int:
        """Drops up to `max_groups` of the oldest groups that end before `before_sequence`."""
        return self._guarded(lambda: self._pruner.drop(before_sequence, self._head, max_groups))

    def upkeep(self, *, idle: bool) -> bool:
        """Does one short step: finish a checkpoint, drop old groups, give space back.

        Raises:
            StoreFailed: A step failed here or in the background; a full disk is waited out.
        """
        if self._background.failure is not None:
            self._failure = self._background.failure
            raise StoreFailed(str(self._failure)) from self._failure
        return self._waiting_out_full(lambda: self._step(idle=idle)) or False

    def _step(self, *, idle: bool) -> bool:
        if self._background.rest_is_small or self._bytes_since_checkpoint > JOURNAL_MAX_BYTES:
            self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            self._bytes_since_checkpoint = 0
            self._background.finished_checkpoint()
            return True
        if self._prune_is_due():
            self._pruning = self._pruner.step(self._head)
            if self._pruning:
                self._bytes_since_truncate += 1
                return True
        if self._pruner.vacuum(idle=idle):
            self._bytes_since_truncate += 1
            return True
        if idle:
            self._idle_steps += 1
            if self._idle_steps >= _IDLE_STEPS_BEFORE_TRUNCATE and self._bytes_since_truncate:
                self._truncate_journal()
        return False

    def _prune_is_due(self) -> bool:
        if self._pruning:
            return True
        now_ns = clock.monotonic_ns()
        if now_ns - self._prune_checked_ns < _PRUNE_CHECK_NS:
            return False
        self._prune_checked_ns = now_ns
        return True

    def _truncate_journal(self) -> None:
        """Empties the write-ahead file: frees its space, and removes ended payloads from it."""
        self._writer.execute(f"PRAGMA busy_timeout = {_TRUNCATE_TIMEOUT_MS}").fetchall()
        busy = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        self._writer.execute(f"PRAGMA busy_timeout = {database.BUSY_TIMEOUT_MS}").fetchall()
        if not busy:
            self._bytes_since_truncate = self._bytes_since_checkpoint = 0
            self._background.finished_checkpoint()
            self._background.measure()
        self._idle_steps = 0

    def close(self) -> None:
        """Checkpoints, closes and gives the directory up; again does nothing.

        Raises:
            StoreFailed: The last checkpoint failed; everything is closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        self._background.close()
        self._reader.close()
        try:
            if self._failure is None and self._background.failure is None:
                self._waiting_out_full(self._truncate_journal)
        finally:
            self._writer.close()
            self._lock.release()

    # ----- inside

    def _report_torn_tail(self) -> None:
        row = self._waiting_out_full(
            lambda: self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        )
        frames = max(row[1], 0) if row else 0
        path = self._directory.journal_path
        offset = torn_tail_offset(path, frames, database.PAGE_BYTES)
        if offset is not None:
            self._report("log.tail_cut", file=path.name, offset=offset)

    def _guarded(self, action: Callable[[], _T]) -> _T:
        """Runs an action; an error of the database ends the store."""
        try:
            return action()
        except sqlite3.Error as error:
            self._failure = database.translate(error, self.name)
            raise self._failure from error

    def _waiting_out_full(self, action: Callable[[], _T]) -> _T | None:
        """Runs an action that may as well happen when there is space again."""
        try:
            return action()
        except sqlite3.Error as error:
            if not database.is_full(error):
                self._failure = database.translate(error, self.name)
                raise self._failure from error
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            self._background.full_count += 1
            return None


def _row(group: Group) -> tuple[object, ...]:
    sequence, chain_hash, now_ns, log_bytes = group.end
    frame = codec.join_frame(group.records)
    return sequence, group.first_sequence, chain_hash, now_ns, log_bytes, frame
