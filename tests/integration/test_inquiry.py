"""GetRequest: where a request is, why it waits, and waiting for a change."""

import asyncio
import time

import grpc
import pytest

from fairsched.v1 import admin_service_pb2, audit_service_pb2, decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from tests.support.live import POOL, refused, running, seconds

S = decision_pb2


async def _ask(service, request_id="a", **fields):
    wait = fields.pop("wait", None)
    timeout = fields.pop("timeout", None)
    if wait is not None:
        fields["wait_duration"] = seconds(wait)
    request = pb.GetRequestRequest(pool=POOL, request_id=request_id, **fields)
    return await service.scheduler.GetRequest(request, timeout=timeout)


async def test_a_waiting_request_says_why_it_waits(service):
    """State, times and position, with the numbers behind them and a sentence."""
    await service.enqueue("first", "b", cost=5)
    await service.enqueue("a", "c", cost=5, max_wait=seconds(60), kv_tokens=7, payload=b"xy")
    answer = await _ask(service)

    found = answer.request
    assert (found.state, found.user_id, found.cost) == (S.REQUEST_STATE_WAITING, "c", 5)
    assert (found.kv_tokens, found.payload_bytes, found.attempts) == (7, 2, 0)
    waits = found.expire_time.ToNanoseconds() - found.enqueue_time.ToNanoseconds()
    assert waits == 60 * 10**9
    assert answer.wait.cause == pb.WAIT_CAUSE_TURN
    assert answer.wait.requests_ahead == 1
    assert "goes first" in answer.wait.description


async def test_a_leased_request_says_who_has_it(service):
    """Who holds it, until when, and no reason to wait."""
    await service.leased("a", "gpu-7")
    answer = await _ask(service)

    assert answer.request.state == S.REQUEST_STATE_LEASED
    assert answer.request.worker_id == "gpu-7"
    assert answer.request.lease_expire_time.seconds > answer.request.enqueue_time.seconds
    assert answer.request.first_dispatch_time.seconds > 0
    assert not answer.HasField("wait")


@pytest.mark.parametrize(
    ("user_id", "cause", "blocked"),
    [("", pb.WAIT_CAUSE_POOL_PAUSED, 5), ("u", pb.WAIT_CAUSE_USER_PAUSED, 4)],
)
async def test_a_pause_is_the_cause(service, user_id, cause, blocked):
    """A request of a paused pool or user says so, and for how long it was held back."""
    await service.enqueue("a")
    await service.admin.Pause(admin_service_pb2.PauseRequest(pool=POOL, user_id=user_id))
    await asyncio.sleep(0.2)
    answer = await _ask(service)

    assert answer.wait.cause == cause
    (held,) = answer.wait.blocked
    assert held.cause == blocked
    assert 0.15 <= held.duration.ToNanoseconds() / 1e9 < 5
    await service.admin.Resume(admin_service_pb2.ResumeRequest(pool=POOL, user_id=user_id))
    after = await _ask(service)
    assert after.wait.cause == pb.WAIT_CAUSE_WORKER
    assert after.wait.blocked[0].duration.ToNanoseconds() >= held.duration.ToNanoseconds()


async def test_a_cap_is_the_cause(service):
    """A user at its cap holds its own requests back, and that is counted."""
    cap = admin_service_pb2.SetUserRequest(pool=POOL, user_id="u", max_in_flight=1)
    await service.admin.SetUser(cap)
    await service.leased("running")
    await service.enqueue("a")
    await asyncio.sleep(0.1)
    answer = await _ask(service)

    assert answer.wait.cause == pb.WAIT_CAUSE_USER_CAP
    assert [b.cause for b in answer.wait.blocked] == [pb.WAIT_CAUSE_USER_CAP]


