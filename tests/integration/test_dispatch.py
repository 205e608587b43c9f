"""NextDispatch: order, long polls, repeats, carried completions, and calls that go away."""

import asyncio
import itertools
import time

import grpc
import pytest

from fairsched.v1 import admin_service_pb2, decision_pb2, policy_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from tests.support.live import POOL, refused, running, seconds

EMPTY = decision_pb2.EMPTY_REASON_EMPTY


async def test_requests_come_in_decision_order(service):
    """Up to `max_dispatches` come at once, in the order of the log, each with its lease."""
    for user_id in "aab":
        await service.enqueue(user_id=user_id, cost=10)

    answer = await service.next(max_dispatches=5)

    assert [d.user_id for d in answer.dispatches] == ["a", "b", "a"]
    assert len({d.lease_id for d in answer.dispatches}) == 3
    sequences = [d.sequence for d in answer.dispatches]
    assert sequences == sorted(sequences)
    assert answer.empty_reason == EMPTY
    assert all(59 <= d.lease_duration.seconds <= 60 for d in answer.dispatches)


async def test_an_empty_pool_says_so(service):
    """A call that does not wait is answered at once, with the reason."""
    answer = await service.next()

    assert list(answer.dispatches) == []
    assert answer.empty_reason == EMPTY


async def test_a_parked_call_gets_what_arrives(service):
    """A call that waits is answered when something arrives, not when its time is over."""
    waiting = asyncio.ensure_future(service.next(wait=30))
    await service.until(lambda: service.app.waiters.count == 1)
    began = time.monotonic()
    await service.enqueue("a")

    answer = await waiting

    assert [d.request_id for d in answer.dispatches] == ["a"]
    assert time.monotonic() - began < 2
    assert service.app.waiters.count == service.app.slots.calls == 0


async def test_a_wait_ends_by_itself(service):
    """A call that found nothing in its time is answered empty."""
    began = time.monotonic()
    answer = await service.next(wait=0.2)

    assert list(answer.dispatches) == []
    assert answer.empty_reason == EMPTY
    assert 0.2 <= time.monotonic() - began < 2


async def test_a_wait_ends_before_the_deadline(service):
    """The answer comes 200 ms before the caller's deadline: it is an answer, not a timeout."""
    began = time.monotonic()
    answer = await service.next(wait=60, timeout=0.8)

    assert list(answer.dispatches) == []
    assert 0.4 <= time.monotonic() - began < 0.8


async def test_a_deadline_too_short_to_wait_is_answered_at_once(service):
    """With less than the margin left a call does not wait at all."""
    began = time.monotonic()
    answer = await service.next(wait=60, timeout=0.15)

    assert list(answer.dispatches) == []
    assert time.monotonic() - began < 0.15


@pytest.mark.slow
async def test_no_arrival_is_missed_while_parking(service):
    """Whenever an arrival and a call cross, the call gets it (R69: camunda/camunda#4396)."""
    for number in range(300):
        waiting = asyncio.ensure_future(service.next(wait=20))
        for _ in range(number % 5):
            await asyncio.sleep(0)
        arriving = asyncio.ensure_future(service.enqueue())
        async with asyncio.timeout(2):
            answer = await waiting
            await arriving
        assert len(answer.dispatches) == 1


async def test_one_arrival_answers_one_call(service):
    """Of many calls that wait the one parked longest is served (R70: camunda/camunda#48998)."""
    calls = []
    for number in range(20):
        calls.append(asyncio.ensure_future(service.next(f"w{number}", wait=30)))
        await service.until(lambda: service.app.waiters.count == len(calls))
    await service.enqueue("a")
    answer = await calls[0]

    assert len(answer.dispatches) == 1
    assert service.app.waiters.count == 19
    for call in calls[1:]:
        call.cancel()
    await asyncio.gather(*calls[1:], return_exceptions=True)
    await service.until(lambda: service.app.waiters.count == 0)


