"""Searches in sorted lists: what `bisect.bisect_left` does.

Compiled, they compare numbers where `bisect` compares objects, which takes five times as long.
"""

from typing import Any

Key = tuple[Any, ...]
"""`(meter, tie, user id)`.  Typed loosely: compiled, it stays the one tuple that was made, and is
not taken apart and made anew wherever it is handed on."""


def place(ordered: list[int], value: int) -> int:
    """Returns the place of the first number that is not below `value`."""
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) >> 1
        if ordered[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


def place_of_pair(numbers: list[int], texts: list[str], number: int, text: str) -> int:
    """Returns the place of the first pair that is not below `(number, text)`.

    Args:
        numbers: First parts of the pairs.
        texts: Second parts, in a list of their own: a look at a number is a look at one object.
        number: First part of what to look for.
        text: Second part of it.
    """
    low = place(numbers, number)
    if not text:
        return low
    high = place(numbers, number + 1)
    while low < high:
        middle = (low + high) >> 1
        if texts[middle] < text:
            low = middle + 1
        else:
            high = middle
    return low


def place_of_key(ordered: list[Key], entry: Key) -> int:
    """Returns the place of the first key that is not below `entry`.

    Args:
        ordered: Keys.
        entry: What to look for.
    """
    number: int = entry[0]
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) >> 1
        other = ordered[middle]
        reached: int = other[0]
        if reached < number or (reached == number and other < entry):
            low = middle + 1
        else:
            high = middle
    return low
