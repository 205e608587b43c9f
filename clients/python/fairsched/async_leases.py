"""Keeps leases alive in the background: one task renews all leases of a client or worker.

A lease is renewed when a third of it has passed, so that two renewals may be lost before it
expires.  A service that is down is asked again and again: it extends live leases by its downtime,
so work that goes on meanwhile is not wasted.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Callable

from fairsched import errors
from fairsched.backoff import Backoff
from fairsched.requests import duration, seconds
from fairsched.v1 import scheduler_service_pb2 as pb
from fairsched.v1 import scheduler_service_pb2_grpc as pb_grpc

BATCH = 1000
"""Most leases in one call."""

log = logging.getLogger("fairsched")


@dataclasses.dataclass(slots=True, eq=False)
class Held:
    """One lease that is kept alive.

    Attributes:
        lease_id: The lease.
        length: Its length, seconds.
        renew_at: When to renew it, by the loop's clock.
        on_lost: Called once with the reason when it cannot be renewed any more.
        on_cancel: Called when its request was cancelled and should be stopped.
    """

    lease_id: str
    length: float
    renew_at: float
    on_lost: Callable[[errors.CallError], None]
    on_cancel: Callable[[], None]


class AsyncLeaseKeeper:
    """Renews leases until they are dropped or lost."""

    def __init__(
        self, stub: "pb_grpc.SchedulerServiceAsyncStub", lease_duration: float | None = None
    ) -> None:
        self._stub = stub
        self._lease_duration = lease_duration
        self._held: dict[str, Held] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.session_id = ""

    def keep(
        self,
        lease_id: str,
        length: float,
        on_lost: Callable[[errors.CallError], None],
        on_cancel: Callable[[], None],
    ) -> None:
        """Keeps a lease of `length` seconds alive from now on."""
        now = asyncio.get_running_loop().time()
        self._held[lease_id] = Held(lease_id, length, now + length / 3, on_lost, on_cancel)
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="fairsched lease renewal")

    def drop(self, lease_id: str) -> None:
        """Stops keeping a lease, whether or not it is kept."""
        self._held.pop(lease_id, None)

    async def close(self) -> None:
        """Stops; leases expire on their own."""
        self._held.clear()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff(longest=1.0)
        while self._held:
            self._changed.clear()
            pause = min(held.renew_at for held in self._held.values()) - loop.time()
            if pause > 0:
                try:
                    async with asyncio.timeout(pause):
                        await self._changed.wait()
                except TimeoutError:
                    pass
                continue
            due = [held for held in self._held.values() if held.renew_at <= loop.time()][:BATCH]
            try:
                await self._renew(due)
                backoff.reset()
            except errors.NotFoundError as error:
                for held in due:
                    self._lose(held, error)
            except errors.CallError as error:
                log.warning("leases could not be renewed and will be tried again: %s", error)
                await asyncio.sleep(backoff.pause())

    async def _renew(self, due: list[Held]) -> None:
        response = await self._stub.RenewLease(
            pb.RenewLeaseRequest(
                session_id=self.session_id,
                renewals=[pb.LeaseRenewal(lease_id=held.lease_id) for held in due],
                lease_duration=duration(self._lease_duration),
            )
        )
        now = asyncio.get_running_loop().time()
        for held, result in zip(due, response.results, strict=True):
            if held.lease_id not in self._held:
                continue
            if result.HasField("error"):
                self._lose(held, errors.from_item(result.error))
                continue
            held.length = seconds(result.lease_duration)
            held.renew_at = now + held.length / 3
            if result.cancel_requested:
                held.on_cancel()

    def _lose(self, held: Held, error: errors.CallError) -> None:
        if self._held.pop(held.lease_id, None) is not None:
            held.on_lost(error)
