"""Checks of one message of `GatewaySession`.

Nearly all state items and credits only; of these a look at each field says whether all is good.
Any other is checked by name.
"""

from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.limits import BATCH_MAX, CREDITS_MAX
from scheduler_service.rpc.pulling import check_lease_duration
from scheduler_service.rpc.renewing import Renewing
from scheduler_service.rpc.validate import Checks


def is_usual(x: pb.GatewaySessionRequest, credits_left: int) -> bool:
    """Whether a message enqueues, completes, cancels and states credits only, and is good.

    Args:
        x: The message.
        credits_left: Credits of the stream before it.
    """
    return not (
        x.renewals
        or x.HasField("lease_duration")
        or not 0 <= x.credits <= CREDITS_MAX - credits_left
        or max(len(x.enqueues), len(x.completions), len(x.cancels)) > BATCH_MAX
    )


def check_message(x: pb.GatewaySessionRequest, credits_left: int, renewing: Renewing) -> None:
    """Checks a message; its items are checked when they are taken, each by itself.

    Args:
        x: The message.
        credits_left: Credits of the stream before it.
        renewing: Checks its renewals.

    Raises:
        InvalidCommand: Names every bad field.
    """
    checks = Checks()
    checks.credits(x.credits, credits_left)
    checks.entries("enqueues", len(x.enqueues), BATCH_MAX)
    checks.entries("completions", len(x.completions), BATCH_MAX)
    checks.entries("cancels", len(x.cancels), BATCH_MAX)
    renewing.check(x.renewals, checks)
    check_lease_duration(x, checks)
    checks.done()
