"""What the log of a chaotic run has to say, checked record by record.

The oracle re-decides every record.  On top of it, and without it: every accepted request ends
exactly once, no request has two live leases, what `GetStats` said at a sequence is what the log
holds at that sequence, and time never goes back nor leaps while the service runs.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from scheduler_service.app import codec
from scheduler_service.app.ports import Durability
from scheduler_service.core import decisions as d
from scheduler_service.oracle import Oracle
from scheduler_service.store.directory import DataDirectory
from scheduler_service.store.sqlite import SqliteStore


class Sample(NamedTuple):
    """What the service said of its pool at a sequence."""

    sequence: int
    waiting: int
    leased: int
    redelivery: int
    dead: int


@dataclass
class Verdict:
    """What was found in the log.

    Attributes:
        longest_life_s: Longest time between two starts by the times of the records, seconds.
    """

    records: int = 0
    accepted: int = 0
    ended: int = 0
    samples: int = 0
    longest_life_s: float = 0.0
    kinds: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class _Book:
    """Requests by where they are, from the records alone."""

    def __init__(self) -> None:
        self.waiting: set[str] = set()
        self.leased: dict[str, str] = {}
        self.due_again: set[str] = set()
        self.dead: set[str] = set()
        self.alive: set[str] = set()
        self.ended = 0
        self.problems: list[str] = []

    def take(self, x: Any) -> None:
        """Follows one record."""
        match x:
            case d.Accepted():
                if x.request_id in self.alive:
                    self.problems.append(f"{x.request_id} was accepted twice")
                self.waiting.add(x.request_id)
                self.alive.add(x.request_id)
            case d.Dispatched():
                if x.request_id in self.leased:
                    self.problems.append(f"{x.request_id} has two live leases")
                self.waiting.discard(x.request_id)
                self.due_again.discard(x.request_id)
                self.leased[x.request_id] = x.lease_id
            case d.LeaseEnded():
                del self.leased[x.request_id]
                self.due_again.add(x.request_id)
            case d.Completed():
                del self.leased[x.request_id]
                self._end(x.request_id)
            case d.Ended():
                self.waiting.discard(x.request_id)
                self.due_again.discard(x.request_id)
                if x.state is d.RequestState.DEAD_LETTERED:
                    self.dead.add(x.request_id)
                self._end(x.request_id)
            case d.DeadLetterDropped():
                self.dead.discard(x.request_id)

    def _end(self, request_id: str) -> None:
        if request_id not in self.alive:
            self.problems.append(f"{request_id} ended twice")
        self.alive.discard(request_id)
        self.ended += 1

    def sample(self, sequence: int) -> Sample:
        """Returns what `GetStats` should say now."""
        return Sample(
            sequence, len(self.waiting), len(self.leased), len(self.due_again), len(self.dead)
        )


class _Times:
    """The times of the records: they never go back."""

    def __init__(self) -> None:
        self.longest_life_ns = 0
        self.problems: list[str] = []
        self._start_ns = self._last_ns = 0

    def take(self, sequence: int, x: Any) -> None:
        """Follows one record."""
        if x.now_ns < self._last_ns:
            self.problems.append(f"time goes back at {sequence}")
        if isinstance(x, d.LogOpened | d.Recovered) or not self._start_ns:
            self._start_ns = x.now_ns
        self._last_ns = x.now_ns
        self.longest_life_ns = max(self.longest_life_ns, x.now_ns - self._start_ns)


def check(directory: Path, samples: list[Sample]) -> Verdict:
    """Reads the whole log of a stopped service."""
    store = SqliteStore(
        DataDirectory(directory), durability=Durability.NONE, report=lambda *_, **__: None
    )
    verdict, book, times, oracle = Verdict(), _Book(), _Times(), Oracle()
    due = {sample.sequence: sample for sample in samples}
    try:
        sequence = 0
        for group in _groups(store):
            for record in codec.decode_frame(group.frame):
                sequence += 1
                kind = type(record).__name__
                verdict.kinds[kind] = verdict.kinds.get(kind, 0) + 1
                verdict.accepted += kind == "Accepted"
                verdict.problems += [str(x) for x in oracle.feed(sequence, record)]
                book.take(record)
                times.take(sequence, record)
                told = due.get(sequence)
                if told is not None:
                    verdict.samples += 1
                    if told != book.sample(sequence):
                        verdict.problems.append(f"said {told}, log has {book.sample(sequence)}")
    finally:
        store.close()
    verdict.records = sequence
    verdict.ended = book.ended
    verdict.longest_life_s = times.longest_life_ns / 1e9
    verdict.problems += book.problems + times.problems
    verdict.problems += [f"{name} never ended" for name in sorted(book.alive)]
    return verdict


def _groups(store: SqliteStore) -> Any:
    after = 0
    while page := store.read(after, max_bytes=1 << 22):
        yield from page
        after = page[-1].end.sequence
