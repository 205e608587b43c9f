"""AdminService: pools, users, pauses and dead letters, over real gRPC."""

import asyncio
import time

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from fairsched.v1 import admin_service_pb2 as pb
from fairsched.v1 import audit_service_pb2, decision_pb2, policy_pb2
from fairsched.v1 import scheduler_service_pb2 as scheduler_pb
from scheduler_service.core.policy import PRESETS
from scheduler_service.rpc.convert_policy import policy_message
from tests.support.live import POOL, create_pool, refused, running, seconds

STATES = decision_pb2.RequestState


async def _kinds(live):
    """Returns the kinds of all decisions so far."""
    page = await live.audit.ListDecisions(audit_service_pb2.ListDecisionsRequest(page_size=1000))
    return [decision_pb2.DecisionKind.Name(x.kind).removeprefix("DECISION_KIND_") for x in
            page.decisions]  # fmt: skip


# -- pools --------------------------------------------------------------------------------------


async def test_the_life_of_a_pool(service):
    """A pool is created, shown, changed, listed and deleted; each change is one decision."""
    created = await create_pool(service, "p", preset="sfq", quota_k=9)
    change = policy_pb2.PoolPolicy(max_passes=3)
    updated = (await service.admin.UpdatePool(pb.UpdatePoolRequest(pool="p", policy=change))).pool
    shown = (await service.admin.GetPool(pb.GetPoolRequest(pool="p"))).pool
    listed = (await service.admin.ListPools(pb.ListPoolsRequest())).pools
    await service.admin.DeletePool(pb.DeletePoolRequest(pool="p"))
    refusal = await refused(service.admin.GetPool(pb.GetPoolRequest(pool="p")))

    assert (created.policy.preset, created.policy.quota_k) == ("sfq", 9)
    assert (updated.policy.quota_k, updated.policy.max_passes) == (9, 3)
    assert updated == shown
    assert created.policy_digest != updated.policy_digest
    assert [pool.pool for pool in listed] == [POOL, "p"]
    assert refusal.reason == "POOL_UNKNOWN"
    assert (await _kinds(service))[-3:] == ["POOL_CONFIGURED", "POOL_CONFIGURED", "POOL_DELETED"]


@pytest.mark.parametrize("preset", PRESETS)
async def test_presets(service, preset):
    """A pool of a preset has every parameter of that preset, all of them shown."""
    pool = await create_pool(service, f"pool-{preset}", preset=preset)

    assert pool.policy == policy_message(PRESETS[preset])


async def test_a_mask_resets(service):
    """A field named in the mask and left out goes back to the preset's."""
    await create_pool(service, "p", quota_k=9, max_passes=3)
    request = pb.UpdatePoolRequest(
        pool="p",
        policy=policy_pb2.PoolPolicy(quota_k=4),
        update_mask=FieldMask(paths=["quota_k", "max_passes"]),
    )
    pool = (await service.admin.UpdatePool(request)).pool

    assert pool.policy.quota_k == 4
    assert pool.policy.max_passes == PRESETS["fair_qba"].max_passes


async def test_repeating_changes_nothing(service):
    """A change that is already so is answered alike and leaves no decision."""
    await create_pool(service, "p", quota_k=9)
    user = pb.SetUserRequest(pool="p", user_id="u", weight_milli=2000)
    answers = [await service.admin.SetUser(user)]
    await service.admin.Pause(pb.PauseRequest(pool="p"))
    before = service.engine.state.sequence
    update = pb.UpdatePoolRequest(pool="p", policy=policy_pb2.PoolPolicy(quota_k=9))
    await service.admin.UpdatePool(update)
    answers.append(await service.admin.SetUser(user))
    await service.admin.Pause(pb.PauseRequest(pool="p"))

    assert service.engine.state.sequence == before
    assert answers[0] == answers[1]


async def _registered(service, worker_id, *pools):
    request = scheduler_pb.RegisterWorkerRequest(worker_id=worker_id, pools=pools)
    return (await service.scheduler.RegisterWorker(request)).session_id


