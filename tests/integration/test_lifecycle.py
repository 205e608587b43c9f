"""Start, health and stop, of real processes and in this one."""

import asyncio
import re
import signal

import grpc
import pytest
from google.protobuf import duration_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from fairsched.v1 import (
    admin_service_pb2,
    audit_service_pb2,
    scheduler_service_pb2_grpc,
)
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.config import load
from scheduler_service.server import EXIT_FAILED, EXIT_OK, EXIT_REFUSED, Service
from scheduler_service.server.listening import AddressTakenError, bind
from scheduler_service.server.service import SERVICES
from tests.support.live import POOL, refusal_of, refused, running

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def _health(channel, name=""):
    stub = health_pb2_grpc.HealthStub(channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status


async def test_a_call_makes_the_server_look_at_few_methods(service):
    """For each call grpc.aio looks at a future of every registered method: only frequent ones are.

    With all of them registered calls were a tenth slower.
    """
    looked_at = [
        task.get_coro().__qualname__
        for task in asyncio.all_tasks()
        if "_request" in task.get_coro().__qualname__
    ]
    assert sorted(looked_at) == [
        "AioServer._request_call",
        *["AioServer._request_registered_call"] * 3,
    ]


class TestHealth:
    """grpc.health.v1 and reflection, as foreign tools use them."""

    async def test_every_service_is_serving(self, service):
        """The whole server and each service by name; unknown names are not found."""
        for name in ("", *SERVICES):
            assert await _health(service.channel, name) == SERVING
        refusal = await refused(_health(service.channel, "nothing"))
        assert refusal.code is grpc.StatusCode.NOT_FOUND

    async def test_it_replays_before_it_serves(self, tmp_path):
        """While the log is replayed health says no, and calls say when to come back."""
        settings = load(
            None, {"listen": "127.0.0.1:0", "http_listen": "", "data_dir": tmp_path}, {}
        )
        service = Service(settings, lambda event, **values: None)
        where = await service.listen()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{where.port}") as channel:
            assert await _health(channel) == NOT_SERVING
            stub = scheduler_service_pb2_grpc.SchedulerServiceStub(channel)
            refusal = await refused(stub.ListWorkers(pb.ListWorkersRequest()))
            assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "REPLAYING")
            assert refusal.retry_seconds == 1
            await service.recover()
            async with asyncio.timeout(2):
                while await _health(channel) != SERVING:
                    await asyncio.sleep(0.01)
            await stub.ListWorkers(pb.ListWorkersRequest())
        await service.stop()

    async def test_a_watch_is_told_of_the_end(self, tmp_path):
        """Who watches health learns that the service stops."""
        async with running(tmp_path) as live:
            stub = health_pb2_grpc.HealthStub(live.channel)
            call = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICES[0]))
            assert (await call.read()).status == SERVING
            stopping = asyncio.ensure_future(live.service.stop())
            async with asyncio.timeout(5):
                assert (await call.read()).status == NOT_SERVING
                call.cancel()
                await stopping

    async def test_reflection_names_every_service(self, service):
        """Tools without our files find services and methods."""
        stub = reflection_pb2_grpc.ServerReflectionStub(service.channel)
        call = stub.ServerReflectionInfo(
            iter(
                [
                    reflection_pb2.ServerReflectionRequest(list_services=""),
                    reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICES[0]),
                ]
            )
        )
        listed = await call.read()
        names = {found.name for found in listed.list_services_response.service}
        assert {*SERVICES, "grpc.health.v1.Health"} <= names
        described = await call.read()
        assert described.file_descriptor_response.file_descriptor_proto


