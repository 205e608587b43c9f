"""WorkerSession and GatewaySession: the same promises over one stream a process."""

import asyncio

import grpc
import pytest

from fairsched.v1 import decision_pb2, scheduler_service_pb2_grpc
from fairsched.v1 import scheduler_service_pb2 as pb
from tests.support.live import GIVEN_BACK, POOL, SUCCEEDED, refused, running, seconds

S = decision_pb2


class Peer:
    """One side of a session: what it was told is gathered until somebody asks."""

    def __init__(self, call, request_type):
        self.call = call
        self.pending = None
        self._type = request_type

    async def say(self, **fields):
        await self.call.write(self._type(**fields))

    async def hear(self, *, until, patience=5.0):
        """Returns everything said until `until(message)` holds, merged into one message."""
        heard, self.pending = self.pending, None
        async with asyncio.timeout(patience):
            while heard is None or not until(heard):
                message = await self.call.read()
                assert message is not grpc.aio.EOF, heard
                if heard is None:
                    heard = type(message)()
                heard.MergeFrom(message)
        return heard

    async def dispatches(self, count):
        """Returns the next `count` dispatches."""
        heard = await self.hear(until=lambda m: len(m.dispatches) >= count)
        assert len(heard.dispatches) == count
        return list(heard.dispatches)

    async def event(self, kind):
        """Returns the next event, which must be of this kind."""
        heard = await self.hear(until=lambda m: m.events)
        assert heard.events[0].WhichOneof("event") == kind, heard
        return heard.events[0]


async def _worker(service, worker_id="w", **fields):
    peer = Peer(service.scheduler.WorkerSession(), pb.WorkerSessionRequest)
    if "session_id" not in fields:
        register = pb.RegisterWorkerRequest(worker_id=worker_id, pools=[POOL])
        if "endpoint" in fields:
            register.endpoint = fields.pop("endpoint")
        fields["register"] = register
    await peer.say(**fields)
    heard = await peer.hear(until=lambda m: m.HasField("registered"))
    session_id = heard.registered.session_id
    heard.ClearField("registered")
    peer.pending = heard
    return peer, session_id


def _done(*dispatches, outcome=SUCCEEDED):
    return [pb.CompleteRequest(lease_id=d.lease_id, outcome=outcome) for d in dispatches]


def _gateway(service):
    return Peer(service.scheduler.GatewaySession(), pb.GatewaySessionRequest)


