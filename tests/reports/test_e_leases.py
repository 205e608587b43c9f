"""Section E of the reports: leases, worker death, duplicate delivery, idempotency."""

import asyncio
import collections

import grpc

from fairsched.v1 import admin_service_pb2 as admin
from fairsched.v1 import decision_pb2, policy_pb2
from scheduler_service.app.waiters import Waiters
from scheduler_service.core import answers as a
from scheduler_service.core import decisions as d
from scheduler_service.core.policy import SECOND_NS
from scheduler_service.store.directory import DataDirectory
from tests.support.crashed import copy_as_crashed
from tests.support.driver import Driver
from tests.support.live import GIVEN_BACK, POOL, refused, running, seconds
from tests.support.programs import policy

SHORT_LEASES = policy("fair_qba", lease_duration_ns=5 * SECOND_NS)


async def change(live, **fields):
    """Changes the policy of the default pool."""
    await live.admin.UpdatePool(
        admin.UpdatePoolRequest(pool=POOL, policy=policy_pb2.PoolPolicy(**fields))
    )


def test_r58_a_lease_that_is_renewed_is_never_delivered_twice():
    """celery/celery#5935: a minute of work under a lease of 5 s, a second worker idle."""
    driver = Driver(SHORT_LEASES)
    driver.enqueue("x", "A")
    (one,) = driver.next(worker="w1")
    for _ in range(30):
        driver.advance(2)
        driver.renew(one.lease_id)
        assert not driver.next(worker="w2")

    assert len(driver.of(d.Dispatched)) == 1


def test_r59_waiting_is_not_leasing():
    """celery/celery#3270: what waits a minute exists once; its lease starts at dispatch."""
    driver = Driver(SHORT_LEASES)
    driver.enqueue("x", "A")
    driver.advance(60)
    (one,) = driver.next()

    assert one.lease_expire_ns == driver.now_ns + 5 * SECOND_NS
    assert one.attempt == 1


async def test_r61_finishing_what_is_not_ones_own_is_answered_never_fatal(service):
    """taskforcesh/bullmq#596: unknown, expired, empty, another's and doubled leases."""
    await change(service, lease_duration=seconds(1))
    expired = await service.leased("x")
    await service.next("w")
    await service.until(lambda: bool(service.engine.state.pools[POOL].redelivery), patience=5)
    late = await refused(service.complete(expired.lease_id))
    unknown = await refused(service.complete("no-such-lease"))
    empty = await refused(service.complete(""))
    again = (await service.next("w2")).dispatches[0]
    stolen = await refused(service.complete(again.lease_id, session_id="somebody-else"))
    await service.complete(again.lease_id)
    repeat = await service.complete(again.lease_id)
    superseded = await refused(service.complete(expired.lease_id))

    assert (late.code, late.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "LEASE_EXPIRED")
    assert (unknown.code, unknown.reason) == (grpc.StatusCode.NOT_FOUND, "LEASE_UNKNOWN")
    assert (empty.code, list(empty.fields)) == (grpc.StatusCode.INVALID_ARGUMENT, ["lease_id"])
    assert stolen.code in {
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
    }
    assert repeat.duplicate
    assert superseded.reason in {"LEASE_SUPERSEDED", "LEASE_EXPIRED"}


