"""Nothing is told before it is durable: neither answers, nor refusals, nor what reads show."""

import asyncio
import threading

import grpc
import pytest
import pytest_asyncio

from fairsched.v1 import admin_service_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.ports import StoreFailed
from scheduler_service.server import ending
from scheduler_service.server.opening import open_sqlite
from scheduler_service.store import schedule
from tests.support.live import POOL, refused, running
from tests.support.peers import done, open_worker


class HeldStore:
    """A store whose groups become durable only when they are let through."""

    def __init__(self, store):
        self._store = store
        self.through = threading.Event()
        self.through.set()
        self.held = None
        self.one_only = False
        self.fails = False

    def __getattr__(self, name):
        return getattr(self._store, name)

    def append(self, group):
        self.held = group
        self.through.wait()
        self.held = None
        if self.one_only:
            self.through.clear()
        if self.fails:
            raise StoreFailed("no space left on device")
        return self._store.append(group)


@pytest_asyncio.fixture(loop_scope="session")
async def held(tmp_path):
    """A service and its store, which lets everything through at first."""
    stores = []

    def open_store(directory, settings, report):
        stores.append(HeldStore(open_sqlite(directory, settings, report)))
        return stores[0]

    async with running(tmp_path, open_store=open_store) as live:
        live.store = stores[0]
        try:
            yield live
        finally:
            stores[0].through.set()


async def _not_told(held, call):
    """Checks that a call is answered only when the store lets its group through."""
    told = asyncio.ensure_future(call)
    done, _ = await asyncio.wait({told}, timeout=0.3)
    assert not done, "was told before it was durable"
    held.store.through.set()
    async with asyncio.timeout(5):
        await asyncio.wait({told})
    held.store.through.clear()
    return told


async def test_an_accepted_request_is_told_when_durable(held):
    """Enqueue, its repeat, and every view of it wait for the same commit."""
    held.store.through.clear()
    first = asyncio.ensure_future(held.enqueue("a"))
    await held.until(lambda: held.engine.state.pools[POOL].waiting == 1)
    repeat = asyncio.ensure_future(held.enqueue("a"))
    inquiry = asyncio.ensure_future(held.state("a"))
    stats = asyncio.ensure_future(held.admin.GetStats(admin_service_pb2.GetStatsRequest()))
    conflict = asyncio.ensure_future(refused(held.enqueue("a", cost=9)))
    calls = {first, repeat, inquiry, stats, conflict}
    done, _ = await asyncio.wait(calls, timeout=0.4)
    assert not done

    held.store.through.set()
    async with asyncio.timeout(5):
        await asyncio.gather(*calls)
    assert (await conflict).reason == "REQUEST_ID_REUSED"


async def test_a_dispatch_is_told_when_durable(held):
    """A worker gets no lease that a crash could take back."""
    await held.enqueue("a", payload=b"p")
    held.store.through.clear()
    told = await _not_told(held, held.next())
    (dispatch,) = (await told).dispatches
    assert dispatch.payload == b"p"

    told = await _not_told(held, held.complete(dispatch.lease_id))
    assert (await told).request_id == "a"


async def test_a_refusal_is_told_when_what_it_shows_is_durable(held):
    """That a queue is full shows the requests that fill it."""
    policy = {"max_waiting_per_user": 1}
    await held.admin.UpdatePool(admin_service_pb2.UpdatePoolRequest(pool=POOL, policy=policy))
    held.store.through.clear()
    first = asyncio.ensure_future(held.enqueue("a"))
    await held.until(lambda: held.engine.state.pools[POOL].waiting == 1)
    told = await _not_told(held, refused(held.enqueue("b")))

    assert (await told).reason == "USER_QUEUE_FULL"
    held.store.through.set()
    await first


async def test_a_stream_is_told_when_durable(held):
    """Acquire says queued, granted and ended no earlier than an answer would be given."""
    held.store.through.clear()
    call = held.scheduler.Acquire(pb.AcquireRequest(request=held.request("a")))
    told = await _not_told(held, call.read())

    assert (await told).WhichOneof("event") == "queued"
    held.store.through.set()
    call.cancel()


