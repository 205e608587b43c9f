"""Waiting for what becomes of a request."""

import asyncio

import fairsched
from fairsched import AsyncFairsched
from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb


async def ended(client: AsyncFairsched, pool: str, request_id: str) -> pb.RequestInfo:
    """Returns a request once it has ended."""
    async with asyncio.timeout(10):
        state = decision_pb2.REQUEST_STATE_UNSPECIFIED
        while True:
            found = await client.get_request(pool, request_id, wait=5, known_state=state)
            state = found.request.state
            if found.request.HasField("end_time"):
                return found.request


async def waiting(client: AsyncFairsched, pool: str, request_id: str) -> None:
    """Returns once a request waits."""
    async with asyncio.timeout(10):
        while True:
            try:
                found = await client.get_request(pool, request_id)
            except fairsched.NotFoundError:
                await asyncio.sleep(0.01)
                continue
            assert found.request.state == decision_pb2.REQUEST_STATE_WAITING
            return
