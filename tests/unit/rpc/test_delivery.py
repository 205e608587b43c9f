"""Granted requests as messages: each says what is its own, however much they have in common."""

import pytest

from fairsched.v1 import policy_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.core.answers import Dispatches
from scheduler_service.core.decisions import EmptyReason, Rule, Turn
from scheduler_service.core.policy import SECOND_NS, PredictedClass
from scheduler_service.core.request import Lease, Request
from scheduler_service.rpc.delivery import Delivery
from tests.support.engines import running

NOW_NS = 10**18


def _granted(number, *, until, attempt=1, turn=Turn.SELECTED, short=True, bound=False, pool="p"):
    request = Request(
        request_id=f"r{number}",
        user_id=f"u{number % 2}",
        sequence=number,
        cost=10 * number,
        predicted_class=PredictedClass.SHORT if short else PredictedClass.LONG,
        kv_tokens=0,
        labels=(),
        enqueue_ns=0,
        expire_ns=0,
        content_digest=b"",
        payload_digest=b"",
        payload_bytes=0,
        prompt_tokens=0,
        output_cap_tokens=0,
        expected_output_tokens=0,
        caller_bound=bound,
    )
    request.attempts = attempt
    request.rule = Rule.SHORT_FIRST if short else Rule.LONG
    expire_ns = NOW_NS + until * SECOND_NS
    request.lease = Lease(f"l{number}", "w", 0, expire_ns, 0, 100 + number, turn, pool=pool)
    return request


@pytest.mark.parametrize("times", [1, 2])
async def test_every_dispatch_says_what_is_its_own(times):
    """First tries and redeliveries, both classes, bound callers, lease ends that alternate."""
    granted = (
        _granted(1, until=10),
        _granted(2, until=60, attempt=2, turn=Turn.REDELIVERY),
        _granted(3, until=10, short=False),
        _granted(4, until=10),
        _granted(5, until=-2, bound=True),
        _granted(6, until=10, pool="q"),
        _granted(7, until=10, attempt=2, turn=Turn.REDELIVERY),
    )
    async with running() as rig:
        for _ in range(times):
            reply = pb.NextDispatchResponse()
            answer = Dispatches(granted, EmptyReason.NONE)
            delivery = Delivery(rig.engine, answer, reply.dispatches)
            delivery.fill()

    said = [
        (
            x.sequence,
            x.request_id,
            x.user_id,
            x.pool,
            x.lease_id,
            x.lease_duration.seconds,
            x.attempt,
            x.cost,
            policy_pb2.PredictedClass.Name(x.predicted_class)[-5:],
            x.rule,
            x.turn,
            x.caller_bound,
        )
        for x in reply.dispatches
    ]
    short, long, first, again = Rule.SHORT_FIRST, Rule.LONG, Turn.SELECTED, Turn.REDELIVERY
    assert said == [
        (101, "r1", "u1", "p", "l1", 10, 1, 10, "SHORT", short, first, False),
        (102, "r2", "u0", "p", "l2", 60, 2, 20, "SHORT", short, again, False),
        (103, "r3", "u1", "p", "l3", 10, 1, 30, "_LONG", long, first, False),
        (104, "r4", "u0", "p", "l4", 10, 1, 40, "SHORT", short, first, False),
        (105, "r5", "u1", "p", "l5", 0, 1, 50, "SHORT", short, first, True),
        (106, "r6", "u0", "q", "l6", 10, 1, 60, "SHORT", short, first, False),
        (107, "r7", "u1", "p", "l7", 10, 2, 70, "SHORT", short, again, False),
    ]
    assert delivery.lease_ids == [f"l{number}" for number in range(1, 8)]
