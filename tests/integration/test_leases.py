"""Leases: ending, renewing, fencing, expiry, hand-over."""

import asyncio

import grpc
import pytest

from fairsched.v1 import admin_service_pb2, decision_pb2, policy_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.workers import give_back
from tests.support.live import FAILED, GIVEN_BACK, POOL, SUCCEEDED, refused, seconds

S = decision_pb2


async def _renew(service, *lease_ids, **fields):
    progress = fields.pop("progress", 0)
    renewals = [pb.LeaseRenewal(lease_id=lease, progress=progress) for lease in lease_ids]
    request = pb.RenewLeaseRequest(renewals=renewals, **fields)
    return (await service.scheduler.RenewLease(request)).results


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (SUCCEEDED, S.REQUEST_STATE_SUCCEEDED),
        (FAILED, S.REQUEST_STATE_FAILED),
        (GIVEN_BACK, S.REQUEST_STATE_REDELIVERY),
    ],
)
async def test_a_lease_ends_as_its_worker_says(service, outcome, state):
    """The answer says where the request is now."""
    dispatch = await service.leased("a")
    answer = await service.complete(dispatch.lease_id, outcome, error="why")

    assert (answer.pool, answer.request_id, answer.state) == (POOL, "a", state)
    found = await service.state("a")
    assert found.state == state
    assert found.error == ("" if outcome == SUCCEEDED else "why") or outcome == SUCCEEDED


async def test_a_repeat_gets_the_first_answer(service):
    """A second completion of the same lease changes nothing, whatever it says."""
    dispatch = await service.leased("a")
    await service.complete(dispatch.lease_id)
    again = await service.complete(dispatch.lease_id, FAILED)

    assert again.state == S.REQUEST_STATE_SUCCEEDED
    assert again.duplicate


async def test_a_repeated_give_back_gets_the_first_answer(service):
    """Before, while and after another worker runs it: what was given back stays given back."""
    first = await service.leased("a", "w1")
    answers = [await service.complete(first.lease_id, GIVEN_BACK) for _ in range(2)]
    (second,) = (await service.next("w2")).dispatches
    answers.append(await service.complete(first.lease_id, GIVEN_BACK))
    await service.complete(second.lease_id)
    records = service.engine.state.sequence
    answers.append(await service.complete(first.lease_id, SUCCEEDED))

    assert [x.state for x in answers] == [S.REQUEST_STATE_REDELIVERY] * 4
    assert [x.duplicate for x in answers] == [False, True, True, True]
    assert service.engine.state.sequence == records


async def test_each_item_of_a_batch_has_its_own_result(service):
    """BatchComplete ends what it can and says what it cannot."""
    one = await service.leased("a")
    two = await service.leased("b")
    items = [
        pb.CompleteRequest(lease_id=one.lease_id, outcome=SUCCEEDED),
        pb.CompleteRequest(lease_id="unknown", outcome=SUCCEEDED),
        pb.CompleteRequest(lease_id="", outcome=SUCCEEDED),
        pb.CompleteRequest(lease_id=two.lease_id, outcome=FAILED),
    ]
    answer = await service.scheduler.BatchComplete(pb.BatchCompleteRequest(completions=items))

    reasons = [result.error.reason for result in answer.results]
    assert reasons == ["", "LEASE_UNKNOWN", "INVALID_FIELDS", ""]


async def test_a_given_back_request_goes_to_another_worker_first(service):
    """What was given back goes first, to another worker, and is not charged again."""
    dispatch = await service.leased("a", "bad")
    charged = service.engine.state.pools[POOL].flows["u"].meter
    await service.enqueue("b", "other")
    await service.complete(dispatch.lease_id, GIVEN_BACK)

    mine = await service.next("bad")
    theirs = await service.next("good")

    assert [d.request_id for d in mine.dispatches] == ["b"]
    (again,) = theirs.dispatches
    assert (again.request_id, again.attempt, again.turn) == ("a", 1, S.TURN_REDELIVERY)
    assert service.engine.state.pools[POOL].flows["u"].meter == charged


