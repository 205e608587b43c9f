"""What both sessions promise: an end when the service stops, patience with who does not read."""

import asyncio

import grpc
import pytest

from fairsched.v1 import decision_pb2, scheduler_service_pb2_grpc
from fairsched.v1 import scheduler_service_pb2 as pb
from tests.support.live import POOL, refused, running
from tests.support.peers import Peer, open_gateway, open_worker

S = decision_pb2


@pytest.mark.parametrize("kind", ["worker", "gateway"])
async def test_a_session_ends_when_the_service_stops(tmp_path, kind):
    """Open sessions are told UNAVAILABLE at once, and nothing of theirs is cancelled."""
    async with running(tmp_path) as live:
        if kind == "worker":
            peer, _ = await open_worker(live, credits=1)
            await peer.hear(until=lambda m: m.empty_reason)
        else:
            peer = open_gateway(live)
            item = pb.SessionEnqueue(request=live.request("a"), acquire=True)
            await peer.say(credits=1, enqueues=[item])
            await peer.hear(until=lambda m: m.enqueue_results)
        stopping = asyncio.ensure_future(live.service.stop())
        refusal = await refused(peer.call.read())
        async with asyncio.timeout(3):
            await stopping

        assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        if kind == "gateway":
            assert live.engine.state.pools[POOL].waiting == 1


async def test_a_peer_that_does_not_read_is_not_read(tmp_path):
    """A worker that takes nothing holds up only itself, in bounded memory."""
    async with (
        running(tmp_path, session_outbox=4) as live,
        grpc.aio.insecure_channel(
            f"127.0.0.1:{live.port}", options=[("grpc.http2.bdp_probe", 0)]
        ) as channel,
    ):
        for number in range(200):
            await live.enqueue(f"r{number}", payload=b"x" * 60_000)
        slow = scheduler_service_pb2_grpc.SchedulerServiceStub(channel).WorkerSession()
        peer = Peer(slow, pb.WorkerSessionRequest)
        register = pb.RegisterWorkerRequest(worker_id="slow", pools=[POOL])
        await peer.say(register=register, credits=200)
        writes = asyncio.ensure_future(_write_much(peer))
        async with asyncio.timeout(3):
            await live.enqueue("other", "v")
        done, _ = await asyncio.wait({writes}, timeout=1)

        assert not done, "a session that is not read back was read on and on"
        writes.cancel()
        slow.cancel()
        await live.until(lambda: live.app.slots.streams == 0)


async def _write_much(peer):
    renewals = [pb.LeaseRenewal(lease_id="x" * 250)] * 1000
    for _ in range(2000):
        await peer.say(renewals=renewals)
