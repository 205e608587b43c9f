"""Sessions as their peers see them: one side of a stream, and how to open it."""

import asyncio

import grpc

from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from tests.support.live import POOL, SUCCEEDED

S = decision_pb2


class Peer:
    """One side of a session: what it was told is gathered until somebody asks."""

    def __init__(self, call, request_type):
        self.call = call
        self.pending = None
        self._type = request_type

    async def say(self, **fields):
        await self.call.write(self._type(**fields))

    async def hear(self, *, until, patience=5.0):
        """Returns everything said until `until(message)` holds, merged into one message."""
        heard, self.pending = self.pending, None
        async with asyncio.timeout(patience):
            while heard is None or not until(heard):
                message = await self.call.read()
                assert message is not grpc.aio.EOF, heard
                if heard is None:
                    heard = type(message)()
                heard.MergeFrom(message)
        return heard

    async def dispatches(self, count):
        """Returns the next `count` dispatches."""
        heard = await self.hear(until=lambda m: len(m.dispatches) >= count)
        assert len(heard.dispatches) == count
        return list(heard.dispatches)

    async def event(self, kind):
        """Returns the next event, which must be of this kind."""
        heard = await self.hear(until=lambda m: m.events)
        assert heard.events[0].WhichOneof("event") == kind, heard
        return heard.events[0]


async def open_worker(service, worker_id="w", **fields):
    """Opens a worker's session; returns the stream and its session id."""
    peer = Peer(service.scheduler.WorkerSession(), pb.WorkerSessionRequest)
    if "session_id" not in fields:
        register = pb.RegisterWorkerRequest(worker_id=worker_id, pools=[POOL])
        if "endpoint" in fields:
            register.endpoint = fields.pop("endpoint")
        fields["register"] = register
    await peer.say(**fields)
    heard = await peer.hear(until=lambda m: m.HasField("registered"))
    session_id = heard.registered.session_id
    heard.ClearField("registered")
    peer.pending = heard
    return peer, session_id


def done(*dispatches, outcome=SUCCEEDED):
    """Returns completions of dispatches."""
    return [pb.CompleteRequest(lease_id=d.lease_id, outcome=outcome) for d in dispatches]


def open_gateway(service):
    """Opens a gateway's session."""
    return Peer(service.scheduler.GatewaySession(), pb.GatewaySessionRequest)
