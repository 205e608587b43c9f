"""Readers of the decision log: what they get, from where, and what they cost."""

import asyncio
from hashlib import sha256

import pytest

from scheduler_service.app import codec
from scheduler_service.app.audit import CatchUp, Cursor, DecisionLog
from scheduler_service.app.ports import GENESIS_HASH
from scheduler_service.core import decisions as d
from scheduler_service.core.errors import NotReady, Trimmed, Unknown
from tests.support.engines import running


@pytest.fixture
async def rig():
    """A running engine with a pool."""
    async with running() as rig:
        rig.create_pool()
        yield rig


async def _read_all(log: DecisionLog, cursor: Cursor, limit: int = 64) -> list[bytes]:
    records = []
    while (page := await log.next_page(cursor, limit)) is not None:
        assert 1 <= len(page.records) <= limit
        assert page.first_sequence == cursor.sequence - len(page.records) + 1
        chain_hash = page.hashes[0]
        for record, after in zip(page.records, page.hashes[1:], strict=True):
            chain_hash = sha256(chain_hash + record).digest()
            assert chain_hash == after
        records += page.records
    return records


@pytest.mark.parametrize("ring_bytes", [0, 2000, 1 << 20])
async def test_a_reader_gets_every_record_once(rig, ring_bytes):
    """From the ring, the store, or both in turn, a reader gets the whole log, hashes and all."""
    log = DecisionLog(rig.engine, rig.store, ring_bytes)
    for number in range(200):
        rig.enqueue(f"r{number}")
        if number % 7 == 0:
            await rig.engine.durable()
    await rig.engine.durable()
    cursor = Cursor(0)

    records = await _read_all(log, cursor)

    stored = [r for g in rig.store.read(0, max_bytes=1 << 30) for r in codec.split_frame(g.frame)]
    assert records == stored
    assert cursor.chain_hash == rig.engine.log.durable.chain_hash


@pytest.mark.parametrize("start", [0, 1, 57, 150, 199])
@pytest.mark.parametrize("ring_bytes", [0, 1 << 20])
async def test_a_reader_resumes_anywhere(rig, start, ring_bytes):
    """A reader that begins in the middle of a group knows the right hashes from there on."""
    log = DecisionLog(rig.engine, rig.store, ring_bytes)
    for number in range(200):
        rig.enqueue(f"r{number}")
        if number in {50, 120}:
            await rig.engine.durable()
    await rig.engine.durable()
    whole = await _read_all(log, Cursor(0))
    cursor = Cursor(start)

    assert await _read_all(log, cursor) == whole[start:]
    assert cursor.chain_hash == rig.engine.log.durable.chain_hash


async def test_only_durable_decisions_are_read(rig):
    """What is decided and not durable yet is not there for readers."""
    log = DecisionLog(rig.engine, rig.store)
    await rig.engine.durable()
    cursor = Cursor(rig.engine.log.durable.sequence)
    rig.enqueue("r")

    before = await log.next_page(cursor)
    await rig.engine.durable()
    after = await log.next_page(cursor)

    assert before is None
    assert [type(codec.decode(record)) for record in after.records] == [d.Accepted]


async def test_the_ring_is_bounded(rig):
    """The ring keeps no more than it may, whatever passes through it."""
    log = DecisionLog(rig.engine, rig.store, ring_bytes=4000)
    for number in range(500):
        rig.enqueue(f"r{number}")
        await rig.engine.durable()

        assert log.ring_bytes <= 4000


async def test_a_reader_behind_costs_one_page(rig):
    """A reader that stopped reading holds one page, not what came after it."""
    log = DecisionLog(rig.engine, rig.store, ring_bytes=0)
    for number in range(100):
        rig.enqueue(f"r{number}")
    await rig.engine.durable()
    cursor = Cursor(0)
    await log.next_page(cursor, 10)
    held = len(cursor.rest.records)
    for number in range(100, 5000):
        rig.enqueue(f"r{number}")
        if number % 100 == 0:
            await rig.engine.durable()
    await rig.engine.durable()

    assert len(cursor.rest.records) == held <= 100
    assert cursor.rest.first_sequence == 11


