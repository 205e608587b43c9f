"""Reading the log and the payloads, beside the writer or without one.

Every read is one short statement that is finished before it returns.  No transaction stays open
between pages, so a reader that pauses pins neither the write-ahead file nor the log.
"""

import json
import sqlite3
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from scheduler_service.app.memory import trimmed
from scheduler_service.app.ports import (
    Payload,
    Position,
    StoreDamaged,
    StoredGroup,
    StoreFailed,
    StoreRefused,
)
from scheduler_service.store import database
from scheduler_service.store.directory import DataDirectory

_T = TypeVar("_T")

_GROUPS = (
    "SELECT first_sequence, last_sequence, chain_hash, now_ns, log_bytes, records FROM log"
    " WHERE last_sequence > ? ORDER BY last_sequence"
)
_ROW_TYPES = (int, int, bytes, int, int, bytes)
"""A damaged row can still be a row, of other types."""

_PAYLOADS = (
    "SELECT request_sequence, payload, metadata FROM payload"
    " WHERE request_sequence IN (SELECT value FROM json_each(?))"
)


def select_payloads(connection: sqlite3.Connection, keys: Iterable[int]) -> dict[int, Payload]:
    """Returns the payloads of these accept sequences, in one statement."""
    rows = connection.execute(_PAYLOADS, (json.dumps(list(keys)),)).fetchall()
    return {key: Payload(payload, metadata) for key, payload, metadata in rows}


class LogReader:
    """A read-only view of a data directory's log; any thread may use it, one at a time.

    Raises:
        StoreRefused, StoreDamaged, StoreFailed: The database cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._lock = threading.Lock()
        self._connection = database.open_reader(path)

    @classmethod
    def of(cls, data_dir: Path) -> "LogReader":
        """Returns a view of the log in a data directory, which must have one.

        Raises:
            StoreRefused: There is none, or the database cannot be opened.
            StoreFailed: The directory may not be looked into, or the database not opened.
            StoreDamaged: The database cannot be opened.
        """
        path = DataDirectory(data_dir).log_path
        try:
            there = path.is_file() and path.stat().st_size > 0
        except OSError as error:
            message = f"{data_dir} cannot be looked into: {error.strerror}"
            raise StoreFailed(message) from error
        if not there:
            message = f"no decision log in {data_dir}: state the directory of `serve --data-dir`"
            raise StoreRefused(message)
        return cls(path)

    def head(self) -> Position:
        """Returns the position after the last group that is committed."""
        return self._query(database.load_head)

    def base(self) -> Position:
        """Returns the position the log begins after."""
        return self._query(database.load_base)

    def read(self, after_sequence: int, *, max_bytes: int) -> list[StoredGroup]:
        """Returns whole groups from the one that holds `after_sequence` + 1 (see `Store.read`).

        Raises:
            Trimmed: `after_sequence` lies before the base.
            StoreDamaged: A group cannot be read, but those before it could.
        """
        page: list[StoredGroup] = []
        try:
            self._query(lambda connection: _read_into(page, connection, after_sequence, max_bytes))
        except StoreDamaged as damage:
            if page:
                return page
            raise self._locate(damage, after_sequence) from damage
        if not page or page[0].first_sequence > after_sequence + 1:
            base = self.base()
            if after_sequence < base.sequence:
                raise trimmed(after_sequence, base)
        return page

    def payloads(self, keys: Iterable[int]) -> dict[int, Payload]:
        """Returns the payloads of these accept sequences."""
        return self._query(lambda connection: select_payloads(connection, keys))

    def payload_keys(self) -> list[int]:
        """Returns the accept sequences of all payloads, sorted."""
        return [
            row[0]
            for row in self._query(
                lambda connection: connection.execute(
                    "SELECT request_sequence FROM payload ORDER BY request_sequence"
                ).fetchall()
            )
        ]

    def close(self) -> None:
        """Closes the connection."""
        with self._lock:
            self._connection.close()

    def _query(self, query: Callable[[sqlite3.Connection], _T]) -> _T:
        with self._lock:
            try:
                return query(self._connection)
            except sqlite3.Error as error:
                raise database.translate(error, self.name) from error

    def _locate(self, damage: StoreDamaged, after_sequence: int) -> StoreDamaged:
        """Says where the unreadable group is, and whether anything follows it."""
        found = StoreDamaged(self.name, after_sequence + 1, damage.detail)
        try:
            later = self._query(
                lambda connection: connection.execute(
                    "SELECT count(*) FROM (SELECT 1 FROM log WHERE last_sequence > ? LIMIT 2)",
                    (after_sequence,),
                ).fetchone()
            )
            found.at_tail = later[0] == 1
        except StoreDamaged:
            found.at_tail = False
        return found


def _read_into(
    page: list[StoredGroup], connection: sqlite3.Connection, after_sequence: int, max_bytes: int
) -> None:
    size = 0
    cursor = connection.execute(_GROUPS, (after_sequence,))
    try:
        for row in cursor:
            if tuple(map(type, row)) != _ROW_TYPES:
                raise StoreDamaged("", after_sequence + 1, "a row holds values of other types")
            first, last, chain_hash, now_ns, log_bytes, records = row
            page.append(StoredGroup(first, Position(last, chain_hash, now_ns, log_bytes), records))
            size += len(records)
            if size >= max_bytes:
                return
    finally:
        cursor.close()
