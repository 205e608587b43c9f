"""RegisterWorker, DrainWorker, ListWorkers: sessions and who supersedes whom."""

import asyncio

import grpc

from fairsched.v1 import admin_service_pb2, decision_pb2, policy_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app import presence
from tests.support.live import POOL, refused, running, seconds


async def _register(service, worker_id="w", **fields):
    fields.setdefault("pools", [POOL])
    request = pb.RegisterWorkerRequest(worker_id=worker_id, **fields)
    return await service.scheduler.RegisterWorker(request)


async def _workers(service, **fields):
    answer = await service.scheduler.ListWorkers(pb.ListWorkersRequest(**fields))
    return list(answer.workers)


async def test_a_session_is_opened(service):
    """A session has an unguessable id and serves the pools and offer it was opened with."""
    offer = decision_pb2.Offer(total_tokens=1000, labels=["gpu"], max_leases=2)
    first = await _register(service, offer=offer, endpoint="http://w:1")
    other = await _register(service, "other")

    assert first.session_id != other.session_id
    assert len(first.session_id) > 32
    assert first.worker_ttl.seconds == 60
    assert not first.superseded
    (worker, _) = sorted(await _workers(service), key=lambda w: w.worker_id == "other")
    assert (worker.worker_id, worker.endpoint, worker.registered) == ("w", "http://w:1", True)
    assert (worker.offer.total_tokens, worker.offer.max_leases) == (1000, 2)
    assert worker.state == pb.WORKER_STATE_ACTIVE


async def test_a_session_takes_from_its_pools_and_holds_its_leases(service):
    """A call that names the session alone serves its pools with its offer."""
    offer = decision_pb2.Offer(total_tokens=100)
    session = (await _register(service, offer=offer)).session_id
    await service.enqueue("large", kv_tokens=500)
    await service.enqueue("small", "v", kv_tokens=50)
    answer = await service.next(session_id=session)
    (dispatch,) = answer.dispatches

    assert dispatch.request_id == "small"
    assert (await service.state("small")).worker_id == "w"
    foreign = await service.scheduler.RenewLease(
        pb.RenewLeaseRequest(renewals=[pb.LeaseRenewal(lease_id=dispatch.lease_id)])
    )
    assert foreign.results[0].error.reason == "LEASE_OF_OTHER_WORKER"
    own = await service.scheduler.RenewLease(
        pb.RenewLeaseRequest(
            session_id=session, renewals=[pb.LeaseRenewal(lease_id=dispatch.lease_id)]
        )
    )
    assert not own.results[0].HasField("error")


async def test_an_unknown_session_is_not_found(service):
    """A session that never was, or was forgotten: register again."""
    for refusal in (
        await refused(service.next(session_id="session-unknown")),
        await refused(
            service.scheduler.RenewLease(
                pb.RenewLeaseRequest(session_id="nobody", renewals=[pb.LeaseRenewal(lease_id="l")])
            )
        ),
        await refused(service.scheduler.DrainWorker(pb.DrainWorkerRequest(worker_id="nobody"))),
    ):
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.NOT_FOUND, "WORKER_UNKNOWN")


async def test_a_session_belongs_to_its_worker(service):
    """A session id with another worker's name is refused."""
    session = (await _register(service)).session_id
    refusal = await refused(service.next(session_id=session, worker_id="other"))

    assert list(refusal.fields) == ["worker_id"]


async def test_a_restarted_worker_supersedes_its_old_self(service):
    """The old session gets no work and keeps nothing alive, but may say that it has finished."""
    old = (await _register(service)).session_id
    await service.enqueue("a")
    (dispatch,) = (await service.next(session_id=old)).dispatches
    new = await _register(service)
    await service.enqueue("b")

    assert new.superseded
    call = await refused(service.next(session_id=old))
    assert (call.code, call.reason) == (grpc.StatusCode.ABORTED, "SESSION_SUPERSEDED")
    renewed = await service.scheduler.RenewLease(
        pb.RenewLeaseRequest(session_id=old, renewals=[pb.LeaseRenewal(lease_id=dispatch.lease_id)])
    )
    assert renewed.results[0].error.reason == "SESSION_SUPERSEDED"
    done = await service.complete(dispatch.lease_id, session_id=old)
    assert done.state == decision_pb2.REQUEST_STATE_SUCCEEDED
    assert len((await service.next(session_id=new.session_id)).dispatches) == 1


async def test_sessions_survive_a_restart(tmp_path):
    """A session, and who superseded whom, is in the log."""
    async with running(tmp_path) as live:
        old = (await _register(live)).session_id
        new = (await _register(live)).session_id
    async with running(tmp_path) as live:
        await live.enqueue("a")
        assert (await refused(live.next(session_id=old))).reason == "SESSION_SUPERSEDED"
        assert len((await live.next(session_id=new)).dispatches) == 1


