"""Long tables, page by page, without holding up the loop.

A table is sorted once, in runs of a few thousand entries with a pause between them, and the sorted
runs are kept for a few seconds: the pages that follow find their place by bisection.  What changes
meanwhile is seen by the next sort; an entry that has gone is left out by the caller.

Complexity:
    O(n log n) for the first page in steps of about a millisecond; O(page + runs) for the others.
"""

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Generic, TypeVar

from scheduler_service.app import clock

RUN = 4000
"""Entries sorted at once."""

KEPT_NS = 5_000_000_000
"""How long a sorted table is used again."""

KEPT_TABLES = 4
"""Sorted tables kept at once."""

_Row = TypeVar("_Row")
_Key = TypeVar("_Key", str, tuple[int, str])


class Sorted(Generic[_Key]):
    """The keys of one table at one moment, in sorted runs."""

    def __init__(self, made_ns: int) -> None:
        self.made_ns = made_ns
        self._runs: list[list[_Key]] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    async def add(self, rows: Sequence[_Row], key: Callable[[_Row], _Key]) -> None:
        """Sorts the keys of rows in."""
        for start in range(0, len(rows), RUN):
            self._runs.append(sorted(map(key, rows[start : start + RUN])))
            await asyncio.sleep(0)

    def behind(self, key: _Key) -> Iterator[_Key]:
        """Yields the keys behind `key`, in order."""
        tails: list[Iterable[_Key]] = [
            islice(run, bisect_right(run, key), None) for run in self._runs
        ]
        return merge(*tails)


class Listings(Generic[_Key]):
    """Keeps the sorted keys of recently listed tables."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, ...], Sorted[_Key]] = OrderedDict()

    async def of(
        self,
        name: tuple[str, ...],
        rows: Callable[[], Sequence[_Row]],
        key: Callable[[_Row], _Key],
        *,
        fresh: bool,
    ) -> Sorted[_Key]:
        """Returns the sorted keys of a table.

        Args:
            name: Names the table.
            rows: Gives all rows it has now.
            key: Gives the key of a row.
            fresh: Whether they must be those of now: for a first page.
        """
        now_ns = clock.monotonic_ns()
        kept = self._kept.get(name)
        if kept is not None and not fresh and now_ns - kept.made_ns < KEPT_NS:
            return kept
        made: Sorted[_Key] = Sorted(now_ns)
        await made.add(rows(), key)
        self._kept[name] = made
        self._kept.move_to_end(name)
        while len(self._kept) > KEPT_TABLES:
            self._kept.popitem(last=False)
        return made
