"""WorkerSession: register, take, complete and renew over one stream."""

import asyncio

import grpc
import pytest

from fairsched.v1 import admin_service_pb2, decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.core.decisions import RequestState
from tests.support.live import POOL, SUCCEEDED, refused
from tests.support.peers import Peer, done, open_worker

S = decision_pb2


class TestWorkerSession:
    """Register, take, complete and renew over one stream."""

    async def test_credits_bring_dispatches(self, service):
        """As many requests come as there are credits, in decision order."""
        for number in range(5):
            await service.enqueue(f"r{number}", payload=b"p")
        peer, _ = await open_worker(service, credits=3)
        first = await peer.dispatches(3)
        await peer.say(credits=5, completions=done(*first))
        heard = await peer.hear(until=lambda m: len(m.dispatches) >= 2 and m.completion_results)

        assert [d.request_id for d in first] == ["r0", "r1", "r2"]
        assert [d.request_id for d in heard.dispatches] == ["r3", "r4"]
        assert all(d.payload == b"p" for d in (*first, *heard.dispatches))
        states = [r.response.state for r in heard.completion_results]
        assert states == [S.REQUEST_STATE_SUCCEEDED] * 3
        assert heard.empty_reason == S.EMPTY_REASON_EMPTY

    async def test_a_stream_with_credits_waits(self, service):
        """What arrives later comes by itself, one arrival at a time."""
        peer, _ = await open_worker(service, credits=2)
        for number in range(3):
            await service.enqueue(f"r{number}")
        got = await peer.dispatches(2)

        assert [d.request_id for d in got] == ["r0", "r1"]
        assert service.engine.state.pools[POOL].waiting == 1
        await peer.say(credits=1)
        assert [d.request_id for d in await peer.dispatches(1)] == ["r2"]

    async def test_a_waiting_stream_takes_far_more_than_a_batch_at_once(self, service):
        """What a resumed pool has for it comes without a pause between batches."""
        for start in range(0, 2500, 500):
            batch = [service.request(f"r{number}") for number in range(start, start + 500)]
            await service.scheduler.BatchEnqueue(pb.BatchEnqueueRequest(requests=batch))
        await service.admin.Pause(admin_service_pb2.PauseRequest(pool=POOL))
        peer, _ = await open_worker(service, credits=5000)
        await service.until(lambda: service.app.waiters.count == 1)
        service.app.waiters._recheck.cancel()  # what comes must not wait for the look once a second
        await service.admin.Resume(admin_service_pb2.ResumeRequest(pool=POOL))

        assert len({dispatch.lease_id for dispatch in await peer.dispatches(2500)}) == 2500

    async def test_results_come_in_the_order_of_the_stream(self, service):
        """Completions and renewals each have a result, bad ones too."""
        peer, _ = await open_worker(service, credits=10)
        await service.enqueue("a")
        (dispatch,) = await peer.dispatches(1)
        await peer.say(
            renewals=[pb.LeaseRenewal(lease_id=dispatch.lease_id), pb.LeaseRenewal(lease_id="x")],
            completions=[*done(dispatch), pb.CompleteRequest(lease_id="y", outcome=SUCCEEDED)],
        )
        heard = await peer.hear(until=lambda m: len(m.renewal_results) == 2)

        assert [r.error.reason for r in heard.completion_results] == ["", "LEASE_UNKNOWN"]
        # The lease was ended by the same message, before it could be renewed.
        assert [r.error.reason for r in heard.renewal_results][1] == "LEASE_UNKNOWN"

    async def test_any_message_confirms(self, service):
        """An empty message says that everything before it has arrived."""
        await service.enqueue("a")
        peer, session = await open_worker(service, credits=1)
        await peer.dispatches(1)
        assert service.engine.state.workers[session].provisional
        await peer.say()
        await service.until(lambda: not service.engine.state.workers[session].provisional)

    async def test_a_broken_stream_gives_unconfirmed_leases_back(self, service):
        """What a stream had not confirmed when it broke is soon with another worker."""
        await service.enqueue("a")
        peer, _ = await open_worker(service, credits=1)
        await peer.dispatches(1)
        peer.call.cancel()
        async with asyncio.timeout(3):
            (again,) = (await service.next("other", wait=10)).dispatches

        assert (again.request_id, again.attempt) == ("a", 1)

    async def test_a_session_is_resumed_with_what_its_worker_holds(self, service):
        """After a break nothing is lost or doubled: held leases go on, lost ones come again."""
        for request_id in ("held", "lost"):
            await service.enqueue(request_id)
        peer, session = await open_worker(service, credits=2)
        held, lost = await peer.dispatches(2)
        await peer.say()
        await service.until(lambda: not service.engine.state.workers[session].provisional)
        peer.call.cancel()
        await service.until(lambda: service.app.slots.streams == 0)
        assert len(service.engine.state.leases) == 2

        again, same = await open_worker(
            service,
            session_id=session,
            renewals=[pb.LeaseRenewal(lease_id=held.lease_id)],
            credits=1,
        )
        (redelivered,) = await again.dispatches(1)

        assert same == session
        assert redelivered.request_id == lost.request_id
        assert redelivered.lease_id != lost.lease_id
        await again.say(completions=done(held, redelivered))
        heard = await again.hear(until=lambda m: len(m.completion_results) == 2)
        assert all(r.HasField("response") for r in heard.completion_results)

    async def test_a_second_stream_ends_the_first(self, service):
        """A worker that resumes while its old stream hangs is served by the new one alone."""
        peer, session = await open_worker(service, credits=1)
        new, _ = await open_worker(service, session_id=session, credits=1)
        refusal = await refused(peer.call.read())

        assert (refusal.code, refusal.reason) == (grpc.StatusCode.ABORTED, "SESSION_SUPERSEDED")
        await service.enqueue("a")
        assert len(await new.dispatches(1)) == 1

    async def test_a_new_session_of_the_same_worker_ends_the_old(self, service):
        """A restarted worker supersedes itself: the old stream gets no work any more."""
        old, _ = await open_worker(service)
        await open_worker(service)
        await old.say(credits=1)

        assert (await refused(old.call.read())).reason == "SESSION_SUPERSEDED"

    async def test_cancels_are_pushed(self, service):
        """A worker is told at once, not at its next renewal, and told once."""
        await service.enqueue("a")
        peer, _ = await open_worker(service, credits=1)
        (dispatch,) = await peer.dispatches(1)
        await service.scheduler.Cancel(pb.CancelRequest(pool=POOL, request_id="a"))
        heard = await peer.hear(until=lambda m: m.cancelled_lease_ids)
        assert list(heard.cancelled_lease_ids) == [dispatch.lease_id]

        await peer.say(completions=done(dispatch))
        heard = await peer.hear(until=lambda m: m.completion_results)
        assert list(heard.cancelled_lease_ids) == []
        assert heard.completion_results[0].response.state == S.REQUEST_STATE_CANCELLED

    async def test_draining_is_told(self, service):
        """A drained worker gets nothing more and is told why."""
        peer, session = await open_worker(service, credits=1)
        await peer.hear(until=lambda m: m.empty_reason == S.EMPTY_REASON_EMPTY)
        await service.scheduler.DrainWorker(pb.DrainWorkerRequest(worker_id=session))
        await peer.hear(until=lambda m: m.empty_reason == S.EMPTY_REASON_DRAINING)
        await service.enqueue("a")

        assert len((await service.next("other")).dispatches) == 1

    async def test_tokens_are_counted_between_statements(self, service):
        """A worker that states its room once is not given more than fits."""
        peer, _ = await open_worker(service, credits=10, offer=decision_pb2.Offer(free_tokens=100))
        for number in range(3):
            await service.enqueue(f"r{number}", kv_tokens=60)
        (first,) = await peer.dispatches(1)
        await peer.hear(until=lambda m: m.empty_reason == S.EMPTY_REASON_HELD_BY_FIT)
        await peer.say(completions=done(first))

        assert [d.request_id for d in await peer.dispatches(1)] == ["r1"]

    async def test_each_worker_hears_of_its_own_completions(self, service):
        """Many that speak at once: bad items and good ones, in the order each stated them."""
        peers = [(await open_worker(service, f"w{number}", credits=2))[0] for number in range(12)]
        for number in range(24):
            await service.enqueue(f"r{number}", user_id=f"u{number}")
        held = [await peer.dispatches(2) for peer in peers]
        bad = pb.CompleteRequest(lease_id="\n", outcome=SUCCEEDED)
        unknown = pb.CompleteRequest(lease_id="x", outcome=SUCCEEDED)
        for peer, (one, two) in zip(peers, held, strict=True):
            stated = [*done(one), bad, unknown, *done(two)]
            await peer.say(completions=stated, credits=1)
        heard = [await peer.hear(until=lambda m: m.completion_results) for peer in peers]

        for (one, two), answer in zip(held, heard, strict=True):
            results = answer.completion_results
            ids = [result.response.request_id for result in results]
            assert ids == [one.request_id, "", "", two.request_id]
            (violation,) = results[1].error.field_violations
            assert violation.field == "completions[1].lease_id"
            assert results[2].error.reason == "LEASE_UNKNOWN"
        assert not service.engine.state.leases

    async def test_a_stream_waits_once_however_its_messages_come(self, service):
        """Two of its messages in one turn leave nothing waiting when it has ended."""
        peer, session = await open_worker(service)
        stream = service.app.workers.on_change[session].__self__
        for _ in range(2):
            stream.take(pb.WorkerSessionRequest(credits=1))
        await service.until(lambda: service.app.waiters.count == 1)
        peer.call.cancel()
        await service.until(lambda: service.app.slots.streams == 0)

        assert service.app.waiters.count == 0
        await service.enqueue("a")
        assert [d.request_id for d in (await service.next("other")).dispatches] == ["a"]

    async def test_what_came_before_a_session_was_superseded_counts(self, service):
        """A completion that is there already when its worker registers anew, in the same turn."""
        await service.enqueue("a")
        peer, session = await open_worker(service, credits=1)
        (dispatch,) = await peer.dispatches(1)
        stream = service.app.workers.on_change[session].__self__
        stream.take(pb.WorkerSessionRequest(completions=done(dispatch)))
        stream._desk.fleet.register(
            pb.RegisterWorkerRequest(worker_id="w", pools=[POOL]), stream.caller
        )
        pool = service.engine.state.pools[POOL]
        await service.until(lambda: pool.gone)

        assert pool.gone["a"].state is RequestState.SUCCEEDED

    async def test_closing_its_side_ends_a_session_in_order(self, service):
        """What a worker said last is still decided and answered."""
        await service.enqueue("a")
        peer, _ = await open_worker(service, credits=1)
        (dispatch,) = await peer.dispatches(1)
        await peer.say(completions=done(dispatch))
        await peer.call.done_writing()
        heard = await peer.hear(until=lambda m: m.completion_results)

        assert heard.completion_results[0].response.state == S.REQUEST_STATE_SUCCEEDED
        assert await peer.call.read() is grpc.aio.EOF
        assert await peer.call.code() is grpc.StatusCode.OK

    @pytest.mark.parametrize(
        ("first", "field"),
        [
            ({}, "session_id"),
            (
                {"session_id": "x", "register": pb.RegisterWorkerRequest(worker_id="w")},
                "session_id",
            ),
            ({"register": pb.RegisterWorkerRequest(worker_id="")}, "register.worker_id"),
            ({"credits": -1, "session_id": "x"}, "credits"),
            ({"credits": 1_000_001, "session_id": "x"}, "credits"),
        ],
    )
    async def test_a_bad_first_message_ends_the_stream(self, service, first, field):
        """The stream ends with what is wrong."""
        peer = Peer(service.scheduler.WorkerSession(), pb.WorkerSessionRequest)
        await peer.say(**first)
        refusal = await refused(peer.call.read())

        assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
        assert field in refusal.fields
        assert service.app.slots.streams == 0

    async def test_many_items_go_through(self, service):
        """Hundreds of requests in large messages arrive once each, in order."""
        count = 500
        for start in range(0, count, 100):
            items = [service.request(f"r{n:03}", f"u{n % 7}") for n in range(start, start + 100)]
            await service.scheduler.BatchEnqueue(pb.BatchEnqueueRequest(requests=items))
        peer, _ = await open_worker(service, credits=50)
        seen = []
        while len(seen) < count:
            heard = await peer.hear(until=lambda m: m.dispatches)
            seen += [d.request_id for d in heard.dispatches]
            got = len(heard.dispatches)
            await peer.say(credits=got, completions=done(*heard.dispatches))
        assert sorted(seen) == [f"r{n:03}" for n in range(count)]
        await service.until(lambda: not service.engine.state.leases)

    async def test_large_payloads_come_in_many_messages(self, service):
        """No message of a stream grows past what a client receives by default."""
        for number in range(80):
            await service.enqueue(f"r{number}", payload=b"x" * 65_000)
        peer, _ = await open_worker(service, credits=80)
        seen, messages = [], 0
        while len(seen) < 80:
            heard = await peer.hear(until=lambda m: m.dispatches)
            seen += [d.request_id for d in heard.dispatches]
            messages += 1
            assert heard.ByteSize() < 2 << 20

        assert len(set(seen)) == 80
        assert messages >= 5
