"""`kill -9` under load, again and again, judged by what the clients were told.

`CRASH_ROUNDS=50` runs more rounds, `CRASH_SEED` repeats a run.
"""

import asyncio
import os
import random
import shutil

import grpc
import pytest

from fairsched.v1 import decision_pb2, scheduler_service_pb2_grpc
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app import codec
from scheduler_service.app.ports import GENESIS, Durability, StoreLocked
from scheduler_service.app.recovery import fold, recover
from scheduler_service.core import decisions as d
from scheduler_service.core import invariants, snapshot
from scheduler_service.core.state import State
from scheduler_service.store.directory import DataDirectory
from scheduler_service.store.snapshots import SnapshotFiles
from scheduler_service.store.sqlite import SqliteStore
from tests.crash.record import GIVEN_BACK, POOL, SUCCEEDED, Gateway, Record, Worker
from tests.support.child import Child

ROUNDS = int(os.environ.get("CRASH_ROUNDS", "4"))
SEED = int(os.environ.get("CRASH_SEED", "0")) or random.randrange(1, 10**6)
CLIENTS = 4
_OVER = {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.ABORTED}
SETTINGS = {"snapshot_records": 300}
FILE = """
[pools.default]
cost_source = "caller"
hand_over_seconds = 60
retention_seconds = 7200
"""

pytestmark = [pytest.mark.crash, pytest.mark.timeout(60 + 30 * ROUNDS)]


async def _until_killed(client, stub):
    """Makes calls until the service is gone."""
    while True:
        try:
            await client.step(stub)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return
        except asyncio.CancelledError:
            return


def _report(event, /, **values):
    assert event == "log.tail_cut", (event, values)


async def _snapshots_at_rest(directory):
    """Waits for the snapshot process that a killed service left, and keeps others off."""
    async with asyncio.timeout(30):
        while True:
            try:
                return DataDirectory(directory).lock_snapshots()
            except StoreLocked:
                await asyncio.sleep(0.05)


async def _check_log(directory, copy, record):
    """Checks a copy of what a killed service left: it is a fold that holds all that was told."""
    shutil.rmtree(copy, ignore_errors=True)
    lock = await _snapshots_at_rest(directory)
    shutil.copytree(directory, copy)
    lock.release()
    store = SqliteStore(DataDirectory(copy), durability=Durability.NONE, report=_report)
    try:
        recovered = recover(store, SnapshotFiles(copy), report=_report)
        invariants.check(recovered.state)
        folded = State()
        assert fold(folded, store, GENESIS) == recovered.position
        assert snapshot.digest(folded) == snapshot.digest(recovered.state)
        log = [
            x for group in store.read(0, max_bytes=1 << 40) for x in codec.decode_frame(group.frame)
        ]
        for request_id, told in record.acknowledged.items():
            accepted = log[told.sequence - 1]
            assert isinstance(accepted, d.Accepted)
            assert (accepted.request_id, accepted.cost) == (request_id, told.cost)
        for call in record.polls.values():
            for dispatch in () if call.told is None else call.told.dispatches:
                dispatched = log[dispatch.sequence - 1]
                assert isinstance(dispatched, d.Dispatched)
                assert dispatched.lease_id == dispatch.lease_id
    finally:
        store.close()


async def _check_answers(stub, record, new):
    """Repeats calls: what was told is told again, what was not is told now.

    Args:
        new: Calls of before the crash, to be repeated all; older ones were repeated before.
    """
    for key in new["polls"]:
        # One after the other: a call of a worker that is parked would confirm nothing.
        await _repeat_poll(stub, record, record.polls[key])
    await _check_leases(stub, record)
    for names, repeat in (
        (new["enqueues"], _repeat_enqueue),
        (new["completes"], _repeat_complete),
        (new["cancels"], _repeat_cancel),
    ):
        for some in _in_groups(names, 50):
            await asyncio.gather(*(repeat(stub, record, name) for name in some))


def _in_groups(names, size):
    names = list(names)
    return [names[start : start + size] for start in range(0, len(names), size)]


async def _repeat_poll(stub, record, call):
    again = await stub.NextDispatch(call.request)
    if call.told is None:
        call.told = again
        record.granted(again.dispatches)
        return
    told = [x.lease_id for x in call.told.dispatches]
    held = set(record.live.values()) - record.completes.keys()
    left = [lease for lease in told if lease in held]
    found = [x.lease_id for x in again.dispatches]
    if told:
        assert again.duplicate
        assert set(left) <= set(found) <= set(told)


async def _repeat_enqueue(stub, record, request_id):
    call = record.enqueues[request_id]
    again = await stub.Enqueue(call.request)
    if call.told is None:
        call.told = again
        return
    assert again.duplicate
    assert (again.sequence, again.cost) == (call.told.sequence, call.told.cost)


async def _repeat_cancel(stub, record, request_id):
    call = record.cancels[request_id]
    again = await stub.Cancel(call.request)
    assert call.told is None or again.duplicate
    call.told = call.told or again


