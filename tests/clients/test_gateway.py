"""The asynchronous gateway: turns, their ends and refusals."""

import asyncio

import pytest
import pytest_asyncio

import fairsched
from fairsched import AsyncFairsched, new_request
from fairsched.errors import FairschedError
from fairsched.v1 import decision_pb2, policy_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from fairsched.v1.decision_pb2 import RequestState
from tests.clients.requests import ended


@pytest_asyncio.fixture(loop_scope="session")
async def client(target, stream):
    """An asynchronous client of the shared service."""
    async with AsyncFairsched(target, stream=stream) as made:
        yield made


async def test_enqueue_is_idempotent(client, pool):
    """The same request twice is one request."""
    request = new_request(pool=pool, user_id="acme", cost=10)
    first = await client.enqueue(request)
    second = await client.enqueue(request)

    assert not first.duplicate
    assert second.duplicate
    assert second.sequence == first.sequence


async def test_bad_fields_are_named_all_at_once(client, pool):
    """A refused call names every bad field, its reason and its code."""
    request = new_request(pool=pool, user_id="", request_id="x", cost=-1)
    with pytest.raises(fairsched.InvalidRequestError) as caught:
        await client.enqueue(request)

    assert caught.value.reason == "INVALID_FIELDS"
    assert {field for field, _ in caught.value.field_violations} == {"user_id", "cost"}
    assert "user_id" in str(caught.value)


async def test_unknown_pool_is_not_found(client):
    """A pool that is not there is an error of its own kind, with the name in its metadata."""
    with pytest.raises(fairsched.NotFoundError) as caught:
        await client.enqueue(new_request(pool="nowhere", user_id="a", cost=1))

    assert caught.value.reason == "POOL_UNKNOWN"
    assert caught.value.metadata["pool"] == "nowhere"


async def test_brief_results_leave_out_what_takes_work(target, pool):
    """An accepted request is not told its place, and an end that succeeded only that it did."""
    async with AsyncFairsched(target, stream=True, brief_results=True) as client:
        first = await client.enqueue(new_request(pool=pool, user_id="a", cost=1))
        second = await client.enqueue(new_request(pool=pool, user_id="a", cost=1))
        call = pb.NextDispatchRequest(pools=[pool], worker_id=f"w-{pool}")
        (dispatch,) = (await client.scheduler.NextDispatch(call)).dispatches
        done = pb.CompleteRequest(
            lease_id=dispatch.lease_id, outcome=decision_pb2.OUTCOME_SUCCEEDED
        )
        ends = [await client.complete(done) for _ in range(2)]

    assert second.sequence > first.sequence > 0
    assert second.requests_ahead == 0
    assert not second.HasField("expected_wait")
    assert [end.state for end in ends] == [decision_pb2.REQUEST_STATE_SUCCEEDED] * 2
    assert [end.duplicate for end in ends] == [False, True]


async def test_full_queue_says_when_to_come_back(client, make_pool):
    """A refusal for lack of room carries a hint when to try again."""
    pool = make_pool(max_waiting_per_user=1)
    await client.enqueue(new_request(pool=pool, user_id="a", cost=1))
    with pytest.raises(fairsched.LimitReachedError) as caught:
        await client.enqueue(new_request(pool=pool, user_id="a", cost=1))

    assert caught.value.reason == "USER_QUEUE_FULL"
    assert caught.value.retry_after >= 1


async def test_batch_has_a_result_for_each(client, pool):
    """One bad item of a batch spoils no other."""
    good = new_request(pool=pool, user_id="a", cost=1)
    bad = new_request(pool=pool, user_id="a", cost=-1)
    results = await client.enqueue_many([good, bad, good])

    assert [isinstance(result, FairschedError) for result in results] == [False, True, False]
    assert results[2].duplicate


async def test_gate_turns_are_taken_one_after_the_other(client, gate):
    """A gate of one lets the second request go when the first has ended."""
    order = []

    async def one(name: str) -> None:
        request = new_request(pool=gate, user_id=name, request_id=name, cost=1)
        async with client.acquire(request) as turn:
            assert turn.lease_id
            assert not turn.worker_id
            order.append(f"{name} begins")
            await asyncio.sleep(0.05)
            order.append(f"{name} ends")

    await asyncio.gather(one("a"), one("b"))

    assert order in (
        ["a begins", "a ends", "b begins", "b ends"],
        ["b begins", "b ends", "a begins", "a ends"],
    )
    info = await ended(client, gate, "a")
    assert info.state == decision_pb2.REQUEST_STATE_SUCCEEDED


