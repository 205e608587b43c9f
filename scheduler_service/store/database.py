"""The SQLite database of the decision log: schema, connections, errors.

Write-ahead logging: a commit appends to `log.sqlite3-wal` and syncs it; a checkpoint moves pages
into `log.sqlite3` later, off the reply path (see `store.background`).  One row is one group, so a
commit that touches no payload is one statement and writes one to a few pages.

Payloads are keyed by accept sequence: unique for ever, and new rows go to the right edge of the
tree.  Measured against a key of (pool, request id): 1.8 times the records a second at groups of 30
with 1 KiB payloads, 5 times at groups of 300.
"""

import sqlite3
from pathlib import Path

import msgspec

from scheduler_service.app.ports import (
    GENESIS,
    Durability,
    Position,
    StoreDamaged,
    StoreError,
    StoreFailed,
    StoreRefused,
)

APPLICATION_ID = 0x46534C47  # "FSLG"
FORMAT_VERSION = 1
"""Raised when an older version could no longer read the file; each version reads the one before."""

PAGE_BYTES = 4096
"""Small commits dominate; pages of 8 and 16 KiB measured no better at any group size."""

JOURNAL_SIZE_LIMIT_BYTES = 16 << 20
"""A write-ahead file that grew beyond this falls back to it when it is next reused."""

BUSY_TIMEOUT_MS = 5000
"""Nobody else writes; only a person with a database shell can make the service wait."""

_SYNCHRONOUS = {Durability.SYNC: "FULL", Durability.ASYNC: "NORMAL", Durability.NONE: "OFF"}

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS log (
    last_sequence INTEGER PRIMARY KEY,
    first_sequence INTEGER NOT NULL,
    chain_hash BLOB NOT NULL,
    now_ns INTEGER NOT NULL,
    log_bytes INTEGER NOT NULL,
    records BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS payload (
    request_sequence INTEGER PRIMARY KEY,
    payload BLOB NOT NULL,
    metadata BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT_VERSION};
COMMIT;
"""

_DAMAGE_CODES = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}


def translate(error: sqlite3.Error, file: str) -> StoreError:
    """Returns the store's error for one of the database's."""
    code = getattr(error, "sqlite_errorcode", None)
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    if code is not None and code & 0xFF in _DAMAGE_CODES:
        return StoreDamaged(file, 0, f"{error} ({name})")
    return StoreFailed(f"{file}: {error} ({name})")


def is_full(error: sqlite3.Error) -> bool:
    """Whether the database said that the disk is full."""
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF == sqlite3.SQLITE_FULL


def open_writer(path: Path, durability: Durability) -> sqlite3.Connection:
    """Opens the database for its one writer, and makes its tables if it is new.

    A crash while the tables are made leaves an empty database, which the next start completes.

    Raises:
        StoreRefused: It is no decision log, or a newer version has written it.
        StoreDamaged: It cannot be read.
        StoreFailed: It could not be opened or made.
    """
    try:
        connection = _connect(str(path))
        _refuse_strangers(connection, path.name)
        is_new = not _pragma(connection, "application_id")
        if is_new:
            # On a database that exists these would write before anything has looked at it.
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _configure(connection, durability)
        if is_new:
            connection.executescript(_SCHEMA)
    except sqlite3.Error as error:
        raise translate(error, path.name) from error
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """Opens the database for reading only; works beside the writer and without one.

    Raises:
        StoreRefused, StoreDamaged, StoreFailed: As `open_writer`.
    """
    try:
        connection = _connect(f"{path.as_uri()}?mode=ro", uri=True)
        _refuse_strangers(connection, path.name)
    except sqlite3.Error as error:
        raise translate(error, path.name) from error
    return connection


def _connect(path: str, *, uri: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path,
        uri=uri,
        isolation_level=None,
        check_same_thread=False,
        timeout=BUSY_TIMEOUT_MS / 1000,
        cached_statements=256,
    )
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _configure(connection: sqlite3.Connection, durability: Durability) -> None:
    for pragma in (
        "journal_mode = WAL",
        f"synchronous = {_SYNCHRONOUS[durability]}",
        "wal_autocheckpoint = 0",
        f"journal_size_limit = {JOURNAL_SIZE_LIMIT_BYTES}",
        "cache_size = -16384",
        "temp_store = MEMORY",
        "secure_delete = ON",
    ):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    mode = _pragma(connection, "journal_mode")
    if mode != "wal":
        raise StoreRefused(f"the file system does not allow a write-ahead log (mode is {mode})")


def _refuse_strangers(connection: sqlite3.Connection, name: str) -> None:
    application = integer_pragma(connection, "application_id")
    version = integer_pragma(connection, "user_version")
    if application not in {0, APPLICATION_ID}:
        raise StoreRefused(f"{name} is a database of another application ({application:#x})")
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not application and tables:
        raise StoreRefused(f"{name} is a database of another application")
    if version > FORMAT_VERSION:
        raise StoreRefused(f"{name} has format {version}; this version reads {FORMAT_VERSION}")


def _pragma(connection: sqlite3.Connection, name: str) -> object:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def integer_pragma(connection: sqlite3.Connection, name: str) -> int:
    """Returns the value of a pragma that is a number."""
    value = _pragma(connection, name)
    assert isinstance(value, int)
    return value


def load_base(connection: sqlite3.Connection) -> Position:
    """Returns the position the log begins after."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'base'").fetchone()
    return msgspec.msgpack.decode(row[0], type=Position) if row else GENESIS


def save_base(connection: sqlite3.Connection, base: Position) -> None:
    """Notes the position the log begins after, in the transaction under way."""
    connection.execute(
        "INSERT OR REPLACE INTO meta VALUES ('base', ?)", (msgspec.msgpack.encode(base),)
    )


def load_head(connection: sqlite3.Connection) -> Position:
    """Returns the position after the last group."""
    row = connection.execute(
        "SELECT last_sequence, chain_hash, now_ns, log_bytes FROM log"
        " ORDER BY last_sequence DESC LIMIT 1"
    ).fetchone()
    return Position(*row) if row else load_base(connection)
