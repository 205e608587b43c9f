"""Does the work that a compiler is to optimise for: sessions and single calls, in memory.

`compile.py` has it done between two compilations: what the first makes counts how often each branch
is taken, the second lays the code out by it.  Takes some seconds.
"""

import asyncio
import random
from collections.abc import Iterator
from itertools import count
from typing import Any

import grpc
import msgspec

from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service import core
from scheduler_service.app.application import Application
from scheduler_service.app.clock import SystemClock
from scheduler_service.app.engine import Engine
from scheduler_service.app.learning import Teacher
from scheduler_service.app.limits import Limits
from scheduler_service.app.memory import MemoryStore
from scheduler_service.app.observation import Observation
from scheduler_service.app.readiness import Phase, Readiness
from scheduler_service.core import commands as c
from scheduler_service.core.policy import PRESETS, SECOND_NS, ClassBy
from scheduler_service.core.state import State
from scheduler_service.rpc.calls import Runtime
from scheduler_service.rpc.gateway_session import GatewayStream
from scheduler_service.rpc.identity import EVERYBODY
from scheduler_service.rpc.scheduler_servicer import Desks
from scheduler_service.rpc.security import Access
from scheduler_service.rpc.worker_session import WorkerStream

POOL = "p"
RUNS = (("fair_qba", 10), ("fair_qba", 50), ("sfq", 50), ("qba", 50), ("fcfs", 50))
"""Preset and items a message."""

CALLERS, CALLS = 16, 250
"""Callers of single calls, and how many lifecycles each of them goes through."""

USERS = 1000
WAITING = 12_500
ITEMS = 15_000
"""Requests served, the second half of them while no more are accepted."""
SHORT_PART = 0.85
CUTOFF = 400
"""Output tokens up to which a request is short: without it all would be, until some are learned."""


