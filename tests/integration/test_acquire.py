"""Acquire: queued, granted, ended; callers that leave and come back."""

import asyncio

import grpc
import pytest
import pytest_asyncio

from fairsched.v1 import admin_service_pb2, decision_pb2, policy_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app import codec
from scheduler_service.core import decisions as d
from scheduler_service.core.completion import Complete
from scheduler_service.rpc.identity import EVERYBODY
from scheduler_service.rpc.scheduler_servicer import Desks
from tests.support.live import GIVEN_BACK, POOL, refused, running, seconds

S = decision_pb2


@pytest_asyncio.fixture(loop_scope="session")
async def gate(tmp_path):
    """A service whose pool is a gate with one place."""
    file = tmp_path / "gate.toml"
    file.write_text(
        '[pools.default]\nmode = "gate"\ngate_max_in_flight = 1\ncost_source = "caller"\n'
    )
    async with running(tmp_path / "data", file=file) as live:
        yield live


def _acquire(service, request_id, user_id="u", timeout=None, lease_duration=None, **fields):
    request = pb.AcquireRequest(request=service.request(request_id, user_id, **fields))
    if lease_duration is not None:
        request.lease_duration.CopyFrom(seconds(lease_duration))
    return service.scheduler.Acquire(request, timeout=timeout)


async def _event(call, kind):
    """Returns the next event of a stream, which must be of this kind."""
    async with asyncio.timeout(5):
        message = await call.read()
    assert message is not grpc.aio.EOF, f"ended before {kind}"
    assert message.WhichOneof("event") == kind, message
    return getattr(message, kind)


async def _turn(call):
    """Returns the grant of a call, which may be told first that it is queued."""
    async with asyncio.timeout(5):
        async for message in call:
            if message.HasField("granted"):
                return message.granted
    raise AssertionError("ended before its turn")


class _DeafContext:
    """A caller to whom nothing gets through."""

    def time_remaining(self):
        """There is no deadline."""

    def peer(self):
        return "deaf"

    async def write(self, message):
        await asyncio.Event().wait()