async def test_a_drained_worker_gets_no_new_work(service):
    """Draining stops new work and lets leases go on; a repeat does nothing."""
    session = (await _register(service)).session_id
    await service.enqueue("a")
    (dispatch,) = (await service.next(session_id=session)).dispatches
    for name in ("w", session):
        request = pb.DrainWorkerRequest(worker_id=name)
        answer = await service.scheduler.DrainWorker(request)
        assert answer.worker.state == pb.WORKER_STATE_DRAINING
        assert answer.worker.lease_count == 1
    await service.enqueue("b")

    answer = await service.next(session_id=session, wait=10)

    assert answer.empty_reason == decision_pb2.EMPTY_REASON_DRAINING
    await service.complete(dispatch.lease_id)


async def test_draining_ends_the_wait_of_a_parked_call(service):
    """A drained worker is told at once; another's call stays parked and gets what comes."""
    session = (await _register(service)).session_id
    drained = asyncio.ensure_future(service.next(session_id=session, wait=30))
    other = asyncio.ensure_future(service.next(worker_id="other", wait=30))
    await service.until(lambda: service.app.waiters.count == 2)

    await service.scheduler.DrainWorker(pb.DrainWorkerRequest(worker_id="w"))
    answer = await asyncio.wait_for(drained, 10)

    assert answer.empty_reason == decision_pb2.EMPTY_REASON_DRAINING
    assert not answer.dispatches
    assert service.app.waiters.count == 1
    await service.enqueue("a")
    assert [x.request_id for x in (await other).dispatches] == ["a"]


async def test_workers_without_session_are_listed_too(service):
    """Whoever asked for work is known by its own id, by pool, page by page."""
    await service.admin.CreatePool(admin_service_pb2.CreatePoolRequest(pool="other"))
    for number in range(5):
        await service.next(f"w{number}", pools=[POOL if number % 2 else "other"])
    first = await service.scheduler.ListWorkers(pb.ListWorkersRequest(page_size=3))
    rest = await service.scheduler.ListWorkers(
        pb.ListWorkersRequest(page_size=3, page_token=first.next_page_token)
    )

    listed = [w.worker_id for w in (*first.workers, *rest.workers)]
    assert listed == [f"w{number}" for number in range(5)]
    assert rest.next_page_token == ""
    assert [w.worker_id for w in await _workers(service, pool=POOL)] == ["w1", "w3"]
    assert not first.workers[0].registered


async def test_a_waiting_worker_counts_as_alive(service):
    """A worker whose call waits longer than its time to live keeps its session."""
    policy = policy_pb2.PoolPolicy(worker_ttl=seconds(1))
    await service.admin.UpdatePool(admin_service_pb2.UpdatePoolRequest(pool=POOL, policy=policy))
    session = (await _register(service)).session_id
    silent = (await _register(service, "silent")).session_id
    waiting = asyncio.ensure_future(service.next(session_id=session, wait=30))
    await service.until(lambda: silent not in service.engine.state.workers, 5)
    await asyncio.sleep(1.5)

    assert session in service.engine.state.workers
    await service.enqueue("a")
    assert len((await waiting).dispatches) == 1


async def test_a_worker_that_stopped_is_not_counted(service, monkeypatch):
    """Long before it is forgotten, a worker that has stopped is silent and not counted."""
    monkeypatch.setattr(presence, "SILENT_AFTER_NS", 100_000_000)
    session = (await _register(service)).session_id
    await _register(service, "stopped")
    waiting = asyncio.ensure_future(service.next(session_id=session, wait=30))
    await asyncio.sleep(0.3)
    seen = {worker.worker_id: worker for worker in await _workers(service)}
    stats = await service.admin.GetStats(admin_service_pb2.GetStatsRequest())
    waiting.cancel()

    assert seen["stopped"].state == pb.WORKER_STATE_SILENT
    assert seen["w"].state == pb.WORKER_STATE_ACTIVE
    apart = (
        seen["w"].last_seen_time.ToNanoseconds() - seen["stopped"].last_seen_time.ToNanoseconds()
    )
    assert apart > 200_000_000
    assert stats.service.worker_count == 1


async def test_a_gate_needs_no_workers(tmp_path):
    """A worker cannot register for a pool whose turns go to gateways."""
    file = tmp_path / "config.toml"
    file.write_text('[pools.default]\nmode = "gate"\n')
    async with running(tmp_path / "data", file=file) as live:
        assert (await refused(_register(live))).reason == "POOL_MODE"
