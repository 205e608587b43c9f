"""Void entries leave a heap a few at a time, and what stays is a heap."""

import heapq
import random

from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.core.sweeping import LOOKS, remove_at, sweep


@given(st.lists(st.integers(0, 20), min_size=1), st.randoms(use_true_random=False))
def test_whatever_is_removed_the_rest_comes_out_in_order(values, rng):
    """As if the entry had never been there."""
    heap = list(values)
    heapq.heapify(heap)
    left = sorted(values)
    while heap:
        place = rng.randrange(len(heap))
        left.remove(heap[place])
        remove_at(heap, place)
        assert [heapq.heappop(copy) for copy in [list(heap)] for _ in heap] == left


def test_one_sweep_looks_at_a_few_and_goes_on_where_it_was():
    """However much is void, one change pays for a few entries."""
    looked = []

    def is_void(entry):
        looked.append(entry)
        return entry % 2 == 1

    heap = list(range(1000))
    place = sweep(heap, 0, is_void)
    assert len(looked) == LOOKS
    for _ in range(1000):
        place = sweep(heap, place, is_void)

    assert sorted(heap) == list(range(0, 1000, 2))


def test_a_heap_that_is_all_void_becomes_empty():
    """The last entry goes as well, and an empty heap is left alone."""
    heap = [1, 2, 3, 4, 5, 6]
    place = 0
    for _ in range(4):
        place = sweep(heap, place, lambda _entry: True)

    assert (heap, place) == ([], 0)


def test_a_heap_stays_in_proportion_when_every_change_makes_an_entry_void():
    """As leases do: one is set, and an older one has ended."""
    rng = random.Random(5)
    heap, alive, place = [], set(), 0
    for step in range(20_000):
        heapq.heappush(heap, (rng.random(), step))
        alive.add(step)
        if step >= 500:
            alive.discard(rng.choice(tuple(alive)) if step % 50 == 0 else min(alive))
        place = sweep(heap, place, lambda entry: entry[1] not in alive)
        assert len(heap) <= 3 * len(alive)

    assert len(alive) == 500
