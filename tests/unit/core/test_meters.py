"""The index of meters against a sorted list of Python, whatever it is parted into."""

import random

import pytest
from sortedcontainers import SortedList

from scheduler_service.core.meters import (
    add,
    lowest,
    move,
    next_lowest,
    parts_of,
    remove,
    users_between,
)


@pytest.mark.parametrize("users", [2, 5, 700, 2100, 9000])
@pytest.mark.parametrize("reach", [1, 50, 100_000])
def test_moves_keep_the_order(users, reach):
    """Moved near or far, rising or falling, entries stand as if they were sorted anew."""
    rng = random.Random(users * reach)
    keys = {f"u{n}": (rng.randrange(reach), rng.randrange(3), f"u{n}") for n in range(users)}
    index = SortedList(keys.values())
    for _ in range(4000):
        user_id = lowest(parts_of(index))[2] if rng.random() < 0.5 else f"u{rng.randrange(users)}"
        old = keys[user_id]
        new = (max(old[0] + rng.randint(-reach, 2 * reach), 0), rng.randrange(3), user_id)
        move(index, old, new)
        keys[user_id] = new
    index._check()
    expected = sorted(keys.values())
    assert list(index) == expected
    assert (lowest(parts_of(index)), next_lowest(parts_of(index))) == (expected[0], expected[1])
    assert [index[n] for n in range(0, users, 97)] == expected[::97]


def test_parts_that_a_move_would_empty_or_overfill_are_parted_anew():
    """All entries move past the others, from one part into one, and back."""
    here = [(n, 0, "") for n in range(5000)]
    there = [(n + 5000, 0, "") for n in range(5000)]
    index = SortedList(here)
    for old, new in zip(here, there, strict=True):
        move(index, old, new)
        index._check()
    assert list(index) == there
    for old, new in zip(there, here, strict=True):
        move(index, old, new)
    index._check()
    assert next_lowest(parts_of(index)) == (1, 0, "")


def test_the_next_lowest_may_begin_a_part():
    """A part may hold one entry."""
    index = SortedList()
    index._reset(4)
    index.update((n, 0, "") for n in range(8))
    for _ in range(3):
        del index[1]
    assert lowest(parts_of(index)) == (0, 0, "")
    assert next_lowest(parts_of(index)) == list(index)[1]


@pytest.mark.parametrize("users", [3, 900, 2500, 12_000])
def test_entries_come_and_go(users):
    """The list grows to its size and falls to nothing, in random order, and is sound throughout."""
    rng = random.Random(users)
    index = SortedList()
    keys: list[tuple[int, int, str]] = []
    for number in range(users):
        key = (rng.randrange(users), rng.randrange(2), f"u{number}")
        add(index, key)
        keys.append(key)
        if number % 7 == 0:
            remove(index, keys.pop(rng.randrange(len(keys))))
        if number % 500 == 0:
            index._check()
            assert list(index) == sorted(keys)
    rng.shuffle(keys)
    while keys:
        remove(index, keys.pop())
        assert len(index) == len(keys)
        if len(keys) % 500 == 0:
            index._check()
            assert list(index) == sorted(keys)
            assert [index[n] for n in range(0, len(keys), 97)] == sorted(keys)[::97]


@pytest.mark.parametrize("old", [(-1, 0, ""), (7, 0, "a"), (10_000, 0, "")])
def test_what_is_not_there_cannot_be_moved_or_removed(old):
    """Nothing else is taken out in its place."""
    index = SortedList((n, 0, "") for n in range(3000))

    with pytest.raises((AssertionError, IndexError)):
        move(index, old, (5, 5, ""))
    with pytest.raises((AssertionError, IndexError)):
        remove(index, old)

    assert len(index) == 3000


@pytest.mark.parametrize("load", [4, 1000])
@pytest.mark.parametrize("users", [0, 1, 7, 300])
def test_users_between_two_meters(load, users):
    """Those of the sorted list with both ends, and the meter that comes after them."""
    rng = random.Random(users + load)
    keys = sorted((rng.randrange(80), rng.randrange(3), f"u{n}") for n in range(users))
    index = SortedList()
    index._reset(load)
    index.update(keys)
    for low in range(-1, 82):
        for high in (low - 1, low, low + 1, low + 9, 100):
            found = [user_id for meter, _, user_id in keys if low <= meter <= high]
            above = [meter for meter, _, _ in keys if meter > max(high, low - 1)]
            assert users_between(index, low, high) == (found, above[0] if above else -1)
