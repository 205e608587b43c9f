"""Sections F to I of the reports, where no other test shows them already (see README.md)."""

import ast
import asyncio
import gc
import random
import re
from collections import Counter
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fairsched.v1 import admin_service_pb2 as admin
from fairsched.v1 import audit_service_pb2 as audit
from fairsched.v1 import decision_pb2, policy_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app import clock
from scheduler_service.app.engine import Engine
from scheduler_service.core import decisions as d
from scheduler_service.core.policy import SECOND_NS
from tests.support.driver import LONG, Driver
from tests.support.live import FAILED, GIVEN_BACK, POOL, SUCCEEDED, refused, running, seconds
from tests.support.programs import PATIENT, policy
from tests.support.source import tree_of

ROOT = Path(__file__).parents[2]


def pool_of(live):
    return live.engine.state.pools[POOL]


def test_r86_a_user_with_work_is_never_forgotten():
    """gateway-api-inference-extension#2131: no workers for a week, then all of it is served.

    Users are forgotten when their last lease ends and `v` has caught up with them; this one waits.
    """
    driver = Driver(policy("sfq", **PATIENT))
    for number in range(10):
        driver.enqueue(f"a{number}", "A")
    for number in range(6):
        driver.enqueue(f"b{number}", "B")
    running = driver.next(3)
    assert driver.meter("B") == driver.pool().virtual_time
    for one in running:
        driver.complete(one.lease_id)
    for _ in range(7):
        driver.advance(86_400)

    assert Counter(one.user_id for one in driver.next(20)) == {"A": 8, "B": 5}


@pytest.mark.parametrize("step_s", [-3600, 3600, -10 * 365 * 86_400, 10 * 365 * 86_400])
async def test_r88_r90_a_step_of_the_wall_clock_expires_nothing(tmp_path, monkeypatch, step_s):
    """chronos#85, varnish-cache#1874: steps while leases, waits and aging are under way."""
    async with running(tmp_path / "data") as live:
        leased = await live.leased("leased")
        await live.enqueue("waiting", max_wait=seconds(600))
        before = live.engine.now_ns()
        real = clock.time.time_ns
        monkeypatch.setattr(clock.time, "time_ns", lambda: real() + step_s * SECOND_NS)
        live.engine.tick()
        after = live.engine.now_ns()
        answer = await live.complete(leased.lease_id)

        assert 0 <= after - before < 60 * SECOND_NS
        assert pool_of(live).waiting == 1
        assert not answer.duplicate


async def test_r88_a_clock_set_back_before_a_restart_takes_no_time_back(tmp_path, monkeypatch):
    """The next record is not before the last one, and no wait becomes negative."""
    async with running(tmp_path / "data") as live:
        await live.enqueue("x")
        last = live.engine.state.now_ns
    real = clock.time.time_ns
    monkeypatch.setattr(clock.time, "time_ns", lambda: real() - 10 * 365 * 86_400 * SECOND_NS)
    async with running(tmp_path / "data") as live:
        (one,) = (await live.next()).dispatches
        shown = await live.audit.ExplainDecision(
            audit.ExplainDecisionRequest(sequence=one.sequence)
        )

        assert live.engine.state.now_ns >= last
        assert shown.decision.dispatched.wait.ToNanoseconds() >= 0


def test_r89_callers_state_durations_never_times():
    """agentruntimecontrolprotocol/swift-sdk#80: no request of the data API has a point in time.

    Neither as it is written down, nor as it is generated.
    """
    written = (ROOT / "proto/fairsched/v1/scheduler_service.proto").read_text()
    requests = re.findall(r"^message (\w+Request) \{\n(.*?)^\}", written, re.MULTILINE | re.DOTALL)
    found = [name for name, fields in requests if "google.protobuf.Timestamp" in fields]
    assert len(requests) > 10
    for message in pb.DESCRIPTOR.message_types_by_name.values():
        if not message.name.endswith("Request"):
            continue
        found += [
            f"{message.name}.{field.name}"
            for field in message.fields
            if field.type == FieldDescriptor.TYPE_MESSAGE
            and field.message_type.full_name == "google.protobuf.Timestamp"
        ]

    assert found == []


