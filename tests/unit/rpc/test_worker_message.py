"""Messages of a worker: which are checked by name, and what is found then."""

import pytest
from google.protobuf.duration_pb2 import Duration

from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.limits import BATCH_MAX, CREDITS_MAX
from scheduler_service.core.errors import InvalidCommand
from scheduler_service.rpc.renewing import Renewing
from scheduler_service.rpc.worker_message import check_message, is_usual

_LEFT = 5
_DONE = pb.CompleteRequest(lease_id="l", outcome=1)
_RENEWING = Renewing(None, None)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"drain": True},
        {"credits": CREDITS_MAX - _LEFT},
        {"completions": [_DONE] * BATCH_MAX, "credits": 1},
    ],
)
def test_usual_messages_are_good(fields):
    """What is not checked by name would pass."""
    message = pb.WorkerSessionRequest(**fields)

    assert is_usual(message, _LEFT)
    check_message(message, "session-1", _LEFT, _RENEWING)


@pytest.mark.parametrize(
    ("fields", "bad"),
    [
        ({"credits": CREDITS_MAX - _LEFT + 1}, "credits"),
        ({"credits": -1}, "credits"),
        ({"completions": [_DONE] * (BATCH_MAX + 1)}, "completions"),
        ({"session_id": "session-2"}, "session_id"),
        ({"register": pb.RegisterWorkerRequest()}, "session_id"),
        ({"renewals": [pb.LeaseRenewal()]}, "renewals[0].lease_id"),
        ({"offer": decision_pb2.Offer(free_tokens=-1)}, "offer.free_tokens"),
        ({"lease_duration": Duration(seconds=-1)}, "lease_duration"),
    ],
)
def test_whatever_can_be_bad_is_unusual(fields, bad):
    """So it is checked, and the field is named."""
    message = pb.WorkerSessionRequest(**fields)

    assert not is_usual(message, _LEFT)
    with pytest.raises(InvalidCommand) as found:
        check_message(message, "session-1", _LEFT, _RENEWING)
    assert bad in [field for field, _ in found.value.violations]
