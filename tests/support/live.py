"""A real service on a real port, in this process, and short ways to call it."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, PreconditionFailure, RetryInfo
from grpc_status import rpc_status

from fairsched.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    audit_service_pb2_grpc,
    decision_pb2,
    policy_pb2,
    scheduler_service_pb2_grpc,
)
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.application import Application
from scheduler_service.app.engine import Engine
from scheduler_service.config import load
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.completion import Complete
from scheduler_service.server import Service
from scheduler_service.server.opening import StoreOpener, open_sqlite

POOL = "default"
SUCCEEDED = decision_pb2.OUTCOME_SUCCEEDED
FAILED = decision_pb2.OUTCOME_FAILED
GIVEN_BACK = decision_pb2.OUTCOME_GIVEN_BACK

_numbers = itertools.count(1)


def seconds(value: float) -> Duration:
    """Returns a duration message."""
    duration = Duration()
    duration.FromNanoseconds(round(value * 1e9))
    return duration


@dataclass
class Refusal:
    """What a caller learns from an error."""

    code: grpc.StatusCode
    message: str
    reason: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    fields: dict[str, str] = field(default_factory=dict)
    retry_seconds: float = 0.0
    precondition: str = ""


def refusal_of(error: grpc.aio.AioRpcError) -> Refusal:
    """Returns what an error says."""
    found = Refusal(error.code(), error.details() or "")
    status = rpc_status.from_call(error)
    for detail in () if status is None else status.details:
        for kind in (ErrorInfo, BadRequest, RetryInfo, PreconditionFailure):
            message: Any = kind()
            if not detail.Unpack(message):
                continue
            if kind is ErrorInfo:
                assert message.domain == "fairsched"
                found.reason, found.metadata = message.reason, dict(message.metadata)
            elif kind is BadRequest:
                found.fields = {v.field: v.description for v in message.field_violations}
            elif kind is RetryInfo:
                found.retry_seconds = message.retry_delay.ToNanoseconds() / 1e9
            else:
                found.precondition = message.violations[0].type
    return found


async def refused(call: Any) -> Refusal:
    """Returns what a call is refused with; it must be."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return refusal_of(error)
    raise AssertionError(f"was answered: {answer}")


@dataclass
class Live:
    """A running service and its stubs."""

    service: Service
    port: int
    channel: grpc.aio.Channel
    events: list[tuple[str, dict[str, object]]]
    data_dir: Path

    def __post_init__(self) -> None:
        self.scheduler: Any = scheduler_service_pb2_grpc.SchedulerServiceStub(self.channel)
        self.admin: Any = admin_service_pb2_grpc.AdminServiceStub(self.channel)
        self.audit: Any = audit_service_pb2_grpc.AuditServiceStub(self.channel)

    @property
    def app(self) -> Application:
        """The use cases inside."""
        assert self.service.running is not None
        return self.service.running.app

    @property
    def engine(self) -> Engine:
        """The engine inside."""
        return self.app.engine

    def reported(self, event: str) -> list[dict[str, object]]:
        """Returns the values of every event of that name."""
        return [values for name, values in self.events if name == event]

    async def enqueue(self, request_id: str = "", user_id: str = "u", **fields: Any) -> Any:
        """Enqueues a request of cost 1, unless something else is stated."""
        return await self.scheduler.Enqueue(self.request(request_id, user_id, **fields))

    def request(self, request_id: str = "", user_id: str = "u", **fields: Any) -> pb.EnqueueRequest:
        """Returns a request of cost 1, unless something else is stated."""
        fields.setdefault("pool", POOL)
        if not {"cost", "prompt_tokens", "max_output_tokens", "predicted_output_tokens"} & set(
            fields
        ):
            fields["cost"] = 1
        request_id = request_id or f"r{next(_numbers)}"
        return pb.EnqueueRequest(request_id=request_id, user_id=user_id, **fields)

    async def next(self, worker_id: str = "", **fields: Any) -> Any:
        """Asks for one request, without waiting unless stated."""
        if "session_id" not in fields:
            fields.setdefault("pools", [POOL])
            worker_id = worker_id or "w"
        fields["worker_id"] = worker_id
        timeout = fields.pop("timeout", None)
        wait = fields.pop("wait", None)
        if wait is not None:
            fields["wait_duration"] = seconds(wait)
        return await self.scheduler.NextDispatch(pb.NextDispatchRequest(**fields), timeout=timeout)

    async def complete(self, lease_id: str, outcome: int = SUCCEEDED, **fields: Any) -> Any:
        """Ends a lease."""
        request = pb.CompleteRequest(lease_id=lease_id, outcome=outcome, **fields)
        return await self.scheduler.Complete(request)

    async def leased(self, request_id: str = "", worker_id: str = "w", **fields: Any) -> Any:
        """Enqueues a request and returns its dispatch; the pool must be empty."""
        await self.enqueue(request_id, **fields)
        answer = await self.next(worker_id)
        (dispatch,) = answer.dispatches
        return dispatch

    def run_at_once(self) -> str:
        """Has a worker take and complete a request in one turn; returns the lease."""
        stamp = {"now_ns": self.engine.now_ns(), "nonce": self.engine.nonce()}
        taken = self.engine.apply(
            c.NextDispatch(**stamp, pools=(POOL,), worker="w", max_dispatches=1)
        )
        lease_id: str = taken.granted[0].held_lease.lease_id
        self.engine.apply(Complete(**stamp, lease_id=lease_id, outcome=d.Outcome.SUCCEEDED))
        return lease_id

    async def state(self, request_id: str, pool: str = POOL) -> Any:
        """Returns what the service says about a request."""
        request = pb.GetRequestRequest(pool=pool, request_id=request_id)
        return (await self.scheduler.GetRequest(request)).request

    async def until(self, condition: Callable[[], bool], patience: float = 5.0) -> None:
        """Waits until something inside the service is so."""
        async with asyncio.timeout(patience):
            while not condition():
                await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def running(
    data_dir: Path,
    *,
    file: Path | None = None,
    open_store: StoreOpener = open_sqlite,
    environment: dict[str, str] | None = None,
    **flags: Any,
) -> AsyncIterator[Live]:
    """Runs a service on 127.0.0.1 and stops it at the end."""
    flags = {"listen": "127.0.0.1:0", "http_listen": "", "grace_seconds": 2, **flags}
    flags["data_dir"] = data_dir
    settings = load(file, flags, environment or {})
    events: list[tuple[str, dict[str, object]]] = []

    def report(event: str, /, **values: object) -> None:
        events.append((event, values))

    service = Service(settings, report, open_store=open_store)
    try:
        where = await service.listen()
        await service.recover()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{where.port}") as channel:
            yield Live(service, where.port, channel, events, data_dir)
    finally:
        await service.stop()


async def create_pool(live, name="p", **policy):
    """Creates a pool and returns it."""
    request = admin_service_pb2.CreatePoolRequest(pool=name, policy=policy_pb2.PoolPolicy(**policy))
    return (await live.admin.CreatePool(request)).pool