class TestWorkerSession:
    """Register, take, complete and renew over one stream."""

    async def test_credits_bring_dispatches(self, service):
        """As many requests come as there are credits, in decision order."""
        for number in range(5):
            await service.enqueue(f"r{number}", payload=b"p")
        peer, _ = await _worker(service, credits=3)
        first = await peer.dispatches(3)
        await peer.say(credits=5, completions=_done(*first))
        heard = await peer.hear(until=lambda m: len(m.dispatches) >= 2 and m.completion_results)

        assert [d.request_id for d in first] == ["r0", "r1", "r2"]
        assert [d.request_id for d in heard.dispatches] == ["r3", "r4"]
        assert all(d.payload == b"p" for d in (*first, *heard.dispatches))
        states = [r.response.state for r in heard.completion_results]
        assert states == [S.REQUEST_STATE_SUCCEEDED] * 3
        assert heard.empty_reason == S.EMPTY_REASON_EMPTY

    async def test_a_stream_with_credits_waits(self, service):
        """What arrives later comes by itself, one arrival at a time."""
        peer, _ = await _worker(service, credits=2)
        for number in range(3):
            await service.enqueue(f"r{number}")
        got = await peer.dispatches(2)

        assert [d.request_id for d in got] == ["r0", "r1"]
        assert service.engine.state.pools[POOL].waiting == 1
        await peer.say(credits=1)
        assert [d.request_id for d in await peer.dispatches(1)] == ["r2"]

    async def test_results_come_in_the_order_of_the_stream(self, service):
        """Completions and renewals each have a result, bad ones too."""
        peer, _ = await _worker(service, credits=10)
        await service.enqueue("a")
        (dispatch,) = await peer.dispatches(1)
        await peer.say(
            renewals=[pb.LeaseRenewal(lease_id=dispatch.lease_id), pb.LeaseRenewal(lease_id="x")],
            completions=[*_done(dispatch), pb.CompleteRequest(lease_id="y", outcome=SUCCEEDED)],
        )
        heard = await peer.hear(until=lambda m: len(m.renewal_results) == 2)

        assert [r.error.reason for r in heard.completion_results] == ["", "LEASE_UNKNOWN"]
        # The lease was ended by the same message, before it could be renewed.
        assert [r.error.reason for r in heard.renewal_results][1] == "LEASE_UNKNOWN"

    async def test_any_message_confirms(self, service):
        """An empty message says that everything before it has arrived."""
        await service.enqueue("a")
        peer, session = await _worker(service, credits=1)
        await peer.dispatches(1)
        assert service.engine.state.workers[session].provisional
        await peer.say()
        await service.until(lambda: not service.engine.state.workers[session].provisional)

    async def test_a_broken_stream_gives_unconfirmed_leases_back(self, service):
        """What a stream had not confirmed when it broke is soon with another worker."""
        await service.enqueue("a")
        peer, _ = await _worker(service, credits=1)
        await peer.dispatches(1)
        peer.call.cancel()
        async with asyncio.timeout(3):
            (again,) = (await service.next("other", wait=10)).dispatches

        assert (again.request_id, again.attempt) == ("a", 1)

    async def test_a_session_is_resumed_with_what_its_worker_holds(self, service):
        """After a break nothing is lost or doubled: held leases go on, lost ones come again."""
        for request_id in ("held", "lost"):
            await service.enqueue(request_id)
        peer, session = await _worker(service, credits=2)
        held, lost = await peer.dispatches(2)
        await peer.say()
        await service.until(lambda: not service.engine.state.workers[session].provisional)
        peer.call.cancel()
        await service.until(lambda: service.app.slots.streams == 0)
        assert len(service.engine.state.leases) == 2

        again, same = await _worker(
            service,
            session_id=session,
            renewals=[pb.LeaseRenewal(lease_id=held.lease_id)],
            credits=1,
        )
        (redelivered,) = await again.dispatches(1)

        assert same == session
        assert redelivered.request_id == lost.request_id
        assert redelivered.lease_id != lost.lease_id
        await again.say(completions=_done(held, redelivered))
        heard = await again.hear(until=lambda m: len(m.completion_results) == 2)
        assert all(r.HasField("response") for r in heard.completion_results)

    async def test_a_second_stream_ends_the_first(self, service):
        """A worker that resumes while its old stream hangs is served by the new one alone."""
        peer, session = await _worker(service, credits=1)
        new, _ = await _worker(service, session_id=session, credits=1)
        refusal = await refused(peer.call.read())

        assert (refusal.code, refusal.reason) == (grpc.StatusCode.ABORTED, "SESSION_SUPERSEDED")
        await service.enqueue("a")
        assert len(await new.dispatches(1)) == 1

    async def test_a_new_session_of_the_same_worker_ends_the_old(self, service):
        """A restarted worker supersedes itself: the old stream gets no work any more."""
        old, _ = await _worker(service)
        await _worker(service)
        await old.say(credits=1)

        assert (await refused(old.call.read())).reason == "SESSION_SUPERSEDED"

    async def test_cancels_are_pushed(self, service):
        """A worker is told at once, not at its next renewal, and told once."""
        await service.enqueue("a")
        peer, _ = await _worker(service, credits=1)
        (dispatch,) = await peer.dispatches(1)
        await service.scheduler.Cancel(pb.CancelRequest(pool=POOL, request_id="a"))
        heard = await peer.hear(until=lambda m: m.cancelled_lease_ids)
        assert list(heard.cancelled_lease_ids) == [dispatch.lease_id]

        await peer.say(completions=_done(dispatch))
        heard = await peer.hear(until=lambda m: m.completion_results)
        assert list(heard.cancelled_lease_ids) == []
        assert heard.completion_results[0].response.state == S.REQUEST_STATE_CANCELLED

    async def test_draining_is_told(self, service):
        """A drained worker gets nothing more and is told why."""
        peer, session = await _worker(service, credits=1)
        await peer.hear(until=lambda m: m.empty_reason == S.EMPTY_REASON_EMPTY)
        await service.scheduler.DrainWorker(pb.DrainWorkerRequest(worker_id=session))
        await peer.hear(until=lambda m: m.empty_reason == S.EMPTY_REASON_DRAINING)
        await service.enqueue("a")

        assert len((await service.next("other")).dispatches) == 1

    async def test_tokens_are_counted_between_statements(self, service):
        """A worker that states its room once is not given more than fits."""
        peer, _ = await _worker(service, credits=10, offer=decision_pb2.Offer(free_tokens=100))
        for number in range(3):
            await service.enqueue(f"r{number}", kv_tokens=60)
        (first,) = await peer.dispatches(1)
        await peer.hear(until=lambda m: m.empty_reason == S.EMPTY_REASON_HELD_BY_FIT)
        await peer.say(completions=_done(first))

        assert [d.request_id for d in await peer.dispatches(1)] == ["r1"]

    async def test_closing_its_side_ends_a_session_in_order(self, service):
        """What a worker said last is still decided and answered."""
        await service.enqueue("a")
        peer, _ = await _worker(service, credits=1)
        (dispatch,) = await peer.dispatches(1)
        await peer.say(completions=_done(dispatch))
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
        peer, _ = await _worker(service, credits=50)
        seen = []
        while len(seen) < count:
            heard = await peer.hear(until=lambda m: m.dispatches)
            seen += [d.request_id for d in heard.dispatches]
            got = len(heard.dispatches)
            await peer.say(credits=got, completions=_done(*heard.dispatches))
        assert sorted(seen) == [f"r{n:03}" for n in range(count)]
        await service.until(lambda: not service.engine.state.leases)

    async def test_large_payloads_come_in_many_messages(self, service):
        """No message of a stream grows past what a client receives by default."""
        for number in range(80):
            await service.enqueue(f"r{number}", payload=b"x" * 65_000)
        peer, _ = await _worker(service, credits=80)
        seen, messages = [], 0
        while len(seen) < 80:
            heard = await peer.hear(until=lambda m: m.dispatches)
            seen += [d.request_id for d in heard.dispatches]
            messages += 1
            assert heard.ByteSize() < 2 << 20

        assert len(set(seen)) == 80
        assert messages >= 5


