"""Load from outside the containers, and the client's own record of what was acknowledged."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

from fairsched import AsyncFairsched, new_request
from fairsched.v1 import admin_service_pb2, decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.demo.containers.common import patiently

POOL = "default"
LIVE = frozenset(
    (
        decision_pb2.REQUEST_STATE_WAITING,
        decision_pb2.REQUEST_STATE_LEASED,
        decision_pb2.REQUEST_STATE_REDELIVERY,
    )
)


class Outside:
    """Users that only this test knows, on the published port."""

    def __init__(self, client: AsyncFairsched) -> None:
        self.client = client
        self.acknowledged: dict[str, int] = {}

    async def ask(self, user_id: str, *, tokens: int = 1000) -> str:
        """Enqueues a request, whatever it takes; notes its id and sequence once acknowledged."""
        request = new_request(
            pool=POOL,
            user_id=user_id,
            request_id=f"outside-{uuid.uuid4().hex}",
            prompt_tokens=tokens // 2,
            max_output_tokens=tokens,
            metadata={"prompt_tokens": str(tokens // 2), "output_tokens": str(tokens // 2)},
        )
        response = await patiently(lambda: self.client.enqueue(request))
        self.acknowledged[request.request_id] = response.sequence
        return request.request_id

    async def look(self, request_id: str, known: int = 0, wait: float = 0.0) -> pb.RequestInfo:
        """Returns where a request is; fails the test if the service does not know it."""
        response = await patiently(
            lambda: self.client.get_request(POOL, request_id, wait=wait, known_state=known)
        )
        return response.request

    async def follow(self, request_id: str) -> pb.RequestInfo:
        """Returns an acknowledged request once it ended."""
        info = await self.look(request_id)
        while info.state in LIVE:
            info = await self.look(request_id, info.state, wait=10)
        return info

    async def all_ended(self, within: float) -> list[pb.RequestInfo]:
        """Returns every acknowledged request once all ended."""
        async with asyncio.timeout(within):
            return await asyncio.gather(*map(self.follow, list(self.acknowledged)))

    @contextlib.asynccontextmanager
    async def load(self, users: int, clients: int) -> AsyncIterator[None]:
        """Asks without end for the time of the context; each client follows its request."""

        async def client(user_id: str) -> None:
            while True:
                await self.follow(await self.ask(user_id))

        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(client(f"outside-{number % users}")) for number in range(clients)
            ]
            yield
            for task in tasks:
                task.cancel()

    async def held_by(self, worker_id: str) -> list[pb.RequestInfo]:
        """Returns the requests that a worker holds now, whoever asked for them."""
        leased = admin_service_pb2.ListRequestsRequest(
            pool=POOL, states=[decision_pb2.REQUEST_STATE_LEASED]
        )
        found = self.client.pages(self.client.admin.ListRequests, leased, "requests")
        return [info async for info in found if info.worker_id == worker_id]

    async def is_active(self, worker_id: str) -> bool:
        """Returns whether the service gives work to a worker."""
        response = await self.client.scheduler.ListWorkers(pb.ListWorkersRequest(pool=POOL))
        states = {worker.worker_id: worker.state for worker in response.workers}
        return states.get(worker_id) == pb.WORKER_STATE_ACTIVE


async def until(condition: Callable[[], Awaitable[object]], within: float) -> None:
    """Asks again and again until the answer is true."""
    async with asyncio.timeout(within):
        while not await condition():
            await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def outside(target: str) -> AsyncIterator[Outside]:
    """Opens a client on the published port."""
    async with AsyncFairsched(target) as client:
        await patiently(lambda: client.ready(5))
        yield Outside(client)