class TestAddresses:
    """Where the service listens, and that nobody else does."""

    async def test_operators_may_have_an_address_of_their_own(self, tmp_path):
        """AdminService and AuditService can be kept off the port of gateways and workers."""
        async with running(tmp_path, admin_listen="127.0.0.1:0") as live:
            refusal = await refused(live.admin.ListPools(admin_service_pb2.ListPoolsRequest()))
            assert refusal.code is grpc.StatusCode.UNIMPLEMENTED
            (event,) = live.reported("service.listening")
            assert event["admin_port"] != event["port"]
            target = f"127.0.0.1:{event['admin_port']}"
            async with grpc.aio.insecure_channel(target) as channel:
                stub = channel.unary_unary(
                    "/fairsched.v1.AuditService/ListDecisions",
                    request_serializer=audit_service_pb2.ListDecisionsRequest.SerializeToString,
                    response_deserializer=audit_service_pb2.ListDecisionsResponse.FromString,
                )
                assert (await stub(audit_service_pb2.ListDecisionsRequest())).decisions
                assert await _health(channel, SERVICES[1]) == SERVING

    async def test_a_socket_file(self, tmp_path):
        """A Unix socket is as good as a loopback address."""
        path = tmp_path / "s"
        async with (
            running(tmp_path / "data", listen=f"unix:{path}"),
            grpc.aio.insecure_channel(f"unix:{path}") as channel,
        ):
            assert await _health(channel) == SERVING

    def test_without_ipv6_it_listens_on_ipv4(self):
        """A machine without IPv6 is served on IPv4, with one event (R103)."""
        bound, events = [], []

        class Server:
            def add_insecure_port(self, address):
                if "[" in address:
                    raise RuntimeError("no IPv6 here")
                bound.append(address)
                return 5

        port = bind(Server(), "[::]:5", None, lambda event, **values: events.append(event))
        assert (port, bound, events) == (5, ["0.0.0.0:5"], ["server.ipv4_only"])
        with pytest.raises(AddressTakenError):
            bind(Server(), "[::1]:5", None, lambda *_, **__: None)

    async def test_a_second_instance_on_the_port_is_refused(self, child, service, tmp_path):
        """Two processes never split the calls of one port (R102)."""
        second = child(data_dir=tmp_path / "other", listen=f"127.0.0.1:{service.port}")

        assert await second.ended() == EXIT_REFUSED
        (event,) = second.reported("service.refused")
        assert event["kind"] == "AddressTakenError"
        assert (await service.enqueue()).sequence

    async def test_a_second_instance_on_the_directory_is_refused(self, child, service):
        """Two processes never write one log; the second says who has it (R102)."""
        second = child(data_dir=service.data_dir)

        assert await second.ended() == EXIT_REFUSED
        (event,) = second.reported("service.refused")
        assert event["kind"] == "StoreLocked"
        assert re.search(r"pid \d+", event["error"])
        assert (await service.enqueue()).sequence


