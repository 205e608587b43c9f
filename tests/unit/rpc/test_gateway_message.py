"""Messages of a gateway: which are checked by name, and what is found then."""

import pytest
from google.protobuf.duration_pb2 import Duration

from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.limits import BATCH_MAX, CREDITS_MAX
from scheduler_service.core.errors import InvalidCommand
from scheduler_service.rpc.gateway_message import check_message, is_usual
from scheduler_service.rpc.renewing import Renewing

_LEFT = 5
_ITEMS = {
    "enqueues": pb.SessionEnqueue(),
    "completions": pb.CompleteRequest(),
    "cancels": pb.CancelRequest(),
}
_RENEWING = Renewing(None, None)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"credits": CREDITS_MAX - _LEFT},
        {name: [item] * BATCH_MAX for name, item in _ITEMS.items()},
    ],
)
def test_usual_messages_are_good(fields):
    """What is not checked by name would pass."""
    message = pb.GatewaySessionRequest(**fields)

    assert is_usual(message, _LEFT)
    check_message(message, _LEFT, _RENEWING)


@pytest.mark.parametrize(
    ("fields", "bad"),
    [
        ({"credits": CREDITS_MAX - _LEFT + 1}, "credits"),
        ({"credits": -1}, "credits"),
        *(({name: [item] * (BATCH_MAX + 1)}, name) for name, item in _ITEMS.items()),
        ({"renewals": [pb.LeaseRenewal()]}, "renewals[0].lease_id"),
        ({"lease_duration": Duration(seconds=-1)}, "lease_duration"),
    ],
)
def test_whatever_can_be_bad_is_unusual(fields, bad):
    """So it is checked, and the field is named."""
    message = pb.GatewaySessionRequest(**fields)

    assert not is_usual(message, _LEFT)
    with pytest.raises(InvalidCommand) as found:
        check_message(message, _LEFT, _RENEWING)
    assert bad in [field for field, _ in found.value.violations]
