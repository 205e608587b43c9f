"""The history of a request, found in the log."""

import pytest

from scheduler_service.app import codec, history
from scheduler_service.app.audit import DecisionLog
from scheduler_service.app.history import first_at, history_of
from scheduler_service.core import decisions as d
from tests.support.engines import running


@pytest.fixture
async def rig():
    """A log with twenty groups; request `mine` lives through the middle of it."""
    async with running() as rig:
        rig.create_pool()
        rig.create_pool("q")
        for number in range(20):
            rig.enqueue(f"r{number}")
            if number == 5:
                rig.enqueue("mine", "me")
            if number == 6:
                rig.enqueue("mine", "other", pool="q")
            if number == 10:
                rig.dispatch(count=11)
            if number == 12:
                rig.complete("mine")
            await rig.engine.durable()
        yield rig


async def test_all_of_it_in_order(rig):
    """Everything about a request of this pool is found, in order, and nothing else."""
    log = DecisionLog(rig.engine, rig.store)
    entries = await history_of(log, "p", "mine")

    kinds = [type(entry.decision) for entry in entries]
    assert kinds == [d.Accepted, d.Dispatched, d.Completed]
    assert {entry.decision.user_id for entry in entries} == {"me"}
    for sequence, decision in entries:
        record, _ = await log.record(sequence)
        assert codec.decode(record) == decision


async def test_from_its_acceptance_to_its_end(rig):
    """A scan that knows acceptance and end finds the same."""
    log = DecisionLog(rig.engine, rig.store)
    entries = await history_of(log, "p", "mine")
    again = await history_of(
        log,
        "p",
        "mine",
        from_sequence=entries[0].sequence,
        until_ns=entries[-1].decision.now_ns,
    )

    assert again == entries
    assert await history_of(log, "p", "nobody") == []


async def test_the_scan_is_bounded(rig, monkeypatch):
    """Without a hint only the newest part of the log is looked at."""
    log = DecisionLog(rig.engine, rig.store)
    monkeypatch.setattr(history, "SCAN_BYTES", 300)

    assert await history_of(log, "p", "mine") == []
    assert [type(e.decision) for e in await history_of(log, "p", "r19")] == [d.Accepted]


async def test_a_time_is_found_by_bisection(rig):
    """Everything from a time on lies behind the place that is found, and little else."""
    log = DecisionLog(rig.engine, rig.store)
    for group in rig.store.read(0, max_bytes=1 << 30):
        found = await first_at(log, group.end.now_ns)

        assert found < group.end.sequence
        assert found >= group.first_sequence - 2
    assert await first_at(log, 0) == 0