async def test_a_superseded_lease_changes_nothing(service):
    """A worker that comes late is told that another one has the request."""
    dispatch = await service.leased("a", "slow")
    give_back(service.engine, [dispatch.lease_id])
    (again,) = (await service.next("fast")).dispatches

    late = await refused(service.complete(dispatch.lease_id))
    (renewal,) = await _renew(service, dispatch.lease_id, worker_id="slow")

    assert (late.code, late.reason) == (grpc.StatusCode.ABORTED, "LEASE_SUPERSEDED")
    assert renewal.error.reason == "LEASE_SUPERSEDED"
    assert (await service.state("a")).worker_id == "fast"
    assert (await service.complete(again.lease_id)).state == S.REQUEST_STATE_SUCCEEDED


async def test_an_unknown_lease_is_not_found(service):
    """A lease that never was."""
    refusal = await refused(service.complete("nobody's"))
    (renewal,) = await _renew(service, "nobody's")

    assert (refusal.code, refusal.reason) == (grpc.StatusCode.NOT_FOUND, "LEASE_UNKNOWN")
    assert refusal.metadata == {"leaseId": "nobody's"}
    assert renewal.error.code == grpc.StatusCode.NOT_FOUND.value[0]


async def test_a_lease_is_its_workers_own(service):
    """Another worker can neither renew it nor, naming its own session, complete it."""
    dispatch = await service.leased("a", "mine")
    (renewal,) = await _renew(service, dispatch.lease_id, worker_id="thief")
    refusal = await refused(service.complete(dispatch.lease_id, session_id="thief"))

    assert renewal.error.reason == "LEASE_OF_OTHER_WORKER"
    assert refusal.code is grpc.StatusCode.PERMISSION_DENIED
    assert refusal.reason == "LEASE_OF_OTHER_WORKER"


async def test_an_expired_lease_is_redelivered_without_any_call(service):
    """A silent worker loses its request when the lease ends, though nobody calls (R64)."""
    await service.enqueue("a")
    answer = await service.next("dead", lease_duration=seconds(1), hand_over_disabled=True)
    waiting = asyncio.ensure_future(service.next("alive", wait=10))
    async with asyncio.timeout(3):
        (again,) = (await waiting).dispatches

    assert (again.request_id, again.attempt) == ("a", 2)
    late = await refused(service.complete(answer.dispatches[0].lease_id))
    assert late.reason == "LEASE_SUPERSEDED"
    found = await service.state("a")
    assert (found.failures, found.worker_id) == (1, "alive")


async def test_an_expired_lease_of_a_waiting_request_is_told(service):
    """Nobody holds the request yet: the late worker is told that its lease has ended."""
    await service.enqueue("a")
    answer = await service.next("dead", lease_duration=seconds(1), hand_over_disabled=True)
    lease_id = answer.dispatches[0].lease_id
    await service.until(lambda: not service.engine.state.leases)
    late = await refused(service.complete(lease_id))
    (renewal,) = await _renew(service, lease_id, worker_id="dead")

    assert (late.code, late.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "LEASE_EXPIRED")
    assert renewal.error.reason == "LEASE_EXPIRED"


async def test_renewing_keeps_a_lease(service):
    """A worker that renews holds its request as long as it likes (R58: celery/celery#5935)."""
    await service.enqueue("a")
    answer = await service.next("w", lease_duration=seconds(1))
    lease_id = answer.dispatches[0].lease_id
    for _ in range(5):
        await asyncio.sleep(0.4)
        (renewal,) = await _renew(service, lease_id, worker_id="w", lease_duration=seconds(1))
        assert not renewal.HasField("error")
        assert renewal.lease_duration.ToMilliseconds() == 1000
        assert list((await service.next("other")).dispatches) == []

    assert (await service.complete(lease_id)).state == S.REQUEST_STATE_SUCCEEDED


async def test_an_unconfirmed_lease_comes_back_soon(service):
    """A lease whose answer reached nobody is handed over, and the attempt does not count (R68)."""
    await service.admin.UpdatePool(
        admin_service_pb2.UpdatePoolRequest(
            pool=POOL, policy=policy_pb2.PoolPolicy(hand_over=seconds(0.3))
        )
    )
    await service.leased("a", "dead")
    async with asyncio.timeout(3):
        (again,) = (await service.next("alive", wait=10)).dispatches

    assert (again.request_id, again.attempt) == ("a", 1)
    assert (await service.state("a")).failures == 0