async def test_pruned_past_the_reader(rig):
    """A reader that the log was pruned past is told from where it could go on; a page it had
    fetched before is still good."""
    log = DecisionLog(rig.engine, rig.store, ring_bytes=0)
    for number in range(20):
        rig.enqueue(f"r{number}")
        await rig.engine.durable()
    begun, late = Cursor(2), Cursor(2)
    await log.next_page(begun, 1)
    rig.store.prune(15, max_groups=100)

    assert len(await _read_all(log, begun)) == 18
    with pytest.raises(Trimmed) as caught:
        await _read_all(log, late)
    assert caught.value.reason == "SEQUENCE_TRIMMED"
    assert caught.value.metadata["firstSequence"] == str(log.head().oldest_sequence)
    with pytest.raises(Trimmed):
        log.require(0)
    log.require(log.head().oldest_sequence - 1)


async def test_beyond_the_end(rig):
    """A reader that has seen more than the log holds is told: the log is not the one it knew."""
    log = DecisionLog(rig.engine, rig.store)
    await rig.engine.durable()
    end = rig.engine.log.durable.sequence

    log.require(end)
    with pytest.raises(Unknown, match=f"ends at sequence {end}"):
        log.require(end + 1)


async def test_waiting_readers_are_woken(rig):
    """A reader that waits is woken by the next durable group, and by its timeout if none comes."""
    log = DecisionLog(rig.engine, rig.store)
    await rig.engine.durable()
    end = rig.engine.log.durable.sequence
    waiting = asyncio.ensure_future(log.wait(end, 60))
    await asyncio.sleep(0)
    rig.enqueue("r")
    await asyncio.wait_for(waiting, 5)

    assert rig.engine.log.durable.sequence == end + 1
    await asyncio.wait_for(log.wait(end + 1, 0.001), 5)
    await asyncio.wait_for(log.wait(end, 60), 5)


async def test_a_failed_log_ends_waiting(rig):
    """When the log has failed, a reader is told instead of waiting for ever."""
    log = DecisionLog(rig.engine, rig.store)
    await rig.engine.durable()
    rig.engine.failed = RuntimeError("disk")

    with pytest.raises(NotReady, match="failed"):
        await log.wait(99, 60)


async def test_one_record(rig):
    """A single record comes with the chain hash before it; the first one with the beginning's."""
    log = DecisionLog(rig.engine, rig.store, ring_bytes=0)
    rig.enqueue("r1")
    rig.enqueue("r2")
    await rig.engine.durable()

    first, before_first = await log.record(1)
    third, before_third = await log.record(3)

    assert before_first == GENESIS_HASH
    assert isinstance(codec.decode(first), d.PoolConfigured)
    assert codec.decode(third).request_id == "r2"
    assert sha256(before_third + third).digest() == rig.engine.log.durable.chain_hash
    with pytest.raises(Unknown):
        await log.record(4)


async def test_pages_are_bounded_by_bytes(rig, monkeypatch):
    """A page ends before its message could become too large, but holds at least one record."""
    monkeypatch.setattr("scheduler_service.app.audit.PAGE_BYTES", 100)
    log = DecisionLog(rig.engine, rig.store)
    for number in range(30):
        rig.enqueue(f"r{number}" + "x" * 80)
    await rig.engine.durable()
    cursor, sizes = Cursor(1), []
    while (page := await log.next_page(cursor)) is not None:
        sizes.append(len(page.records))

    assert sum(sizes) == 30
    assert set(sizes) == {1}


async def test_catching_up_rests_only_while_others_work(rig, monkeypatch):
    """A reader that is behind rests four times as long as it worked, unless it is alone."""
    slept = []
    real_sleep = asyncio.sleep

    async def sleep(seconds):
        slept.append(seconds)
        await real_sleep(0)

    catch_up = CatchUp(rig.engine, share=0.2)
    await rig.engine.durable()
    monkeypatch.setattr("scheduler_service.app.audit.asyncio.sleep", sleep)
    await catch_up.rest(1_000_000)
    slept.clear()
    await catch_up.rest(1_000_000)
    alone = [s for s in slept if s]
    rig.enqueue("r")
    await catch_up.rest(1_000_000)

    assert alone == []
    assert [s for s in slept if s] == [pytest.approx(0.004)]