class TestGate:
    """Turns of a gate: the caller holds the lease."""

    async def test_a_free_place_is_granted_at_once(self, gate):
        """The stream says queued or granted, ends after the grant, and the caller completes."""
        call = _acquire(gate, "a")
        granted = await _event(call, "granted")

        assert (granted.attempt, granted.worker_id, granted.endpoint) == (1, "", "")
        assert 59 <= granted.lease_duration.seconds <= 60
        assert await call.read() is grpc.aio.EOF
        done = await gate.complete(granted.lease_id)
        assert done.state == S.REQUEST_STATE_SUCCEEDED

    async def test_the_next_caller_gets_the_place_that_frees(self, gate):
        """Who waits is told so, and gets its turn when another one completes."""
        first = await _event(_acquire(gate, "a"), "granted")
        call = _acquire(gate, "b")
        queued = await _event(call, "queued")
        await gate.complete(first.lease_id)
        granted = await _event(call, "granted")

        assert queued.outlook.state == S.REQUEST_STATE_WAITING
        assert queued.outlook.requests_ahead == 0
        assert granted.wait.ToNanoseconds() > 0

    async def test_a_place_that_frees_in_the_turn_of_the_acceptance_is_not_lost(self, gate):
        """A caller that leaves before it was told had waited all the same."""
        first = await _event(_acquire(gate, "a"), "granted")
        desks = Desks(gate.app, gate.service.runtime)
        request = pb.AcquireRequest(request=gate.request("b"))
        call = asyncio.ensure_future(desks.acquiring.acquire(request, _DeafContext(), EVERYBODY))
        await asyncio.sleep(0)
        stamp = {"now_ns": gate.engine.now_ns(), "nonce": gate.engine.nonce()}
        ended = Complete(**stamp, lease_id=first.lease_id, outcome=d.Outcome.SUCCEEDED)
        gate.engine.apply(ended)
        assert len(gate.engine.state.leases) == 1
        for _ in range(10):
            await asyncio.sleep(0)
        call.cancel()
        await gate.until(lambda: not gate.engine.state.leases)

        assert (await gate.state("b")).state != S.REQUEST_STATE_LEASED

    async def test_capacity_grows_and_shrinks_live(self, gate):
        """More places let more callers in at once; fewer revoke nothing."""
        await _event(_acquire(gate, "a"), "granted")
        call = _acquire(gate, "b")
        await _event(call, "queued")
        await gate.admin.UpdatePool(
            admin_service_pb2.UpdatePoolRequest(
                pool=POOL, policy=policy_pb2.PoolPolicy(gate_max_in_flight=2)
            )
        )

        assert (await _event(call, "granted")).lease_id

    async def test_a_dropped_call_cancels_what_waits(self, gate):
        """Who leaves the queue is out of it, and its place in the order is free (R39)."""
        first = await _event(_acquire(gate, "a"), "granted")
        call = _acquire(gate, "b")
        await _event(call, "queued")
        call.cancel()
        await gate.until(lambda: gate.engine.state.pools[POOL].waiting == 0)
        found = await gate.state("b")

        assert (found.state, found.reason) == (S.REQUEST_STATE_CANCELLED, "CALLER_GONE")
        assert gate.app.slots.calls == 0
        await gate.complete(first.lease_id)

    @pytest.mark.slow
    async def test_a_grant_that_reaches_nobody_frees_its_place(self, gate):
        """However a cancel and a grant cross, the place is soon free (R41).

        At the latest when its lease ends: a grant that has left looks as if it had arrived.
        """
        for number in range(40):
            first = await _event(_acquire(gate, f"a{number}"), "granted")
            call = _acquire(gate, f"b{number}", lease_duration=2)
            await _event(call, "queued")
            freeing = asyncio.ensure_future(gate.complete(first.lease_id))
            for _ in range(number % 10):
                await asyncio.sleep(0)
            call.cancel()
            await freeing
            granted = await _turn(_acquire(gate, f"c{number}"))
            await gate.complete(granted.lease_id)

        assert gate.engine.state.leases == {}

    async def test_calling_again_resumes(self, gate):
        """The same id again waits for the same turn, and gets the same lease."""
        first = await _event(_acquire(gate, "a"), "granted")
        one, two = _acquire(gate, "b"), _acquire(gate, "b")
        await _event(one, "queued")
        await _event(two, "queued")
        one.cancel()
        await gate.until(lambda: gate.app.slots.calls == 1)
        assert gate.engine.state.pools[POOL].waiting == 1
        await gate.complete(first.lease_id)
        granted = await _event(two, "granted")
        again = await _event(_acquire(gate, "b"), "granted")

        assert again.lease_id == granted.lease_id

    async def test_a_lease_as_long_as_the_caller_wants(self, gate):
        """The caller of a gate may ask for a longer lease than the pool's."""
        granted = await _event(_acquire(gate, "a", lease_duration=600), "granted")

        assert 599 <= granted.lease_duration.seconds <= 600

    async def test_a_silent_gateway_loses_its_place(self, gate):
        """A lease that is not renewed ends the request; the next caller gets its turn."""
        await gate.admin.UpdatePool(
            admin_service_pb2.UpdatePoolRequest(
                pool=POOL, policy=policy_pb2.PoolPolicy(lease_duration=seconds(1))
            )
        )
        await _event(_acquire(gate, "a"), "granted")
        call = _acquire(gate, "b")
        await _event(call, "queued")
        await _event(call, "granted")
        found = await gate.state("a")

        assert (found.state, found.reason) == (
            S.REQUEST_STATE_LEASE_EXPIRED,
            "GATE_LEASE_EXPIRED",
        )

    async def test_renewing_keeps_the_place(self, gate):
        """A gateway renews its lease without naming a worker."""
        granted = await _event(_acquire(gate, "a"), "granted")
        answer = await gate.scheduler.RenewLease(
            pb.RenewLeaseRequest(renewals=[pb.LeaseRenewal(lease_id=granted.lease_id)])
        )

        assert not answer.results[0].HasField("error")


