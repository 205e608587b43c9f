"""Every limit, with the reason it is refused for: the limit is good, one more is not."""

import asyncio

import grpc
import pytest

from fairsched.v1 import admin_service_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.clock import ManualClock
from scheduler_service.core import COMPILED
from scheduler_service.core import admin as core_admin
from tests.support.live import POOL, refused, running

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


async def _policy(service, **fields):
    request = admin_service_pb2.UpdatePoolRequest(pool=POOL, policy=fields)
    await service.admin.UpdatePool(request)


async def test_requests_of_a_user(service):
    """A user's queue is bounded; another user still gets in."""
    await _policy(service, max_waiting_per_user=3)
    for _ in range(3):
        await service.enqueue()
    refusal = await refused(service.enqueue("one-more"))

    assert (refusal.code, refusal.reason) == (EXHAUSTED, "USER_QUEUE_FULL")
    assert refusal.metadata == {"pool": POOL, "limitRequests": "3"}
    assert refusal.retry_seconds == 1
    await service.enqueue(user_id="other")
    assert len((await service.next()).dispatches) == 1
    await service.enqueue("one-more")


async def test_requests_of_a_pool(service):
    """A full pool refuses who holds its share, and makes room for who holds less."""
    await _policy(service, max_waiting=4)
    for _ in range(4):
        await service.enqueue(user_id="greedy")
    refusal = await refused(service.enqueue(user_id="greedy"))

    assert (refusal.code, refusal.reason) == (EXHAUSTED, "QUEUE_FULL")
    assert refusal.metadata["limitRequests"] == "4"
    await service.enqueue(user_id="modest")
    assert service.engine.state.pools[POOL].waiting == 4


async def test_users_of_a_pool(service):
    """A pool keeps state for so many users."""
    await _policy(service, max_users=2)
    await service.enqueue(user_id="a")
    await service.enqueue(user_id="b")
    refusal = await refused(service.enqueue(user_id="c"))

    assert (refusal.code, refusal.reason) == (EXHAUSTED, "USERS_FULL")
    assert refusal.metadata["limitUsers"] == "2"


async def test_the_hint_rises_while_refusing_goes_on(service):
    """Who is refused again and again is told to come back later and later, up to the limit."""
    await _policy(service, max_waiting_per_user=1)
    await service.enqueue()
    clock = ManualClock(service.engine.now_ns())
    service.engine.clock = clock
    hints = []
    for elapsed in (0, 0.5, 0.6, 2.1, 4.1, 8.1, 16.1, 30.5, 31.0):
        clock.advance(int(elapsed * 1e9))
        hints.append((await refused(service.enqueue())).retry_seconds)

    assert hints == [1, 1, 2, 4, 8, 16, 30, 30, 30]
    clock.advance(int(61e9))
    assert (await refused(service.enqueue())).retry_seconds == 1


