"""The asynchronous gateway while the service is away, and when it comes back."""

import asyncio

import pytest

import fairsched
from fairsched import AsyncFairsched, new_request
from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from tests.clients.requests import ended
from tests.clients.service_process import ServiceProcess


async def test_wait_survives_a_restart_of_the_service(own_service: ServiceProcess, stream):
    """A gateway that waits when the service is killed gets its turn from the next one."""
    async with AsyncFairsched(own_service.target, stream=stream) as client:
        request = new_request(pool="default", user_id="a", cost=1)
        queued, turn_taken = asyncio.Event(), asyncio.Event()

        async def wait() -> str:
            async with client.acquire(request, on_queued=lambda _: queued.set()) as turn:
                turn_taken.set()
                return turn.worker_id

        task = asyncio.create_task(wait())
        await asyncio.wait_for(queued.wait(), 10)
        await asyncio.to_thread(own_service.kill)
        await asyncio.to_thread(own_service.start)

        async def handler(job) -> None:
            await turn_taken.wait()

        worker = client.worker("w", ["default"], handler)
        running = asyncio.create_task(worker.run())
        assert await asyncio.wait_for(task, 30) == "w"
        worker.stop()
        await running
        info = await ended(client, "default", request.request_id)

    assert info.state == decision_pb2.REQUEST_STATE_SUCCEEDED
    assert own_service.stop() == 0


async def test_a_turn_taken_at_once_survives_a_restart_too(own_service: ServiceProcess, stream):
    """A worker that waits takes it before it was ever queued; its end is told all the same."""
    async with AsyncFairsched(own_service.target, stream=stream) as client:
        restarted = asyncio.Event()

        async def handler(job) -> None:
            await restarted.wait()

        worker = client.worker("w", ["default"], handler)
        running = asyncio.create_task(worker.run())
        await _worker_waits(client)
        request = new_request(pool="default", user_id="a", cost=1)
        async with asyncio.timeout(40), client.acquire(request) as turn:
            await asyncio.to_thread(own_service.kill)
            await asyncio.to_thread(own_service.start)
            restarted.set()
            await turn.completed()
            assert not turn.lost.is_set()
        worker.stop()
        await running

    assert own_service.stop() == 0


async def _worker_waits(client: AsyncFairsched) -> None:
    async with asyncio.timeout(10):
        while True:
            found = await client.scheduler.ListWorkers(pb.ListWorkersRequest())
            if found.workers:
                return
            await asyncio.sleep(0.02)


NOWHERE = "127.0.0.1:9"
"""The discard port: nobody listens there."""


async def test_closed_refuses_while_nobody_answers(stream):
    """Without a service a gateway refuses, and counts it."""
    async with AsyncFairsched(NOWHERE, stream=stream) as client:
        with pytest.raises(fairsched.UnavailableError):
            async with client.acquire(new_request(pool="p", user_id="a", cost=1)):
                pytest.fail("there is no service")
        with pytest.raises(fairsched.UnavailableError):
            await client.ready(0.2)

        assert client.local_turns.refused_count == 1


async def test_open_passes_through_up_to_its_limit(stream):
    """Without a service an open gateway gives so many local turns at once, and counts them."""
    is_open = fairsched.Open(max_local_in_flight=1)
    async with AsyncFairsched(NOWHERE, on_unavailable=is_open, stream=stream) as client:
        async with client.acquire(new_request(pool="p", user_id="a", cost=1)) as turn:
            assert turn.local
            assert turn.lease_id == ""
            with pytest.raises(fairsched.UnavailableError):
                async with client.acquire(new_request(pool="p", user_id="a", cost=1)):
                    pytest.fail("the limit is one")
        async with client.acquire(new_request(pool="p", user_id="b", cost=1)) as turn:
            assert turn.local
        counts = client.local_turns

        assert (counts.passed_count, counts.refused_count, counts.in_flight_count) == (2, 1, 0)
