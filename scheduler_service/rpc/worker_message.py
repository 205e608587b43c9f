"""Checks of one message of `WorkerSession`.

Nearly all state completions and credits only; of these a look at each field says whether all is
good.  Any other is checked by name.
"""

from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.limits import BATCH_MAX, CREDITS_MAX
from scheduler_service.rpc.offers import check_offer
from scheduler_service.rpc.pulling import check_lease_duration
from scheduler_service.rpc.renewing import Renewing
from scheduler_service.rpc.validate import Checks

HELD_LEASES_MAX = 10_000
"""Renewals in the first message of a resumed session."""


def is_usual(x: pb.WorkerSessionRequest, credits_left: int) -> bool:
    """Whether a later message states completions, credits and `drain` only, and is good.

    Args:
        x: The message.
        credits_left: Credits of the stream before it.
    """
    return not (
        x.session_id
        or x.renewals
        or x.HasField("offer")
        or x.HasField("lease_duration")
        or x.HasField("register")
        or not 0 <= x.credits <= CREDITS_MAX - credits_left
        or len(x.completions) > BATCH_MAX
    )


def check_message(
    x: pb.WorkerSessionRequest, session_id: str, credits_left: int, renewing: Renewing
) -> None:
    """Checks a message; its completions are checked when they are taken, each by itself.

    Args:
        x: The message.
        session_id: The session of the stream; empty for the first message.
        credits_left: Credits of the stream before it.
        renewing: Checks its renewals.

    Raises:
        InvalidCommand: Names every bad field.
    """
    checks, first = Checks(), not session_id
    if first and x.HasField("register") == bool(x.session_id):
        checks.bad("session_id", "or register is required in the first message, and not both")
    if not first and (x.HasField("register") or x.session_id not in {"", session_id}):
        checks.bad("session_id", "cannot change; open another stream")
    checks.id("session_id", x.session_id, required=False)
    checks.credits(x.credits, credits_left)
    if x.HasField("offer"):
        check_offer(x.offer, checks)
    checks.entries("completions", len(x.completions), BATCH_MAX)
    renewing.check(x.renewals, checks, HELD_LEASES_MAX if first else BATCH_MAX)
    check_lease_duration(x, checks)
    checks.done()