async def test_a_burst_is_refused_exactly_past_the_limit(service):
    """Of 300 requests at once exactly as many are accepted as there are places (R56)."""
    await _policy(service, max_waiting_per_user=100)
    calls = [service.enqueue(f"r{n}") for n in range(300)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    errors = [a for a in answers if isinstance(a, grpc.aio.AioRpcError)]

    assert len(errors) == 200
    assert all(error.code() is EXHAUSTED for error in errors)
    assert service.engine.state.pools[POOL].waiting == 100


async def test_refusals_are_not_remembered(service):
    """What was refused may be tried again under the same id."""
    await _policy(service, max_waiting_per_user=1)
    await service.enqueue("first")
    await refused(service.enqueue("again"))
    await service.next()
    answer = await service.enqueue("again")

    assert not answer.duplicate


async def test_calls_that_wait(tmp_path):
    """So many calls may wait, of whatever kind; a place that frees is taken by the next."""
    async with running(tmp_path, parked_calls=3) as live:
        await live.enqueue("c", required_labels=["none"])
        inquiry = pb.GetRequestRequest(pool=POOL, request_id="c", wait_duration={"seconds": 30})
        calls = [
            asyncio.ensure_future(live.next("w0", wait=30)),
            asyncio.ensure_future(live.next("w1", wait=30)),
            asyncio.ensure_future(live.scheduler.GetRequest(inquiry)),
        ]
        await live.until(lambda: live.app.slots.calls == 3)
        for call in (
            live.next("w", wait=30),
            live.scheduler.GetRequest(inquiry),
            live.scheduler.Acquire(pb.AcquireRequest(request=live.request("d"))).read(),
        ):
            refusal = await refused(call)
            assert (refusal.code, refusal.reason) == (EXHAUSTED, "CALLS_PARKED_FULL")
        assert len((await live.next("w")).dispatches) == 0

        await live.enqueue("a", "v")
        await live.until(lambda: live.app.slots.calls == 2)
        calls.append(asyncio.ensure_future(live.next("w2", wait=30)))
        await live.until(lambda: live.app.slots.calls == 3)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await live.until(lambda: live.app.slots.calls == 0)


async def test_calls_that_wait_of_one_peer(tmp_path):
    """One connection may not take all places; another one still gets its own."""
    async with (
        running(tmp_path, parked_calls_per_peer=1) as live,
        grpc.aio.insecure_channel(
            f"127.0.0.1:{live.port}", options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel,
    ):
        first = asyncio.ensure_future(live.next("w1", wait=30))
        await live.until(lambda: live.app.waiters.count == 1)
        refusal = await refused(live.next("w2", wait=30))
        method = channel.unary_unary(
            "/fairsched.v1.SchedulerService/NextDispatch",
            request_serializer=pb.NextDispatchRequest.SerializeToString,
            response_deserializer=pb.NextDispatchResponse.FromString,
        )
        request = pb.NextDispatchRequest(
            worker_id="w3", pools=[POOL], wait_duration={"seconds": 30}
        )
        other = asyncio.ensure_future(method(request))
        await live.until(lambda: live.app.waiters.count == 2)
        await live.enqueue()
        await live.enqueue()

        assert refusal.reason == "CALLS_PARKED_FULL"
        assert len((await first).dispatches) == len((await other).dispatches) == 1


async def test_open_sessions(tmp_path):
    """So many sessions may be open."""
    async with running(tmp_path, streams=1) as live:
        first = live.scheduler.GatewaySession()
        await first.write(pb.GatewaySessionRequest(credits=1))
        await live.until(lambda: live.app.slots.streams == 1)
        refusal = await refused(live.scheduler.GatewaySession().read())

        assert (refusal.code, refusal.reason) == (EXHAUSTED, "STREAMS_FULL")
        first.cancel()
        await live.until(lambda: live.app.slots.streams == 0)
        second = live.scheduler.GatewaySession()
        await second.write(pb.GatewaySessionRequest(credits=1))
        await live.until(lambda: live.app.slots.streams == 1)
        second.cancel()
        await live.until(lambda: live.app.slots.streams == 0)


@pytest.mark.parametrize("size", [100, 101])
async def test_payloads(tmp_path, size):
    """A payload as large as the limit is good, one byte more is named."""
    async with running(tmp_path, payload_bytes=100) as live:
        call = live.enqueue("a", payload=b"x" * size)
        if size == 100:
            assert (await call).sequence
        else:
            assert list((await refused(call)).fields) == ["payload"]


async def test_items_of_a_batch(service):
    """A batch has so many items; one more and nothing of it is done."""
    items = [service.request(f"r{n}") for n in range(1001)]
    before = service.engine.state.sequence
    refusal = await refused(service.scheduler.BatchEnqueue(pb.BatchEnqueueRequest(requests=items)))

    assert list(refusal.fields) == ["requests"]
    assert service.engine.state.sequence == before
    answer = await service.scheduler.BatchEnqueue(pb.BatchEnqueueRequest(requests=items[:1000]))
    assert len(answer.results) == 1000


async def test_disk_space(service):
    """Below the reserve nothing new is accepted; repeats, completions and cancels go on."""
    await service.enqueue("a")
    dispatch = await service.leased("b", user_id="0")
    service.app.space_low = True
    refusal = await refused(service.enqueue("new"))

    assert (refusal.code, refusal.reason) == (EXHAUSTED, "LOG_SPACE_LOW")
    assert refusal.metadata["reserveBytes"] == str(service.app.limits.log_reserve_bytes)
    assert (await service.enqueue("a")).duplicate
    await service.complete(dispatch.lease_id)
    await service.scheduler.Cancel(pb.CancelRequest(pool=POOL, request_id="a"))


async def test_free_space_is_watched(tmp_path):
    """The service itself finds out that the disk is nearly full."""
    async with running(tmp_path, log_reserve_bytes=1 << 50) as live:
        await live.until(lambda: live.app.space_low)
        assert (await refused(live.enqueue())).reason == "LOG_SPACE_LOW"
        assert live.reported("log.space_low")


@pytest.mark.skipif(COMPILED, reason="compiled, limits of the core are no variables")
async def test_pools(service, monkeypatch):
    """There are so many pools at most."""
    monkeypatch.setattr(core_admin, "POOLS_MAX", 2)
    await service.admin.CreatePool(admin_service_pb2.CreatePoolRequest(pool="two"))
    refusal = await refused(
        service.admin.CreatePool(admin_service_pb2.CreatePoolRequest(pool="three"))
    )

    assert (refusal.code, refusal.reason) == (EXHAUSTED, "POOLS_FULL")


@pytest.mark.skipif(COMPILED, reason="compiled, limits of the core are no variables")
async def test_workers(service, monkeypatch):
    """There are so many workers at most, with a session or without."""
    monkeypatch.setattr(core_admin, "WORKERS_MAX", 1)
    await service.next("first")
    for call in (
        service.next("second"),
        service.scheduler.RegisterWorker(pb.RegisterWorkerRequest(worker_id="third", pools=[POOL])),
    ):
        refusal = await refused(call)
        assert (refusal.code, refusal.reason) == (EXHAUSTED, "WORKERS_FULL")
    await service.next("first")


async def test_leases_of_a_worker(service):
    """A worker holds so many leases; then it is told so."""
    await _policy(service, max_leases_per_worker=2)
    for _ in range(4):
        await service.enqueue()
    answer = await service.next(max_dispatches=4)

    assert len(answer.dispatches) == 2
    assert answer.empty_reason == 7
