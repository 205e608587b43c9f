"""A defect inside one call: its caller gets a clean status, operators an event, others nothing."""

import grpc

from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.rpc.fleet import Fleet
from scheduler_service.rpc.intake import Intake
from tests.support.live import refused


async def test_a_defect_is_internal_and_reported(service, monkeypatch):
    """The call fails as INTERNAL without details of the inside; the next one works."""

    def broken(*_args):
        raise RuntimeError("secret detail")

    with monkeypatch.context() as patched:
        patched.setattr(Fleet, "list_workers", broken)
        refusal = await refused(service.scheduler.ListWorkers(pb.ListWorkersRequest()))

    assert refusal.code is grpc.StatusCode.INTERNAL
    assert "secret" not in refusal.message
    (event,) = service.reported("rpc.failed")
    assert event["rpc"] == "ListWorkers"
    assert "secret detail" in event["error"]
    await service.scheduler.ListWorkers(pb.ListWorkersRequest())


async def test_a_defect_in_a_stream_is_internal_too(service, monkeypatch):
    """A stream ends with a status as a call does (R99: grpc/grpc#29518)."""

    def broken(*_args, **_fields):
        raise RuntimeError("broken")

    monkeypatch.setattr(Intake, "accept", broken)
    acquire = service.scheduler.Acquire(pb.AcquireRequest(request=service.request("a")))
    session = service.scheduler.GatewaySession()
    item = pb.SessionEnqueue(request=service.request("b"))
    await session.write(pb.GatewaySessionRequest(enqueues=[item]))

    for call in (acquire, session):
        assert (await refused(call.read())).code is grpc.StatusCode.INTERNAL
    assert service.app.slots.calls == service.app.slots.streams == 0
    assert len(service.reported("rpc.failed")) == 2