async def _check_leases(stub, record):
    """Every lease that a worker was told it holds is still its own: downtime ended none."""
    held = list(record.live.values())
    for start in range(0, len(held), 500):
        renewals = [pb.LeaseRenewal(lease_id=lease) for lease in held[start : start + 500]]
        workers = {}
        answer = await stub.RenewLease(pb.RenewLeaseRequest(renewals=renewals, **workers))
        lost = [x for x in answer.results if x.HasField("error")]
        unknown = [x for x in lost if x.lease_id not in record.completes]
        assert unknown == []


async def _repeat_complete(stub, record, lease_id):
    call = record.completes[lease_id]
    try:
        again = await stub.Complete(call.request)
    except grpc.aio.AioRpcError as error:
        # A give-back that was applied and not answered, or told before: the lease is over.
        if call.request.outcome != GIVEN_BACK or error.code() not in _OVER:
            raise
    else:
        if call.told is not None and call.request.outcome != GIVEN_BACK:
            assert again.duplicate
            assert again.state == call.told.state
        call.told = call.told or again
    record.ended(lease_id)


@pytest.mark.slow
async def test_nothing_acknowledged_is_lost_or_doubled(tmp_path):
    """Whenever a service is killed, what it told stands, and repeats get the same answers."""
    print(f"CRASH_SEED={SEED} CRASH_ROUNDS={ROUNDS}")  # noqa: T201 - repeats a failed run
    rng = random.Random(SEED)
    file = tmp_path / "config.toml"
    file.write_text(FILE)
    data, record = tmp_path / "data", Record()
    gateways = [Gateway(f"g{n}", record, random.Random(rng.random())) for n in range(CLIENTS)]
    workers = [Worker(f"w{n}", record, random.Random(rng.random())) for n in range(CLIENTS)]
    known = {"enqueues": set(), "polls": set(), "completes": set(), "cancels": set()}
    for number in range(ROUNDS + 1):
        child = Child(data, config_file=str(file), **SETTINGS)
        try:
            if number and rng.random() < 0.3:
                # A crash while it replays, before it has told anybody anything.
                await asyncio.sleep(rng.random() * 3)
                child.kill()
                child = Child(data, config_file=str(file), **SETTINGS)
            port = await child.serving()
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                stub = scheduler_service_pb2_grpc.SchedulerServiceStub(channel)
                new = {name: set(getattr(record, name)) - known[name] for name in known}
                await _check_answers(stub, record, new)
                known = {name: set(getattr(record, name)) for name in known}
                if number == ROUNDS:
                    await _check_answers(stub, record, known)
                    break
                clients = [_until_killed(one, stub) for one in (*gateways, *workers)]
                running = asyncio.gather(*clients)
                await asyncio.sleep(0.2 + rng.random() * 1.5)
                child.kill()
                await running
        finally:
            child.kill()
        assert child.errors == ""
        await _check_log(data, tmp_path / "copy", record)
        assert record.problems == []

    assert len(record.acknowledged) > 20 * ROUNDS
    assert any(call.told is not None and call.told.dispatches for call in record.polls.values())
    await _check_log(data, tmp_path / "copy", record)
    assert record.problems == []


@pytest.mark.slow
async def test_downtime_ends_no_lease(tmp_path):
    """While a service is down leases stand still; waiting limits do not."""
    data = tmp_path / "data"
    child = Child(data)
    try:
        port = await child.serving()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = scheduler_service_pb2_grpc.SchedulerServiceStub(channel)
            for request_id, limit in (("leased", 3600), ("waits", 1)):
                await stub.Enqueue(
                    pb.EnqueueRequest(
                        pool=POOL,
                        user_id=request_id,
                        request_id=request_id,
                        cost=1,
                        max_wait={"seconds": limit},
                    )
                )
            answer = await stub.NextDispatch(
                pb.NextDispatchRequest(
                    pools=[POOL],
                    worker_id="w",
                    lease_duration={"seconds": 2},
                    hand_over_disabled=True,
                )
            )
        child.kill()
        await asyncio.sleep(3)
        child = Child(data)
        port = await child.serving()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = scheduler_service_pb2_grpc.SchedulerServiceStub(channel)
            lease_id = answer.dispatches[0].lease_id
            renewal = pb.LeaseRenewal(lease_id=lease_id)
            renewed = await stub.RenewLease(pb.RenewLeaseRequest(worker_id="w", renewals=[renewal]))
            waits = await stub.GetRequest(pb.GetRequestRequest(pool=POOL, request_id="waits"))
            done = await stub.Complete(pb.CompleteRequest(lease_id=lease_id, outcome=SUCCEEDED))
    finally:
        child.kill()

    assert not renewed.results[0].HasField("error")
    assert waits.request.state == decision_pb2.REQUEST_STATE_EXPIRED
    assert done.state == decision_pb2.REQUEST_STATE_SUCCEEDED
