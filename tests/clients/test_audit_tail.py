"""Following the decision log: without gaps, over filters, restarts and pruning."""

import asyncio

import pytest

import fairsched
from fairsched import AsyncFairsched, audit, new_request
from fairsched.v1 import audit_service_pb2, decision_pb2


async def test_follows_from_where_it_is_told(client, pool):
    """A tail begins behind the sequence it is given and has what comes after, in order."""
    first = await client.enqueue(new_request(pool=pool, user_id="a", cost=1))
    second = await client.enqueue(new_request(pool=pool, user_id="a", cost=1))
    wanted = audit_service_pb2.DecisionFilter(pools=[pool])
    seen = []
    async with asyncio.timeout(10):
        async for decision in client.watch(first.sequence, wanted):
            seen.append(decision.sequence)
            if decision.sequence == second.sequence:
                break

    assert seen == [second.sequence]


async def test_filters(client, pool):
    """Only decisions of the kinds and users that were asked for come."""
    wanted = audit_service_pb2.DecisionFilter(
        pools=[pool], user_ids=["b"], kinds=[decision_pb2.DECISION_KIND_ACCEPTED]
    )
    for user in "abab":
        await client.enqueue(new_request(pool=pool, user_id=user, cost=1))
    users = []
    async with asyncio.timeout(10):
        async for decision in client.watch(0, wanted):
            users.append(decision.user_id)
            if len(users) == 2:
                break

    assert users == ["b", "b"]


async def test_no_gap_over_restarts(own_service):
    """Over two restarts every decision comes once, and none is left out."""
    async with AsyncFairsched(own_service.target) as client:
        seen = []
        done = asyncio.Event()

        async def follow() -> None:
            async for page in audit.watch(client.audit, 0):
                for decision in page.decisions:
                    seen.append(decision.sequence)
                    if decision.request_id == "r2":
                        done.set()
                        return
                assert page.scanned_sequence >= (seen[-1] if seen else 0)

        task = asyncio.create_task(follow())
        for number in range(3):
            request = new_request(pool="default", user_id="a", cost=1, request_id=f"r{number}")
            await client.enqueue(request)
            if number < 2:
                await asyncio.to_thread(own_service.kill)
                await asyncio.to_thread(own_service.start)
                await client.ready(20)
        await asyncio.wait_for(done.wait(), 20)
        await task

    assert seen == list(range(1, len(seen) + 1))


async def test_without_reconnect_it_ends():
    """A tail that may not reconnect says that nobody is there."""
    async with AsyncFairsched("127.0.0.1:9") as client:
        watching = audit.watch(client.audit, 0, reconnect=False)
        with pytest.raises(fairsched.UnavailableError):
            await anext(watching)
