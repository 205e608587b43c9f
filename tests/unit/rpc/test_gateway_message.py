"""Messages of a gateway: which are not checked by name."""

import pytest
from google.protobuf.duration_pb2 import Duration

from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.limits import BATCH_MAX, CREDITS_MAX
from scheduler_service.rpc.gateway_session import is_usual

_LEFT = 5
_ITEMS = {
    "enqueues": pb.SessionEnqueue(),
    "completions": pb.CompleteRequest(),
    "cancels": pb.CancelRequest(),
}


def test_usual_messages_are_within_every_limit():
    """Up to the largest batch of each kind and the last credit."""
    batches = {name: [item] * BATCH_MAX for name, item in _ITEMS.items()}

    assert is_usual(pb.GatewaySessionRequest(), _LEFT)
    assert is_usual(pb.GatewaySessionRequest(credits=CREDITS_MAX - _LEFT, **batches), _LEFT)


@pytest.mark.parametrize(
    "fields",
    [
        {"credits": CREDITS_MAX - _LEFT + 1},
        {"credits": -1},
        *({name: [item] * (BATCH_MAX + 1)} for name, item in _ITEMS.items()),
        {"renewals": [pb.LeaseRenewal()]},
        {"lease_duration": Duration(seconds=1)},
    ],
)
def test_whatever_can_be_bad_is_unusual(fields):
    """So it is checked by name."""
    assert not is_usual(pb.GatewaySessionRequest(**fields), _LEFT)