class TestGatewaySession:
    """Enqueue, wait for turns and complete over one stream."""

    async def test_results_come_in_order(self, service):
        """Each enqueue, cancel, completion and renewal has its result, bad ones too."""
        peer = _gateway(service)
        await peer.say(
            enqueues=[
                pb.SessionEnqueue(request=service.request("a")),
                pb.SessionEnqueue(request=service.request("b", cost=-1)),
                pb.SessionEnqueue(request=service.request("a")),
            ],
            cancels=[
                pb.CancelRequest(pool=POOL, request_id="a"),
                pb.CancelRequest(pool=POOL, request_id="x"),
            ],
            completions=[pb.CompleteRequest(lease_id="l", outcome=SUCCEEDED)],
            renewals=[pb.LeaseRenewal(lease_id="l")],
        )
        heard = await peer.hear(until=lambda m: m.renewal_results)

        kinds = [r.WhichOneof("result") for r in heard.enqueue_results]
        assert kinds == ["response", "error", "response"]
        bad = heard.enqueue_results[1].error.field_violations[0].field
        assert bad == "enqueues[1].request.cost"
        assert heard.cancel_results[0].response.state == S.REQUEST_STATE_CANCELLED
        assert heard.cancel_results[1].error.reason == "REQUEST_UNKNOWN"
        assert heard.completion_results[0].error.reason == "LEASE_UNKNOWN"
        assert heard.renewal_results[0].error.reason == "LEASE_UNKNOWN"

    async def test_turns_are_told_against_credits(self, service):
        """Events come as there are credits; of each request the latest is told."""
        peer = _gateway(service)
        acquires = [
            pb.SessionEnqueue(request=service.request(name), acquire=True) for name in "abc"
        ]
        await peer.say(enqueues=acquires)
        await peer.hear(until=lambda m: len(m.enqueue_results) == 3)
        dispatches = (await service.next(max_dispatches=3)).dispatches
        await service.complete(dispatches[0].lease_id)
        await peer.say(credits=1)
        first = await peer.event("ended")
        await peer.say(credits=10)
        heard = await peer.hear(until=lambda m: len(m.events) == 2)

        assert (first.request_id, first.ended.state) == ("a", S.REQUEST_STATE_SUCCEEDED)
        assert [e.request_id for e in heard.events] == ["b", "c"]
        assert all(e.WhichOneof("event") == "granted" for e in heard.events)
        assert all(e.granted.lease_duration.seconds >= 59 for e in heard.events)

    async def test_a_gate_grants_over_the_stream(self, tmp_path):
        """The gateway holds the leases of a gate, renews and completes them on the stream."""
        file = tmp_path / "gate.toml"
        file.write_text(
            '[pools.default]\nmode = "gate"\ngate_max_in_flight = 1\ncost_source = "caller"\n'
        )
        async with running(tmp_path / "data", file=file) as live:
            peer = _gateway(live)
            items = [pb.SessionEnqueue(request=live.request(n), acquire=True) for n in "ab"]
            await peer.say(credits=10, enqueues=items, lease_duration=seconds(600))
            first = await peer.event("granted")
            assert first.granted.lease_duration.seconds >= 599
            lease = first.granted.lease_id
            await peer.say(
                renewals=[pb.LeaseRenewal(lease_id=lease)],
                completions=[],
            )
            heard = await peer.hear(until=lambda m: m.renewal_results)
            assert not heard.renewal_results[0].HasField("error")
            await peer.say(completions=[pb.CompleteRequest(lease_id=lease, outcome=SUCCEEDED)])
            heard = await peer.hear(until=lambda m: m.events)
            assert (heard.events[0].request_id, bool(heard.events[0].granted.lease_id)) == (
                "b",
                True,
            )

    async def test_a_broken_stream_cancels_what_waits_and_nothing_else(self, service):
        """Waiting turns end with the stream; plain requests and running ones stay or stop."""
        peer = _gateway(service)
        await peer.say(
            credits=10,
            enqueues=[
                pb.SessionEnqueue(request=service.request("running"), acquire=True),
                pb.SessionEnqueue(request=service.request("waiting"), acquire=True),
                pb.SessionEnqueue(request=service.request("plain")),
            ],
        )
        await peer.hear(until=lambda m: len(m.enqueue_results) == 3)
        await service.next("w")
        await peer.event("granted")
        peer.call.cancel()
        await service.until(lambda: service.app.slots.streams == service.app.slots.calls == 0)

        assert (await service.state("waiting")).state == S.REQUEST_STATE_CANCELLED
        assert (await service.state("plain")).state == S.REQUEST_STATE_WAITING
        assert (await service.state("running")).cancel_requested

    async def test_a_stream_that_was_replaced_before_it_broke_keeps_its_places(self, service):
        """What another stream has asked for under the same id waits on, in its old place."""
        old, new = _gateway(service), _gateway(service)
        items = [pb.SessionEnqueue(request=service.request(n), acquire=True) for n in "ab"]
        await old.say(credits=10, enqueues=items)
        await old.hear(until=lambda m: len(m.enqueue_results) == 2)
        await service.enqueue("c")
        await new.say(credits=10, enqueues=items)
        heard = await new.hear(until=lambda m: len(m.enqueue_results) == 2)
        old.call.cancel()
        await service.until(lambda: (service.app.slots.streams, service.app.slots.calls) == (1, 2))
        answer = await service.next("w", max_dispatches=3)
        granted = await new.hear(until=lambda m: len(m.events) == 2)

        assert [x.response.duplicate for x in heard.enqueue_results] == [True, True]
        assert [x.request_id for x in answer.dispatches] == ["a", "b", "c"]
        assert [x.WhichOneof("event") for x in granted.events] == ["granted", "granted"]

    async def test_a_grant_that_was_not_sent_frees_the_gate(self, tmp_path):
        """Without credits a grant is not told; when the stream breaks its place is free."""
        file = tmp_path / "gate.toml"
        file.write_text(
            '[pools.default]\nmode = "gate"\ngate_max_in_flight = 1\ncost_source = "caller"\n'
        )
        async with running(tmp_path / "data", file=file) as live:
            first = await live.scheduler.Acquire(
                pb.AcquireRequest(request=live.request("first"))
            ).read()
            peer = _gateway(live)
            await peer.say(enqueues=[pb.SessionEnqueue(request=live.request("a"), acquire=True)])
            await peer.hear(until=lambda m: m.enqueue_results)
            await live.complete(first.granted.lease_id)
            assert (await live.state("a")).state == S.REQUEST_STATE_LEASED
            peer.call.cancel()
            await live.until(lambda: not live.engine.state.leases)

            found = await live.state("a")
            assert (found.state, found.reason) == (S.REQUEST_STATE_CANCELLED, "CALLER_GONE")

    async def test_a_redelivery_is_told(self, service):
        """A lost lease puts a request back, and the gateway is told the next worker."""
        peer = _gateway(service)
        item = pb.SessionEnqueue(request=service.request("a"), acquire=True)
        await peer.say(credits=10, enqueues=[item])
        await peer.hear(until=lambda m: m.enqueue_results)
        (dispatch,) = (await service.next("w1")).dispatches
        assert (await peer.event("granted")).granted.worker_id == "w1"
        await service.complete(dispatch.lease_id, GIVEN_BACK)
        assert (await peer.event("queued")).queued.outlook.state == S.REQUEST_STATE_REDELIVERY
        await service.next("w2")

        assert (await peer.event("granted")).granted.worker_id == "w2"

    @pytest.mark.parametrize(
        ("message", "field"),
        [
            ({"credits": -1}, "credits"),
            ({"lease_duration": seconds(0)}, "lease_duration"),
            ({"renewals": [pb.LeaseRenewal(lease_id="")]}, "renewals[0].lease_id"),
            ({"cancels": [pb.CancelRequest()] * 1001}, "cancels"),
        ],
    )
    async def test_a_bad_message_ends_the_stream(self, service, message, field):
        """The stream ends with what is wrong."""
        peer = _gateway(service)
        await peer.say(**message)

        assert list((await refused(peer.call.read())).fields) == [field]


