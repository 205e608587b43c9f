"""What a dispatch changes, as plain values.

Whoever decides it has them at hand; in replay they are read from its record.  The fold takes them
either way, so it need not look for them in a record that was made of them a moment ago.
"""

from typing import Final, final

from mypy_extensions import mypyc_attr

from scheduler_service.core.decisions import Dispatched, Rule, Turn
from scheduler_service.core.request import Request
from scheduler_service.core.state import Flow, Pool

_REDELIVERY: Final = Turn.REDELIVERY


@final
@mypyc_attr(acyclic=True)
class Grant:
    """A dispatch that is being taken.

    The attributes are those of its record (`Dispatched`), but for the request and its user, which
    are there themselves.
    """

    __slots__ = (
        "attempt",
        "charge_micros",
        "flow",
        "hand_over_ns",
        "idempotency_key",
        "lease_expire_ns",
        "lease_id",
        "meter_after",
        "overtook",
        "passes_after",
        "promotion_debt_after",
        "request",
        "rule",
        "short_admission_count_after",
        "slack_micros",
        "turn",
        "virtual_time_after",
        "worker",
    )

    def __init__(
        self,
        request: Request,
        flow: Flow,
        lease_id: str,
        worker: str,
        attempt: int,
        lease_expire_ns: int,
        hand_over_ns: int,
        turn: Turn,
        rule: Rule,
        charge_micros: int,
        virtual_time_after: int,
        meter_after: int,
        short_admission_count_after: int,
        slack_micros: int,
        passes_after: int,
        overtook: tuple[str, ...],
        idempotency_key: str,
        *,
        promotion_debt_after: bool,
    ) -> None:
        self.request = request
        self.flow = flow
        self.lease_id = lease_id
        self.worker = worker
        self.attempt = attempt
        self.lease_expire_ns = lease_expire_ns
        self.hand_over_ns = hand_over_ns
        self.turn = turn
        self.rule = rule
        self.charge_micros = charge_micros
        self.virtual_time_after = virtual_time_after
        self.meter_after = meter_after
        self.short_admission_count_after = short_admission_count_after
        self.slack_micros = slack_micros
        self.passes_after = passes_after
        self.overtook = overtook
        self.idempotency_key = idempotency_key
        self.promotion_debt_after = promotion_debt_after


def grant_of(pool: Pool, x: Dispatched) -> Grant:
    """Returns the grant that a record states."""
    request = pool.requests[x.request_id]
    flow = pool.flows[request.user_id]
    turn = x.turn
    if turn is not _REDELIVERY and pool.backlog.charged:
        assert flow.meter == x.meter_before
    return Grant(
        request,
        flow,
        x.lease_id,
        x.worker,
        x.attempt,
        x.lease_expire_ns,
        x.hand_over_ns,
        turn,
        x.rule,
        x.charge_micros,
        x.virtual_time_after,
        x.meter_after,
        x.short_admission_count_after,
        x.slack_micros,
        x.passes_after,
        x.overtook,
        x.idempotency_key,
        promotion_debt_after=x.promotion_debt_after,
    )