async def test_r62_a_failed_id_is_not_blocked_in_silence(service):
    """taskforcesh/bullmq#1662: the repeat of a dead request says how it ended."""
    await change(service, max_attempts=1, lease_duration=seconds(1), hand_over=seconds(0))
    await service.leased("x")
    await service.until(lambda: "x" in service.engine.state.pools[POOL].dead, patience=5)

    again = await service.enqueue("x")
    other = await refused(service.enqueue("x", cost=99))

    assert again.duplicate
    assert again.state == decision_pb2.REQUEST_STATE_DEAD_LETTERED
    assert (other.code, other.reason) == (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_REUSED")


async def test_r64_dead_workers_are_noticed_while_the_service_runs(service):
    """msei99/pbgui#287: a parked worker gets the work after one lease, with no other call made."""
    await change(service, lease_duration=seconds(1), hand_over=seconds(0))
    await service.leased("x", "w1")
    answer = await service.next("w2", wait=10)

    assert [one.request_id for one in answer.dispatches] == ["x"]
    assert answer.dispatches[0].turn == decision_pb2.TURN_REDELIVERY


def test_r66_whatever_prefix_of_the_log_survives_each_request_is_in_one_place():
    """hatchet-dev/hatchet#4494: cut after every record; real kills are in `crash` and `fault`."""
    driver = Driver(SHORT_LEASES, replica=False)
    for number in range(6):
        driver.enqueue(f"r{number}", f"u{number % 2}")
    granted = driver.next(3)
    driver.complete(granted[0].lease_id)
    driver.complete(granted[1].lease_id, d.Outcome.GIVEN_BACK)
    driver.advance(6)
    driver.next(2)
    for cut in range(len(driver.log) + 1):
        state = driver.core.new_state()
        for record in driver.log[:cut]:
            driver.core.evolve(state, record)
        for pool in state.pools.values():
            leased = {name for name, one in pool.requests.items() if one.lease is not None}
            assert leased == {one.request_id for one in state.leases.values()}
            assert len(leased) == pool.leased
            assert not set(pool.requests) & set(pool.gone)
            held = collections.Counter(
                one.user_id
                for one in pool.requests.values()
                if one.state is not d.RequestState.WAITING
            )
            assert all(flow.in_flight == held[flow.user_id] for flow in pool.flows.values())


async def test_r68_a_dispatch_nobody_received_is_handed_on_within_the_hand_over_time(service):
    """camunda/camunda#2979: the worker died in its long poll; the next one gets the request."""
    await change(service, hand_over=seconds(0.3))
    parked = asyncio.ensure_future(service.next("w1", wait=30))
    await service.until(lambda: service.app.waiters.count == 1)
    await service.enqueue("x")
    first = await parked  # the answer is on its way; its worker never says anything again
    answer = await service.next("w2", wait=5)

    assert [one.request_id for one in first.dispatches] == ["x"]
    assert [(one.request_id, one.attempt) for one in answer.dispatches] == [("x", 1)]


async def test_r69_no_arrival_falls_between_looking_and_parking(service, monkeypatch):
    """camunda/camunda#4396: call and arrival at the same moment, over and over.

    The look once a second, which would find what was missed, is turned off.
    """
    monkeypatch.setattr(Waiters, "_look_at_all", lambda _: None)
    for number in range(300):
        call = asyncio.ensure_future(service.next("w", wait=20))
        if number % 3:
            await asyncio.sleep(0)
        await service.enqueue(f"r{number}")
        async with asyncio.timeout(5):
            (one,) = (await call).dispatches
        await service.complete(one.lease_id)


async def test_r70_one_arrival_wakes_the_worker_that_has_waited_longest(service, monkeypatch):
    """camunda/camunda#48998: 100 parked calls, one return an arrival, in order of parking.

    No other call is even asked for.
    """
    calls = {}
    waiters, asked = service.app.waiters, []
    ask = waiters._ask
    monkeypatch.setattr(waiters, "_ask", lambda call: (asked.append(call.worker), ask(call))[1])
    for number in range(100):
        calls[f"w{number}"] = asyncio.ensure_future(service.next(f"w{number}", wait=60))
        await service.until(lambda count=number: service.app.waiters.count == count + 1)
    for number in range(10):
        await service.enqueue(f"r{number}")
        async with asyncio.timeout(5):
            answer = await calls.pop(f"w{number}")
        assert answer.dispatches[0].request_id == f"r{number}"
    assert not any(call.done() for call in calls.values())
    assert asked == [f"w{number}" for number in range(10)]
    for call in calls.values():
        call.cancel()


def test_r71_what_kills_its_workers_is_given_up_after_max_attempts():
    """crowd-source-faq#233: three leases expire; dead-lettered with the reason, others go on."""
    driver = Driver(policy("fair_qba", max_attempts=3, hand_over_ns=0))
    driver.enqueue("x", "A")
    for number in range(3):
        driver.next(worker=f"w{number}")
        driver.advance(61)
    driver.enqueue("y", "B")

    assert (driver.of(d.Ended)[-1].state, driver.of(d.Ended)[-1].reason) == (
        d.RequestState.DEAD_LETTERED,
        "MAX_ATTEMPTS",
    )
    assert driver.next()[0].request_id == "y"


def test_r72_giving_up_is_written_down_once():
    """conveyal/r5#516: a hundred dead requests, ten idle minutes: nothing more is recorded."""
    driver = Driver(policy("fair_qba", max_attempts=1, hand_over_ns=0))
    for number in range(100):
        driver.enqueue(f"r{number}", "A")
    driver.next(100)
    driver.advance(61)
    driver.advance(300)
    before = len(driver.log)
    for _ in range(600):
        driver.advance(1)

    assert len(driver.of(d.Ended)) == 100
    assert len(driver.log) == before


async def test_r74_the_same_id_with_another_body_is_an_error(service):
    """mhayk/Overpass#16: not a silent replay, whoever's request it was."""
    await service.enqueue("x", "A", cost=10)
    cost = await refused(service.enqueue("x", "A", cost=99))
    user = await refused(service.enqueue("x", "B", cost=10))

    assert {cost.code, user.code} == {grpc.StatusCode.ALREADY_EXISTS}
    assert {cost.reason, user.reason} == {"REQUEST_ID_REUSED"}


async def test_r76_a_polite_release_is_redelivered_at_once_and_not_held_against_it(service):
    """sidekiq/sidekiq#622: another worker has it at once, and the attempt is not counted."""
    one = await service.leased("x", "w1")
    waiting = asyncio.ensure_future(service.next("w2", wait=10))
    await service.complete(one.lease_id, GIVEN_BACK)
    async with asyncio.timeout(2):
        (again,) = (await waiting).dispatches

    assert again.request_id == "x"
    assert again.attempt == 1


async def test_r78_a_worker_gets_no_more_than_it_says_it_can_hold(service):
    """runpod-workers/worker-vllm#36: ten calls at once from a worker of capacity 1."""
    for number in range(10):
        await service.enqueue(f"r{number}")
    offer = decision_pb2.Offer(max_leases=1)
    answers = await asyncio.gather(*(service.next("w", offer=offer) for _ in range(10)))

    assert sum(len(one.dispatches) for one in answers) == 1
    assert service.engine.state.pools[POOL].waiting == 9


async def test_r129_how_long_an_id_is_remembered(service):
    """fusion-multi-nodes#71: for the documented time, then the id is free; memory is bounded."""
    driver = Driver(policy("fair_qba", retention_ns=600 * SECOND_NS, retention_count=50))
    driver.enqueue("x", "A")
    driver.complete(driver.next()[0].lease_id)
    driver.advance(599)
    before = driver.enqueue("x", "A")
    driver.advance(2)
    after = driver.enqueue("x", "A")
    driver.complete(driver.next()[0].lease_id)
    for number in range(200):
        driver.enqueue(f"r{number}", "A")
        driver.complete(driver.next()[0].lease_id)
    pool = driver.state.pools["pool"]

    assert before.existing is a.Existing.REPEATED
    assert after.existing is a.Existing.NEW
    assert len(pool.gone) <= 50
    assert len(driver.state.old_leases) <= 50


async def test_r82_everything_acknowledged_is_there_after_a_restart(tmp_path):
    """HarperFast/rocksdb-js#723: a hundred accepted, no further write, a hundred dispatched.

    The second service begins with the files as they were just behind the last answer.
    """
    async with running(tmp_path / "data") as live:
        for number in range(100):
            await live.enqueue(f"r{number}")
        crashed = copy_as_crashed(DataDirectory(tmp_path / "data"), tmp_path / "crashed")
    async with running(crashed.path) as live:
        answer = await live.next(max_dispatches=200)

    assert len(answer.dispatches) == 100