async def test_a_crowd_at_a_gate_is_let_through_as_the_gate_says(client, make_pool):
    """However many come at once, no more hold a turn than may; every turn ends as it was used."""
    gate = make_pool(mode=policy_pb2.POOL_MODE_GATE, gate_max_in_flight=2)
    held = most = 0

    async def one(number: int) -> pb.EnqueueRequest:
        nonlocal held, most
        request = new_request(pool=gate, user_id=f"user-{number % 7}", cost=1)
        async with client.acquire(request) as turn:
            held += 1
            most = max(most, held)
            await asyncio.sleep(0.05)
            held -= 1
        assert turn.end_error is None
        return request

    requests = await asyncio.gather(*(one(number) for number in range(120)))
    states = {(await ended(client, gate, r.request_id)).state for r in requests}

    assert most == 2
    assert states == {decision_pb2.REQUEST_STATE_SUCCEEDED}


async def test_a_gateway_can_leave_the_work_to_the_worker(client, pool):
    """The turn lasts until the worker has completed it, and what the worker says is what counts."""
    done = asyncio.Event()

    async def run(_job: fairsched.Job) -> pb.Usage:
        await done.wait()
        return fairsched.new_usage(prompt_tokens=5, output_tokens=6)

    worker = client.worker("w", [pool], run)
    working = asyncio.create_task(worker.run())
    request = new_request(pool=pool, user_id="a", cost=1)
    async with client.acquire(request) as turn:
        waits = asyncio.create_task(turn.completed())
        info = (await client.get_request(pool, request.request_id)).request
        done.set()
        await waits
    end = await ended(client, pool, request.request_id)
    worker.stop()
    await working

    assert turn.end_error is None
    assert info.state == decision_pb2.REQUEST_STATE_LEASED
    assert end.state == decision_pb2.REQUEST_STATE_SUCCEEDED
    assert await _outputs(client, request.request_id) == [6]


async def test_a_worker_that_fails_is_told_to_a_gateway_that_waits_for_it(client, pool):
    """The wait ends with how the request ended."""

    async def run(_job: fairsched.Job) -> pb.Usage:
        raise ValueError("out of memory")

    worker = client.worker("w", [pool], run)
    working = asyncio.create_task(worker.run())
    request = new_request(pool=pool, user_id="a", cost=1)
    with pytest.raises(fairsched.NotGrantedError) as caught:
        async with client.acquire(request) as turn:
            await turn.completed()
    worker.stop()
    await working

    assert caught.value.state == decision_pb2.REQUEST_STATE_FAILED


async def test_there_is_no_worker_to_wait_for_at_a_gate(client, gate):
    """Waiting for one is a mistake that is told at once."""
    async with client.acquire(new_request(pool=gate, user_id="a", cost=1)) as turn:
        with pytest.raises(fairsched.MisuseError):
            await turn.completed()


async def _outputs(client: AsyncFairsched, request_id: str) -> list[int]:
    """Returns the output tokens of the completions of a request, from the decision log."""
    wanted = fairsched.v1.audit_service_pb2.DecisionFilter(
        request_ids=[request_id], kinds=[decision_pb2.DECISION_KIND_COMPLETED]
    )
    listing = fairsched.v1.audit_service_pb2.ListDecisionsRequest(filter=wanted)
    found = client.pages(client.audit.ListDecisions, listing, "decisions")
    return [decision.completed.output_tokens async for decision in found]


async def test_gate_lease_outlives_its_length(client, gate):
    """The lease of a turn is renewed for as long as the turn lasts."""
    request = new_request(pool=gate, user_id="a", cost=1)
    async with client.acquire(request, lease_duration=1) as turn:
        await asyncio.sleep(2.5)
        assert not turn.lost.is_set()

    assert turn.end_error is None
    info = await ended(client, gate, request.request_id)
    assert info.state == decision_pb2.REQUEST_STATE_SUCCEEDED


