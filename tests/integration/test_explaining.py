"""ExplainDecision over real gRPC: why a request went when it did, and why one still waits."""

import asyncio

import grpc
import pytest

from fairsched.v1 import audit_service_pb2 as pb
from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as scheduler_pb
from scheduler_service.core import commands as c
from tests.support.decided import list_all, pause_often
from tests.support.live import POOL, refused

ACCEPTED = decision_pb2.DECISION_KIND_ACCEPTED
DISPATCHED = decision_pb2.DECISION_KIND_DISPATCHED
LEASE_ENDED = decision_pb2.DECISION_KIND_LEASE_ENDED
COMPLETED = decision_pb2.DECISION_KIND_COMPLETED


def _explain(live, request_id=None, sequence=0):
    if request_id is None:
        return live.audit.ExplainDecision(pb.ExplainDecisionRequest(sequence=sequence))
    key = pb.RequestKey(pool=POOL, request_id=request_id)
    return live.audit.ExplainDecision(pb.ExplainDecisionRequest(request=key))


async def test_explain_a_dispatch(worked):
    """A dispatch is explained by its sequence and by its request, alike."""
    live = await worked()
    dispatch = (await list_all(live, filter=pb.DecisionFilter(kinds=[DISPATCHED])))[7]

    by_sequence = await _explain(live, sequence=dispatch.sequence)
    by_request = await _explain(live, dispatch.request_id)

    assert by_sequence == by_request
    assert by_sequence.decision == dispatch
    assert f"Request '{dispatch.request_id}' of user '{dispatch.user_id}'" in by_sequence.text
    assert {"turn", "rule", "meter_before_micros"} <= {f.name for f in by_sequence.facts}
    assert list(by_sequence.related_sequences) == [dispatch.dispatched.request_sequence]


@pytest.mark.parametrize("known", [True, False], ids=["alive", "forgotten"])
async def test_explain_names_the_worker_of_a_session(service, known):
    """A session is called by its worker's own id, also when only the log still knows it."""
    sessions = []
    await service.enqueue("r")
    for name in ("gpu-0", "gpu-1"):
        register = scheduler_pb.RegisterWorkerRequest(worker_id=name, pools=[POOL])
        sessions.append((await service.scheduler.RegisterWorker(register)).session_id)
        (dispatch,) = (await service.next(session_id=sessions[-1])).dispatches
        given_back = name == "gpu-0"
        outcome = "OUTCOME_GIVEN_BACK" if given_back else "OUTCOME_SUCCEEDED"
        await service.complete(dispatch.lease_id, decision_pb2.Outcome.Value(outcome))
    pause_often(service.engine, "u", 1500)
    if not known:
        for session in sessions:
            del service.engine.state.workers[session]
    reply = await _explain(service, "r")
    ended = await list_all(service, filter=pb.DecisionFilter(kinds=[LEASE_ENDED]))
    lost = await _explain(service, sequence=ended[0].sequence)
    facts = {fact.name: fact.value for fact in reply.facts}

    assert f"went to worker 'gpu-1' ({sessions[1]}), " in reply.text
    assert (facts["worker_id"], facts["worker"]) == ("gpu-1", sessions[1])
    assert f"lost its lease of worker 'gpu-0' ({sessions[0]})" in lost.text
    assert reply.decision.dispatched.worker == sessions[1]


async def test_explain_what_waits(worked):
    """A waiting request is told what goes first, and what holds it back once something does."""
    live = await worked()
    waiting = next(iter(live.engine.state.pools[POOL].requests.values()))
    while waiting.state != decision_pb2.REQUEST_STATE_WAITING:
        waiting = waiting.newer or next(
            r for r in live.engine.state.pools[POOL].requests.values() if r.lease is None
        )
    turn = await _explain(live, waiting.request_id)
    now_ns = live.engine.now_ns()
    live.engine.apply(c.Pause(now_ns=now_ns, pool=POOL))
    await asyncio.sleep(0.02)
    paused = await _explain(live, waiting.request_id)

    assert not turn.HasField("decision")
    assert "still waits" in turn.text
    assert "the pool's pause to end" in paused.text
    assert "it was held back for" in paused.text
    assert list(turn.related_sequences) == [waiting.sequence]


async def test_explain_what_is_over(worked):
    """An ended request is explained by its dispatch and its end, from the log."""
    live = await worked()
    over = (await list_all(live, filter=pb.DecisionFilter(kinds=[COMPLETED])))[0]
    reply = await _explain(live, over.request_id)
    history = await list_all(live, filter=pb.DecisionFilter(request_ids=[over.request_id]))

    assert reply.decision.kind == DISPATCHED
    assert reply.text.endswith("Its charge stays as it was: nothing is settled.")
    assert {reply.decision.sequence, *reply.related_sequences} == {x.sequence for x in history}


async def test_explain_what_was_never_dispatched(service):
    """A cancelled request is explained by its end."""
    await service.enqueue("gone")
    now_ns = service.engine.now_ns()
    service.engine.apply(c.Cancel(now_ns=now_ns, pool=POOL, request_id="gone"))
    reply = await _explain(service, "gone")

    assert reply.decision.kind == decision_pb2.DECISION_KIND_ENDED
    assert "was cancelled (CALLER)" in reply.text


@pytest.mark.parametrize(
    ("request_", "code", "reason"),
    [
        ({"sequence": 10**6}, grpc.StatusCode.NOT_FOUND, "SEQUENCE_UNKNOWN"),
        ({"sequence": -1}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELDS"),
        ({}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELDS"),
        (
            {"request": pb.RequestKey(pool=POOL, request_id="x")},
            grpc.StatusCode.NOT_FOUND,
            "REQUEST_UNKNOWN",
        ),
        (
            {"request": pb.RequestKey(pool="x", request_id="x")},
            grpc.StatusCode.NOT_FOUND,
            "POOL_UNKNOWN",
        ),
        (
            {"request": pb.RequestKey()},
            grpc.StatusCode.INVALID_ARGUMENT,
            "INVALID_FIELDS",
        ),
    ],
    ids=str,
)
async def test_nothing_to_explain(service, request_, code, reason):
    """What is not there is refused with its reason."""
    refusal = await refused(service.audit.ExplainDecision(pb.ExplainDecisionRequest(**request_)))

    assert (refusal.code, refusal.reason) == (code, reason)
