"""Verifies a decision log: that it is what was written, and that it is what the rules decide.

    1. the hash chain holds from the first record, or from where the log was pruned;
    2. every record is re-decided by the oracle, which shares no code with the scheduler;
    3. snapshots are the fold of the records before them, digest for digest;
    4. published heads are in it, hash for hash: nothing was cut off, nothing written anew.

A chain alone shows a changed, missing or moved record; a cut tail and a rewritten log show only
against a head that somebody else kept (a log line, a metric, a watch).

Behind a prune the records before are gone: verification begins at the oldest snapshot, whose state
it has to believe, and says so.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from scheduler_service.app import chain, codec
from scheduler_service.app.ports import (
    GENESIS,
    Position,
    Snapshot,
    StoreDamaged,
    StoredGroup,
    StoreError,
)
from scheduler_service.app.recovery import LogSource
from scheduler_service.audit.seed import oracle_at
from scheduler_service.core import snapshot as core_snapshot
from scheduler_service.core.decisions import Decision
from scheduler_service.core.evolve import evolve
from scheduler_service.core.state import State
from scheduler_service.oracle import Difference, Oracle

PAGE_BYTES = 4 << 20
DIFFERENCES_MAX = 20
"""Differences that are kept; the first one matters, the others may follow from it."""

Progress = Callable[[int, int], None]
"""Called now and then with (sequence reached, last sequence)."""


@dataclass(frozen=True, slots=True)
class Published:
    """A head that was published: the hash of the record with this sequence."""

    sequence: int
    chain_hash: bytes


@dataclass(slots=True)
class Verdict:
    """What verification found.

    Attributes:
        begins_at: First sequence that was verified.
        ends_at: Last sequence that was verified.
        chain_hash: Chain hash there.
        believed: Sequence of the snapshot whose state had to be believed; 0 for none.
        redecided: Records that were re-decided.
        snapshots: Snapshots that are the fold of the records before them.
        heads: Published heads that are in the log.
        damage: Where the log is not what was written; empty if it is.
        differences: Records that the rules do not decide so, the first ones.
        problems: Everything else that is wrong, in sentences.
    """

    begins_at: int = 1
    ends_at: int = 0
    chain_hash: bytes = b""
    believed: int = 0
    redecided: int = 0
    snapshots: int = 0
    heads: int = 0
    damage: str = ""
    differences: list[Difference] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.damage or self.differences or self.problems)


class Verifier:
    """Verifies one log.

    Args:
        log: The log, read only.
        snapshots: Snapshots of it, in any order; damaged ones as errors.
        heads: Published heads.
        redecide: Whether every record is re-decided.
        progress: Called now and then.
    """

    def __init__(
        self,
        log: LogSource,
        *,
        snapshots: Iterable[Snapshot | StoreDamaged] = (),
        heads: Sequence[Published] = (),
        redecide: bool = True,
        progress: Progress | None = None,
    ) -> None:
        self._log = log
        self._heads = {head.sequence: head.chain_hash for head in heads}
        self._redecide = redecide
        self._progress = progress
        self._verdict = Verdict()
        self._snapshots: dict[int, Snapshot] = {}
        for found in snapshots:
            if isinstance(found, StoreDamaged):
                self._verdict.problems.append(f"A snapshot is damaged: {found}.")
            else:
                self._snapshots[found.position.sequence] = found
        self._state: State | None = None
        self._oracle: Oracle | None = None

    def run(self) -> Verdict:
        """Verifies everything and returns what was found."""
        verdict, head = self._verdict, self._log.head()
        position = self._begin()
        verdict.begins_at = position.sequence + 1
        try:
            while page := self._log.read(position.sequence, max_bytes=PAGE_BYTES):
                for group in page:
                    chain.verify(position, group, file=self._log.name)
                    self._group(group, position)
                    position = group.end
                if self._progress is not None:
                    self._progress(position.sequence, head.sequence)
        except (StoreError, codec.FrameError) as damage:
            verdict.damage = str(damage)
        verdict.ends_at, verdict.chain_hash = position.sequence, position.chain_hash
        if not verdict.damage:
            self._finish(position)
        return verdict

    # -- where to begin -----------------------------------------------------------------------

    def _begin(self) -> Position:
        """Returns where verification begins, and prepares state and oracle for it."""
        base = self._log.base()
        self._check_head(base.sequence, base.chain_hash)
        if base.sequence == 0:
            self._state, self._oracle = State(), Oracle() if self._redecide else None
            return GENESIS
        usable = [
            known
            for sequence, known in sorted(self._snapshots.items())
            if sequence >= base.sequence and self._is_of_this_log(known)
        ]
        if not usable:
            self._verdict.problems.append(
                f"The log was pruned up to sequence {base.sequence} and no snapshot reaches back "
                "so far: its hash chain is verified, its decisions are not."
            )
            return base
        first = usable[0]
        self._verdict.believed = first.position.sequence
        self._state = core_snapshot.restore(first.body)
        self._oracle = oracle_at(self._state) if self._redecide else None
        self._chain_up_to(base, first.position.sequence)
        return first.position

    def _is_of_this_log(self, known: Snapshot) -> bool:
        """Whether the log has the snapshot's position, hash included."""
        sequence, chain_hash = known.position.sequence, known.position.chain_hash
        base = self._log.base()
        if sequence == base.sequence:
            found = base.chain_hash
        elif sequence > self._log.head().sequence:
            found = b""
        else:
            page = self._log.read(sequence - 1, max_bytes=1)
            found = page[0].end.chain_hash if page[0].end.sequence == sequence else b""
        if found != chain_hash:
            self._verdict.problems.append(f"The snapshot at {sequence} is not one of this log.")
        return found == chain_hash

    def _chain_up_to(self, position: Position, last_sequence: int) -> None:
        """Verifies the chain alone, between the base and the snapshot that is begun with."""
        while position.sequence < last_sequence:
            for group in self._log.read(position.sequence, max_bytes=PAGE_BYTES):
                if group.first_sequence > last_sequence:
                    return
                chain.verify(position, group, file=self._log.name)
                self._check_heads_in(group, position)
                position = group.end

    # -- one group ----------------------------------------------------------------------------

    def _group(self, group: StoredGroup, before: Position) -> None:
        self._check_heads_in(group, before)
        if self._state is None:
            return
        for sequence, decision in enumerate(codec.decode_frame(group.frame), group.first_sequence):
            self._decision(sequence, decision)
        self._check_snapshot(group.end)

    def _decision(self, sequence: int, decision: Decision) -> None:
        verdict = self._verdict
        if self._oracle is not None:
            found = self._oracle.feed(sequence, decision)
            verdict.redecided += 1
            verdict.differences += found[: DIFFERENCES_MAX - len(verdict.differences)]
        if self._state is not None:
            try:
                evolve(self._state, decision)
            except Exception as error:  # noqa: BLE001 - forged records raise anything: a finding
                verdict.problems.append(f"Record {sequence} cannot be folded: {error!r}.")
                self._state = None

    def _check_snapshot(self, end: Position) -> None:
        """Compares a snapshot of this position with the fold of the records before it."""
        known = self._snapshots.get(end.sequence)
        if known is None or self._state is None:
            return
        if known.position.chain_hash != end.chain_hash:
            problem = f"The snapshot at {end.sequence} is not one of this log."
            self._verdict.problems.append(problem)
        elif core_snapshot.digest(self._state) != known.state_digest:
            problem = f"The snapshot at {end.sequence} is not the fold of the records before it."
            self._verdict.problems.append(problem)
        else:
            self._verdict.snapshots += 1

    def _check_heads_in(self, group: StoredGroup, before: Position) -> None:
        """Compares the published heads that fall into a group."""
        wanted = [s for s in self._heads if before.sequence < s <= group.end.sequence]
        if not wanted:
            return
        chain_hash = before.chain_hash
        for sequence, record in enumerate(codec.split_frame(group.frame), group.first_sequence):
            chain_hash = chain.extend(chain_hash, [record])
            if sequence in wanted:
                self._check_head(sequence, chain_hash)

    def _check_head(self, sequence: int, chain_hash: bytes) -> None:
        published = self._heads.pop(sequence, None)
        if published is None:
            return
        if published == chain_hash:
            self._verdict.heads += 1
        else:
            self._verdict.problems.append(
                f"The hash published for sequence {sequence} is another one: the log was written "
                "anew."
            )

    def _finish(self, end: Position) -> None:
        """Looks at what is left over at the end."""
        verdict = self._verdict
        if self._oracle is not None:
            verdict.differences += self._oracle.finish()[
                : DIFFERENCES_MAX - len(verdict.differences)
            ]
        for sequence in sorted(self._heads):
            if sequence > end.sequence:
                verdict.problems.append(
                    f"A head was published for sequence {sequence}, and the log ends at "
                    f"{end.sequence}: its end was cut off."
                )
            else:
                verdict.problems.append(
                    f"The head published for sequence {sequence} lies before the log's first "
                    "record and cannot be compared."
                )
