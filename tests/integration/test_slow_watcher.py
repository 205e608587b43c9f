"""A reader half a million decisions behind: what it costs the service, and what it gets."""

import asyncio
from itertools import islice
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fairsched.v1 import audit_service_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from fairsched.v1.audit_service_pb2_grpc import AuditServiceStub
from fairsched.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from scheduler_service.app.clock import SystemClock
from scheduler_service.app.engine import Engine
from scheduler_service.app.ports import Durability
from scheduler_service.core import commands as c
from scheduler_service.core.completion import Complete
from scheduler_service.core.decisions import Outcome
from scheduler_service.core.policy import CostSource, PoolPolicy
from scheduler_service.core.state import State
from scheduler_service.store.directory import DataDirectory
from scheduler_service.store.sqlite import SqliteStore
from tests.clients.service_process import ServiceProcess
from tests.support.live import POOL, SUCCEEDED

DECISIONS = 500_000
MEMORY_BYTES = 50 << 20


def _resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


async def _write_log(directory: Path) -> None:
    """Makes a log of so many decisions, none of which leaves a request behind."""
    store = SqliteStore(
        DataDirectory(directory), durability=Durability.NONE, report=lambda *_, **__: None
    )
    engine = Engine(State(), SystemClock(), store, lambda *_, **__: None)
    engine.start()
    policy = PoolPolicy(cost_source=CostSource.CALLER)
    now_ns = engine.now_ns()
    engine.apply(
        c.ConfigurePool(now_ns=now_ns, pool=POOL, policy=policy, policy_digest="", create=True)
    )
    numbers = iter(range(DECISIONS))
    while engine.state.sequence < DECISIONS:
        for number in islice(numbers, 500):
            stamp = {"now_ns": engine.now_ns(), "nonce": engine.nonce()}
            user = f"user-{number % 50}"
            engine.apply(
                c.Enqueue(pool=POOL, request_id=f"old-{number}", user_id=user, cost=1, **stamp)
            )
            ask = c.NextDispatch(pools=(POOL,), worker="w", hand_over=False, **stamp)
            (request,) = engine.apply(ask).granted
            lease_id, outcome = request.held_lease.lease_id, Outcome.SUCCEEDED
            engine.apply(Complete(lease_id=lease_id, outcome=outcome, **stamp))
        await engine.durable()
    await engine.close()
    store.close()


async def _load(scheduler, name: str, seconds: float) -> list[float]:
    """Enqueues and dispatches, four at a time, and returns how long each pair took, sorted."""
    loop = asyncio.get_running_loop()
    end, taken, numbers = loop.time() + seconds, [], iter(range(10**9))

    async def one() -> None:
        while loop.time() < end:
            began = loop.time()
            request = pb.EnqueueRequest(
                pool=POOL, user_id="u", request_id=f"{name}-{next(numbers)}", cost=1
            )
            await scheduler.Enqueue(request)
            answer = await scheduler.NextDispatch(
                pb.NextDispatchRequest(pools=[POOL], worker_id="w")
            )
            taken.append(loop.time() - began)
            for dispatch in answer.dispatches:
                await scheduler.Complete(
                    pb.CompleteRequest(lease_id=dispatch.lease_id, outcome=SUCCEEDED)
                )

    await asyncio.gather(*(one() for _ in range(4)))
    return sorted(taken)


async def _serving(channel) -> None:
    """Waits until the log has been replayed."""
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    async for reply in watch:
        if reply.status == health_pb2.HealthCheckResponse.SERVING:
            watch.cancel()
            return


def _p99(taken: list[float]) -> float:
    return taken[len(taken) * 99 // 100]


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_half_a_million_behind(tmp_path):
    """A watcher 500,000 decisions behind, stopped or catching up, costs the service less than
    50 MB and delays nobody; and it gets every decision, in order."""
    await _write_log(tmp_path / "data")
    process = ServiceProcess(tmp_path, "--snapshot-records", str(10**9))
    await asyncio.to_thread(process.start)
    options = [("grpc.use_local_subchannel_pool", 1)]
    address = process.target
    try:
        async with (
            grpc.aio.insecure_channel(address) as channel,
            grpc.aio.insecure_channel(address, options=options) as other,
        ):
            scheduler, audit = SchedulerServiceStub(channel), AuditServiceStub(other)
            await _serving(channel)
            await _load(scheduler, "warm", 2)
            alone = await _load(scheduler, "alone", 4)
            before = _resident_bytes(process.pid)

            stopped = audit.WatchDecisions(
                audit_service_pb2.WatchDecisionsRequest(after_sequence=0)
            )
            await stopped.read()
            beside_stopped = await _load(scheduler, "stopped", 4)
            grown = _resident_bytes(process.pid) - before
            stopped.cancel()

            reading = asyncio.ensure_future(_read_all(audit))
            beside_reading = await _load(scheduler, "reading", 4)
            sequences = await reading
            grown = max(grown, _resident_bytes(process.pid) - before)
    finally:
        process.ensure_gone()

    assert grown < MEMORY_BYTES
    assert sequences == list(range(1, len(sequences) + 1))
    assert len(sequences) >= DECISIONS
    for busy in (beside_stopped, beside_reading):
        assert _p99(busy) < 3 * _p99(alone) + 0.05


async def _read_all(audit) -> list[int]:
    call = audit.WatchDecisions(audit_service_pb2.WatchDecisionsRequest(after_sequence=0))
    sequences = []
    async for message in call:
        sequences += [decision.sequence for decision in message.decisions]
        if message.scanned_sequence >= DECISIONS:
            call.cancel()
            break
    return sequences
