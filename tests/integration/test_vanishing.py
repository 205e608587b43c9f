"""A thousand gateways vanish at once: before their turn, in the moment of the grant, and after it.

Killed, their connections are closed by the machine; stopped, they stay open and say nothing more.
"""

import asyncio
import contextlib
import gc
import itertools
import resource
import signal
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration

from fairsched.v1 import admin_service_pb2, decision_pb2, policy_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.core.decisions import RequestState
from scheduler_service.rpc.events import Follower
from tests.support.gateways import Gateways
from tests.support.live import GIVEN_BACK, POOL, SUCCEEDED, running

PLACES = 300
AFTER, AT, BEFORE = 300, 300, 400
PATIENCE = 20.0
FILE = """
[pools.default]
cost_source = "caller"
lease_duration_seconds = 2
hand_over_seconds = 0.5
"""
GATE = f'mode = "gate"\ngate_max_in_flight = {PLACES}\n'
WAYS = ("acquire", "session")
KEEPALIVE = {"keepalive_seconds": 1, "keepalive_timeout_seconds": 1}

CALLER_GONE = (RequestState.CANCELLED, "CALLER_GONE")
LEASE_EXPIRED = (RequestState.LEASE_EXPIRED, "GATE_LEASE_EXPIRED")

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(90)]