class TestPull:
    """Turns taken by workers: the grant says which one, and where it is."""

    async def test_the_grant_names_the_worker_and_its_endpoint(self, service):
        """The gateway is told whom to stream from, and how it ended."""
        session = await service.scheduler.RegisterWorker(
            pb.RegisterWorkerRequest(worker_id="w", pools=[POOL], endpoint="http://w:8000")
        )
        call = _acquire(service, "a")
        await _event(call, "queued")
        (dispatch,) = (await service.next(session_id=session.session_id)).dispatches
        granted = await _event(call, "granted")
        await service.complete(dispatch.lease_id, error="text")
        ended = await _event(call, "ended")

        assert (granted.worker_id, granted.endpoint) == ("w", "http://w:8000")
        assert granted.lease_id == dispatch.lease_id
        assert dispatch.caller_bound
        assert ended.state == S.REQUEST_STATE_SUCCEEDED
        assert await call.read() is grpc.aio.EOF

    async def test_a_waiting_worker_takes_it_in_the_commit_that_accepts_it(self, service):
        """A worker that waits needs no second commit, and the caller never was in a queue."""
        groups = []
        service.engine.publishers.append(groups.append)
        waiting = asyncio.ensure_future(service.next("w", wait=5))
        await service.until(lambda: service.app.waiters.count == 1)
        await service.engine.durable()
        groups.clear()
        granted = await _event(_acquire(service, "a"), "granted")

        assert [dispatch.lease_id for dispatch in (await waiting).dispatches] == [granted.lease_id]
        (taken,) = (
            [type(codec.decode(record)) for record in group.records]
            for group in groups
            if group.first_sequence <= granted.sequence <= group.end.sequence
        )
        assert taken[:2] == [d.Accepted, d.Dispatched]

    async def test_a_worker_that_is_done_at_once_is_named_all_the_same(self, service):
        """The grant is told before the end, however little time lies between them."""
        call = _acquire(service, "a")
        await _event(call, "queued")
        lease_id = service.run_at_once()

        assert (await _event(call, "granted")).lease_id == lease_id
        assert (await _event(call, "ended")).state == S.REQUEST_STATE_SUCCEEDED
        assert await call.read() is grpc.aio.EOF

    async def test_a_lost_lease_is_followed_by_another_grant(self, service):
        """When its worker gives it back, the caller waits on and is told the next worker."""
        call = _acquire(service, "a")
        await _event(call, "queued")
        (first,) = (await service.next("w1")).dispatches
        assert (await _event(call, "granted")).worker_id == "w1"
        await service.complete(first.lease_id, GIVEN_BACK)
        again = await _event(call, "queued")
        assert again.outlook.state == S.REQUEST_STATE_REDELIVERY
        await service.next("w2")

        assert (await _event(call, "granted")).worker_id == "w2"

    async def test_a_caller_that_leaves_stops_its_worker(self, service):
        """A running request whose caller has gone is to be stopped, and is not redelivered."""
        call = _acquire(service, "a")
        await _event(call, "queued")
        (dispatch,) = (await service.next("w1")).dispatches
        await _event(call, "granted")
        call.cancel()
        await service.until(lambda: bool(service.app.workers.cancelled("w1")))
        answer = await service.scheduler.RenewLease(
            pb.RenewLeaseRequest(
                worker_id="w1", renewals=[pb.LeaseRenewal(lease_id=dispatch.lease_id)]
            )
        )
        assert answer.results[0].cancel_requested
        await service.complete(dispatch.lease_id, GIVEN_BACK)

        assert list((await service.next("w2")).dispatches) == []
        found = await service.state("a")
        assert (found.state, found.reason) == (S.REQUEST_STATE_CANCELLED, "CALLER_GONE")

    async def test_a_request_that_was_only_enqueued_outlives_its_watchers(self, service):
        """Acquire of a request made by Enqueue watches it; leaving does not cancel it."""
        await service.enqueue("a")
        call = _acquire(service, "a")
        await _event(call, "queued")
        call.cancel()
        await service.until(lambda: service.app.slots.calls == 0)

        assert (await service.state("a")).state == S.REQUEST_STATE_WAITING

    async def test_the_deadline_limits_the_wait(self, service):
        """A caller with a deadline is told that its wait is over, not cut off."""
        call = _acquire(service, "a", timeout=1.0)
        await _event(call, "queued")
        ended = await _event(call, "ended")

        assert (ended.state, ended.reason) == (S.REQUEST_STATE_EXPIRED, "MAX_WAIT")
        assert await call.code() is grpc.StatusCode.OK

    async def test_a_stated_wait_shorter_than_the_deadline_holds(self, service):
        """The smaller of both limits counts."""
        call = _acquire(service, "a", timeout=60, max_wait=seconds(0.2))
        await _event(call, "queued")

        assert (await _event(call, "ended")).reason == "MAX_WAIT"

    async def test_the_outlook_is_refreshed(self, service):
        """Who waits is told when fewer are ahead."""
        for number in range(3):
            await service.enqueue(f"r{number}")
        call = _acquire(service, "a")
        assert (await _event(call, "queued")).outlook.requests_ahead == 3
        await service.next("w", max_dispatches=2)

        assert (await _event(call, "queued")).outlook.requests_ahead == 1

    async def test_a_cancel_by_somebody_else_is_told(self, service):
        """A caller that waits learns that its request was cancelled."""
        call = _acquire(service, "a")
        await _event(call, "queued")
        await service.scheduler.Cancel(
            pb.CancelRequest(pool=POOL, request_id="a", reason="OPERATOR")
        )
        ended = await _event(call, "ended")

        assert (ended.state, ended.reason) == (S.REQUEST_STATE_CANCELLED, "OPERATOR")

    async def test_what_has_ended_is_told_at_once(self, service):
        """Resuming a request that is over says how it ended."""
        dispatch = await service.leased("a")
        await service.complete(dispatch.lease_id)

        assert (await _event(_acquire(service, "a"), "ended")).state == S.REQUEST_STATE_SUCCEEDED

    async def test_other_content_is_refused(self, service):
        """An id names one content here too."""
        await service.enqueue("a", cost=1)
        refusal = await refused(_acquire(service, "a", cost=2).read())

        assert refusal.reason == "REQUEST_ID_REUSED"
        assert service.app.slots.calls == 0