async def test_a_pool_with_workers_is_not_deleted_by_the_way(service):
    """It names the workers that are there for it; who drains or serves others only is not."""
    await create_pool(service, "p")
    for worker_id, pools in (("both", ("p", POOL)), ("only", ("p",)), ("other", (POOL,))):
        await _registered(service, worker_id, *pools)
    delete = pb.DeletePoolRequest(pool="p")
    refusals = [await refused(service.admin.DeletePool(delete))]
    await service.scheduler.DrainWorker(scheduler_pb.DrainWorkerRequest(worker_id="both"))
    refusals.append(await refused(service.admin.DeletePool(delete)))
    await service.scheduler.DrainWorker(scheduler_pb.DrainWorkerRequest(worker_id="only"))
    await service.admin.DeletePool(delete)

    code = grpc.StatusCode.FAILED_PRECONDITION
    assert [(x.code, x.reason) for x in refusals] == [(code, "POOL_HAS_WORKERS")] * 2
    assert [x.metadata["workers"] for x in refusals] == ["'both', 'only'", "'only'"]
    assert "p" not in service.engine.state.pools


async def test_a_pool_that_is_deleted_by_force_tells_its_workers(service):
    """Calls that wait end at once; a worker that serves another pool too goes on with that."""
    await create_pool(service, "p")
    session_id = await _registered(service, "both", "p", POOL)
    parked = [
        asyncio.ensure_future(service.next(session_id=session_id, wait=60)),
        asyncio.ensure_future(service.next("plain", pools=["p"], wait=60)),
    ]
    await service.until(lambda: service.app.waiters.count == 2)
    await service.admin.DeletePool(pb.DeletePoolRequest(pool="p", force=True))
    async with asyncio.timeout(0.5):
        refusals = [await refused(call) for call in parked]
    refusals.append(await refused(service.next(session_id=session_id)))
    await service.enqueue("a")
    anew = await _registered(service, "both", POOL)
    (dispatch,) = (await service.next(session_id=anew)).dispatches

    assert [x.reason for x in refusals] == ["POOL_UNKNOWN"] * 3
    assert dispatch.request_id == "a"


async def test_a_pool_with_requests_is_not_deleted(service):
    """A pool is deleted only when nothing is in it, and not created twice."""
    await service.enqueue("r")
    busy = await refused(service.admin.DeletePool(pb.DeletePoolRequest(pool=POOL)))
    twice = await refused(service.admin.CreatePool(pb.CreatePoolRequest(pool=POOL)))

    assert (busy.code, busy.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "POOL_NOT_EMPTY")
    assert (twice.code, twice.reason) == (grpc.StatusCode.ALREADY_EXISTS, "POOL_EXISTS")


async def test_every_bad_field_of_a_policy_is_named(service):
    """All bad fields of a policy, and of the call around it, are named at once."""
    policy = policy_pb2.PoolPolicy(
        quota_k=0, slack_milli=-1, class_order=77, lease_duration=seconds(0.5), preset="x"
    )
    create = await refused(
        service.admin.CreatePool(pb.CreatePoolRequest(pool="a\x00", policy=policy))
    )
    update = await refused(service.admin.UpdatePool(pb.UpdatePoolRequest(pool="", policy=policy)))

    bad = {"quota_k", "slack_milli", "class_order", "lease_duration", "preset"}
    assert set(create.fields) == set(update.fields) == {"pool", *(f"policy.{f}" for f in bad)}
    assert "a\x00" not in service.engine.state.pools


async def test_pools_are_limited(service, monkeypatch):
    """There are only so many pools."""
    monkeypatch.setattr("scheduler_service.rpc.admin_changes.POOLS_MAX", 2)
    await create_pool(service, "p")
    refusal = await refused(service.admin.CreatePool(pb.CreatePoolRequest(pool="q")))

    assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "POOLS_FULL")


# -- users --------------------------------------------------------------------------------------


