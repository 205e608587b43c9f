"""A gateway of the demo: several users' clients, one of them greedy, for as long as it runs.

    python -m scheduler_service.demo.containers.gateway

Each client asks, waits for its answer, thinks, and asks again.  Every few seconds a line for each
user says what came of it.  The gateway is healthy while requests get done.
"""

import asyncio
import logging
import random
import uuid

from fairsched import AsyncFairsched, errors, new_request
from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.demo.containers import common
from scheduler_service.demo.containers.settings import GatewaySettings, UserLoad
from scheduler_service.demo.containers.tally import Tally

LIVE_STATES = frozenset(
    (
        decision_pb2.REQUEST_STATE_WAITING,
        decision_pb2.REQUEST_STATE_LEASED,
        decision_pb2.REQUEST_STATE_REDELIVERY,
    )
)
POLL_S = 20.0
"""How long one call waits for a request to go on, seconds."""

CANCEL_WITHIN_S = 3.0
"""How long a stopped gateway spends on taking back what it asked for, seconds."""

log = logging.getLogger("demo")


class Gateway:
    """The clients of all users, on one connection."""

    def __init__(self, client: AsyncFairsched, settings: GatewaySettings) -> None:
        self._client = client
        self._settings = settings
        self._open: set[str] = set()
        self.tally = Tally()

    async def serve_client(self, load: UserLoad, number: int) -> None:
        """Is one client of one user: asks, waits, thinks, for ever."""
        rng = random.Random(f"{self._settings.seed}/{load.user_id}/{number}")
        while True:
            request = draw_request(self._settings.pool, load, rng)
            try:
                await self._ask(request)
            except errors.CallError as error:
                log.warning("request %s of %s: %s", request.request_id, load.user_id, error)
                self._open.discard(request.request_id)
                self.tally.fail(load.user_id)
            await asyncio.sleep(rng.expovariate(1 / self._settings.think_seconds))

    async def _ask(self, request: pb.EnqueueRequest) -> None:
        """Has one request done; knows it by its id whatever happens to the scheduler."""
        self._open.add(request.request_id)
        accepted = await common.patiently(lambda: self._client.enqueue(request))
        info = await self._state(request, accepted.state)
        while info.state in LIVE_STATES:
            info = await self._state(request, info.state)
        self._open.discard(request.request_id)
        self.tally.note(info)
        if info.state == decision_pb2.REQUEST_STATE_SUCCEEDED:
            self._settings.alive_file.touch()

    async def _state(
        self, request: pb.EnqueueRequest, known: decision_pb2.RequestState.ValueType
    ) -> pb.RequestInfo:
        """Returns where a request is: when that is no longer `known`, or after a while."""
        wait = POLL_S if known in LIVE_STATES else 0.0
        response = await common.patiently(
            lambda: self._client.get_request(
                request.pool, request.request_id, wait=wait, known_state=known
            )
        )
        return response.request

    async def take_back(self) -> None:
        """Cancels what is still waiting for a gateway that ends."""
        calls = [
            self._client.cancel(self._settings.pool, request_id, "GATEWAY_STOPPED")
            for request_id in self._open
        ]
        try:
            async with asyncio.timeout(CANCEL_WITHIN_S):
                await asyncio.gather(*calls, return_exceptions=True)
        except TimeoutError:
            log.warning("not everything was taken back")

    async def report(self) -> None:
        """Prints the numbers of the last few seconds."""
        while True:
            await asyncio.sleep(self._settings.report_seconds)
            for line in self.tally.lines():
                log.info("%s", line)


def draw_request(pool: str, load: UserLoad, rng: random.Random) -> pb.EnqueueRequest:
    """Returns a request with exponential lengths; its real output is known to the worker alone."""
    cap = 4 * load.output_tokens
    prompt_tokens = max(1, round(rng.expovariate(1 / load.prompt_tokens)))
    output_tokens = min(cap, max(1, round(rng.expovariate(1 / load.output_tokens))))
    return new_request(
        pool=pool,
        user_id=load.user_id,
        request_id=uuid.uuid4().hex,
        prompt_tokens=prompt_tokens,
        max_output_tokens=cap,
        metadata={"prompt_tokens": str(prompt_tokens), "output_tokens": str(output_tokens)},
    )


async def main() -> None:
    """Asks until SIGTERM; then takes back what waits."""
    common.set_up_logging()
    settings = GatewaySettings()
    stopping = common.stop_on_signals()
    async with AsyncFairsched(settings.target) as client:
        gateway = Gateway(client, settings)
        running = asyncio.create_task(run(client, gateway, settings))
        signal_came = asyncio.create_task(stopping.wait())
        await asyncio.wait((running, signal_came), return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        signal_came.cancel()
        results = await asyncio.gather(running, return_exceptions=True)
        await gateway.take_back()
    log.info("gateway stopped")
    for error in results:
        if isinstance(error, Exception):
            raise error


async def run(client: AsyncFairsched, gateway: Gateway, settings: GatewaySettings) -> None:
    """Is all clients of all users at once."""
    await common.ensure_pool(client, settings.pool)
    async with asyncio.TaskGroup() as clients:
        clients.create_task(gateway.report())
        for load in settings.users:
            log.info("user %s: %s", load.user_id, load)
            for number in range(load.clients):
                clients.create_task(gateway.serve_client(load, number))


if __name__ == "__main__":
    asyncio.run(main())
