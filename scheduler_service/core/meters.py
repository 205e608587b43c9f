"""The `(S, tie, user_id)` index: a `SortedList`, and what a selection asks of it.

A dispatch looks at the first two entries, at those that the window has come to, and moves one;
users come and go.  Through the list's own methods that takes many calls of interpreted code, the
largest part of a decision.  The functions here do the same to what it is made of: `_lists`, parts
of some hundred to two thousand entries one after the other, and `_maxes`, the last entry of each.
What changes how it is parted they leave to its methods.
"""

# ruff: noqa: SLF001 - the layout is the library's, unchanged for years; a test compares the outcome

from typing import Any, Final

from sortedcontainers import SortedList

from scheduler_service.core.search import Key, place_of_key

_LOAD: Final = SortedList.DEFAULT_LOAD_FACTOR
"""A list of less than half as many entries is joined with another, one of twice as many split."""


def parts_of(index: "SortedList[Key]") -> list[list[Key]]:
    """Returns the list of its parts: the same one, kept up to date, as long as the index lives."""
    layout: Any = index
    parts: list[list[Key]] = layout._lists
    return parts


def lowest(parts: list[list[Key]]) -> Key:
    """Returns the smallest entry; there must be one.

    Complexity:
        O(1).
    """
    return parts[0][0]


def next_lowest(parts: list[list[Key]]) -> Key:
    """Returns the entry after the smallest; there must be two.

    Complexity:
        O(1).
    """
    part = parts[0]
    return part[1] if len(part) > 1 else parts[1][0]


def users_between(index: "SortedList[Key]", low: int, high: int) -> tuple[list[str], int]:
    """Returns the users with `low <= S <= high`, in order, and the next S after them; else -1.

    Complexity:
        O(log n) and O(1) a user.
    """
    layout: Any = index
    parts: list[list[Key]] = layout._lists
    maxes: list[Key] = layout._maxes
    first: Key = (low, -1, "")
    found: list[str] = []
    number = place_of_key(maxes, first)
    at = place_of_key(parts[number], first) if number < len(parts) else 0
    while number < len(parts):
        part = parts[number]
        while at < len(part):
            key = part[at]
            meter: int = key[0]
            if meter > high:
                return found, meter
            found.append(key[2])
            at += 1
        number, at = number + 1, 0
    return found, -1


def add(index: "SortedList[Key]", key: Key) -> None:
    """Adds an entry.

    Complexity:
        As `move`.
    """
    layout: Any = index
    parts: list[list[Key]] = layout._lists
    maxes: list[Key] = layout._maxes
    number = min(place_of_key(maxes, key), len(maxes) - 1)
    if number < 0 or len(parts[number]) >= _LOAD * 2:
        index.add(key)
        return
    part = parts[number]
    part.insert(place_of_key(part, key), key)
    _resized(layout, number, part, 1)


def remove(index: "SortedList[Key]", key: Key) -> None:
    """Removes an entry: the very one that was added.

    Complexity:
        As `move`.
    """
    layout: Any = index
    parts: list[list[Key]] = layout._lists
    number = place_of_key(layout._maxes, key)
    part = parts[number]
    at = 0 if part[0] is key else place_of_key(part, key)
    assert part[at] is key, "the index lacks an entry"
    if len(part) == 1 or (len(part) <= _LOAD // 2 + 1 and len(parts) > 1):
        index.remove(key)
        return
    del part[at]
    _resized(layout, number, part, -1)


def _resized(layout: Any, number: int, part: list[Key], by: int) -> None:
    """Notes that part `number` has so many entries more."""
    maxes: list[Key] = layout._maxes
    maxes[number] = part[-1]
    layout._len += by
    positions: list[int] = layout._index
    positions.clear()


def move(index: "SortedList[Key]", old: Key, new: Key) -> None:
    """Puts `new` in the place of `old`, the very one that was added.

    Complexity:
        O(log n), and moving up to some thousand pointers.
    """
    layout: Any = index
    parts: list[list[Key]] = layout._lists
    maxes: list[Key] = layout._maxes
    last = len(parts) - 1
    source = place_of_key(maxes, old) if last else 0
    target = min(place_of_key(maxes, new), last) if last else 0
    part = parts[source]
    at = 0 if part[0] is old else place_of_key(part, old)
    assert part[at] is old, "the index lacks an entry"
    if source == target:
        del part[at]
        part.insert(place_of_key(part, new), new)
        maxes[source] = part[-1]
        return
    other = parts[target]
    if len(part) <= _LOAD // 2 + 1 or len(other) >= _LOAD * 2:
        index.remove(old)
        index.add(new)
        return
    del part[at]
    other.insert(place_of_key(other, new), new)
    maxes[source], maxes[target] = part[-1], other[-1]
    positions: list[int] = layout._index
    positions.clear()