async def test_a_message_of_a_session_waits_for_its_own_commit_only(held):
    """What others have decided since does not hold it up for one more commit."""
    await held.enqueue("a", payload=b"p")
    await held.enqueue("b", payload=b"q")
    peer, _ = await open_worker(held, credits=1)
    (first,) = await peer.dispatches(1)
    held.store.through.clear()
    await peer.say(credits=1, completions=done(first))
    await held.until(lambda: held.store.held is not None)
    later = asyncio.ensure_future(held.enqueue("c"))
    await held.until(lambda: "c" in held.engine.state.pools[POOL].requests)
    held.store.one_only = True
    told = await _not_told(held, peer.hear(until=lambda m: m.dispatches and m.completion_results))

    assert [(d.request_id, d.payload) for d in (await told).dispatches] == [("b", b"q")]
    assert not later.done()
    held.store.one_only = False
    held.store.through.set()
    await later


async def test_what_is_bad_is_told_at_once(held):
    """A call that decides nothing waits for nothing."""
    held.store.through.clear()
    pending = asyncio.ensure_future(held.enqueue("a"))
    async with asyncio.timeout(1):
        assert (await refused(held.enqueue("b", cost=-1))).reason == "INVALID_FIELDS"
    held.store.through.set()
    await pending


async def test_a_cancelled_call_disturbs_no_other(held):
    """Callers that wait for one commit are independent of each other."""
    held.store.through.clear()
    calls = [asyncio.ensure_future(held.enqueue(f"r{n}")) for n in range(5)]
    await held.until(lambda: held.engine.state.pools[POOL].waiting == 5)
    calls[2].cancel()
    await asyncio.gather(calls[2], return_exceptions=True)
    held.store.through.set()
    async with asyncio.timeout(5):
        answers = await asyncio.gather(*(calls[:2] + calls[3:]))

    assert len({answer.sequence for answer in answers}) == 4
    assert (await held.enqueue("r2")).duplicate


async def test_a_log_that_stands_still_makes_health_bad(tmp_path):
    """Health says so with the reason, and recovers by itself (R116)."""
    stores = []

    def open_store(directory, settings, report):
        stores.append(HeldStore(open_sqlite(directory, settings, report)))
        return stores[0]

    async with running(tmp_path, open_store=open_store, stall_seconds=1) as live:
        stores[0].through.clear()
        pending = asyncio.ensure_future(live.enqueue())
        readiness = live.service.runtime.readiness
        await live.until(lambda: not readiness.ready, 6)
        assert readiness.reason == "The decision log is not being written."
        stores[0].through.set()
        await pending
        await live.until(lambda: readiness.ready, 6)
        assert [e["problem"] for e in live.reported("health.degraded")] == ["log"]


@pytest.mark.filterwarnings("ignore")
async def test_a_failed_log_stops_everything(held):
    """After a failed write nobody is told anything any more but that the service stops."""
    await held.enqueue("before")
    held.store.fails = True
    for call in (held.enqueue("a"), held.next(), held.state("before")):
        refusal = await refused(call)
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "LOG_STALLED")
    assert held.engine.stopped.is_set()
    assert held.reported("engine.stopped")


async def test_a_large_snapshot_is_made_anew_when_worth_it(tmp_path, monkeypatch):
    """The service heeds `snapshot_growth`, but not while the disk is nearly full."""
    monkeypatch.setattr(schedule, "LARGE_BYTES", 1)
    monkeypatch.setattr(ending, "WORTH_RECORDS", 1)
    async with running(tmp_path, snapshot_records=1, snapshot_growth=1000) as live:
        snapshots = live.service.running.snapshots
        await live.enqueue("a")
        await live.until(lambda: live.reported("snapshot.made"))
        items = [live.request(f"b{number}") for number in range(200)]
        for start in range(0, 200, 50):
            batch = pb.BatchEnqueueRequest(requests=items[start : start + 50])
            await live.scheduler.BatchEnqueue(batch)
            assert not snapshots.running
        made = len(live.reported("snapshot.made"))
        live.app.space_low = True
        await live.scheduler.Cancel(pb.CancelRequest(pool=POOL, request_id="a"))
        await live.until(lambda: len(live.reported("snapshot.made")) > made)
        live.app.space_low = False
        await live.enqueue("c")

    assert made == 1
    assert len(live.reported("snapshot.made")) == 2, "the last one heeds it, too"
