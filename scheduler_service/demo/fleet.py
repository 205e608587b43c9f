"""The demo's gateways and workers: real clients over real gRPC, each with its own connection.

A worker has slots; a slot takes as long for a request as its cost says.  It is idle only while
nothing waits: the moment between the end of one request and the arrival of the next, which had been
waiting, is made up for.  An engine that batches continuously has the next one at hand, and the demo
compares orders, not round trips on a busy laptop.  What runs when the service is killed goes on and
is reported later; what is dispatched while the trace is held back begins when that goes on.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from fairsched import AsyncFairsched, UnavailableError, new_request, new_usage
from fairsched.errors import DeadlineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairsched.async_jobs import Job
    from fairsched.async_worker import AsyncWorker
    from fairsched.v1 import scheduler_service_pb2 as pb
    from scheduler_service.demo.arrivals import Arrival, Replay

POOL: Final = "chat"
GATEWAYS: Final = 2
WORKERS: Final = 4
SLOTS: Final = 6
"""Requests that one worker runs at once."""

MAKE_UP_S: Final = 1.0
"""Longest idle time that a slot makes up for, seconds."""

OPTIONS: Final = [("grpc.max_reconnect_backoff_ms", 500)]
"""The demo is in a hurry to go on after the kill."""

RETRY_S: Final = 0.1
CONNECT_WITHIN_S: Final = 40.0


class Clock:
    """The trace's time line: faster than real time, and held back while the service is down.

    Attributes:
        speed: Seconds of the trace in one second.
        gone_on_at: When it went on, by the loop's clock.
        pauses_ns: From when to when it was held back, nanoseconds of the wall clock.
    """

    def __init__(self, speed: float) -> None:
        """Begins now, at 0.

        Args:
            speed: Seconds of the trace in one second.
        """
        self.speed = speed
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()
        self._running = asyncio.Event()
        self._running.set()
        self._held_since = 0.0
        self._held_from_ns = 0
        self.gone_on_at = 0.0
        self.pauses_ns: list[tuple[int, int]] = []

    def now_s(self) -> float:
        """Returns the time, seconds of the trace."""
        held = 0.0 if self._running.is_set() else self._loop.time() - self._held_since
        return (self._loop.time() - self._start - held) * self.speed

    def hold(self) -> None:
        """Stops it."""
        self._held_since = self._loop.time()
        self._held_from_ns = time.time_ns()
        self._running.clear()

    def go_on(self) -> None:
        """Lets it go on where it stopped."""
        self.gone_on_at = self._loop.time()
        self._start += self.gone_on_at - self._held_since
        self.pauses_ns.append((self._held_from_ns, time.time_ns()))
        self._running.set()

    async def running(self) -> None:
        """Waits while it is held back."""
        await self._running.wait()

    async def until(self, at_s: float) -> None:
        """Waits for a time of the trace."""
        while (left := (at_s - self.now_s()) / self.speed) > 0 or not self._running.is_set():
            await self._running.wait()
            await asyncio.sleep(max(0.0, left))


class Gateways:
    """Send the trace's requests, each as often as it takes, under one id.

    Attributes:
        acknowledged: Requests that the service acknowledged, and when, by the loop's clock.
        repeated: Calls that had to be repeated.
    """

    def __init__(self, target: str) -> None:
        self._clients = [
            AsyncFairsched(target, stream=True, options=OPTIONS) for _ in range(GATEWAYS)
        ]
        self.acknowledged: dict[str, float] = {}
        self.repeated = 0

    async def replay(self, replay: Replay, clock: Clock) -> None:
        """Sends everything when its time comes; returns when all of it is acknowledged."""
        async with asyncio.TaskGroup() as group:
            for number, arrival in enumerate(replay.arrivals):
                await clock.until(arrival.at_s)
                group.create_task(self._send(arrival, self._clients[number % GATEWAYS]))

    async def _send(self, arrival: Arrival, client: AsyncFairsched) -> None:
        request = new_request(
            pool=POOL,
            user_id=arrival.user_id,
            request_id=arrival.request_id,
            prompt_tokens=arrival.prompt,
            predicted_output_tokens=arrival.response,
        )
        while True:
            try:
                await client.enqueue(request)
            except (UnavailableError, DeadlineError):
                self.repeated += 1
                await asyncio.sleep(RETRY_S)
            else:
                self.acknowledged[arrival.request_id] = asyncio.get_running_loop().time()
                return

    async def connected(self) -> None:
        """Waits until all of them reach the service again."""
        await asyncio.gather(*(client.ready(CONNECT_WITHIN_S) for client in self._clients))

    async def close(self) -> None:
        """Closes the connections."""
        for client in self._clients:
            await client.close()


class Workers:
    """Run requests at a speed that makes the trace's load 1.2 times what they can do."""

    def __init__(
        self, target: str, replay: Replay, clock: Clock, acknowledged: Mapping[str, float]
    ) -> None:
        """Prepares the workers.

        Args:
            target: The service.
            replay: What will be asked of them.
            clock: How fast.
            acknowledged: When each request was there, by the loop's clock.
        """
        self._acknowledged = acknowledged
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._lengths = {a.request_id: (a.prompt, a.response) for a in replay.arrivals}
        self._cost_per_second = replay.capacity * clock.speed / (WORKERS * SLOTS)
        self._free_since = [0.0] * (WORKERS * SLOTS)
        self._clients = [AsyncFairsched(target, options=OPTIONS) for _ in range(WORKERS)]
        self._workers: list[AsyncWorker] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.runs: dict[str, int] = {}
        self.finished = asyncio.Event()
        self._expected = len(replay.arrivals)

    def start(self) -> None:
        """Starts asking for work."""
        for number, client in enumerate(self._clients):
            name = f"worker-{number + 1}"
            worker = client.worker(name, [POOL], self._run, concurrency=SLOTS, stream=True)
            self._workers.append(worker)
            self._tasks.append(asyncio.create_task(worker.run()))

    async def stop(self) -> None:
        """Lets them report what is done, and stops them."""
        for worker in self._workers:
            worker.stop()
        await asyncio.gather(*self._tasks)
        for client in self._clients:
            await client.close()

    async def connected(self) -> None:
        """Waits until all of them reach the service again."""
        await asyncio.gather(*(client.ready(CONNECT_WITHIN_S) for client in self._clients))

    async def _run(self, job: Job) -> pb.Usage:
        dispatch = job.dispatch
        await self._clock.running()
        now = self._loop.time()
        slot = min(range(len(self._free_since)), key=self._free_since.__getitem__)
        there = self._acknowledged.get(dispatch.request_id, now)
        begin = max(self._free_since[slot], there, self._clock.gone_on_at, now - MAKE_UP_S)
        end = begin + dispatch.cost / self._cost_per_second
        self._free_since[slot] = end
        await asyncio.sleep(max(0.0, end - self._loop.time()))
        self.runs[dispatch.request_id] = self.runs.get(dispatch.request_id, 0) + 1
        if len(self.runs) == self._expected:
            self.finished.set()
        prompt, response = self._lengths[dispatch.request_id]
        return new_usage(prompt_tokens=prompt, output_tokens=response)
