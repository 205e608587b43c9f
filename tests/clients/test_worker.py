"""The asynchronous worker, call by call and over one stream: outcomes, leases, stops, restarts."""

import asyncio
import collections
import contextlib

import pytest

import fairsched
from fairsched import AsyncFairsched, new_request
from fairsched.v1 import audit_service_pb2, decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from tests.clients.service_process import ServiceProcess
from tests.clients.test_gateway import ended

ENDED = {
    "succeeded": decision_pb2.REQUEST_STATE_SUCCEEDED,
    "failed": decision_pb2.REQUEST_STATE_FAILED,
    "cancelled": decision_pb2.REQUEST_STATE_CANCELLED,
}

pytestmark = pytest.mark.parametrize("stream", [False, True], ids=["calls", "stream"])


@contextlib.asynccontextmanager
async def at_work(worker):
    """Runs a worker and stops it at the end; what it raises is raised."""
    running = asyncio.create_task(worker.run())
    try:
        yield running
    finally:
        worker.stop()
        await asyncio.wait_for(running, 30)


async def enqueue(client: AsyncFairsched, pool: str, count: int = 1, **fields) -> list[str]:
    """Enqueues requests of cost 1 and returns their ids."""
    requests = [new_request(pool=pool, user_id="acme", cost=1, **fields) for _ in range(count)]
    await client.enqueue_many(requests)
    return [request.request_id for request in requests]


async def test_runs_and_reports(client, pool, stream):
    """What is enqueued is run with its payload, and its usage is in the log."""

    async def handler(job):
        assert job.dispatch.payload == b"prompt"
        return fairsched.new_usage(prompt_tokens=3, output_tokens=4)

    async with at_work(client.worker("w", [pool], handler, stream=stream)):
        (request_id,) = await enqueue(client, pool, payload=b"prompt")
        info = await ended(client, pool, request_id)

    assert info.state == ENDED["succeeded"]
    wanted = audit_service_pb2.DecisionFilter(request_ids=[request_id])
    page = await client.audit.ListDecisions(audit_service_pb2.ListDecisionsRequest(filter=wanted))
    (completed,) = [d.completed for d in page.decisions if d.HasField("completed")]
    assert (completed.prompt_tokens, completed.output_tokens) == (3, 4)


async def test_keeps_to_its_concurrency(client, pool, stream):
    """So many requests run at once as were said, no more and no fewer."""
    running = peak = 0

    async def handler(job):
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.03)
        running -= 1

    ids = await enqueue(client, pool, 12)
    async with at_work(client.worker("w", [pool], handler, concurrency=3, stream=stream)) as task:
        for request_id in ids:
            await ended(client, pool, request_id)
        assert not task.done()

    assert peak == 3


async def test_exception_is_a_failure(client, pool, stream):
    """A handler's exception fails its request, with the text, and spoils no other."""

    async def handler(job):
        if job.dispatch.payload == b"bad":
            raise ValueError("no such model")

    async with at_work(client.worker("w", [pool], handler, stream=stream)):
        (bad,) = await enqueue(client, pool, payload=b"bad")
        (good,) = await enqueue(client, pool)
        first, second = await ended(client, pool, bad), await ended(client, pool, good)

    assert (first.state, first.error) == (ENDED["failed"], "ValueError: no such model")
    assert second.state == ENDED["succeeded"]


async def test_give_back_goes_to_another_worker(client, pool, stream):
    """A request that is handed back is run by somebody else."""
    ran = []

    async def refuses(job):
        raise fairsched.GiveBack("not today")

    async def runs(job):
        ran.append(job.dispatch.request_id)

    async with at_work(client.worker("w1", [pool], refuses, stream=stream)):
        (request_id,) = await enqueue(client, pool)
        async with at_work(client.worker("w2", [pool], runs, stream=stream)):
            info = await ended(client, pool, request_id)

    assert ran == [request_id]
    assert info.state == ENDED["succeeded"]


