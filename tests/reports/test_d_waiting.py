"""Section D of the reports: cancel, disconnect, waiting limits, backpressure."""

import asyncio
import random

import grpc
import pytest

from fairsched.v1 import admin_service_pb2 as admin
from fairsched.v1 import decision_pb2, policy_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.core import decisions as d
from scheduler_service.core.policy import SECOND_NS
from tests.support.driver import Driver
from tests.support.live import POOL, refusal_of, refused, running, seconds
from tests.support.programs import PATIENT, policy

ENDED = {
    decision_pb2.REQUEST_STATE_SUCCEEDED,
    decision_pb2.REQUEST_STATE_FAILED,
    decision_pb2.REQUEST_STATE_CANCELLED,
    decision_pb2.REQUEST_STATE_EXPIRED,
    decision_pb2.REQUEST_STATE_SHED,
    decision_pb2.REQUEST_STATE_DEAD_LETTERED,
}


async def limit(live, **fields):
    """Changes the policy of the default pool."""
    await live.admin.UpdatePool(
        admin.UpdatePoolRequest(pool=POOL, policy=policy_pb2.PoolPolicy(**fields))
    )


def pool_of(live):
    return live.engine.state.pools[POOL]


async def enqueue_many(live, count, **fields):
    """Enqueues in batches; returns the results."""
    found = []
    for at in range(0, count, 500):
        batch = [live.request(**fields) for _ in range(min(500, count - at))]
        answer = await live.scheduler.BatchEnqueue(pb.BatchEnqueueRequest(requests=batch))
        found += answer.results
    return found


async def test_r38_timed_out_requests_leave_the_queue_and_the_memory(service):
    """BerriAI/litellm#20866: after expiry the tables are empty and the next call is served."""
    for cycle in range(3):
        await enqueue_many(service, 2000, max_wait=seconds(0.3))
        await service.until(lambda: pool_of(service).waiting == 0)
        assert not pool_of(service).requests
        assert not service.engine.state.timers or len(service.engine.state.timers) < 3000
        await service.enqueue(f"now{cycle}")
        (one,) = (await service.next()).dispatches
        assert one.request_id == f"now{cycle}"
        await service.complete(one.lease_id)


async def test_r39_a_request_whose_caller_has_gone_is_never_run(service):
    """ggml-org/llama.cpp#13262: dropping the waiting call cancels what it waits for."""
    call = service.scheduler.Acquire(pb.AcquireRequest(request=service.request("gone")))
    assert (await call.read()).HasField("queued")
    call.cancel()
    await service.until(lambda: "gone" not in pool_of(service).requests, patience=1.0)

    assert not (await service.next()).dispatches
    assert (await service.state("gone")).state == decision_pb2.REQUEST_STATE_CANCELLED


async def test_r41_cancelled_calls_leak_no_place(service):
    """ray-project/ray#64348: after many calls cancelled at random moments every place is free."""
    await limit(service, max_waiting=50)
    rng = random.Random(41)
    for _ in range(200):
        call = service.scheduler.Acquire(pb.AcquireRequest(request=service.request()))
        await asyncio.sleep(rng.uniform(0, 0.003))
        call.cancel()
    await service.until(lambda: pool_of(service).waiting == 0)
    await service.until(lambda: service.app.slots.calls == 0)

    results = await enqueue_many(service, 50)

    assert all(one.HasField("response") for one in results)
    assert pool_of(service).waiting == 50


async def test_r43_what_was_cancelled_before_its_start_never_starts(tmp_path):
    """rq/rq#2292: not handed out by any worker, and still cancelled after a restart."""
    async with running(tmp_path / "data") as live:
        for number in range(10):
            await live.enqueue(f"r{number}")
        await live.scheduler.Cancel(pb.CancelRequest(pool=POOL, request_id="r9"))
        given = [(await live.next(f"w{number % 3}")).dispatches for number in range(12)]
    async with running(tmp_path / "data") as live:
        state = (await live.state("r9")).state

    assert {one.request_id for many in given for one in many} == {f"r{n}" for n in range(9)}
    assert state == decision_pb2.REQUEST_STATE_CANCELLED


