"""The container files at work under a real engine: health, crashes, partitions, and a clean stop.

Needs Docker, Compose, and the base image `python:3.12-slim`; see `tests/compose/README.md`.
"""

import asyncio
import contextlib
import json
import os
import signal
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fairsched.v1 import decision_pb2
from tests.compose.outside import POOL, outside, until
from tests.compose.stack import Stack, inspect, run, wait_until

pytestmark = [
    pytest.mark.compose,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("compose"),
    pytest.mark.skipif(
        "FAIRSCHED_TEST_COMPOSE" not in os.environ, reason="FAIRSCHED_TEST_COMPOSE is not set"
    ),
]

SUCCEEDED = decision_pb2.REQUEST_STATE_SUCCEEDED
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def stack():
    """Everything of `docker-compose.yml`, healthy."""
    stack = Stack()
    try:
        try:
            stack.up()
        except AssertionError as error:
            error.add_note(stack.compose("logs", "--tail", "20"))
            raise
        yield stack
    finally:
        stack.down()


def _healthy(container: str) -> bool:
    return inspect(container, "State.Health.Status") == "healthy"


def _counters(stack: Stack) -> dict[str, int]:
    (stats,) = stack.fairsched("stats")
    (pool,) = [pool for pool in stats["pools"] if pool["pool"] == POOL]
    return pool["counters"]


def test_everything_becomes_healthy(stack):
    """Four containers are healthy, run as nobody, and cannot write to their image."""
    containers = [c for name in ("scheduler", "worker", "gateway") for c in stack.containers(name)]

    assert len(containers) == 4
    assert all(map(_healthy, containers))
    for container in containers:
        assert run("docker", "exec", container, "id", "-u") == "10001"
        assert inspect(container, "HostConfig.ReadonlyRootfs") == "true"
        with pytest.raises(AssertionError, match="Read-only file system"):
            run("docker", "exec", container, "touch", "/opt/fairsched/x")


async def test_load_from_outside_is_served(stack):
    """Requests through the published port are queued, run by the workers, and answered."""
    async with outside(stack.target) as client:
        for number in range(20):
            await client.ask(f"user-{number % 4}")
        infos = await client.all_ended(within=60)

    assert {info.state for info in infos} == {SUCCEEDED}
    assert {info.attempts for info in infos} == {1}


def test_command_line_works_in_the_container(stack):
    """`fairsched stats`, `queue` and `top` answer from inside the scheduler's container."""
    wait_until(lambda: _counters(stack)["dispatched_count"] > 0, 30, "a dispatch")

    assert _counters(stack)["accepted_count"] > 0
    assert stack.fairsched("queue", POOL)
    assert stack.fairsched("top", "--once")


async def test_killed_scheduler_loses_nothing_acknowledged(stack):
    """After `kill -9` under load the engine starts it again, and every acknowledged id is known."""
    scheduler = stack.scheduler()
    async with outside(stack.target) as client:
        async with client.load(users=4, clients=16):
            for _ in range(3):
                before = len(client.acknowledged)
                await asyncio.sleep(3)
                started = inspect(scheduler, "State.StartedAt")
                await asyncio.to_thread(stack.kill_process, scheduler)
                await asyncio.to_thread(
                    wait_until,
                    lambda was=started: inspect(scheduler, "State.StartedAt") != was,
                    30,
                    "restart",
                )
                await asyncio.to_thread(wait_until, lambda: _healthy(scheduler), 60, "health")
                assert len(client.acknowledged) > before
            await asyncio.sleep(2)
        infos = await client.all_ended(within=120)

    assert len(infos) == len(client.acknowledged) > 30
    assert {info.state for info in infos} == {SUCCEEDED}
    assert int(inspect(scheduler, "RestartCount")) >= 3
    for name in ("worker", "gateway"):
        for container in stack.containers(name):
            assert inspect(container, "RestartCount") == "0"


@pytest.mark.parametrize("fault", ["frozen", "cut_off"])
async def test_work_of_a_silent_worker_is_redelivered(stack, fault):
    """What a frozen or cut-off worker held is run by another; the worker comes back by itself."""
    container = stack.containers("worker")[0]
    worker_id = inspect(container, "Config.Hostname")
    async with outside(stack.target) as client:
        await asyncio.to_thread(wait_until, lambda: _healthy(container), 60, "health")
        async with client.load(users=4, clients=16):
            await until(lambda: client.held_by(worker_id), within=30)
            with getattr(stack, fault)(container):
                held = await client.held_by(worker_id)
                assert held
                async with asyncio.timeout(60):
                    infos = await asyncio.gather(*[client.follow(i.request_id) for i in held])
                assert {info.state for info in infos} == {SUCCEEDED}
                assert min(info.attempts for info in infos) >= 2
            await until(lambda: client.is_active(worker_id), within=60)
            await until(lambda: client.held_by(worker_id), within=60)
        infos = await client.all_ended(within=60)

    assert {info.state for info in infos} == {SUCCEEDED}
    await asyncio.to_thread(wait_until, lambda: _healthy(container), 60, "health")
    assert inspect(container, "RestartCount") == "0"


