"""Sessions with `brief_results`: nothing is said where all went as asked."""

from fairsched.v1 import decision_pb2, policy_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from tests.support.live import FAILED, GIVEN_BACK, POOL, SUCCEEDED
from tests.support.peers import done, open_gateway, open_worker

S = decision_pb2


def _kinds(results):
    return [result.WhichOneof("result") for result in results]


class TestWorkers:
    """Completions over a worker's session."""

    async def test_leases_that_ended_as_asked_get_empty_results(self, service):
        """One result a completion, in order, and nothing in it."""
        for name in "abcd":
            await service.enqueue(name)
        peer, _ = await open_worker(service, credits=4, brief_results=True)
        dispatches = await peer.dispatches(4)
        await peer.say(completions=done(*dispatches[:3]))
        await peer.say(completions=done(dispatches[3]))
        heard = await peer.hear(until=lambda m: len(m.completion_results) == 4)

        assert _kinds(heard.completion_results) == [None] * 4
        assert not service.engine.state.leases

    async def test_whatever_else_is_said_at_its_place(self, service):
        """Failures, what was given back, repeats and errors are told as ever."""
        for name in "abcd":
            await service.enqueue(name)
        peer, _ = await open_worker(service, credits=4, brief_results=True)
        a, b, c, d = await peer.dispatches(4)
        await peer.say(
            completions=[
                *done(a),
                *done(b, outcome=FAILED),
                pb.CompleteRequest(lease_id="unknown", outcome=SUCCEEDED),
                *done(a),
                *done(c, outcome=GIVEN_BACK),
                pb.CompleteRequest(lease_id=d.lease_id),
                *done(d),
            ]
        )
        heard = await peer.hear(until=lambda m: len(m.completion_results) == 7)

        results = heard.completion_results
        said = "response"
        assert _kinds(results) == [None, said, "error", said, said, "error", None]
        assert results[1].response.state == S.REQUEST_STATE_FAILED
        assert results[1].response.request_id == "b"
        assert results[2].error.reason == "LEASE_UNKNOWN"
        assert results[3].response.duplicate
        assert results[4].response.state == S.REQUEST_STATE_REDELIVERY
        assert results[5].error.field_violations[0].field == "completions[5].outcome"

    async def test_a_cancelled_request_is_said_to_be_cancelled(self, service):
        """Its worker says SUCCEEDED, and learns that it was for nothing."""
        await service.enqueue("a")
        peer, _ = await open_worker(service, credits=1, brief_results=True)
        (dispatch,) = await peer.dispatches(1)
        await service.scheduler.Cancel(pb.CancelRequest(pool=POOL, request_id="a"))
        await peer.say(completions=done(dispatch))
        heard = await peer.hear(until=lambda m: m.completion_results)

        assert heard.completion_results[0].response.state == S.REQUEST_STATE_CANCELLED

    async def test_it_begins_with_the_message_that_asks_for_it(self, service):
        """Results before it are told, those after it are brief without being asked again."""
        for name in "abc":
            await service.enqueue(name)
        peer, _ = await open_worker(service, credits=3)
        a, b, c = await peer.dispatches(3)
        await peer.say(completions=done(a))
        before = await peer.hear(until=lambda m: m.completion_results)
        await peer.say(completions=done(b), brief_results=True)
        await peer.say(completions=done(c))
        after = await peer.hear(until=lambda m: len(m.completion_results) == 2)

        assert before.completion_results[0].response.request_id == "a"
        assert _kinds(after.completion_results) == [None, None]


class TestGateways:
    """Enqueues and completions over a gateway's session."""

    async def test_an_enqueue_is_not_told_its_place(self, service):
        """All else is told; whoever waits for a turn is told the place, too."""
        for name in ("first", "second"):
            await service.enqueue(name)
        peer = open_gateway(service)
        items = [
            pb.SessionEnqueue(request=service.request("plain")),
            pb.SessionEnqueue(request=service.request("waits"), acquire=True),
            pb.SessionEnqueue(request=service.request("plain")),
        ]
        await peer.say(enqueues=items, brief_results=True)
        heard = await peer.hear(until=lambda m: len(m.enqueue_results) == 3)

        plain, waits, again = (result.response for result in heard.enqueue_results)
        assert (plain.requests_ahead, plain.HasField("expected_wait")) == (0, False)
        assert plain.sequence > 0
        assert plain.cost > 0
        assert plain.state == S.REQUEST_STATE_WAITING
        assert plain.predicted_class != policy_pb2.PREDICTED_CLASS_UNSPECIFIED
        assert waits.requests_ahead == 3
        assert (again.duplicate, again.sequence) == (True, plain.sequence)

    async def test_leases_that_ended_as_asked_get_empty_results(self, service):
        """As over a worker's session."""
        for name in "ab":
            await service.enqueue(name)
        a, b = (await service.next(max_dispatches=2)).dispatches
        peer = open_gateway(service)
        await peer.say(completions=done(a), brief_results=True)
        await peer.say(completions=[*done(b), *done(a)])
        heard = await peer.hear(until=lambda m: len(m.completion_results) == 3)

        assert _kinds(heard.completion_results) == [None, None, "response"]
        assert heard.completion_results[2].response.duplicate
