"""From a snapshot and the log behind it back to the state.

1. The newest snapshot that is whole and can be restored is the beginning; without one, the empty
   state is, if the log still begins at its first record.
2. Every later record is checked against the hash chain and folded in, group by group.
3. A damaged last group is cut off, with one event that names file and sequence: nothing follows it,
   and the state before it is whole.  Damage with anything behind it is not repaired.
4. If the log ends before the snapshot does, its end was lost (a copy without its write-ahead file,
   say).  The snapshot holds everything that was acknowledged up to it, so recovery goes on from
   the snapshot; the store then drops the older records, which the new ones do not follow.

A crash during recovery leaves nothing behind: only steps 3 and 4 write, each in one transaction
that a repetition finds done.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from scheduler_service.app import chain, codec
from scheduler_service.app.ports import (
    GENESIS,
    Position,
    Reporter,
    Snapshot,
    SnapshotSource,
    StoreDamaged,
    StoredGroup,
)
from scheduler_service.core import snapshot as core_snapshot
from scheduler_service.core.evolve import evolve
from scheduler_service.core.state import State

PAGE_BYTES = 8 << 20

Progress = Callable[[int, int], None]
"""Called now and then with (sequence reached, sequence of the head)."""


class LogSource(Protocol):
    """The part of a store that recovery reads."""

    @property
    def name(self) -> str:
        """See `Store`."""

    def head(self) -> Position:
        """See `Store`."""

    def base(self) -> Position:
        """See `Store`."""

    def read(self, after_sequence: int, *, max_bytes: int) -> list[StoredGroup]:
        """See `Store`."""


class RepairableLog(LogSource, Protocol):
    """A log that recovery may repair."""

    def cut_tail(self, last_sequence: int) -> Position:
        """See `Store`."""

    def restart_at(self, position: Position) -> None:
        """Drops all records and goes on behind `position`, which lies behind them all."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What recovery found.

    Attributes:
        state: The fold of the log.
        position: Where the log goes on.
        from_snapshot: Sequence of the snapshot it began with; 0 without one.
        replayed: Records folded in behind it.
        cut_from: First sequence that was cut off at the end; 0 if nothing was.
    """

    state: State
    position: Position
    from_snapshot: int
    replayed: int
    cut_from: int


def recover(
    log: RepairableLog,
    snapshots: SnapshotSource,
    *,
    report: Reporter,
    progress: Progress | None = None,
) -> Recovery:
    """Returns the state the log and its snapshots hold, and makes the log ready to go on.

    Raises:
        StoreDamaged: The log is damaged where it cannot be cut, or begins behind every snapshot.
    """
    with collector_paused():
        state, start = begin(log, snapshots, report=report)
        if start.sequence > log.head().sequence:
            report("log.ended_early", head=log.head().sequence, snapshot=start.sequence)
            log.restart_at(start)
        try:
            end = fold(state, log, start, progress=progress)
            cut_from = 0
        except StoreDamaged as damage:
            if not damage.at_tail:
                raise
            cut_from = damage.sequence
            end = log.cut_tail(cut_from - 1)
            report("log.tail_cut", file=damage.file, sequence=damage.sequence, detail=damage.detail)
    assert state.sequence == end.sequence == log.head().sequence
    replayed = end.sequence - start.sequence
    return Recovery(state, end, start.sequence, replayed, cut_from)


def begin(log: LogSource, snapshots: SnapshotSource, *, report: Reporter) -> tuple[State, Position]:
    """Returns the state of the newest usable snapshot and its position, or the empty state.

    Raises:
        StoreDamaged: There is none, and the log does not go back to its first record.
    """
    base = log.base()
    for found in snapshots.load_newest_first():
        if isinstance(found, StoreDamaged):
            report("snapshot.damaged", file=found.file, detail=found.detail)
            continue
        if found.position.sequence < base.sequence:
            break
        if not _belongs(found.position, log):
            report("snapshot.refused", file=found.file, detail="it is not one of this log")
            continue
        state = _restore(found, report)
        if state is not None:
            return state, found.position
    if base.sequence:
        raise StoreDamaged(
            log.name,
            base.sequence,
            f"the log was pruned up to sequence {base.sequence} and no usable snapshot reaches it; "
            "restore a backup of the data directory",
        )
    return State(), GENESIS


def _belongs(position: Position, log: LogSource) -> bool:
    """Whether the log has this position, as far as it reaches."""
    if position.sequence > log.head().sequence:
        return True
    if position.sequence == log.base().sequence:
        return position.chain_hash == log.base().chain_hash
    return log.read(position.sequence - 1, max_bytes=1)[0].end[:2] == position[:2]


def _restore(found: Snapshot, report: Reporter) -> State | None:
    """Returns the state of a snapshot, or nothing if this version cannot restore it."""
    try:
        state = core_snapshot.restore(found.body)
    except Exception as error:  # noqa: BLE001 - damaged bytes raise anything; then an older one is tried
        report("snapshot.refused", file=found.file, detail=repr(error))
        return None
    if state.sequence != found.position.sequence:
        report("snapshot.refused", file=found.file, detail=f"state is at {state.sequence}")
        return None
    return state


def fold(
    state: State,
    log: LogSource,
    start: Position,
    *,
    progress: Progress | None = None,
    until_sequence: int | None = None,
) -> Position:
    """Folds the records behind `start` into `state`, checking the chain on the way.

    Args:
        state: The fold of everything up to `start`; changed in place.
        log: Where the records are.
        start: A position of the log.
        progress: Told after each page.
        until_sequence: Stops behind the group that holds it; the end of the log without it.

    Returns:
        The position reached; on damage `state` is the fold of everything before it.

    Raises:
        StoreDamaged: A group is not what was written, `at_tail` if it is the last.
    """
    position = start
    head = log.head().sequence
    while page := log.read(position.sequence, max_bytes=PAGE_BYTES):
        for group in page:
            if until_sequence is not None and position.sequence >= until_sequence:
                return position
            position = _fold_group(state, position, group, log, head)
        if progress is not None:
            progress(position.sequence, head)
    return position


def _fold_group(
    state: State, before: Position, group: StoredGroup, log: LogSource, head: int
) -> Position:
    try:
        chain.verify(before, group, file=log.name)
    except StoreDamaged as damage:
        damage.at_tail = group.end.sequence >= head
        raise
    try:
        decisions = codec.decode_frame(group.frame)
    except codec.FrameError as error:
        # The chain holds, so this is what was written: by another version, not by a fault.
        raise StoreDamaged(log.name, group.first_sequence, f"cannot be decoded: {error}") from error
    for decision in decisions:
        evolve(state, decision)
    return group.end


class PayloadCheck(NamedTuple):
    """How the payloads kept agree with the state.

    Attributes:
        orphans: Accept sequences of payloads whose request has ended; to be deleted.
        missing: (pool, request id) of requests that wait or run without the payload they had.
    """

    orphans: list[int]
    missing: list[tuple[str, str]]


def check_payloads(state: State, keys: Sequence[int]) -> PayloadCheck:
    """Compares the payloads kept with the requests alive.

    They are written in one transaction, so both lists are empty unless a damaged tail was cut.
    """
    kept = set(keys)
    live: set[int] = set()
    missing: list[tuple[str, str]] = []
    for name, pool in state.pools.items():
        for request in pool.requests.values():
            live.add(request.sequence)
            if request.payload_bytes and request.sequence not in kept:
                missing.append((name, request.request_id))
        live.update(request.sequence for request in pool.dead.values())
    return PayloadCheck(sorted(kept - live), missing)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keeps the garbage collector from walking a state that only grows."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
