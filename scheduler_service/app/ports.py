"""What the use cases need from the world, as small protocols.

The seam for storage is `Store`: an ordered log of groups of records, and the payloads of live
requests beside it.  An adapter may sit on an embedded database, on memory or on a replicated log;
it promises three things and nothing else:

1. *Atomic*: a group (its records, payloads put and payloads deleted) is kept whole or not at all.
2. *Ordered*: groups are kept in the order they were appended; what survives a crash is a prefix.
3. *Durable*: when `append` returns, the group survives what the durability mode says it does.

A store never changes a record and never looks inside one.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

GENESIS_HASH = bytes(32)
"""Chain hash before the first record."""


class Durability(enum.StrEnum):
    """What an acknowledged decision survives.

    SYNC: a power cut.  ASYNC: the end of the process, however sudden; a power cut loses at most
    about the last sync interval.  NONE: the end of the process; a power cut may lose anything.
    """

    SYNC = "sync"
    ASYNC = "async"
    NONE = "none"


class StoreError(Exception):
    """Base of what can go wrong with a store; none of it is a caller's fault.

    StoreError
    ├── StoreLocked    another process has the data directory
    ├── StoreDamaged   what is stored is not what was written
    ├── StoreRefused   a format or a setting this version must not touch
    └── StoreFailed    a read, write or sync failed: the process must end
    """


class StoreLocked(StoreError):
    """Another process has the data directory."""


class StoreRefused(StoreError):
    """The data was written by a newer version, or is not a decision log at all."""


class StoreFailed(StoreError):
    """A read, write or sync failed.  After it nothing may be acknowledged any more."""


class StoreDamaged(StoreError):
    """What is stored is not what was written.

    Attributes:
        file: Name of the damaged file.
        sequence: First sequence that cannot be trusted; 0 if it is not known.
        at_tail: Whether nothing follows the damage.
    """

    def __init__(self, file: str, sequence: int, detail: str, *, at_tail: bool = False) -> None:
        where = f"{file}, sequence {sequence}" if sequence else file
        super().__init__(f"{where}: {detail}")
        self.file = file
        self.sequence = sequence
        self.detail = detail
        self.at_tail = at_tail


class Position(NamedTuple):
    """A place in the log: the last record of what comes before it.

    Attributes:
        sequence: Sequence of that record, from 1; 0 at the very beginning.
        chain_hash: Chain hash after it, 32 bytes.
        now_ns: Time of its decision; 0 at the beginning.
        log_bytes: Bytes of all records up to it, since the log began, pruned ones included.
    """

    sequence: int
    chain_hash: bytes
    now_ns: int
    log_bytes: int


GENESIS = Position(0, GENESIS_HASH, 0, 0)


class Payload(NamedTuple):
    """What a request carries for its worker; opaque to everything but the edge."""

    payload: bytes
    metadata: bytes


@dataclass(slots=True)
class Group:
    """What one commit makes durable.

    Attributes:
        first_sequence: Sequence of the first record.
        end: Position after the last one; without records, the position before.
        records: Encoded decisions; may be empty, when payloads are only fetched or deleted.
        puts: (accept sequence, payload) of requests accepted in this group.
        deletes: Accept sequences of requests whose payload is no longer needed.
        fetches: Accept sequences of payloads to be handed back with the acknowledgement.  They are
            read before the deletes of the same group.
    """

    first_sequence: int
    end: Position
    records: list[bytes]
    puts: list[tuple[int, Payload]] = field(default_factory=list)
    deletes: list[int] = field(default_factory=list)
    fetches: list[int] = field(default_factory=list)


class StoredGroup(NamedTuple):
    """A group as it is read back; `frame` is taken apart by `app.codec`."""

    first_sequence: int
    end: Position
    frame: bytes


class Usage(NamedTuple):
    """Sizes in bytes, and counts since the store was opened; recent rather than exact.

    Attributes:
        log_bytes: Records kept.
        file_bytes: Size of all files of the store together.
        journal_bytes: Size of the write-ahead file alone.
        free_bytes: Free space of the file system; -1 if the store has no limit.
        checkpoint_count: Passes that moved the write-ahead file into the database.
        pruned_group_count: Groups dropped by the retention.
        full_count: How often upkeep had to wait because the disk was full.
    """

    log_bytes: int
    file_bytes: int
    journal_bytes: int
    free_bytes: int
    checkpoint_count: int = 0
    pruned_group_count: int = 0
    full_count: int = 0


class Store(Protocol):
    """The decision log and the payloads of live requests.

    `append`, `prune`, `cut_tail`, `restart_at`, `upkeep` and `close` are called by one thread at a
    time; the others by any thread at any time.
    """

    @property
    def name(self) -> str:
        """Name of the log, for messages: a file name where there is a file."""

    @property
    def durability(self) -> Durability:
        """What `append` promises."""

    def head(self) -> Position:
        """Returns the position after the last appended group."""

    def base(self) -> Position:
        """Returns the position the log begins after: GENESIS, or the last pruned record."""

    def append(self, group: Group) -> dict[int, Payload]:
        """Makes a group durable, and returns the payloads it fetches (absent ones left out).

        Raises:
            StoreFailed: Nothing of the group can be relied on, and nothing later may be appended.
        """

    def read(self, after_sequence: int, *, max_bytes: int) -> list[StoredGroup]:
        """Returns whole groups, in order, beginning with the one that holds `after_sequence` + 1.

        Stops behind `max_bytes` of records, but returns at least one group if there is one.  Holds
        nothing open when it returns: no reader stands in the way of pruning.

        Raises:
            Trimmed: `after_sequence` lies before `base`.
            StoreDamaged: The groups cannot be read.
        """

    def payloads(self, keys: Iterable[int]) -> dict[int, Payload]:
        """Returns the payloads of these accept sequences; absent ones are left out."""

    def payload_keys(self) -> Sequence[int]:
        """Returns the accept sequences of all payloads, sorted."""

    def cut_tail(self, last_sequence: int) -> Position:
        """Drops every group behind `last_sequence`, which ends a group; returns the new head."""

    def restart_at(self, position: Position) -> None:
        """Drops all groups and goes on behind `position`, which lies behind them all."""

    def prune(self, before_sequence: int, *, max_groups: int) -> int:
        """Drops up to `max_groups` of the oldest groups that end before `before_sequence`.

        Returns:
            How many groups were dropped.  The last group of the log always stays.
        """

    def upkeep(self, *, idle: bool) -> bool:
        """Does one short step of the store's own housekeeping, a few milliseconds at most.

        Args:
            idle: Whether nothing has been appended for a while, so that a step may take longer.

        Returns:
            Whether more is due now.

        Raises:
            StoreFailed: Something failed, here or in the background, that ends the store.
        """

    def usage(self) -> Usage:
        """Returns sizes without touching a disk."""

    def close(self) -> None:
        """Releases everything; what was appended stays."""


class Snapshot(NamedTuple):
    """A state, and the position in the log that it is the fold of.

    Attributes:
        position: Where the fold stopped.
        state_digest: Digest of the state, as the core defines it.
        body: The state, as the core dumped it.
        file: Name of the file it was read from, for messages.
    """

    position: Position
    state_digest: str
    body: bytes
    file: str = ""


class SnapshotSource(Protocol):
    """Where recovery finds snapshots."""

    def load_newest_first(self) -> Iterable[Snapshot | StoreDamaged]:
        """Yields every snapshot there is, newest first; a damaged one as the error it is."""


class Reporter(Protocol):
    """Receives rare events: noun.verb_past and values as keys (style: log events)."""

    def __call__(self, event: str, /, **values: object) -> None:
        """Takes an event; must not block and must not raise."""


class Clock(Protocol):
    """The engine's time."""

    def now_ns(self) -> int:
        """Returns the time in nanoseconds; it never goes back."""


PayloadMap = Mapping[int, Payload]