async def test_a_call_cancelled_while_it_waits_gets_nothing(service):
    """What arrives after a call was cancelled goes to the next one."""
    waiting = asyncio.ensure_future(service.next("gone", wait=30))
    await service.until(lambda: service.app.waiters.count == 1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await service.until(lambda: service.app.waiters.count == 0)
    await service.enqueue("a")

    answer = await service.next("w")

    assert [d.request_id for d in answer.dispatches] == ["a"]
    assert answer.dispatches[0].attempt == 1


@pytest.mark.slow
async def test_grants_of_cancelled_calls_come_back(service):
    """However a cancel and a grant cross, the request is soon with another worker, unharmed.

    That is at once, unless the answer had left already: it may have been received, so the end of
    its hand-over is waited for.
    """
    hand_over = policy_pb2.PoolPolicy(hand_over=seconds(1))
    request = admin_service_pb2.UpdatePoolRequest(pool=POOL, policy=hand_over)
    await service.admin.UpdatePool(request)
    at_once = 0
    for number in range(60):
        waiting = asyncio.ensure_future(service.next("gone", wait=30))
        await service.until(lambda: service.app.waiters.count == 1)
        arriving = asyncio.ensure_future(service.enqueue(f"r{number}"))
        for _ in range(number % 12):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await arriving
        began = time.monotonic()
        async with asyncio.timeout(5):
            answer = await service.next("w", wait=10)
        at_once += time.monotonic() - began < 0.5
        (dispatch,) = answer.dispatches
        assert (dispatch.request_id, dispatch.attempt) == (f"r{number}", 1)
        await service.complete(dispatch.lease_id)

    assert at_once >= 20


async def test_an_idempotency_key_gives_the_same_leases(service):
    """A repeat with the same key gets the same leases and charges nothing more."""
    for user_id in "abc":
        await service.enqueue(user_id=user_id)
    first = await service.next(max_dispatches=2, idempotency_key="k")
    meters = {u: f.meter for u, f in service.engine.state.pools[POOL].flows.items()}
    again = await service.next(max_dispatches=2, idempotency_key="k")

    assert [d.lease_id for d in again.dispatches] == [d.lease_id for d in first.dispatches]
    assert (first.duplicate, again.duplicate) == (False, True)
    assert {u: f.meter for u, f in service.engine.state.pools[POOL].flows.items()} == meters
    assert service.engine.state.pools[POOL].waiting == 1


async def test_a_key_is_kept_by_worker(service):
    """The same key of another worker is another call."""
    await service.enqueue(user_id="a")
    await service.enqueue(user_id="b")
    first = await service.next("w1", idempotency_key="k")
    other = await service.next("w2", idempotency_key="k")

    assert first.dispatches[0].request_id != other.dispatches[0].request_id


async def test_a_call_with_a_key_keeps_its_grant_when_cancelled(service):
    """The repeat of a cancelled call asks for the same leases, so they are not given back."""
    waiting = asyncio.ensure_future(service.next("w", wait=30, idempotency_key="k"))
    await service.until(lambda: service.app.waiters.count == 1)
    arriving = asyncio.ensure_future(service.enqueue("a"))
    await service.until(lambda: bool(service.engine.state.leases))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await arriving
    again = await service.next("w", idempotency_key="k")

    assert [d.request_id for d in again.dispatches] == ["a"]


async def test_completions_are_carried_along(service):
    """One call ends the last request and takes the next; each completion has its result."""
    first = await service.leased("a")
    await service.enqueue("b")
    answer = await service.next(
        completions=[
            pb.CompleteRequest(lease_id=first.lease_id, outcome=decision_pb2.OUTCOME_SUCCEEDED),
            pb.CompleteRequest(lease_id="nobody's", outcome=decision_pb2.OUTCOME_SUCCEEDED),
            pb.CompleteRequest(lease_id=first.lease_id),
        ]
    )

    assert [d.request_id for d in answer.dispatches] == ["b"]
    done, unknown, bad = answer.completion_results
    assert done.response.state == decision_pb2.REQUEST_STATE_SUCCEEDED
    assert unknown.error.reason == "LEASE_UNKNOWN"
    assert bad.error.field_violations[0].field == "completions[2].outcome"


async def test_completions_stand_whatever_becomes_of_the_call(service):
    """A call that is refused has ended the leases it carried."""
    first = await service.leased("a")
    done = pb.CompleteRequest(lease_id=first.lease_id, outcome=decision_pb2.OUTCOME_SUCCEEDED)
    refusal = await refused(service.next(pools=["nowhere"], completions=[done]))

    assert refusal.reason == "POOL_UNKNOWN"
    assert (await service.state("a")).state == decision_pb2.REQUEST_STATE_SUCCEEDED


async def test_cancelled_leases_are_told(service):
    """A worker learns with its next call which of its requests to stop."""
    lease = await service.leased("a")
    await service.scheduler.Cancel(pb.CancelRequest(pool=POOL, request_id="a"))
    answer = await service.next()

    assert list(answer.cancelled_lease_ids) == [lease.lease_id]
    await service.complete(lease.lease_id)
    assert list((await service.next()).cancelled_lease_ids) == []


class TestSeveralPools:
    """A worker that serves more than one pool."""

    async def test_pools_are_taken_in_rotation(self, service):
        """No pool waits for another to be empty, also with one request a call."""
        await service.admin.CreatePool(
            admin_service_pb2.CreatePoolRequest(
                pool="other",
                policy=policy_pb2.PoolPolicy(cost_source=policy_pb2.COST_SOURCE_CALLER),
            )
        )
        for _ in range(4):
            await service.enqueue()
            await service.enqueue(pool="other")

        seen = []
        for _ in range(8):
            answer = await service.next(pools=[POOL, "other"])
            seen.append(answer.dispatches[0].pool)

        assert seen.count("other") == 4
        assert all(a != b for a, b in itertools.pairwise(seen))

    async def test_a_call_waits_for_all_of_its_pools(self, service):
        """An arrival in any of the pools answers a call that waits for them."""
        await service.admin.CreatePool(
            admin_service_pb2.CreatePoolRequest(
                pool="other",
                policy=policy_pb2.PoolPolicy(cost_source=policy_pb2.COST_SOURCE_CALLER),
            )
        )
        waiting = asyncio.ensure_future(service.next(pools=[POOL, "other"], wait=30))
        await service.until(lambda: service.app.waiters.count == 1)
        await service.enqueue("a", pool="other")

        assert (await waiting).dispatches[0].pool == "other"


class TestWhyEmpty:
    """The reason for an empty answer."""

    async def test_paused(self, service):
        """A paused pool says so, and a parked call is answered when it is resumed."""
        await service.admin.Pause(admin_service_pb2.PauseRequest(pool=POOL))
        await service.enqueue("a")
        answer = await service.next()
        assert answer.empty_reason == decision_pb2.EMPTY_REASON_PAUSED

        waiting = asyncio.ensure_future(service.next(wait=30))
        await service.until(lambda: service.app.waiters.count == 1)
        await service.admin.Resume(admin_service_pb2.ResumeRequest(pool=POOL))

        assert [d.request_id for d in (await waiting).dispatches] == ["a"]

    async def test_held_by_cap(self, service):
        """When every user with work is at its cap, that is the reason."""
        await service.admin.SetUser(
            admin_service_pb2.SetUserRequest(pool=POOL, user_id="u", max_in_flight=1)
        )
        first = await service.leased("a")
        await service.enqueue("b")
        answer = await service.next("w2")
        assert answer.empty_reason == decision_pb2.EMPTY_REASON_HELD_BY_CAP

        waiting = asyncio.ensure_future(service.next("w2", wait=30))
        await service.until(lambda: service.app.waiters.count == 1)
        await service.complete(first.lease_id)

        assert [d.request_id for d in (await waiting).dispatches] == ["b"]

    async def test_stalled(self, tmp_path):
        """A request that does not fit blocks a pool that stalls, and is named."""
        file = tmp_path / "config.toml"
        file.write_text('[pools.default]\npreset = "sfq"\ncost_source = "caller"\n')
        async with running(tmp_path / "data", file=file) as live:
            await live.next("big", offer=decision_pb2.Offer(total_tokens=1000, free_tokens=1000))
            await live.enqueue("large", "a", kv_tokens=500)
            await live.enqueue("small", "b", kv_tokens=5)
            answer = await live.next(offer=decision_pb2.Offer(free_tokens=100))

            assert answer.empty_reason == decision_pb2.EMPTY_REASON_STALLED_BY
            assert answer.stalled_request_id == "large"

    async def test_held_by_fit(self, service):
        """Where requests may overtake, what fits goes; if nothing fits, that is the reason."""
        await service.enqueue("large", kv_tokens=5000)
        await service.enqueue("small", "other", kv_tokens=50)
        offer = decision_pb2.Offer(free_tokens=100)

        assert [d.request_id for d in (await service.next(offer=offer)).dispatches] == ["small"]
        answer = await service.next(offer=offer)
        assert answer.empty_reason == decision_pb2.EMPTY_REASON_HELD_BY_FIT

    async def test_leases_full(self, service):
        """A worker that holds as many leases as it wants gets no more."""
        for _ in range(3):
            await service.enqueue()
        offer = decision_pb2.Offer(max_leases=2)
        answer = await service.next(max_dispatches=5, offer=offer)

        assert len(answer.dispatches) == 2
        assert answer.empty_reason == decision_pb2.EMPTY_REASON_LEASES_FULL


async def test_a_gate_gives_nothing_to_workers(tmp_path):
    """Workers cannot take from a pool whose turns go to waiting gateways."""
    file = tmp_path / "config.toml"
    file.write_text('[pools.default]\nmode = "gate"\n')
    async with running(tmp_path / "data", file=file) as live:
        refusal = await refused(live.next())

        assert refusal.code is grpc.StatusCode.FAILED_PRECONDITION
        assert (refusal.reason, refusal.precondition) == ("POOL_MODE", "POOL_MODE")


async def test_an_unknown_pool_is_not_found(service):
    """A wrong name is told as such, also among good ones."""
    refusal = await refused(service.next(pools=[POOL, "nowhere"]))

    assert refusal.code is grpc.StatusCode.NOT_FOUND
    assert (refusal.reason, refusal.metadata) == ("POOL_UNKNOWN", {"pool": "nowhere"})


async def test_a_stated_lease_duration_is_used(service):
    """Leases are as long as the call says."""
    await service.enqueue("a")
    answer = await service.next(lease_duration=seconds(5))

    assert 4 <= answer.dispatches[0].lease_duration.seconds <= 5


async def test_large_payloads_come_in_messages_that_can_be_received(service):
    """What does not fit one answer is not lost: it comes with the next call, uncharged."""
    for number in range(80):
        await service.enqueue(f"r{number}", payload=b"x" * 65_000)
    seen = []
    for _ in range(3):
        answer = await service.next(max_dispatches=100)
        seen += [d.request_id for d in answer.dispatches]
        assert all(d.attempt == 1 for d in answer.dispatches)

    assert sorted(seen) == sorted(f"r{number}" for number in range(80))
