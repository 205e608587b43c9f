"""Clearing heaps of entries that have become void, a few at a time.

An entry that comes to the top is looked at there.  One that became void deeper down stays where it
is, and many would make the heap grow.  Making it anew would stop everybody while it lasts, so a few
entries are looked at with each change, round and round.
"""

from collections.abc import Callable
from typing import Any, Final

LOOKS: Final = 2
"""Entries looked at: where more than half is void, more goes than one change makes void."""


def sweep(heap: list[Any], place: int, is_void: Callable[[Any], bool]) -> int:
    """Looks at a few entries and removes those that are void.

    Args:
        heap: In the order of `heapq`.
        place: Where the last sweep of this heap ended; 0 at first.
        is_void: Says it of one entry.

    Returns:
        Where the next one begins.

    Complexity:
        O(log n) for each one removed.
    """
    for _ in range(LOOKS):
        if place >= len(heap):
            place = 0
        if not heap:
            break
        if is_void(heap[place]):
            remove_at(heap, place)
        else:
            place += 1
    return place


def remove_at(heap: list[Any], place: int) -> None:
    """Removes the entry at `place`; the rest stays a heap."""
    entry = heap.pop()
    size = len(heap)
    if place == size:
        return
    while place > 0 and entry < heap[(place - 1) >> 1]:
        heap[place] = heap[(place - 1) >> 1]
        place = (place - 1) >> 1
    while True:
        child = 2 * place + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if child >= size or not heap[child] < entry:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = entry