async def test_usage_is_reported(client, gate):
    """What a turn says it used is in the decision log."""
    request = new_request(pool=gate, user_id="a", cost=1)
    async with client.acquire(request) as turn:
        turn.used(prompt_tokens=7, output_tokens=9)
    await ended(client, gate, request.request_id)
    wanted = fairsched.v1.audit_service_pb2.DecisionFilter(
        request_ids=[request.request_id], kinds=[decision_pb2.DECISION_KIND_COMPLETED]
    )
    listing = fairsched.v1.audit_service_pb2.ListDecisionsRequest(filter=wanted)
    found = [d async for d in client.pages(client.audit.ListDecisions, listing, "decisions")]

    (decision,) = found
    assert (decision.completed.prompt_tokens, decision.completed.output_tokens) == (7, 9)


async def test_exception_fails_the_request(client, gate):
    """An exception in the turn ends the request as failed, with its text, and goes on."""
    request = new_request(pool=gate, user_id="a", cost=1)
    with pytest.raises(ValueError, match="model broke"):
        async with client.acquire(request):
            raise ValueError("model broke")
    info = await ended(client, gate, request.request_id)

    assert info.state == decision_pb2.REQUEST_STATE_FAILED
    assert info.error == "ValueError: model broke"


async def test_cancelled_turn_is_cancelled(client, gate):
    """Cancelling the task that holds a turn cancels its request and frees its place."""
    request = new_request(pool=gate, user_id="a", cost=1)
    entered = asyncio.Event()

    async def hold() -> None:
        async with client.acquire(request):
            entered.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(hold())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    info = await ended(client, gate, request.request_id)

    assert info.state == decision_pb2.REQUEST_STATE_CANCELLED
    async with client.acquire(new_request(pool=gate, user_id="b", cost=1)):
        pass


async def test_dropped_wait_cancels(client, pool):
    """A caller that stops waiting takes its request along."""
    request = new_request(pool=pool, user_id="a", cost=1)
    told = asyncio.Queue()

    async def wait() -> None:
        async with client.acquire(request, on_queued=told.put_nowait):
            pytest.fail("nobody serves this pool")

    task = asyncio.create_task(wait())
    outlook = await told.get()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    info = await ended(client, pool, request.request_id)

    assert info.state == decision_pb2.REQUEST_STATE_CANCELLED
    assert outlook.requests_ahead == 0


async def test_max_wait_ends_without_a_turn(client, pool):
    """A request that may wait no longer ends its caller's wait with the reason."""
    request = new_request(pool=pool, user_id="a", cost=1, max_wait=0.2)
    with pytest.raises(fairsched.NotGrantedError) as caught:
        async with client.acquire(request):
            pytest.fail("nobody serves this pool")

    assert caught.value.state == RequestState.REQUEST_STATE_EXPIRED
    assert caught.value.reason == "MAX_WAIT"


async def test_turn_of_a_worker_names_it(client, pool):
    """With worker pull the turn says which worker took it, and where; both know the lease."""
    seen = asyncio.Queue()
    finish = asyncio.Event()

    async def handler(job) -> None:
        seen.put_nowait(job.dispatch)
        await finish.wait()

    worker = client.worker("gpu-1", [pool], handler, endpoint="http://127.0.0.1:8000")
    running = asyncio.create_task(worker.run())
    request = new_request(pool=pool, user_id="a", cost=1)
    async with client.acquire(request) as turn:
        dispatch = await seen.get()
        assert (turn.worker_id, turn.endpoint) == ("gpu-1", "http://127.0.0.1:8000")
        assert turn.lease_id == dispatch.lease_id
        assert dispatch.caller_bound
        assert turn.wait >= 0
    finish.set()
    worker.stop()
    await running
    info = await ended(client, pool, request.request_id)

    assert info.state == decision_pb2.REQUEST_STATE_SUCCEEDED


async def test_turn_can_be_given_to_another_worker(client, make_pool):
    """A gateway whose worker does not answer gets another one for the same request."""
    pool = make_pool()
    stop = asyncio.Event()

    async def handler(job) -> None:
        await stop.wait()

    workers = [client.worker(name, [pool], handler, endpoint=name) for name in ("w1", "w2")]
    running = [asyncio.create_task(worker.run()) for worker in workers]
    request = new_request(pool=pool, user_id="a", cost=1)
    async with client.acquire(request) as turn:
        first, first_lease = turn.worker_id, turn.lease_id
        await turn.next_grant(ConnectionError("refused"))
        assert {first, turn.worker_id} == {"w1", "w2"}
        assert turn.lease_id != first_lease
    stop.set()
    for worker in workers:
        worker.stop()
    await asyncio.gather(*running)
    info = await ended(client, pool, request.request_id)

    assert info.state == decision_pb2.REQUEST_STATE_SUCCEEDED