def test_second_scheduler_on_the_log_is_refused(stack):
    """A second container on the same volume ends at once with code 1 and says who holds it."""
    volume = f"{stack.project}_log:/var/lib/fairsched"
    with pytest.raises(AssertionError, match=r"ended with 1: .*is locked by pid"):
        run("docker", "run", "--rm", "--volume", volume, "fairsched:demo", timeout=30)


def test_scheduler_stops_while_it_starts(stack):
    """SIGTERM is heeded as soon as Python runs, not only once everything is loaded."""
    name = f"{stack.project}-early"
    run("docker", "run", "--detach", "--name", name, "fairsched:demo")
    try:
        wait_until(lambda: _takes_sigterm(name), 10, "a handler of SIGTERM")
        started = time.monotonic()
        run("docker", "stop", "-t", "30", name)
        assert time.monotonic() - started < 10
        assert inspect(name, "State.ExitCode") in {"0", str(128 + signal.SIGTERM)}
    finally:
        run("docker", "rm", "--force", "--volumes", name)


def _takes_sigterm(container):
    """Whether its first process has a handler; without, the kernel drops the signal."""
    status = run("docker", "exec", container, "cat", "/proc/1/status")
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) & 1 << (signal.SIGTERM - 1))


ANYWHERE = ("serve", "--listen=[::]:50051", "--http-listen=[::]:9464", "--allow-plaintext")


@pytest.mark.parametrize("arguments", [(), ANYWHERE], ids=["default", "anywhere"])
def test_scheduler_starts_without_ipv6(stack, arguments):
    """With IPv6 switched off in its network namespace it binds IPv4 and becomes ready."""
    name = f"{stack.project}-ipv4"
    run(
        *("docker", "run", "--detach", "--name", name, "--read-only", "--tmpfs", "/tmp"),
        *("--sysctl", "net.ipv6.conf.all.disable_ipv6=1"),
        *("--sysctl", "net.ipv6.conf.lo.disable_ipv6=1", "fairsched:demo", *arguments),
    )
    try:
        wait_until(lambda: _healthy(name), 60, "health")
        assert run("docker", "exec", name, "cat", "/proc/net/if_inet6") == ""
        assert run("docker", "exec", name, "fairsched", "stats", "--json")
    finally:
        run("docker", "rm", "--force", "--volumes", name)


async def _watch_health(target: str, seen: list[int]) -> None:
    async with grpc.aio.insecure_channel(target) as channel:
        request = health_pb2.HealthCheckRequest()
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for response in health_pb2_grpc.HealthStub(channel).Watch(request):
                seen.append(response.status)  # noqa: PERF401 - kept when it breaks


async def test_stop_is_clean_under_load(stack):
    """`stop` under load: NOT_SERVING first, code 0, within ten seconds; then all goes on."""
    scheduler = stack.scheduler()
    seen: list[int] = []
    async with outside(stack.target) as client:
        watching = asyncio.create_task(_watch_health(stack.target, seen))
        async with client.load(users=4, clients=16):
            await asyncio.sleep(2)
            started = time.monotonic()
            await asyncio.to_thread(stack.compose, "stop", "scheduler")
            took = time.monotonic() - started
            await asyncio.wait_for(watching, 10)
            assert inspect(scheduler, "State.ExitCode") == "0"
            await asyncio.to_thread(stack.compose, "start", "--wait", "scheduler")
            await asyncio.sleep(2)
        infos = await client.all_ended(within=120)

    assert took < 10
    assert seen == [SERVING, NOT_SERVING]
    assert {info.state for info in infos} == {SUCCEEDED}
    assert "Traceback" not in stack.logs("scheduler")


def test_demo_programs_stop_cleanly(stack):
    """Workers and gateway end with code 0 before their grace period is over."""
    containers = [c for name in ("worker", "gateway") for c in stack.containers(name)]
    started = time.monotonic()
    stack.compose("stop", "gateway", "worker")

    assert time.monotonic() - started < 20
    assert {inspect(container, "State.ExitCode") for container in containers} == {"0"}
    assert "Traceback" not in stack.logs("worker") + stack.logs("gateway")


def test_log_is_intact_after_all_this(stack):
    """The stopped scheduler's log holds every head it printed, and is what the rules decide."""
    stack.compose("stop", "scheduler")
    events = map(json.loads, stack.logs("scheduler").splitlines())
    heads = {f"{event['sequence']}:{event['chain_hash']}" for event in events if _is_head(event)}
    verified = json.loads(
        run(
            *("docker", "run", "--rm", "--volume", f"{stack.project}_log:/var/lib/fairsched"),
            *("--network", "none", "fairsched:demo", "audit", "verify", "/var/lib/fairsched"),
            *("--json", *(f"--head={head}" for head in heads)),
        )
    )

    assert verified["good"]
    assert verified["heads"] == len(heads) > 2
    assert verified["redecided"] > 100


def _is_head(event: dict[str, object]) -> bool:
    return "chain_hash" in event and event["sequence"] != 0