@pytest.fixture(autouse=True)
def files():
    """Lets this process have a thousand connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Crowd:
    """A thousand gateways in six processes; half of them call `Acquire`, half hold a session."""

    def __init__(self, live):
        self.live = live
        self.pool = live.engine.state.pools[POOL]
        self.tasks = len(asyncio.all_tasks())
        self.groups = {
            name: [Gateways(live.port, way, f"{name}-{way}", count // 2) for way in WAYS]
            for name, count in (("after", AFTER), ("at", AT), ("before", BEFORE))
        }
        self.files = _open_files()

    @property
    def processes(self):
        """All six."""
        return itertools.chain(*self.groups.values())

    def begin(self, name):
        """Lets a group connect and call."""
        for gateways in self.groups[name]:
            gateways.begin()

    async def until(self, *, leased, waiting):
        """Waits until so many are leased and so many wait."""
        pool = self.pool
        await self.live.until(lambda: (pool.leased, pool.waiting) == (leased, waiting), PATIENCE)

    async def vanish_when_leased(self, how, leased):
        """Stops or kills all of them in the turn that makes it so many leases.

        The newest grants are not durable then, and nobody was told of them.
        """
        async with asyncio.timeout(PATIENCE):
            while self.pool.leased < leased:
                await asyncio.sleep(0)
        for gateways in self.processes:
            gateways.vanish(how)

    def gone(self, name):
        """Returns what is remembered of the requests of a group."""
        found = [self.pool.gone.get(x) for one in self.groups[name] for x in one.request_ids]
        assert None not in found
        return found

    def end(self):
        """Ends the processes."""
        for gateways in self.processes:
            gateways.end()


def _ends(group):
    return {(gone.state, gone.reason) for gone in group}


def _open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def _left(crowd):
    """Returns what the service still holds for somebody, by what it is."""
    live, pool = crowd.live, crowd.pool
    held = {
        "waiting": pool.waiting,
        "leased": pool.leased,
        "due again": len(pool.redelivery),
        "leases": len(live.engine.state.leases),
        "calls": live.app.slots.calls,
        "streams": live.app.slots.streams,
        "watched": len(live.app.watch),
        "attended": len(live.app.attendance._callers),
        "tasks": max(len(asyncio.all_tasks()) - crowd.tasks, 0),
        "files": max(_open_files() - crowd.files, 0),
    }
    return {what: count for what, count in held.items() if count}


async def _quiet(crowd):
    """Waits until the service holds nothing for anybody any more."""
    try:
        await crowd.live.until(lambda: not _left(crowd), PATIENCE)
    except TimeoutError:
        pytest.fail(f"still there: {_left(crowd)}")
    gc.collect()
    assert not [x for x in gc.get_objects() if isinstance(x, Follower)]


async def _places(live, places):
    """Sets how many turns a gate may give at once."""
    pool_policy = policy_pb2.PoolPolicy(gate_max_in_flight=places)
    await live.admin.UpdatePool(admin_service_pb2.UpdatePoolRequest(pool=POOL, policy=pool_policy))


async def _take(live, worker_id, count):
    """Lets a worker take so many requests."""
    return (await live.next(worker_id, max_dispatches=count)).dispatches


async def _stop_what_is_cancelled(live, worker_id, dispatches):
    """Renews until the worker is told to stop all it runs; then it gives all of it back."""
    renewals = [pb.LeaseRenewal(lease_id=x.lease_id) for x in dispatches]
    renewal = pb.RenewLeaseRequest(worker_id=worker_id, renewals=renewals)
    async with asyncio.timeout(PATIENCE):
        while True:
            results = (await live.scheduler.RenewLease(renewal)).results
            assert not any(x.HasField("error") for x in results)
            if all(x.cancel_requested for x in results):
                break
            await asyncio.sleep(0.1)
    ends = [pb.CompleteRequest(lease_id=x.lease_id, outcome=GIVEN_BACK) for x in dispatches]
    answer = await live.scheduler.BatchComplete(pb.BatchCompleteRequest(completions=ends))
    return {x.response.state for x in answer.results}


async def _serve_newcomers(live, *, worker_id=""):
    """Lets as many newcomers as there are places have their turn and finish, however slowly."""
    patient = policy_pb2.PoolPolicy(
        lease_duration=Duration(seconds=60), hand_over=Duration(seconds=30)
    )
    await live.admin.UpdatePool(admin_service_pb2.UpdatePoolRequest(pool=POOL, policy=patient))
    requests = [live.request(f"new-{number}", "new") for number in range(PLACES)]
    calls = [live.scheduler.Acquire(pb.AcquireRequest(request=x)) for x in requests]
    if worker_id:
        await live.until(lambda: live.engine.state.pools[POOL].waiting == PLACES, PATIENCE)
        await _take(live, worker_id, PLACES)
    leases = await asyncio.gather(*map(_granted, calls))
    ends = [pb.CompleteRequest(lease_id=x, outcome=SUCCEEDED) for x in leases]
    answer = await live.scheduler.BatchComplete(pb.BatchCompleteRequest(completions=ends))
    for call in calls:
        call.cancel()
    states = [x.response.state for x in answer.results]
    assert states == [decision_pb2.REQUEST_STATE_SUCCEEDED] * PLACES


async def _granted(call):
    """Returns the lease that a call is granted."""
    async with asyncio.timeout(PATIENCE):
        while not (message := await call.read()).HasField("granted"):
            pass
    return message.granted.lease_id


@contextlib.asynccontextmanager
async def _crowd(folder, pool):
    """A service with this pool, and a crowd of which nobody has begun."""
    file = folder / "pools.toml"
    file.write_text(pool)
    async with running(folder / "data", file=file, **KEEPALIVE) as live:
        await _places(live, PLACES)  # so that this test's own connection is there
        crowd = Crowd(live)
        try:
            yield live, crowd
        finally:
            crowd.end()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_gate_gets_its_places_back(tmp_path, how):
    """What waited is cancelled, what was granted ends with its lease, every place is free again."""
    async with _crowd(tmp_path, FILE + GATE) as (live, crowd):
        crowd.begin("after")
        await crowd.until(leased=AFTER, waiting=0)
        crowd.begin("at")
        await crowd.until(leased=AFTER, waiting=AT)
        crowd.begin("before")
        await crowd.until(leased=AFTER, waiting=AT + BEFORE)
        raising = asyncio.ensure_future(_places(live, AFTER + AT))
        await crowd.vanish_when_leased(how, AFTER + AT)
        await raising
        await _places(live, PLACES)
        await _quiet(crowd)
        after, at, before = (crowd.gone(name) for name in ("after", "at", "before"))
        await _serve_newcomers(live)
        await _quiet(crowd)

    assert _ends(after) == {LEASE_EXPIRED}
    assert _ends(at) <= {LEASE_EXPIRED, CALLER_GONE}
    assert all(x.first_dispatch_ns for x in at)
    # Nobody knows yet that a stopped gateway has gone: it may be given a place that frees.
    assert _ends(x for x in before if not x.first_dispatch_ns) <= {CALLER_GONE}
    assert _ends(x for x in before if x.first_dispatch_ns) <= {LEASE_EXPIRED, CALLER_GONE}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_workers_are_free_for_others_again(tmp_path, how):
    """What waited and what ran is cancelled; neither a busy nor a lost worker runs it again."""
    async with _crowd(tmp_path, FILE) as (live, crowd):
        crowd.begin("after")
        await crowd.until(leased=0, waiting=AFTER)
        busy = await _take(live, "busy", AFTER)
        stopping = asyncio.ensure_future(_stop_what_is_cancelled(live, "busy", busy))
        crowd.begin("at")
        crowd.begin("before")
        await crowd.until(leased=AFTER, waiting=AT + BEFORE)
        taking = asyncio.ensure_future(_take(live, "lost", AT))
        await crowd.vanish_when_leased(how, AFTER + AT)
        assert len(await taking) == AT
        stopped = await stopping
        await _quiet(crowd)
        groups = [crowd.gone(name) for name in ("after", "at", "before")]
        await _serve_newcomers(live, worker_id="busy")
        await _quiet(crowd)

    assert stopped == {decision_pb2.REQUEST_STATE_CANCELLED}
    assert [_ends(group) for group in groups] == [{CALLER_GONE}] * 3