async def test_the_next_call_confirms_a_lease(service):
    """A worker that calls again has got its answer."""
    await service.leased("a")
    assert (await service.state("a")).provisional
    await service.next()

    assert not (await service.state("a")).provisional


async def test_too_many_expiries_are_dead_lettered(service):
    """A request that kills its workers stops after `max_attempts`, with the reason (R71)."""
    await service.admin.UpdatePool(
        admin_service_pb2.UpdatePoolRequest(pool=POOL, policy=policy_pb2.PoolPolicy(max_attempts=2))
    )
    await service.enqueue("a")
    for number in range(2):
        await service.next(f"w{number}", wait=5, lease_duration=seconds(1), hand_over_disabled=True)
    await service.until(lambda: "a" in service.engine.state.pools[POOL].dead)
    found = await service.state("a")

    assert found.state == S.REQUEST_STATE_DEAD_LETTERED
    assert (found.reason, found.failures) == ("MAX_ATTEMPTS", 2)
    assert (await service.enqueue("a")).state == S.REQUEST_STATE_DEAD_LETTERED


class TestCancel:
    """Ending requests before their time."""

    async def test_a_waiting_request_ends_at_once(self, service):
        """It is never dispatched; a second cancel says how it ended."""
        await service.enqueue("a")
        request = pb.CancelRequest(pool=POOL, request_id="a", reason="USER_LEFT")
        first = await service.scheduler.Cancel(request)
        again = await service.scheduler.Cancel(request)

        assert (first.state, first.duplicate) == (S.REQUEST_STATE_CANCELLED, False)
        assert (again.state, again.duplicate) == (S.REQUEST_STATE_CANCELLED, True)
        assert list((await service.next()).dispatches) == []
        found = await service.state("a")
        assert (found.state, found.reason) == (S.REQUEST_STATE_CANCELLED, "USER_LEFT")

    async def test_a_leased_request_is_stopped_by_its_worker(self, service):
        """Its worker learns it at the renewal; success comes too late to count (R45)."""
        dispatch = await service.leased("a")
        answer = await service.scheduler.Cancel(pb.CancelRequest(pool=POOL, request_id="a"))
        (renewal,) = await _renew(service, dispatch.lease_id, worker_id="w")

        assert answer.state == S.REQUEST_STATE_LEASED
        assert renewal.cancel_requested
        assert (await service.complete(dispatch.lease_id)).state == S.REQUEST_STATE_CANCELLED
        assert (await service.state("a")).reason == "CALLER"

    async def test_an_unknown_request_is_not_found(self, service):
        """A request that never was."""
        request = pb.CancelRequest(pool=POOL, request_id="nobody's")
        refusal = await refused(service.scheduler.Cancel(request))

        assert (refusal.code, refusal.reason) == (grpc.StatusCode.NOT_FOUND, "REQUEST_UNKNOWN")


async def test_waiting_limits_end_waiting_without_any_call(service):
    """A request leaves the queue at its limit, with nobody calling (R46)."""
    await service.enqueue("a", max_wait=seconds(0.2))
    await service.until(lambda: service.engine.state.pools[POOL].waiting == 0)
    found = await service.state("a")

    assert (found.state, found.reason) == (S.REQUEST_STATE_EXPIRED, "MAX_WAIT")
    assert list((await service.next()).dispatches) == []


async def test_prefill_progress_moves_the_quota(service):
    """Where the prefill is the admission point, the report counts, once."""
    point = policy_pb2.ADMISSION_POINT_PREFILL_COMPLETE
    policy = policy_pb2.PoolPolicy(admission_point=point)
    await service.admin.UpdatePool(admin_service_pb2.UpdatePoolRequest(pool=POOL, policy=policy))
    dispatch = await service.leased("a")
    flow = service.engine.state.pools[POOL].flows["u"]
    assert flow.short_admission_count == 0

    for _ in range(2):
        await _renew(
            service, dispatch.lease_id, worker_id="w", progress=pb.PROGRESS_PREFILL_COMPLETE
        )

    assert flow.short_admission_count == 1
