"""Long tables in pages: complete, ordered, and never sorted in one go."""

import random

from scheduler_service.app import listing
from scheduler_service.app.listing import RUN, Listings, Sorted


async def test_pages_are_the_sorted_table():
    """Pages taken one behind the other are the sorted table, whatever its order was."""
    rng = random.Random(1)
    rows = [f"{rng.randrange(10**9):09}" for _ in range(3 * RUN + 5)]
    table: Sorted[str] = Sorted(0)
    await table.add(rows, str)
    found, after = [], ""
    while page := [key for key, _ in zip(table.behind(after), range(997), strict=False)]:
        found += page
        after = page[-1]

    assert found == sorted(rows)
    assert len(table) == len(rows)


async def test_sorting_pauses(monkeypatch):
    """Between runs of a few thousand entries others get their turn."""
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)

    monkeypatch.setattr(listing.asyncio, "sleep", sleep)
    table: Sorted[str] = Sorted(0)
    await table.add([str(number) for number in range(5 * RUN)], str)

    assert len(pauses) == 5


async def test_a_kept_table_is_used_for_later_pages():
    """A first page is made anew; pages behind it use the same table for a few seconds."""
    kept: Listings[str] = Listings()
    made = []

    def rows():
        made.append(len(made))
        return ["b", "a"]

    await kept.of(("t",), rows, str, fresh=True)
    await kept.of(("t",), rows, str, fresh=False)
    again = len(made)
    await kept.of(("t",), rows, str, fresh=True)

    assert (again, len(made)) == (1, 2)


async def test_few_tables_are_kept():
    """Listing many tables does not keep them all."""
    kept: Listings[str] = Listings()
    for number in range(50):
        await kept.of((str(number),), lambda: ["a"], str, fresh=True)

    assert len(kept._kept) == listing.KEPT_TABLES
