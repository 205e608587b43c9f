"""GatewaySession: enqueue, wait for turns and complete over one stream."""

import pytest

from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from tests.support.live import GIVEN_BACK, POOL, SUCCEEDED, refused, running, seconds
from tests.support.peers import open_gateway

S = decision_pb2


class TestGatewaySession:
    """Enqueue, wait for turns and complete over one stream."""

    async def test_results_come_in_order(self, service):
        """Each enqueue, cancel, completion and renewal has its result, bad ones too."""
        peer = open_gateway(service)
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
        peer = open_gateway(service)
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
            peer = open_gateway(live)
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
        peer = open_gateway(service)
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

    async def test_a_worker_that_is_done_at_once_is_named_all_the_same(self, service):
        """The grant is told before the end, however little time lies between them."""
        peer = open_gateway(service)
        await peer.say(
            credits=10, enqueues=[pb.SessionEnqueue(request=service.request("a"), acquire=True)]
        )
        await peer.hear(until=lambda m: m.enqueue_results)
        lease_id = service.run_at_once()
        heard = await peer.hear(until=lambda m: len(m.events) == 2)

        assert [x.WhichOneof("event") for x in heard.events] == ["granted", "ended"]
        assert heard.events[0].granted.lease_id == lease_id
        assert heard.events[1].ended.state == S.REQUEST_STATE_SUCCEEDED

    async def test_a_stream_that_was_replaced_before_it_broke_keeps_its_places(self, service):
        """What another stream has asked for under the same id waits on, in its old place."""
        old, new = open_gateway(service), open_gateway(service)
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
            peer = open_gateway(live)
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
        peer = open_gateway(service)
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
        peer = open_gateway(service)
        await peer.say(**message)

        assert list((await refused(peer.call.read())).fields) == [field]
