"""Group commit: grouping, order, tickets, failure, closing."""

import asyncio
import threading

import pytest

from scheduler_service.app.commit import (
    MAX_GROUP_BYTES,
    MAX_GROUP_RECORDS,
    Commit,
    CommitterFailed,
    GroupCommitter,
    Pace,
)
from scheduler_service.app.memory import MemoryStore
from scheduler_service.app.ports import GENESIS, Payload, StoreFailed
from scheduler_service.core import decisions as d


def decision(n: int = 0) -> d.WorkerGone:
    return d.WorkerGone(n, "w")


class GatedStore(MemoryStore):
    """Lets each append through one at a time, and counts upkeep."""

    def __init__(self, *, gated: bool = True) -> None:
        super().__init__()
        self.gate = threading.Semaphore(0)
        self.gated = gated
        self.begun = threading.Semaphore(0)
        self.upkeeps: list[bool] = []
        self.error: Exception | None = None

    def append(self, group):
        self.begun.release()
        if self.gated:
            self.gate.acquire()
        if self.error is not None:
            raise self.error
        return super().append(group)

    def upkeep(self, *, idle):
        self.upkeeps.append(idle)
        return False


class Rig:
    """A committer and everything it called back."""

    def __init__(self, store, pace=None):
        self.store = store
        self.commits: list[Commit] = []
        self.failures: list[Exception] = []
        self.committer = GroupCommitter(
            store, on_durable=self.commits.append, on_failure=self.failures.append, pace=pace
        )
        self.committer.start()

    async def until(self, condition):
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0)

    @property
    def groups(self):
        return [len(commit.group.records) for commit in self.commits]


async def begun(store):
    """Waits until the thread is inside `append`."""
    assert await asyncio.to_thread(store.begun.acquire, timeout=10)


async def test_all_of_one_turn_is_one_group():
    """All of one turn is one group."""
    rig = Rig(MemoryStore())
    for n in range(5):
        rig.committer.record([decision(n)])
    assert rig.committer.sequence == 5
    assert rig.commits == []
    await rig.committer.drain()

    assert rig.groups == [5]
    assert rig.store.head() == rig.committer.durable
    assert rig.committer.durable.sequence == 5
    await rig.committer.close()


async def test_what_comes_during_a_commit_is_the_next_group():
    """What comes during a commit is the next group."""
    store = GatedStore()
    rig = Rig(store)
    rig.committer.record([decision()])
    await begun(store)
    for _ in range(3):
        rig.committer.record([decision()])
        await asyncio.sleep(0)
    assert (rig.groups, rig.committer.pending_count) == ([], 4)
    store.gate.release(2)
    await rig.committer.drain()

    assert (rig.groups, rig.committer.pending_count) == ([1, 3], 0)
    await rig.committer.close()


async def test_nothing_is_acknowledged_before_append_returns():
    """Nothing is acknowledged before append returns."""
    store = GatedStore()
    rig = Rig(store)
    rig.committer.record([decision()])
    await begun(store)
    for _ in range(100):
        await asyncio.sleep(0)
    assert rig.commits == []
    assert rig.committer.durable == GENESIS
    store.gate.release()
    await rig.committer.close()

    assert rig.groups == [1]


async def test_groups_are_bounded():
    """Groups are bounded, by their records and by their bytes."""
    rig = Rig(MemoryStore())
    half = MAX_GROUP_RECORDS // 2
    for n in range(5):
        rig.committer.record([decision(n)] * half)
    await rig.committer.drain()
    assert rig.groups == [2 * half, 2 * half, half]
    for _ in range(2):
        rig.committer.record([decision()])
        sequence = rig.committer.sequence
        rig.committer.put_payload(sequence, Payload(bytes(MAX_GROUP_BYTES), b""))
    await rig.committer.close()

    assert rig.groups == [2 * half, 2 * half, half, 1, 1]
    assert [commit.ticket for commit in rig.commits] == [1, 2, 3, 4, 5]


async def test_tickets_cover_what_was_recorded_and_nothing_later():
    """Tickets cover what was recorded and nothing later."""
    store = GatedStore()
    rig = Rig(store)
    committer = rig.committer
    assert committer.ticket() == committer.done_ticket == 0
    committer.record([decision()])
    first = committer.ticket()
    await begun(store)
    assert committer.ticket() == first
    committer.record([decision()])
    second = committer.ticket()
    waiting = asyncio.ensure_future(committer.settled(second))
    store.gate.release()
    await committer.settled(first)
    assert not waiting.done()
    store.gate.release()
    await waiting

    assert (first, second, committer.done_ticket) == (1, 2, 2)
    await committer.settled(first)
    await committer.close()


async def test_a_cancelled_waiter_disturbs_no_other():
    """A cancelled waiter disturbs no other."""
    store = GatedStore()
    rig = Rig(store)
    rig.committer.record([decision()])
    waiters = [asyncio.ensure_future(rig.committer.drain()) for _ in range(3)]
    await begun(store)
    waiters[1].cancel()
    store.gate.release()
    results = await asyncio.gather(*waiters, return_exceptions=True)

    assert [type(result) for result in results] == [type(None), asyncio.CancelledError, type(None)]
    await rig.committer.close()