async def test_r93_parked_calls_and_streams_hold_nobody_up(service):
    """grpc/grpc#7052: 300 parked calls and 20 watches, then everything else is still answered."""
    parked = [asyncio.ensure_future(service.next(f"w{n}", wait=60)) for n in range(300)]
    watches = [service.audit.WatchDecisions(audit.WatchDecisionsRequest()) for _ in range(20)]
    await service.until(lambda: service.app.waiters.count == 300)
    health = health_pb2_grpc.HealthStub(service.channel)
    async with asyncio.timeout(10):
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1
        await service.enqueue("x")
        done, _ = await asyncio.wait(parked, return_when=asyncio.FIRST_COMPLETED)
        (one,) = done.pop().result().dispatches
        assert not done
        assert (await service.complete(one.lease_id)).state
    for call in parked:
        call.cancel()
    for watch in watches:
        watch.cancel()
    await asyncio.gather(*parked, return_exceptions=True)


def rss_mib():
    """Resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


@pytest.mark.slow
async def test_r97_opened_and_cancelled_streams_leak_nothing_to_speak_of(service):
    """grpc/grpc#43360: after a warm-up, a thousand cancelled watches and polls cost < 10 MiB.

    And not one object each.
    """

    async def cycles(count):
        for _ in range(count):
            watch = service.audit.WatchDecisions(audit.WatchDecisionsRequest(after_sequence=0))
            await watch.read()
            watch.cancel()
            call = asyncio.ensure_future(service.next(wait=30))
            await service.until(lambda: service.app.waiters.count == 1)
            call.cancel()
            await service.until(lambda: service.app.waiters.count == 0)

    def objects():
        gc.collect()
        return len(gc.get_objects())

    await cycles(300)
    before, held = rss_mib(), objects()
    await cycles(1000)

    assert rss_mib() - before < 10
    assert objects() - held < 500


def forks(node):
    """Whether a piece of source begins a process by a fork, or may: it is the default of some."""
    if isinstance(node, ast.Attribute):
        return node.attr in {"fork", "forkpty"}
    if isinstance(node, ast.ImportFrom) and node.module == "multiprocessing":
        return [name.name for name in node.names] != ["get_context"]
    if isinstance(node, ast.Import):
        return "multiprocessing" in {name.name for name in node.names}
    if not isinstance(node, ast.Call):
        return False
    named = {word.arg for word in node.keywords}
    called = ast.unparse(node.func).rpartition(".")[2]
    return (
        "preexec_fn" in named
        or (called == "ProcessPoolExecutor" and "mp_context" not in named)
        or (called == "get_context" and ast.unparse(node.args[0]) != "'spawn'")
    )


def test_r100_the_service_never_forks():
    """grpc/grpc#17093: children are spawned by exec; nothing forks a process that speaks gRPC."""
    sources = [*(ROOT / "scheduler_service").rglob("*.py"), *(ROOT / "clients").rglob("*.py")]
    forking = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources
        for node in ast.walk(tree_of(path))
        if forks(node)
    ]

    assert len(sources) > 100
    assert forking == []


async def test_r111_gauges_come_down_to_zero_and_counts_add_up(service):
    """ray-project/ray#37943: a random mix, then drained: every accepted request ended once."""
    rng = random.Random(111)
    await service.admin.UpdatePool(
        admin.UpdatePoolRequest(pool=POOL, policy=policy_pb2.PoolPolicy(max_attempts=1))
    )
    accepted = 0
    leases: list[str] = []
    for number in range(1500):
        dice = rng.random()
        if dice < 0.45:
            wait = seconds(0.05) if dice < 0.05 else seconds(60)
            await service.enqueue(f"r{number}", f"u{number % 7}", max_wait=wait)
            accepted += 1
        elif dice < 0.7:
            leases += [x.lease_id for x in (await service.next(max_dispatches=2)).dispatches]
        elif dice < 0.8:
            key = pb.CancelRequest(pool=POOL, request_id=f"r{rng.randrange(number + 1)}")
            known = set(pool_of(service).requests) | set(pool_of(service).gone)
            if key.request_id in known:
                await service.scheduler.Cancel(key)
        elif leases:
            outcome = rng.choice([SUCCEEDED, SUCCEEDED, FAILED, GIVEN_BACK])
            await service.complete(leases.pop(rng.randrange(len(leases))), outcome)
    async with asyncio.timeout(30):
        while pool_of(service).requests:
            leases += [x.lease_id for x in (await service.next("w2", max_dispatches=50)).dispatches]
            while leases:
                await service.complete(leases.pop())
    stats = (await service.admin.GetStats(admin.GetStatsRequest(pool=POOL))).pools[0]

    assert (stats.waiting_count, stats.leased_count, stats.redelivery_count) == (0, 0, 0)
    assert stats.in_flight_cost == 0
    assert sum(one.count for one in stats.counters.ended) == accepted