class TestStop:
    """What signals do."""

    async def test_sigterm_with_many_waiting_calls(self, child):
        """Fifty calls that wait are answered, streams end cleanly, and it exits 0 in time (R95)."""
        one = child()
        port = await one.serving()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = scheduler_service_pb2_grpc.SchedulerServiceStub(channel)
            request = {"pools": [POOL], "wait_duration": {"seconds": 600}}
            calls = [
                asyncio.ensure_future(
                    stub.NextDispatch(pb.NextDispatchRequest(worker_id=f"w{n}", **request))
                )
                for n in range(50)
            ]
            acquires = []
            for n in range(3):
                paused = pb.EnqueueRequest(
                    pool=POOL, user_id="u", request_id=f"a{n}", cost=1, required_labels=["none"]
                )
                acquires.append(stub.Acquire(pb.AcquireRequest(request=paused)))
                await acquires[-1].read()
            sessions = [stub.GatewaySession() for _ in range(2)]
            for session in sessions:
                await session.write(pb.GatewaySessionRequest(credits=1))
            await asyncio.sleep(0.3)
            one.signal(signal.SIGTERM)
            code = await one.ended(10)
            answers = await asyncio.gather(*calls)

        assert code == EXIT_OK
        assert all(len(answer.dispatches) == 0 for answer in answers)
        for call in (*acquires, *sessions):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await call.read()
            assert refusal_of(error.value).reason == "DRAINING"
        assert one.errors == ""
        stopped = [event["event"] for event in map(dict, _events(one))]
        assert stopped.index("service.stopping") < stopped.index("service.stopped")

    async def test_a_watch_of_the_health_does_not_hold_it(self, child):
        """A watch never ends by itself: it is told, then cut off, long before the grace time."""
        one = child(grace_seconds=60)
        port = await one.serving()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == SERVING
            one.signal(signal.SIGTERM)
            assert await one.ended(10) == EXIT_OK
            assert (await watch.read()).status == NOT_SERVING
            with pytest.raises(grpc.aio.AioRpcError):
                await watch.read()

    async def test_callers_who_never_give_up_do_not_hold_it(self, child):
        """Calls that arrive while it stops are refused, or dropped by gRPC; none is kept."""
        one = child(grace_seconds=60)
        port = await one.serving()

        async def ask_until_refused(stub, n):
            wait = duration_pb2.Duration(seconds=30 * (n % 2))
            ask = pb.GetRequestRequest(pool=POOL, request_id="r", wait_duration=wait)
            while True:
                await stub.GetRequest(ask)

        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = scheduler_service_pb2_grpc.SchedulerServiceStub(channel)
            await stub.Enqueue(_request("r"))
            asking = [asyncio.ensure_future(ask_until_refused(stub, n)) for n in range(40)]
            await asyncio.sleep(0.5)
            one.signal(signal.SIGTERM)
            assert await one.ended(20) == EXIT_OK
            errors = await asyncio.gather(*asking, return_exceptions=True)

        codes = {error.code() for error in errors}
        assert codes <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}

    async def test_nothing_acknowledged_is_lost(self, child):
        """What was answered before a SIGTERM is there after the next start."""
        one = child()
        port = await one.serving()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = scheduler_service_pb2_grpc.SchedulerServiceStub(channel)
            await asyncio.gather(*(stub.Enqueue(_request(f"r{n}")) for n in range(200)))
            one.signal(signal.SIGTERM)
            assert await one.ended() == EXIT_OK
        two = child()
        port = await two.serving()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = scheduler_service_pb2_grpc.SchedulerServiceStub(channel)
            again = await asyncio.gather(*(stub.Enqueue(_request(f"r{n}")) for n in range(200)))
        assert all(answer.duplicate for answer in again)

    async def test_a_second_signal_ends_it_at_once(self, child):
        """Who cannot wait for the grace time need not."""
        one = child(fault="hang", good=1, grace_seconds=60)
        port = await one.serving()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = scheduler_service_pb2_grpc.SchedulerServiceStub(channel)
            call = asyncio.ensure_future(stub.Enqueue(_request("a")))
            await asyncio.sleep(0.5)
            one.signal(signal.SIGTERM)
            await asyncio.sleep(0.5)
            assert one.process.poll() is None
            one.signal(signal.SIGTERM)
            assert await one.ended(3) == 128 + signal.SIGTERM
            with pytest.raises(grpc.aio.AioRpcError):
                await call

    async def test_a_log_that_stands_still_is_given_up(self, child):
        """When the grace time is over it ends, says so, and is started again by a supervisor."""
        one = child(fault="hang", good=1, grace_seconds=1)
        port = await one.serving()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = scheduler_service_pb2_grpc.SchedulerServiceStub(channel)
            call = asyncio.ensure_future(stub.Enqueue(_request("a")))
            await asyncio.sleep(0.5)
            one.signal(signal.SIGTERM)
            assert await one.ended(8) == EXIT_FAILED
            assert one.reported("log.given_up")
            with pytest.raises(grpc.aio.AioRpcError):
                await call

    async def test_a_failed_log_ends_it_with_its_own_code(self, child):
        """A supervisor sees that it failed and starts it again; what was told is there."""
        one = child(fault="fail", good=4)
        port = await one.serving()
        told, codes = [], []
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = scheduler_service_pb2_grpc.SchedulerServiceStub(channel)
            for n in range(20):
                try:
                    await stub.Enqueue(_request(f"r{n}"))
                    told.append(f"r{n}")
                except grpc.aio.AioRpcError as error:
                    codes.append(error.code())
                    break
        assert await one.ended() == EXIT_FAILED
        assert one.reported("engine.stopped")
        assert codes == [grpc.StatusCode.UNAVAILABLE]

        two = child()
        port = await two.serving()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = scheduler_service_pb2_grpc.SchedulerServiceStub(channel)
            for request_id in told:
                assert (await stub.Enqueue(_request(request_id))).duplicate


@pytest.mark.slow
async def test_clients_may_ping(tmp_path):
    """A call that waits and an idle connection survive clients that ping every second (R92)."""
    options = [
        ("grpc.keepalive_time_ms", 1000),
        ("grpc.keepalive_timeout_ms", 500),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    async with (
        running(tmp_path, keepalive_min_seconds=1) as live,
        grpc.aio.insecure_channel(f"127.0.0.1:{live.port}", options=options) as channel,
        grpc.aio.insecure_channel(f"127.0.0.1:{live.port}", options=options) as idle,
    ):
        await idle.channel_ready()
        stub = scheduler_service_pb2_grpc.SchedulerServiceStub(channel)
        request = pb.NextDispatchRequest(worker_id="w", pools=[POOL], wait_duration={"seconds": 60})
        waiting = asyncio.ensure_future(stub.NextDispatch(request))
        done, _ = await asyncio.wait({waiting}, timeout=7)
        assert not done, "cut off for pinging"
        assert idle.get_state() is grpc.ChannelConnectivity.READY, "cut off for pinging"
        await live.enqueue("a")
        assert len((await waiting).dispatches) == 1


def _request(request_id):
    return pb.EnqueueRequest(pool=POOL, user_id="u", request_id=request_id, cost=1)


def _events(one):
    return [
        event for name in ("service.stopping", "service.stopped") for event in one.reported(name)
    ]