async def test_long_work_keeps_its_lease(client, pool, stream):
    """Work longer than its lease is not given to another worker."""
    runs = collections.Counter()

    async def handler(job):
        runs[job.dispatch.request_id] += 1
        await asyncio.sleep(2.5)

    settings = {"lease_duration": 1, "stream": stream}
    async with at_work(client.worker("w", [pool], handler, concurrency=2, **settings)):
        (request_id,) = await enqueue(client, pool)
        info = await ended(client, pool, request_id)

    assert info.state == ENDED["succeeded"]
    assert (info.attempts, runs[request_id]) == (1, 1)


async def test_cancelled_request_is_stopped(client, pool, stream):
    """A leased request that is cancelled is stopped at the worker, and ends as cancelled."""
    started = asyncio.Event()
    stopped = asyncio.Event()

    async def handler(job):
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            assert job.cancel_requested
            stopped.set()

    settings = {"lease_duration": 1, "poll": 1, "stream": stream}
    async with at_work(client.worker("w", [pool], handler, **settings)):
        (request_id,) = await enqueue(client, pool)
        await started.wait()
        await client.cancel(pool, request_id)
        await asyncio.wait_for(stopped.wait(), 5)
        info = await ended(client, pool, request_id)

    assert info.state == ENDED["cancelled"]


async def test_stop_lets_work_finish(client, pool, stream):
    """A worker that is stopped finishes what it runs, takes nothing more, and says so at once."""
    started, release = asyncio.Event(), asyncio.Event()

    async def handler(job):
        started.set()
        await release.wait()

    worker = client.worker("w", [pool], handler, stream=stream)
    running = asyncio.create_task(worker.run())
    (first,) = await enqueue(client, pool)
    await started.wait()
    worker.stop()
    (second,) = await enqueue(client, pool)
    release.set()
    await asyncio.wait_for(running, 10)
    info = await ended(client, pool, first)
    waits = await client.get_request(pool, second)

    assert info.state == ENDED["succeeded"]
    assert waits.request.state == decision_pb2.REQUEST_STATE_WAITING


async def test_stop_gives_back_what_takes_too_long(client, pool, stream):
    """When the grace is over the rest is given back, and goes to the next worker at once."""
    started = asyncio.Event()

    async def hangs(job):
        started.set()
        await asyncio.sleep(60)

    async def runs(job):
        return None

    worker = client.worker("w1", [pool], hangs, grace=0.1, stream=stream)
    running = asyncio.create_task(worker.run())
    (request_id,) = await enqueue(client, pool)
    await started.wait()
    worker.stop()
    await asyncio.wait_for(running, 10)
    async with at_work(client.worker("w2", [pool], runs, stream=stream)):
        info = await ended(client, pool, request_id)

    assert info.state == ENDED["succeeded"]
    assert info.worker_id == ""


async def test_idle_worker_stops_at_once(client, pool, stream):
    """A worker that waits for work does not wait to the end when it is stopped."""

    async def handler(job):
        pytest.fail("there is no work")

    worker = client.worker("w", [pool], handler, stream=stream)
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(10):
        while True:
            listing = await client.scheduler.ListWorkers(pb.ListWorkersRequest(pool=pool))
            if listing.workers:
                break
            await asyncio.sleep(0.02)
    worker.stop()
    await asyncio.wait_for(running, 3)


async def _is_drained(client, pool, worker_id):
    """Drains a worker as soon as the service knows it."""
    async with asyncio.timeout(10):
        while not (await client.scheduler.ListWorkers(pb.ListWorkersRequest(pool=pool))).workers:
            await asyncio.sleep(0.02)
    await client.scheduler.DrainWorker(pb.DrainWorkerRequest(worker_id=worker_id))


async def test_idle_worker_ends_when_it_is_drained(client, pool, stream, caplog):
    """A drained worker without leases returns and says so once; started again, it works."""

    async def handler(job):
        return None

    name = f"w-{pool}"
    running = asyncio.create_task(client.worker(name, [pool], handler, stream=stream).run())
    await _is_drained(client, pool, name)
    await asyncio.wait_for(running, 5)

    assert caplog.text.count(f"worker {name} is drained") == 1
    async with at_work(client.worker(name, [pool], handler, stream=stream)):
        (request_id,) = await enqueue(client, pool)
        info = await ended(client, pool, request_id)
    assert info.state == ENDED["succeeded"]