async def test_r45_a_request_cancelled_while_it_runs_ends_as_cancelled(service):
    """node-rethinkdb-job-queue#82: the worker's "done" is taken, the final state is CANCELLED."""
    one = await service.leased("x")
    await service.scheduler.Cancel(pb.CancelRequest(pool=POOL, request_id="x"))
    told = await service.scheduler.RenewLease(
        pb.RenewLeaseRequest(worker_id="w", renewals=[pb.LeaseRenewal(lease_id=one.lease_id)])
    )
    answer = await service.complete(one.lease_id)

    assert told.results[0].cancel_requested
    assert answer.state == decision_pb2.REQUEST_STATE_CANCELLED
    assert (await service.state("x")).state == decision_pb2.REQUEST_STATE_CANCELLED


async def test_r46_a_waiting_limit_needs_no_worker_to_take_effect(service):
    """triton-inference-server/server#7512: it ends on time while the only worker is busy."""
    await service.leased("busy")
    await service.enqueue("late", max_wait=seconds(0.3))
    request = pb.GetRequestRequest(
        pool=POOL,
        request_id="late",
        wait_duration=seconds(5),
        known_state=decision_pb2.REQUEST_STATE_WAITING,
    )
    found = (await service.scheduler.GetRequest(request)).request

    assert found.state == decision_pb2.REQUEST_STATE_EXPIRED