async def test_r112_dispatch_goes_on_when_nothing_feeds_capacity(service):
    """llm-d/llm-d-router#2100: a worker that only asks, and never says what it has, is served."""
    await service.enqueue("x", kv_tokens=100_000)

    assert (await service.next()).dispatches


@pytest.mark.slow
async def test_r116_time_limits_that_stand_still_make_health_bad(tmp_path, monkeypatch):
    """netresearch/ofelia#780: a timer that was lost shows in health, and what was due ends."""
    monkeypatch.setattr(Engine, "_on_timer", lambda _: None)
    async with running(tmp_path / "data", stall_seconds=1) as live:
        await live.enqueue("late", max_wait=seconds(0.05))
        readiness = live.service.runtime.readiness
        await live.until(lambda: not readiness.ready, 6)
        reason = readiness.reason
        await live.until(lambda: readiness.ready, 6)
        late = await live.state("late")

    assert reason == "Time limits are not being looked at."
    assert late.state == decision_pb2.REQUEST_STATE_EXPIRED
    assert [one["problem"] for one in live.reported("health.degraded")] == ["timers"]
    assert [one["problem"] for one in live.reported("health.recovered")] == ["timers"]


async def test_r117_what_nobody_can_start_is_seen(service):
    """vllm-project/vllm#54348: caps full of leases that never end: the wait and its cause show."""
    await service.admin.SetUser(admin.SetUserRequest(pool=POOL, user_id="A", max_in_flight=1))
    await service.leased("held", user_id="A")
    await service.enqueue("stuck", "A")
    answer = await service.next("w2")
    stats = (await service.admin.GetStats(admin.GetStatsRequest(pool=POOL))).pools[0]
    shown = await service.scheduler.GetRequest(pb.GetRequestRequest(pool=POOL, request_id="stuck"))

    assert answer.empty_reason == 2  # HELD_BY_CAP
    assert stats.oldest_wait.ToNanoseconds() > 0
    assert shown.wait.cause == pb.WAIT_CAUSE_USER_CAP


async def test_r118_a_failed_sweeper_does_not_go_unnoticed(service, monkeypatch):
    """keephq/keep#6552: an error while timers fire stops the engine; nothing runs on in silence."""
    monkeypatch.setattr(
        "scheduler_service.core.expiry.heappop",
        lambda _: (_ for _ in ()).throw(RuntimeError("planted")),
    )
    await service.enqueue("x", max_wait=seconds(0.05))
    async with asyncio.timeout(5):
        await service.engine.stopped.wait()

    assert "planted" in repr(service.engine.failed)
    assert (await refused(service.enqueue("y"))).code is grpc.StatusCode.UNAVAILABLE


async def test_r130_nobody_rides_free(service):
    """kserve/kserve#4595: a cost of 0, or none at all, is refused; the other is served."""
    nothing = await refused(
        service.scheduler.Enqueue(
            pb.EnqueueRequest(pool=POOL, request_id="free", user_id="A", cost=0)
        )
    )
    await service.enqueue("b", "B", cost=10)

    assert nothing.code is grpc.StatusCode.INVALID_ARGUMENT
    assert "cost" in nothing.fields
    assert (await service.next()).dispatches[0].request_id == "b"


def test_r29_aging_promotes_no_more_than_its_quota():
    """llm-d/llm-d-router#1995: under overload promotions are at most one in k shorts."""
    driver = Driver(policy("qba", **PATIENT, quota_k=5, aging_min_sample=1), replica=False)
    for number in range(200):
        driver.enqueue(f"s{number}", "A")
        driver.enqueue(f"l{number}", "A", 1, LONG)
    driver.advance(10)
    for _ in range(100):
        driver.next()
        driver.advance(1)
    rules = [one.rule for one in driver.of(d.Dispatched)]

    assert rules.count(d.Rule.PROMOTION) <= rules.count(d.Rule.SHORT_FIRST) // 5
    assert rules.count(d.Rule.PROMOTION) > 0
