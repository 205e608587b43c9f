"""A store in memory: for the simulator, tests and benchmarks.  What it keeps ends with it."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from scheduler_service.app import codec
from scheduler_service.app.ports import (
    GENESIS,
    Durability,
    Group,
    Payload,
    Position,
    StoredGroup,
    Usage,
)
from scheduler_service.core.errors import Trimmed


def trimmed(after_sequence: int, base: Position) -> Trimmed:
    """Returns the error for a reader that asks for pruned records."""
    return Trimmed(
        "SEQUENCE_TRIMMED",
        f"The log was pruned up to sequence {base.sequence}; asked for what follows "
        f"{after_sequence}.",
        firstSequence=base.sequence + 1,
        afterSequence=after_sequence,
    )


class MemoryStore:
    """Keeps groups in a list, as they would be kept on disk.

    Complexity:
        O(1) an append; O(log n) to find a sequence.
    """

    def __init__(self) -> None:
        self._groups: list[StoredGroup] = []
        self._ends: list[int] = []
        self._base = GENESIS
        self._payloads: dict[int, Payload] = {}

    @property
    def name(self) -> str:
        """There is no file."""
        return "memory"

    @property
    def durability(self) -> Durability:
        """Nothing is promised."""
        return Durability.NONE

    def head(self) -> Position:
        """Returns the position after the last group."""
        return self._groups[-1].end if self._groups else self._base

    def base(self) -> Position:
        """Returns the position the log begins after."""
        return self._base

    def append(self, group: Group) -> dict[int, Payload]:
        """Keeps a group and returns the payloads it fetches."""
        if group.records:
            assert group.first_sequence == self.head().sequence + 1
            frame = codec.join_frame(group.records)
            self._groups.append(StoredGroup(group.first_sequence, group.end, frame))
            self._ends.append(group.end.sequence)
        self._payloads.update(group.puts)
        fetched = self.payloads(group.fetches)
        for key in group.deletes:
            self._payloads.pop(key, None)
        return fetched

    def read(self, after_sequence: int, *, max_bytes: int) -> list[StoredGroup]:
        """Returns whole groups from the one that holds `after_sequence` + 1."""
        if after_sequence < self._base.sequence:
            raise trimmed(after_sequence, self._base)
        page: list[StoredGroup] = []
        size = 0
        for group in self._groups[bisect_right(self._ends, after_sequence) :]:
            page.append(group)
            size += len(group.frame)
            if size >= max_bytes:
                break
        return page

    def payloads(self, keys: Iterable[int]) -> dict[int, Payload]:
        """Returns the payloads of these accept sequences."""
        return {key: self._payloads[key] for key in keys if key in self._payloads}

    def payload_keys(self) -> list[int]:
        """Returns the accept sequences of all payloads, sorted."""
        return sorted(self._payloads)

    def cut_tail(self, last_sequence: int) -> Position:
        """Drops every group behind `last_sequence`."""
        keep = bisect_right(self._ends, last_sequence)
        del self._groups[keep:], self._ends[keep:]
        assert self.head().sequence == last_sequence
        return self.head()

    def restart_at(self, position: Position) -> None:
        """Drops all groups and goes on behind `position`."""
        assert position.sequence > self.head().sequence
        self._base = position
        self._groups, self._ends = [], []

    def prune(self, before_sequence: int, *, max_groups: int) -> int:
        """Drops up to `max_groups` groups that end before `before_sequence`, never the last."""
        count = min(bisect_left(self._ends, before_sequence), max_groups, len(self._groups) - 1)
        if count <= 0:
            return 0
        self._base = self._groups[count - 1].end
        del self._groups[:count], self._ends[:count]
        return count

    def upkeep(self, *, idle: bool) -> bool:  # noqa: ARG002 - `Store` asks for it
        """Has nothing to do."""
        return False

    def usage(self) -> Usage:
        """Returns the bytes of the records kept; there are no files."""
        return Usage(self.head().log_bytes - self._base.log_bytes, 0, 0, -1)

    def close(self) -> None:
        """Has nothing to release."""
