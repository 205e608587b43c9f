"""Many gateways in one process, cheaply: `python -m tests.support.gateways PORT WAY NAME COUNT`.

Each gateway has a connection of its own and waits for one turn, by `Acquire` or by a
`GatewaySession`.  They begin when the process is sent a line, and do nothing but renew what they
were granted, until the process is killed or stopped.
"""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc

from fairsched.v1 import scheduler_service_pb2 as pb
from fairsched.v1 import scheduler_service_pb2_grpc
from tests.support.live import POOL

ROOT = Path(__file__).parents[2]
RENEW_SECONDS = 0.3
_OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


class Gateways:
    """A process of gateways, as the test that made it sees it.

    Args:
        way: `acquire` or `session`.
        name: Begins the ids of their requests.
        count: How many there are.
    """

    def __init__(self, port: int, way: str, name: str, count: int) -> None:
        self.name = name
        self.request_ids = [f"{name}-{number}" for number in range(count)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.gateways", str(port), way, name, str(count)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
        )

    def begin(self) -> None:
        """Lets them connect and call."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def vanish(self, how: signal.Signals) -> None:
        """Stops or kills all of them at once."""
        self._process.send_signal(how)

    def end(self) -> None:
        """Ends the process, stopped or not."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


async def _acquire(stub: Any, request: pb.EnqueueRequest, leases: list[str]) -> None:
    call = stub.Acquire(pb.AcquireRequest(request=request))
    leases += [x.granted.lease_id async for x in call if x.HasField("granted")]
    await asyncio.Event().wait()


async def _session(stub: Any, request: pb.EnqueueRequest, leases: list[str]) -> None:
    call = stub.GatewaySession()
    item = pb.SessionEnqueue(request=request, acquire=True)
    await call.write(pb.GatewaySessionRequest(enqueues=[item], credits=1000))
    async for message in call:
        leases += [x.granted.lease_id for x in message.events if x.HasField("granted")]
    await asyncio.Event().wait()


async def _renew(stub: Any, leases: list[str]) -> None:
    while True:
        await asyncio.sleep(RENEW_SECONDS)
        if leases:
            renewals = [pb.LeaseRenewal(lease_id=lease_id) for lease_id in leases]
            await stub.RenewLease(pb.RenewLeaseRequest(renewals=renewals))


async def _run(port: int, way: str, name: str, count: int) -> None:
    wait_for_turn = {"acquire": _acquire, "session": _session}[way]
    leases: list[str] = []
    tasks, channels = [], []
    for number in range(count):
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_OWN_CONNECTION)
        channels.append(channel)
        stub = scheduler_service_pb2_grpc.SchedulerServiceStub(channel)
        request = pb.EnqueueRequest(
            pool=POOL, request_id=f"{name}-{number}", user_id="crowd", cost=1
        )
        tasks.append(asyncio.create_task(wait_for_turn(stub, request, leases)))
    stub = scheduler_service_pb2_grpc.SchedulerServiceStub(channels[0])
    tasks.append(asyncio.create_task(_renew(stub, leases)))
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    sys.stdin.readline()
    asyncio.run(_run(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])))
