"""A store that fails or crashes at a chosen operation."""

import random
from collections.abc import Iterable, Sequence

from scheduler_service.app.memory import MemoryStore
from scheduler_service.app.ports import (
    Durability,
    Group,
    Payload,
    Position,
    StoredGroup,
    StoreFailed,
    Usage,
)


class CrashError(Exception):
    """The process is gone; only what the inner store holds is left."""


class FaultyStore:
    """Passes everything on to `inner`, but fails at operation `fail_at`, counted from 1.

    A failure is an error the caller sees.  A crash keeps the group it hits, or loses it, by chance;
    an error may do the same: a sync that fails says nothing about what reached the disk.

    Args:
        inner: What survives.
        fail_at: The operation to fail at; 0 never fails.
        for_ever: Whether every later operation fails too.
        crash: Whether to raise `CrashError` rather than `StoreFailed`.
    """

    name = "faulty"
    durability = Durability.SYNC

    def __init__(
        self,
        inner: MemoryStore,
        rng: random.Random,
        *,
        fail_at: int = 0,
        for_ever: bool = False,
        crash: bool = False,
    ) -> None:
        self.inner = inner
        self.operations = 0
        self.failures = 0
        self._rng = rng
        self._fail_at = fail_at
        self._for_ever = for_ever
        self._error = CrashError if crash else StoreFailed

    def _fails(self) -> bool:
        self.operations += 1
        if self._fail_at == 0:
            return False
        failed = (
            self.operations >= self._fail_at if self._for_ever else self.operations == self._fail_at
        )
        self.failures += failed
        return failed

    def _pass(self) -> None:
        if self._fails():
            raise self._error(f"operation {self.operations}")

    def append(self, group: Group) -> dict[int, Payload]:
        if self._fails():
            if self._rng.random() < 0.5:
                self.inner.append(group)
            raise self._error(f"append, operation {self.operations}")
        return self.inner.append(group)

    def head(self) -> Position:
        return self.inner.head()

    def base(self) -> Position:
        return self.inner.base()

    def read(self, after_sequence: int, *, max_bytes: int) -> list[StoredGroup]:
        self._pass()
        return self.inner.read(after_sequence, max_bytes=max_bytes)

    def payloads(self, keys: Iterable[int]) -> dict[int, Payload]:
        self._pass()
        return self.inner.payloads(keys)

    def payload_keys(self) -> Sequence[int]:
        self._pass()
        return self.inner.payload_keys()

    def cut_tail(self, last_sequence: int) -> Position:
        self._pass()
        return self.inner.cut_tail(last_sequence)

    def restart_at(self, position: Position) -> None:
        self._pass()
        self.inner.restart_at(position)

    def prune(self, before_sequence: int, *, max_groups: int) -> int:
        self._pass()
        return self.inner.prune(before_sequence, max_groups=max_groups)

    def upkeep(self, *, idle: bool) -> bool:
        return self.inner.upkeep(idle=idle)

    def usage(self) -> Usage:
        return self.inner.usage()

    def close(self) -> None:
        self.inner.close()
