"""Gateways and workers that behave as badly as real ones."""

import asyncio
import random
from typing import Any

import grpc

from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from tests.support.live import seconds

POOL = "default"
SUCCEEDED = decision_pb2.OUTCOME_SUCCEEDED
FAILED = decision_pb2.OUTCOME_FAILED
GIVEN_BACK = decision_pb2.OUTCOME_GIVEN_BACK
DEADLINE_S = 3.0
PACE_S = 0.02


class Actor:
    """Acts until it is told to stop; what the service refuses is not its concern.

    Args:
        stub: Returns the stub of the moment; the service comes and goes.
    """

    def __init__(self, name: str, stub: Any, seed: int) -> None:
        self.name = name
        self.stub = stub
        self.rng = random.Random(seed)
        self.calls = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Acts, with a little time between two acts."""
        while not stop.is_set():
            try:
                await self.act()
            except grpc.aio.AioRpcError as error:
                if error.code() in {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}:
                    raise
                await asyncio.sleep(PACE_S)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise  # else the channel was closed under the call
            self.calls += 1
            await asyncio.sleep(self.rng.uniform(0, 2 * PACE_S))

    async def act(self) -> None:
        """Does one thing."""
        raise AssertionError


class Gateway(Actor):
    """Enqueues, repeats itself, cancels, and drops calls that it waits on."""

    number = 0

    def request(self) -> pb.EnqueueRequest:
        """Returns a new request, or one of the last ones again."""
        rng = self.rng
        self.number += 1
        number = self.number if rng.random() < 0.9 else max(1, self.number - rng.randint(1, 20))
        own = random.Random(f"{self.name}-{number}")
        return pb.EnqueueRequest(
            pool=POOL,
            request_id=f"{self.name}-{number}",
            user_id=f"user-{own.randrange(12)}",
            cost=own.randint(1, 4000),
            predicted_class=1 if own.random() < 0.85 else 2,
            max_wait=seconds(own.choice([0.5, 5, 60])),
            kv_tokens=own.choice([0, 0, 100, 2000]),
            payload=b"x" * own.choice([0, 0, 500]),
        )

    async def act(self) -> None:
        dice = self.rng.random()
        if dice < 0.7:
            await self.stub().Enqueue(self.request(), timeout=DEADLINE_S)
        elif dice < 0.8:
            key = f"{self.name}-{self.rng.randint(1, self.number + 1)}"
            cancel = pb.CancelRequest(pool=POOL, request_id=key)
            await self.stub().Cancel(cancel, timeout=DEADLINE_S)
        else:
            await self._wait_and_drop()

    async def _wait_and_drop(self) -> None:
        call = self.stub().Acquire(pb.AcquireRequest(request=self.request()), timeout=20)
        try:
            async with asyncio.timeout(self.rng.uniform(0, 1.0)):
                while await call.read() is not grpc.aio.EOF:
                    pass
        except TimeoutError:
            pass
        finally:
            call.cancel()


class Worker(Actor):
    """Takes work and finishes it, or dies, freezes, doubles, gives back and comes too late."""

    def __init__(self, name: str, stub: Any, seed: int) -> None:
        super().__init__(name, stub, seed)
        self.life = 0
        self.old: list[str] = []

    async def act(self) -> None:
        rng = self.rng
        ask = pb.NextDispatchRequest(
            pools=[POOL],
            worker_id=f"{self.name}-{self.life}",
            max_dispatches=rng.randint(1, 4),
            wait_duration=seconds(rng.choice([0, 0.2, 1])),
            idempotency_key=rng.choice(["", f"k{self.calls}"]),
            offer=decision_pb2.Offer(free_tokens=4000, total_tokens=4000),
        )
        answer = await self.stub().NextDispatch(ask, timeout=DEADLINE_S)
        if ask.idempotency_key and rng.random() < 0.3:
            again = await self.stub().NextDispatch(ask, timeout=DEADLINE_S)
            told = {x.lease_id for x in answer.dispatches}
            assert not told or {x.lease_id for x in again.dispatches} <= told
        for dispatch in answer.dispatches:
            self.old = [*self.old[-20:], dispatch.lease_id]
        if rng.random() < 0.05:
            self.life += 1  # died with what it held; another one starts under a new name
            return
        if rng.random() < 0.03:
            await asyncio.sleep(rng.uniform(1, 3))  # frozen: its leases may be gone by then
        for dispatch in answer.dispatches:
            await self._finish(dispatch.lease_id)
        if self.old and rng.random() < 0.1:
            await self._finish(rng.choice(self.old))

    async def _finish(self, lease_id: str) -> None:
        rng, stub = self.rng, self.stub()
        if rng.random() < 0.1:
            renewal = pb.RenewLeaseRequest(
                worker_id=f"{self.name}-{self.life}", renewals=[pb.LeaseRenewal(lease_id=lease_id)]
            )
            await stub.RenewLease(renewal, timeout=DEADLINE_S)
        outcome = rng.choices([SUCCEEDED, FAILED, GIVEN_BACK], [20, 1, 2])[0]
        complete = pb.CompleteRequest(lease_id=lease_id, outcome=outcome)
        for _ in range(rng.choice([1, 1, 1, 2])):
            try:
                await stub.Complete(complete, timeout=DEADLINE_S)
            except grpc.aio.AioRpcError as error:
                if error.code() not in {
                    grpc.StatusCode.ABORTED,
                    grpc.StatusCode.FAILED_PRECONDITION,
                    grpc.StatusCode.NOT_FOUND,
                }:
                    raise