async def test_a_stall_is_a_cause_and_its_time_is_counted(tmp_path):
    """Who waits for a request that does not fit learns for how long, and that one, too."""
    file = tmp_path / "config.toml"
    file.write_text('[pools.default]\npreset = "sfq"\ncost_source = "caller"\n')
    async with running(tmp_path / "data", file=file) as live:
        await live.next("w1", offer=S.Offer(total_tokens=1000, free_tokens=1000))
        await live.enqueue("large", "a", kv_tokens=500)
        await live.enqueue("a", "b", kv_tokens=5)
        parked = asyncio.ensure_future(live.next("w2", wait=30, offer=S.Offer(free_tokens=100)))
        await live.until(lambda: live.app.waiters.count == 1)
        misfits = live.app.blocked.misfits
        await live.until(lambda: misfits.stalled_ns(POOL, live.engine.now_ns()) > 50_000_000)
        behind, large = await _ask(live), await _ask(live, "large")
        told = await live.audit.ExplainDecision(
            audit_service_pb2.ExplainDecisionRequest(request={"pool": POOL, "request_id": "a"})
        )
        parked.cancel()

    assert behind.wait.cause == pb.WAIT_CAUSE_STALLED
    assert behind.wait.blocked_by == "large"
    assert [b.cause for b in behind.wait.blocked] == [pb.WAIT_CAUSE_STALLED]
    assert behind.wait.blocked[0].duration.ToNanoseconds() > 50_000_000
    assert large.wait.cause == pb.WAIT_CAUSE_FIT
    assert [b.cause for b in large.wait.blocked] == [pb.WAIT_CAUSE_FIT]
    assert "by: stalled." in told.text


async def test_a_change_answers_a_call_that_waits(service):
    """A gateway of plain Enqueue learns of the turn, and of the end, when it happens."""
    await service.enqueue("a")
    waiting = asyncio.ensure_future(_ask(service, wait=30))
    await service.until(lambda: len(service.app.watch) == 1)
    (dispatch,) = (await service.next()).dispatches
    leased = await waiting
    assert leased.request.state == S.REQUEST_STATE_LEASED

    waiting = asyncio.ensure_future(_ask(service, wait=30, known_state=S.REQUEST_STATE_LEASED))
    await service.until(lambda: len(service.app.watch) == 1)
    await service.complete(dispatch.lease_id)
    assert (await waiting).request.state == S.REQUEST_STATE_SUCCEEDED
    assert len(service.app.watch) == service.app.slots.calls == 0


async def test_a_known_state_that_is_past_answers_at_once(service):
    """Who knows an old state is told the new one without waiting."""
    await service.leased("a")
    began = time.monotonic()
    answer = await _ask(service, wait=30, known_state=S.REQUEST_STATE_WAITING)

    assert answer.request.state == S.REQUEST_STATE_LEASED
    assert time.monotonic() - began < 2


async def test_what_has_ended_is_told_at_once(service):
    """An ended request never changes: nobody waits for it."""
    dispatch = await service.leased("a")
    await service.complete(dispatch.lease_id)
    began = time.monotonic()
    answer = await _ask(service, wait=30, known_state=S.REQUEST_STATE_SUCCEEDED)

    assert answer.request.state == S.REQUEST_STATE_SUCCEEDED
    assert answer.request.end_time.seconds > 0
    assert time.monotonic() - began < 2


async def test_a_wait_ends_before_the_deadline(service):
    """A call whose time is over gets the state as it is, as an answer."""
    await service.enqueue("a")
    began = time.monotonic()
    answer = await _ask(service, wait=30, timeout=0.7)

    assert answer.request.state == S.REQUEST_STATE_WAITING
    assert 0.3 <= time.monotonic() - began < 0.7
    assert service.app.slots.calls == 0


@pytest.mark.parametrize(
    ("pool", "request_id", "reason"),
    [(POOL, "nobody's", "REQUEST_UNKNOWN"), ("nowhere", "a", "POOL_UNKNOWN")],
)
async def test_what_is_not_there_is_not_found(service, pool, request_id, reason):
    """Neither an unknown request nor an unknown pool is a defect."""
    request = pb.GetRequestRequest(pool=pool, request_id=request_id)
    refusal = await refused(service.scheduler.GetRequest(request))

    assert (refusal.code, refusal.reason) == (grpc.StatusCode.NOT_FOUND, reason)


async def test_shedding_is_told(service):
    """The owner of a shed request learns why it ended."""
    await service.admin.UpdatePool(
        admin_service_pb2.UpdatePoolRequest(pool=POOL, policy={"max_waiting": 4})
    )
    for number in range(4):
        await service.enqueue(f"r{number}", "greedy")
    waiting = asyncio.ensure_future(_ask(service, "r3", wait=30))
    await service.until(lambda: len(service.app.watch) == 1)
    await service.enqueue("mine", "modest")
    answer = await waiting

    assert answer.request.state == S.REQUEST_STATE_SHED
    assert answer.request.reason == "POOL_FULL"