@pytest.mark.parametrize("concurrency", [1, 2], ids=["full", "room"])
async def test_drained_worker_ends_with_its_leases(client, pool, stream, concurrency):
    """What a drained worker runs is finished and reported, past any grace; then it returns."""
    started, release = asyncio.Event(), asyncio.Event()

    async def handler(job):
        started.set()
        await release.wait()

    name = f"w-{pool}"
    settings = {"grace": 0.1, "stream": stream, "concurrency": concurrency}
    running = asyncio.create_task(client.worker(name, [pool], handler, **settings).run())
    (first,) = await enqueue(client, pool)
    await started.wait()
    await _is_drained(client, pool, name)
    (second,) = await enqueue(client, pool)
    await asyncio.sleep(0.6)
    assert not running.done()
    release.set()
    await asyncio.wait_for(running, 5)

    assert (await ended(client, pool, first)).state == ENDED["succeeded"]
    waits = await client.get_request(pool, second)
    assert waits.request.state == decision_pb2.REQUEST_STATE_WAITING


async def test_drained_worker_can_be_stopped(client, pool, stream):
    """A drained worker that is stopped gives back what outlasts its grace."""
    started = asyncio.Event()

    async def hangs(job):
        started.set()
        await asyncio.sleep(60)

    name = f"w-{pool}"
    worker = client.worker(name, [pool], hangs, grace=0.1, stream=stream, concurrency=2)
    running = asyncio.create_task(worker.run())
    (request_id,) = await enqueue(client, pool)
    await started.wait()
    await _is_drained(client, pool, name)
    await asyncio.sleep(0.3)
    worker.stop()
    await asyncio.wait_for(running, 5)

    found = await client.get_request(pool, request_id)
    assert found.request.state == decision_pb2.REQUEST_STATE_REDELIVERY


async def test_superseded_worker_is_no_drained_one(client, pool, stream):
    """A worker whose name another one took ends with that error, idle as it is."""

    async def handler(job):
        return None

    name = f"w-{pool}"
    running = asyncio.create_task(client.worker(name, [pool], handler, stream=stream).run())
    async with asyncio.timeout(10):
        while not (await client.scheduler.ListWorkers(pb.ListWorkersRequest(pool=pool))).workers:
            await asyncio.sleep(0.02)
    async with at_work(client.worker(name, [pool], handler, stream=stream)):
        with pytest.raises(fairsched.SupersededError) as caught:
            await asyncio.wait_for(running, 10)

    assert caught.value.reason == "SESSION_SUPERSEDED"


async def test_refused_worker_says_why(client, stream):
    """A worker for a pool that is not there ends with that error."""

    async def handler(job):
        pytest.fail("there is no work")

    worker = client.worker("w", ["nowhere"], handler, stream=stream)
    with pytest.raises(fairsched.NotFoundError) as caught:
        await asyncio.wait_for(worker.run(), 10)

    assert caught.value.reason == "POOL_UNKNOWN"


async def test_work_survives_a_restart_of_the_service(own_service: ServiceProcess, stream):
    """Killing the service loses no request and runs none twice; the worker goes on by itself."""
    runs = collections.Counter()
    twenty = asyncio.Event()

    async def handler(job):
        runs[job.dispatch.request_id] += 1
        if len(runs) == 20:
            twenty.set()
        await asyncio.sleep(0.05)

    async with AsyncFairsched(own_service.target) as client:
        ids = await enqueue(client, "default", 60)
        async with at_work(client.worker("w", ["default"], handler, concurrency=2, stream=stream)):
            await asyncio.wait_for(twenty.wait(), 30)
            await asyncio.to_thread(own_service.kill)
            await asyncio.to_thread(own_service.start)
            for request_id in ids:
                info = await ended(client, "default", request_id)
                assert info.state == ENDED["succeeded"]

    assert set(runs) == set(ids)
    assert max(runs.values()) == 1
    assert own_service.stop() == 0
