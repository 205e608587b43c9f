"""How often the client tries to open the stream of a request that was not accepted yet."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from fairsched import AsyncFairsched, Fairsched, new_request
from fairsched.connection import ATTEMPTS_MAX
from fairsched.errors import UnavailableError
from fairsched.v1 import scheduler_service_pb2 as pb

REQUEST = {"pool": "default", "user_id": "a", "cost": 1, "request_id": "r"}


class Starting:
    """A service that is not ready for the first `refusals` calls."""

    def __init__(self, refusals):
        self.refusals = refusals
        self.asked = 0

    def acquire(self, _request, context):
        self.asked += 1
        if self.asked <= self.refusals:
            context.abort(grpc.StatusCode.UNAVAILABLE, "starting")
        yield pb.AcquireResponse(granted=pb.AcquireGranted(lease_id="lease"))

    def complete(self, _request, _context):
        return pb.CompleteResponse()

    def handler(self):
        """Returns what serves it."""
        acquire = grpc.unary_stream_rpc_method_handler(
            self.acquire, pb.AcquireRequest.FromString, pb.AcquireResponse.SerializeToString
        )
        complete = grpc.unary_unary_rpc_method_handler(
            self.complete, pb.CompleteRequest.FromString, pb.CompleteResponse.SerializeToString
        )
        methods = {"Acquire": acquire, "Complete": complete}
        return grpc.method_handlers_generic_handler("fairsched.v1.SchedulerService", methods)


@pytest.fixture(params=[ATTEMPTS_MAX - 1, ATTEMPTS_MAX])
def starting(request):
    """A service that refuses so often, and where it listens."""
    with ThreadPoolExecutor(4) as threads:
        server, servicer = grpc.server(threads), Starting(request.param)
        server.add_generic_rpc_handlers([servicer.handler()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield servicer, f"127.0.0.1:{port}"
        server.stop(None).wait()


def test_a_new_request_is_tried_as_often_as_other_calls(starting):
    """The fifth attempt counts, the sixth is not made."""
    servicer, target = starting
    with Fairsched(target) as client:
        if servicer.refusals < ATTEMPTS_MAX:
            with client.acquire(new_request(**REQUEST)) as turn:
                assert turn.lease_id == "lease"
        else:
            with pytest.raises(UnavailableError), client.acquire(new_request(**REQUEST)):
                pass

    assert servicer.asked == ATTEMPTS_MAX


async def test_the_asynchronous_client_tries_as_often(starting):
    """As the other one."""
    servicer, target = starting
    async with AsyncFairsched(target) as client:
        if servicer.refusals < ATTEMPTS_MAX:
            async with client.acquire(new_request(**REQUEST)) as turn:
                assert turn.lease_id == "lease"
        else:
            with pytest.raises(UnavailableError):
                async with client.acquire(new_request(**REQUEST)):
                    pass

    assert servicer.asked == ATTEMPTS_MAX