async def test_weights_and_caps(service):
    """A user's weight and cap are set apart, reset apart, and shown with its state."""
    set_user = service.admin.SetUser

    async def weight_and_cap(**fields):
        user = (await set_user(pb.SetUserRequest(pool=POOL, user_id="u", **fields))).user
        return user.weight_milli, user.max_in_flight, user.configured

    assert await weight_and_cap() == (1000, 0, False)
    assert await weight_and_cap(weight_milli=2500) == (2500, 0, True)
    assert await weight_and_cap(max_in_flight=3) == (2500, 3, True)
    assert await weight_and_cap(weight_milli=0) == (1000, 3, True)
    assert await weight_and_cap(max_in_flight=-1) == (1000, 0, False)


async def test_a_weight_acts_on_what_waits(service):
    """A changed weight acts at once on requests that wait already, and is shown in the log."""
    for number in range(40):
        await service.enqueue(f"a{number}", "a", cost=10)
        await service.enqueue(f"b{number}", "b", cost=10)
    await service.admin.SetUser(pb.SetUserRequest(pool=POOL, user_id="a", weight_milli=3000))
    answer = await service.next(max_dispatches=20)
    users = [d.user_id for d in answer.dispatches]

    assert 14 <= users.count("a") <= 16


async def test_users_are_shown_with_their_work(service):
    """A user is shown with its meter, work and charges; an unknown one is refused."""
    await service.enqueue("r0", "u", cost=7)
    await service.enqueue("r1", "u", cost=9)
    await service.next()
    user = (await service.admin.GetUser(pb.GetUserRequest(pool=POOL, user_id="u"))).user
    refusal = await refused(service.admin.GetUser(pb.GetUserRequest(pool=POOL, user_id="x")))

    assert (user.waiting_count, user.in_flight_count) == (1, 1)
    assert (user.dispatched_count, user.charged_cost, user.meter_micros) == (1, 7, 7_000_000)
    assert user.HasField("oldest_wait")
    assert refusal.reason == "USER_UNKNOWN"


@pytest.mark.parametrize(
    "fields",
    [
        {"weight_milli": -1},
        {"weight_milli": 10**6 + 1},
        {"max_in_flight": -2},
        {"max_in_flight": 10**9 + 1},
        {"user_id": ""},
        {"user_id": "x" * 257},
    ],
    ids=lambda f: str(f)[:30],
)
async def test_bad_settings(service, fields):
    """A setting out of range is refused by name; weight 0 is the default, never a division."""
    request = pb.SetUserRequest(**{"pool": POOL, "user_id": "u", **fields})
    refusal = await refused(service.admin.SetUser(request))

    assert list(refusal.fields) == list(fields)


async def test_forgetting_a_user(service):
    """A user without work is forgotten with its settings; one with work is not."""
    await service.admin.SetUser(pb.SetUserRequest(pool=POOL, user_id="u", weight_milli=5))
    await service.enqueue("r", "u")
    forget = pb.ForgetUserRequest(pool=POOL, user_id="u")
    busy = await refused(service.admin.ForgetUser(forget))
    dispatch = (await service.next()).dispatches[0]
    await service.complete(dispatch.lease_id)
    await service.admin.ForgetUser(forget)
    again = await refused(service.admin.ForgetUser(forget))

    assert busy.reason == "USER_HAS_WORK"
    assert again.reason == "USER_UNKNOWN"
    assert service.engine.state.pools[POOL].settings == {}


# -- pauses -------------------------------------------------------------------------------------


async def test_pausing_a_pool(service):
    """A paused pool gives nothing out and says so; resumed, it goes on; twice is once."""
    await service.enqueue("r")
    pause = (await service.admin.Pause(pb.PauseRequest(pool=POOL))).pause
    paused = await service.next()
    shown = (await service.admin.GetPool(pb.GetPoolRequest(pool=POOL))).pool
    first = await service.admin.Resume(pb.ResumeRequest(pool=POOL))
    second = await service.admin.Resume(pb.ResumeRequest(pool=POOL))
    resumed = await service.next()

    assert not pause.HasField("until_time")
    assert paused.empty_reason == decision_pb2.EMPTY_REASON_PAUSED
    assert shown.HasField("pause")
    assert (first.duplicate, second.duplicate) == (False, True)
    assert len(resumed.dispatches) == 1