class TestRestart:
    """Requests whose callers were cut off by a restart of the service."""

    async def test_callers_may_come_back(self, tmp_path):
        """A service that stops cancels nothing; the same id resumes after the restart."""
        async with running(tmp_path) as live:
            call = _acquire(live, "a")
            await _event(call, "queued")
            stopping = asyncio.ensure_future(live.service.stop())
            refusal = await refused(call.read())
            await stopping
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")

        async with running(tmp_path, resume_grace_seconds=0.5) as live:
            again = _acquire(live, "a")
            queued = await _event(again, "queued")
            assert queued.outlook.duplicate
            await asyncio.sleep(0.8)
            assert (await live.state("a")).state == S.REQUEST_STATE_WAITING

    async def test_callers_that_do_not_come_back_lose_their_place(self, tmp_path):
        """After the grace a request nobody waits for is cancelled; plain ones stay."""
        async with running(tmp_path) as live:
            call = _acquire(live, "a")
            await _event(call, "queued")
            await live.enqueue("plain")
            await live.service.stop()
        async with running(tmp_path, resume_grace_seconds=0.2) as live:
            assert (await live.state("a")).state == S.REQUEST_STATE_WAITING
            await live.until(lambda: live.engine.state.pools[POOL].waiting == 1)
            found = await live.state("a")

            assert (found.state, found.reason) == (S.REQUEST_STATE_CANCELLED, "CALLER_GONE")
            assert (await live.state("plain")).state == S.REQUEST_STATE_WAITING