async def test_payloads_are_kept_fetched_and_dropped():
    """Payloads are kept fetched and dropped."""
    rig = Rig(MemoryStore())
    payload = Payload(b"body", b"meta")
    rig.committer.record([decision()])
    sequence = rig.committer.sequence
    rig.committer.put_payload(sequence, payload)
    rig.committer.fetch_payload(sequence)
    rig.committer.fetch_payload(99)
    await rig.committer.drain()
    assert rig.commits[-1].payloads == {sequence: payload}
    rig.committer.fetch_payload(sequence)
    rig.committer.delete_payload(sequence)
    await rig.committer.drain()
    assert rig.commits[-1].payloads == {sequence: payload}
    assert rig.commits[-1].group.records == []
    rig.committer.fetch_payload(sequence)
    await rig.committer.drain()

    assert rig.commits[-1].payloads == {}
    assert rig.committer.durable.sequence == 1
    await rig.committer.close()


async def test_a_failed_append_ends_everything():
    """A failed append ends everything."""
    store = GatedStore()
    rig = Rig(store)
    rig.committer.record([decision()])
    waiter = asyncio.ensure_future(rig.committer.drain())
    await begun(store)
    rig.committer.record([decision()])
    error = store.error = StoreFailed("disk on fire")
    store.gate.release()
    with pytest.raises(CommitterFailed, match="disk on fire"):
        await waiter
    with pytest.raises(CommitterFailed):
        rig.committer.record([decision()])
    with pytest.raises(CommitterFailed):
        await rig.committer.drain()
    with pytest.raises(CommitterFailed):
        await rig.committer.close()

    assert rig.commits == []
    assert rig.failures == [error]
    assert rig.committer.failure is error
    assert store.head() == GENESIS


async def test_an_error_of_the_callback_is_as_final():
    """Whoever could not be answered stays so: the next group is not acknowledged either."""
    store = GatedStore()
    calls: list[Commit] = []
    failures: list[Exception] = []

    def broken(commit):
        calls.append(commit)
        raise ZeroDivisionError

    committer = GroupCommitter(store, on_durable=broken, on_failure=failures.append)
    committer.start()
    committer.record([decision()])
    await begun(store)
    committer.record([decision()])
    second = asyncio.ensure_future(committer.drain())
    store.gate.release(2)
    with pytest.raises(CommitterFailed):
        await second
    with pytest.raises(CommitterFailed):
        await committer.close()

    assert [type(failure) for failure in failures] == [ZeroDivisionError]
    assert [commit.ticket for commit in calls] == [1]
    assert store.head().sequence == 2


async def test_an_error_of_upkeep_is_as_final():
    """An error of upkeep is as final."""

    class BadUpkeep(MemoryStore):
        def upkeep(self, *, idle):
            raise StoreFailed("checkpoint")

    rig = Rig(BadUpkeep())
    await rig.until(lambda: rig.failures)
    with pytest.raises(CommitterFailed):
        rig.committer.record([decision()])
    with pytest.raises(CommitterFailed):
        await rig.committer.close()


async def test_close_commits_what_is_left_and_can_be_repeated():
    """Close commits what is left and can be repeated."""
    rig = Rig(MemoryStore())
    rig.committer.record([decision()])
    await rig.committer.close()
    await rig.committer.close()

    assert rig.store.head().sequence == 1


async def test_upkeep_happens_in_gaps_and_is_told_when_it_is_quiet():
    """Upkeep happens in gaps and is told when it is quiet."""
    store = GatedStore(gated=False)
    rig = Rig(store, Pace(idle_seconds=0.01))
    rig.committer.record([decision()])
    await rig.committer.drain()
    await rig.until(lambda: True in store.upkeeps)
    await rig.committer.close()

    assert False in store.upkeeps


async def test_load_does_not_starve_upkeep():
    """Load does not starve upkeep."""
    store = GatedStore(gated=False)
    rig = Rig(store, Pace(gap_seconds=60, groups=10))
    for _ in range(35):
        rig.committer.record([decision()])
        await rig.committer.drain()
    await rig.committer.close()

    assert store.upkeeps == [False] * 3
    assert rig.committer.group_count == rig.committer.commit_latency.count == 35


def test_a_loop_that_is_gone_is_no_error_of_the_thread():
    """A loop that is gone is no error of the thread."""
    store = GatedStore()
    loop = asyncio.new_event_loop()
    commits: list[Commit] = []

    async def leave_in_the_middle():
        committer = GroupCommitter(store, on_durable=commits.append, on_failure=print)
        committer.start()
        committer.record([decision()])
        await begun(store)
        return committer

    committer = loop.run_until_complete(leave_in_the_middle())
    loop.close()
    store.gate.release()
    committer._inbox.put(None)
    committer._own_thread.join(10)

    assert not committer._own_thread.is_alive()
    assert (commits, store.head().sequence) == ([], 1)