async def test_a_pause_with_an_end(service):
    """A pause with a duration ends by itself and wakes the worker that waits."""
    await service.enqueue("r", "u")
    request = pb.PauseRequest(pool=POOL, user_id="u", duration=seconds(0.2))
    pause = (await service.admin.Pause(request)).pause
    began = time.monotonic()
    answer = await service.next(wait=5)

    assert pause.HasField("until_time")
    assert len(answer.dispatches) == 1
    assert 0.1 < time.monotonic() - began < 2


async def test_a_pause_survives_a_restart(tmp_path):
    """What was paused is paused after a restart, and shown."""
    async with running(tmp_path / "data") as live:
        await live.admin.Pause(pb.PauseRequest(pool=POOL))
        await live.admin.Pause(pb.PauseRequest(pool=POOL, user_id="u"))
    async with running(tmp_path / "data") as live:
        await live.enqueue("r", "u")
        assert not (await live.next()).dispatches
        await live.admin.Resume(pb.ResumeRequest(pool=POOL))
        assert not (await live.next()).dispatches
        user = (await live.admin.GetUser(pb.GetUserRequest(pool=POOL, user_id="u"))).user
        assert user.HasField("pause")
        await live.admin.Resume(pb.ResumeRequest(pool=POOL, user_id="u"))
        assert len((await live.next()).dispatches) == 1


# -- dead letters -------------------------------------------------------------------------------


async def test_dead_letters(tmp_path):
    """A request whose leases expire too often is kept with its reason, put back, and dropped."""
    file = tmp_path / "config.toml"
    file.write_text(
        '[pools.default]\ncost_source = "caller"\nmax_attempts = 1\nlease_duration_seconds = 1\n'
    )
    async with running(tmp_path / "data", file=file) as live:
        for name in ("r0", "r1", "alive"):
            await live.enqueue(name)
        assert len((await live.next(max_dispatches=2)).dispatches) == 2
        dead = live.engine.state.pools[POOL].dead
        await live.until(lambda: len(dead) == 2, 10)
        listed = (await live.admin.ListDeadLetters(pb.ListDeadLettersRequest(pool=POOL))).requests
        key = {"pool": POOL, "request_id": "r0"}
        put_back = await live.admin.RequeueDeadLetter(pb.RequeueDeadLetterRequest(**key))
        again = await refused(live.admin.RequeueDeadLetter(pb.RequeueDeadLetterRequest(**key)))
        first = (await live.next()).dispatches[0]
        await live.admin.DiscardDeadLetter(pb.DiscardDeadLetterRequest(pool=POOL, request_id="r1"))
        unknown = await refused(
            live.admin.DiscardDeadLetter(pb.DiscardDeadLetterRequest(pool=POOL, request_id="x"))
        )

    assert [(r.request_id, r.reason, r.failures) for r in listed] == [
        ("r0", "MAX_ATTEMPTS", 1),
        ("r1", "MAX_ATTEMPTS", 1),
    ]
    assert all(r.state == STATES.REQUEST_STATE_DEAD_LETTERED for r in listed)
    assert put_back.state == STATES.REQUEST_STATE_REDELIVERY
    assert (again.code, again.reason) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "NOT_DEAD_LETTERED",
    )
    assert (first.request_id, first.attempt) == ("r0", 1)
    assert (unknown.code, unknown.reason) == (grpc.StatusCode.NOT_FOUND, "REQUEST_UNKNOWN")


async def test_changes_survive_a_restart(tmp_path):
    """Pools, weights and caps set by calls are there after a restart."""
    async with running(tmp_path / "data") as live:
        await create_pool(live, "p", quota_k=7)
        await live.admin.SetUser(
            pb.SetUserRequest(pool="p", user_id="u", weight_milli=1500, max_in_flight=2)
        )
    async with running(tmp_path / "data") as live:
        pool = (await live.admin.GetPool(pb.GetPoolRequest(pool="p"))).pool
        user = (await live.admin.GetUser(pb.GetUserRequest(pool="p", user_id="u"))).user

    assert pool.policy.quota_k == 7
    assert (user.weight_milli, user.max_in_flight) == (1500, 2)