@pytest.mark.parametrize("kind", ["worker", "gateway"])
async def test_a_session_ends_when_the_service_stops(tmp_path, kind):
    """Open sessions are told UNAVAILABLE at once, and nothing of theirs is cancelled."""
    async with running(tmp_path) as live:
        if kind == "worker":
            peer, _ = await _worker(live, credits=1)
            await peer.hear(until=lambda m: m.empty_reason)
        else:
            peer = _gateway(live)
            item = pb.SessionEnqueue(request=live.request("a"), acquire=True)
            await peer.say(credits=1, enqueues=[item])
            await peer.hear(until=lambda m: m.enqueue_results)
        stopping = asyncio.ensure_future(live.service.stop())
        refusal = await refused(peer.call.read())
        async with asyncio.timeout(3):
            await stopping

        assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        if kind == "gateway":
            assert live.engine.state.pools[POOL].waiting == 1


async def test_a_peer_that_does_not_read_is_not_read(tmp_path):
    """A worker that takes nothing holds up only itself, in bounded memory."""
    async with (
        running(tmp_path, session_outbox=4) as live,
        grpc.aio.insecure_channel(
            f"127.0.0.1:{live.port}", options=[("grpc.http2.bdp_probe", 0)]
        ) as channel,
    ):
        for number in range(200):
            await live.enqueue(f"r{number}", payload=b"x" * 60_000)
        slow = scheduler_service_pb2_grpc.SchedulerServiceStub(channel).WorkerSession()
        peer = Peer(slow, pb.WorkerSessionRequest)
        register = pb.RegisterWorkerRequest(worker_id="slow", pools=[POOL])
        await peer.say(register=register, credits=200)
        writes = asyncio.ensure_future(_write_much(peer))
        async with asyncio.timeout(3):
            await live.enqueue("other", "v")
        done, _ = await asyncio.wait({writes}, timeout=1)

        assert not done, "a session that is not read back was read on and on"
        writes.cancel()
        slow.cancel()
        await live.until(lambda: live.app.slots.streams == 0)


async def _write_much(peer):
    renewals = [pb.LeaseRenewal(lease_id="x" * 250)] * 1000
    for _ in range(2000):
        await peer.say(renewals=renewals)