async def test_r49_every_way_to_be_turned_away_has_its_own_reason(service):
    """llm-d/llm-d-router#2047: full, over one's limit, expired, draining, nobody there."""
    await limit(service, max_waiting=2, max_waiting_per_user=1)
    await service.enqueue("a", "A")
    user_full = await refused(service.enqueue("a2", "A"))
    await service.enqueue("b", "B")
    pool_full = await refused(service.enqueue("c", "C"))
    nobody = await service.state("a")
    call = service.scheduler.Acquire(pb.AcquireRequest(request=service.request("e", "A")))
    acquire_full = await refused(call.read())
    await limit(service, max_waiting=1000, max_waiting_per_user=1000)
    expired = [
        event
        async for event in service.scheduler.Acquire(
            pb.AcquireRequest(request=service.request("x", "X", max_wait=seconds(0.05)))
        )
    ][-1]
    service.service.runtime.readiness.enter(type(service.service.runtime.readiness.phase).DRAINING)
    draining = await refused(service.enqueue("late"))

    assert (user_full.code, user_full.reason) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "USER_QUEUE_FULL",
    )
    assert (pool_full.code, pool_full.reason) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "QUEUE_FULL",
    )
    assert acquire_full.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert nobody.state == decision_pb2.REQUEST_STATE_WAITING
    assert expired.ended.state == decision_pb2.REQUEST_STATE_EXPIRED
    assert (draining.code, draining.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")


async def test_r50_a_refusal_says_when_to_come_back(service):
    """llm-d/llm-d-router#2487: a retry hint in the details, at least a second, and capped."""
    await limit(service, max_waiting=1)
    await service.enqueue()
    hints = [(await refused(service.enqueue())).retry_seconds for _ in range(40)]

    assert all(0 < hint <= 60 for hint in hints)
    assert hints == sorted(hints)


@pytest.mark.parametrize("places", [1, 7])
async def test_r51_a_limit_refuses_exactly_past_itself(service, places):
    """gateway-api-inference-extension#2103: limit - 1 and limit are taken, limit + 1 is not."""
    await limit(service, max_waiting_per_user=places)
    results = await enqueue_many(service, places + 1, user_id="A")
    for _ in range(20):
        one = (await service.next()).dispatches[0]
        await service.enqueue(user_id="A")
        await refused(service.enqueue(user_id="A"))
        await service.complete(one.lease_id)

    assert [one.HasField("response") for one in results] == [True] * places + [False]
    assert pool_of(service).flows["A"].waiting == places


async def test_r53_what_can_never_fit_is_no_temporary_overload(service):
    """smg-project/smg#1397: past any limit is INVALID_ARGUMENT; unplaceable is flagged, then ended.

    Long times run on the core with a virtual clock.
    """
    too_dear = await refused(service.enqueue(cost=10**9 + 1))
    driver = Driver(policy("fair_qba", **PATIENT, unplaceable_wait_ns=10 * SECOND_NS))
    small = d.Offer(free_tokens=10, total_tokens=10)
    driver.ask(1, offer=small)
    driver.enqueue("big", "A", kv_tokens=1000)
    before = driver.ask(1, offer=small)
    driver.advance(11)
    driver.ask(1, offer=small)

    assert too_dear.code is grpc.StatusCode.INVALID_ARGUMENT
    assert "cost" in too_dear.fields
    assert before.empty_reason is d.EmptyReason.HELD_BY_FIT
    assert [one.state for one in driver.of(d.Ended)] == [d.RequestState.UNPLACEABLE]


async def test_r55_a_pause_is_what_was_last_acknowledged(tmp_path):
    """santiment/sanbase2#5264: over restarts, resumed twice or while idle, and ending by itself."""
    async with running(tmp_path / "data") as live:
        await live.admin.Resume(admin.ResumeRequest(pool=POOL, user_id="A"))
        await live.admin.Pause(admin.PauseRequest(pool=POOL, user_id="A"))
        await live.enqueue("a", "A")
    async with running(tmp_path / "data") as live:
        assert not (await live.next()).dispatches
        await live.admin.Resume(admin.ResumeRequest(pool=POOL, user_id="A"))
        await live.admin.Resume(admin.ResumeRequest(pool=POOL, user_id="A"))
    async with running(tmp_path / "data") as live:
        assert [one.request_id for one in (await live.next()).dispatches] == ["a"]
        await live.admin.Pause(admin.PauseRequest(pool=POOL, duration=seconds(0.2)))
        await live.enqueue("b", "A")
        assert [one.request_id for one in (await live.next(wait=5)).dispatches] == ["b"]


@pytest.mark.parametrize(("places", "refusals"), [(100, 400), (1000, 0)])
async def test_r56_a_burst_meets_clear_answers(service, places, refusals):
    """text-generation-inference#439: 500 at once: exactly those past the limit are refused.

    Each is told which limit it was, and when to come back.
    """
    await limit(service, max_waiting=places, max_waiting_per_user=places)
    answers = await asyncio.gather(
        *(service.enqueue(f"r{number}", "A") for number in range(500)), return_exceptions=True
    )
    failed = [one for one in answers if isinstance(one, grpc.aio.AioRpcError)]

    assert len(failed) == refusals
    found = [refusal_of(one) for one in failed]
    assert {one.code for one in found} <= {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert {one.reason for one in found} <= {"USER_QUEUE_FULL"}
    assert all(one.retry_seconds >= 1 for one in found)


async def test_r57_every_waiter_gets_exactly_one_end(service):
    """lmstudio-bug-tracker#7: random cancels, worker deaths and expiries; nobody waits for ever."""
    rng = random.Random(57)
    await limit(service, max_attempts=2, hand_over=seconds(0.1), lease_duration=seconds(1))

    async def waiter(number):
        max_wait = seconds(0.2) if number % 7 == 0 else seconds(20)
        await service.enqueue(f"r{number}", f"u{number % 9}", max_wait=max_wait)
        if number % 5 == 0:
            await service.scheduler.Cancel(pb.CancelRequest(pool=POOL, request_id=f"r{number}"))
        state = decision_pb2.REQUEST_STATE_WAITING
        while state not in ENDED:
            request = pb.GetRequestRequest(
                pool=POOL, request_id=f"r{number}", known_state=state, wait_duration=seconds(5)
            )
            state = (await service.scheduler.GetRequest(request)).request.state
        return state

    async def worker(name):
        while True:
            answer = await service.next(name, wait=0.5, timeout=5)
            for one in answer.dispatches:
                if rng.random() < 0.9:
                    await service.complete(one.lease_id)

    workers = [asyncio.ensure_future(worker(f"w{number}")) for number in range(4)]
    async with asyncio.timeout(40):
        ends = await asyncio.gather(*(waiter(number) for number in range(200)))
    for one in workers:
        one.cancel()
    await asyncio.gather(*workers, return_exceptions=True)

    assert len(ends) == 200
    assert not pool_of(service).requests