class Peer:
    """The other end of a stream, and its context."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[Any] = asyncio.Queue()
        self.heard: asyncio.Queue[Any] = asyncio.Queue()

    async def read(self) -> Any:
        """Returns what the peer says next."""
        return await self.said.get()

    async def write(self, message: Any) -> None:
        """Takes what the peer is told, over the wire and back."""
        self.heard.put_nowait(type(message).FromString(message.SerializeToString()))

    def peer(self) -> str:
        """Names the peer."""
        return "trainer"

    def time_remaining(self) -> None:
        """Waits as long as it takes."""

    async def say(self, message: Any) -> Any:
        """Says something; returns the answer."""
        self.said.put_nowait(type(message).FromString(message.SerializeToString()))
        return await self.heard.get()


def report(event: str, /, **values: object) -> None:
    """Takes a rare event; there should be none."""
    raise RuntimeError(event, values)


def desks_of(preset: str) -> tuple[Engine, Desks, Application]:
    """Returns a service with one pool, on the running loop."""
    store = MemoryStore()
    engine = Engine(State(), SystemClock(0), store, report)
    teacher = Teacher(engine, SECOND_NS)
    readiness = Readiness()
    app = Application.around(engine, Limits(), readiness)
    observation = Observation.of(engine, store, teacher.learners)
    runtime = Runtime(Access(None, report), readiness, report)
    runtime.application, runtime.observation = app, observation
    engine.start()
    readiness.enter(Phase.SERVING)
    engine.apply(
        c.ConfigurePool(
            now_ns=engine.now_ns(),
            pool=POOL,
            policy=msgspec.structs.replace(
                PRESETS[preset], class_by=ClassBy.RESPONSE, short_cutoff=CUTOFF
            ),
            policy_digest="0" * 16,
            create=True,
        )
    )
    return engine, Desks(app, runtime), app


def requests(seed: int) -> Iterator[pb.SessionEnqueue]:
    """Yields requests of many users, each to be charged by its tokens."""
    rng = random.Random(seed)  # noqa: S311 - made-up requests, the same in every build
    for number in count():
        output = rng.randint(20, 200) if rng.random() < SHORT_PART else rng.randint(600, 4000)
        yield pb.SessionEnqueue(
            request=pb.EnqueueRequest(
                pool=POOL,
                request_id=f"request-{number}",
                user_id=f"user-{rng.randrange(USERS)}",
                prompt_tokens=rng.randint(10, 2000),
                max_output_tokens=2 * output,
                predicted_output_tokens=output,
            )
        )


async def run(preset: str, batch: int) -> None:
    """Serves `ITEMS` requests from their acceptance to their completion."""
    engine, desks, app = desks_of(preset)
    gateway, worker = Peer(), Peer()
    async with asyncio.TaskGroup() as streams:  # one that fails ends the rest, and all of it
        for stream in (
            GatewayStream(desks.gateway_sessions, gateway, EVERYBODY),
            WorkerStream(desks.worker_sessions, worker, EVERYBODY),
        ):
            streams.create_task(stream.run())
        await serve(gateway, worker, batch)
        for peer in (gateway, worker):
            peer.said.put_nowait(grpc.aio.EOF)
    app.drain()
    await engine.close()


async def serve(gateway: Peer, worker: Peer, batch: int) -> None:
    """Says what a gateway and a worker say, until `ITEMS` requests have been served."""
    source = requests(batch)

    async def accept(number: int) -> None:
        items = [next(source) for _ in range(number)]
        answer = await gateway.say(pb.GatewaySessionRequest(enqueues=items))
        if any(result.HasField("error") for result in answer.enqueue_results):
            raise RuntimeError(answer)

    for _ in range(WAITING // batch):
        await accept(batch)
    registration = pb.RegisterWorkerRequest(worker_id="w", pools=[POOL])
    hello = pb.WorkerSessionRequest(register=registration, credits=batch, brief_results=True)
    answer = await worker.say(hello)
    served = 0
    while served < ITEMS:
        ask = pb.WorkerSessionRequest(credits=len(answer.dispatches))
        for dispatch in answer.dispatches:
            usage = pb.Usage(prompt_tokens=100, output_tokens=dispatch.cost // 4)
            ask.completions.add(
                lease_id=dispatch.lease_id, outcome=decision_pb2.OUTCOME_SUCCEEDED, usage=usage
            )
        served += len(answer.dispatches)
        if served < ITEMS // 2:
            await accept(len(answer.dispatches))
        answer = await worker.say(ask)


async def run_calls(preset: str) -> None:
    """Serves requests over single calls, each answered when it is durable."""
    engine, desks, app = desks_of(preset)
    source = requests(CALLERS)
    async with asyncio.TaskGroup() as callers:
        for number in range(CALLERS):
            callers.create_task(call(engine, desks, source, f"w{number}"))
    app.drain()
    await engine.close()


async def call(
    engine: Engine, desks: Desks, source: Iterator[pb.SessionEnqueue], worker: str
) -> None:
    """Goes through `CALLS` lifecycles, one call after the other."""
    context = Peer()
    for _ in range(CALLS):
        request = pb.EnqueueRequest.FromString(next(source).request.SerializeToString())
        desks.intake.accept(request, EVERYBODY, pb.EnqueueResponse())
        await engine.durable()
        pull, given = (
            pb.NextDispatchRequest(worker_id=worker, pools=[POOL]),
            pb.NextDispatchResponse(),
        )
        await desks.pulling.next_dispatch(pull, context, EVERYBODY, given)
        for dispatch in given.dispatches:
            usage = pb.Usage(prompt_tokens=100, output_tokens=dispatch.cost // 4)
            done = pb.CompleteRequest(
                lease_id=dispatch.lease_id, outcome=decision_pb2.OUTCOME_SUCCEEDED, usage=usage
            )
            desks.finishing.complete(done, EVERYBODY)
            await engine.durable()


def main() -> None:
    """Runs all."""
    if not core.COMPILED:
        raise RuntimeError("nothing is compiled")
    for preset, batch in RUNS:
        asyncio.run(run(preset, batch))
    asyncio.run(run_calls("fair_qba"))


if __name__ == "__main__":
    main()
