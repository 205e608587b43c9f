"""Writing a grant down: everything that explains it, in one record (SFQ §2.3, QBA §III-A6)."""

from typing import Final, final

from mypy_extensions import mypyc_attr

from scheduler_service.core.charge import charge_for
from scheduler_service.core.decisions import (
    Decision,
    Dispatched,
    Offer,
    Rule,
    Turn,
)
from scheduler_service.core.grant import Grant
from scheduler_service.core.invariants import check_band
from scheduler_service.core.meters import next_lowest
from scheduler_service.core.policy import AdmissionPoint, ClassOrder, PredictedClass
from scheduler_service.core.recording import after_leaving, record_grant
from scheduler_service.core.request import Request
from scheduler_service.core.selection import (
    Choice,
    Frame,
)
from scheduler_service.core.state import Pool, State

_DISPATCHED: Final = Dispatched
_REDELIVERY: Final = Turn.REDELIVERY
_PROMOTION: Final = Rule.PROMOTION
_SHORT: Final = PredictedClass.SHORT
_QBA: Final = ClassOrder.QBA
_AT_DISPATCH: Final = AdmissionPoint.DISPATCH


@final
@mypyc_attr(acyclic=True)
class Ask:
    """One call for work, as it goes on.

    Attributes:
        now_ns: Time of the call.
        worker: Session or name; empty when a gate grants.
        nonce: Start of the lease ids.
        offer: What the worker can take now; falls with every grant.
        lease_duration_ns: Length of the leases; 0 takes the pool's.
        hand_over: Whether leases must be confirmed.
        free_cost: Cost units a gate has room for; None is any.
        stalled_by: Request that stalls the pool, once one does.
        passed_redelivery: Pools in which nothing due again suits: no later grant of the call does
            either, since what the worker has free only falls.
        takes_any: Whether the worker takes any request that asks for no label.
        holdable: Whether any worker could hold requests of a kind: (pool, tokens, class, labels).
    """

    __slots__ = (
        "free_cost",
        "hand_over",
        "holdable",
        "idempotency_key",
        "lease_duration_ns",
        "nonce",
        "now_ns",
        "offer",
        "passed_redelivery",
        "peer",
        "stalled_by",
        "takes_any",
        "worker",
    )

    def __init__(
        self,
        now_ns: int,
        worker: str,
        nonce: str,
        offer: Offer,
        lease_duration_ns: int,
        *,
        hand_over: bool,
        idempotency_key: str = "",
        peer: str = "",
    ) -> None:
        self.now_ns = now_ns
        self.worker = worker
        self.nonce = nonce
        self.offer = offer
        self.takes_any = offer.free_tokens < 0 and offer.accepts_short and offer.accepts_long
        self.lease_duration_ns = lease_duration_ns
        self.hand_over = hand_over
        self.idempotency_key = idempotency_key
        self.peer = peer
        self.free_cost: int | None = None
        self.stalled_by = ""
        self.passed_redelivery: tuple[str, ...] = ()
        self.holdable: dict[tuple[str, int, PredictedClass, tuple[str, ...]], bool] = {}


def grant(
    state: State,
    pool: Pool,
    ask: Ask,
    frame: Frame,
    choice: Choice,
    overtook: tuple[str, ...],
    log: list[Decision],
) -> Request:
    """Grants a chosen request, checks the band, and closes what the grant closes."""
    dispatched = write_grant(state, pool, ask, frame, choice, overtook, log)
    if pool.backlog.charged:
        check_band(pool, dispatched, choice.flow)
    if pool.waiting == 0 or pool.virtual_time >= 2**60:
        after_leaving(state, pool, ask.now_ns, log)
    return choice.request


def write_grant(
    state: State,
    pool: Pool,
    ask: Ask,
    frame: Frame,
    choice: Choice,
    overtook: tuple[str, ...],
    log: list[Decision],
) -> Dispatched:
    """Writes down the dispatch with all that explains it, and takes it."""
    flow, request, rule, turn = choice.flow, choice.request, choice.rule, choice.turn
    backlog = pool.backlog
    meter, charge, time_after, passes = flow.meter, 0, pool.virtual_time, pool.passes
    runner_up, runner_up_meter, first = "", 0, turn is not _REDELIVERY
    if first and (backlog.user_by_user or not backlog.charged):
        passes = 0
    if first and backlog.charged:
        charge = charge_for(request.cost, flow.weight_milli)
        time_after = frame.smallest
        if frame.smallest_user == flow.user_id:
            passes = 0
            if backlog.selectable > 1:
                runner_up_meter, _, runner_up = next_lowest(backlog.parts)
        else:
            passes += not backlog.user_by_user
            runner_up, runner_up_meter = frame.smallest_user, frame.smallest
    count, count_after, debt, debt_after = _quota_of(pool, choice)
    expire_ns, hand_over_ns = _lease_times(pool, ask)
    granted = Grant(
        request,
        flow,
        f"{ask.nonce}-{state.sequence + 1}",
        ask.worker,
        request.attempts + 1,
        expire_ns,
        hand_over_ns,
        turn,
        rule,
        charge,
        time_after,
        meter + charge,
        count_after,
        frame.slack,
        passes,
        overtook,
        ask.idempotency_key,
        promotion_debt_after=debt_after,
    )
    dispatched = _explained(pool, ask, frame, granted, count, runner_up, runner_up_meter, debt=debt)
    record_grant(state, log, dispatched, granted)
    return dispatched


def _explained(
    pool: Pool,
    ask: Ask,
    frame: Frame,
    granted: Grant,
    count: int,
    runner_up: str,
    runner_up_meter: int,
    *,
    debt: bool,
) -> Dispatched:
    """Returns the record of a grant, with all that explains it; counter and debt are as before."""
    flow, request, now_ns = granted.flow, granted.request, ask.now_ns
    return _DISPATCHED(
        now_ns,
        pool.name,
        request.request_id,
        flow.user_id,
        request.sequence,
        granted.lease_id,
        granted.worker,
        ask.nonce,
        granted.attempt,
        granted.lease_expire_ns,
        granted.hand_over_ns,
        granted.turn,
        granted.rule,
        request.cost,
        granted.charge_micros,
        flow.weight_milli,
        request.predicted_class,
        now_ns - request.enqueue_ns,
        frame.threshold_ns,
        request.predicted_class is not _SHORT and request.enqueue_ns < frame.aged_before,
        pool.virtual_time,
        granted.virtual_time_after,
        flow.meter,
        granted.meter_after,
        count,
        granted.short_admission_count_after,
        debt,
        granted.promotion_debt_after,
        granted.slack_micros,
        granted.passes_after,
        0 if granted.turn is _REDELIVERY else pool.backlog.selectable,
        runner_up,
        runner_up_meter,
        granted.overtook,
        pool.policy_digest,
        ask.offer,
        granted.idempotency_key,
        ask.peer,
    )


def _lease_times(pool: Pool, ask: Ask) -> tuple[int, int]:
    """Returns when the lease ends, and until when it must be confirmed; 0 if it need not be."""
    duration = ask.lease_duration_ns or pool.rules.lease_duration_ns
    hand_over = pool.rules.hand_over_ns if ask.hand_over and ask.worker else 0
    needed = 0 < hand_over < duration
    return ask.now_ns + duration, ask.now_ns + hand_over if needed else 0


def _quota_of(pool: Pool, choice: Choice) -> tuple[int, int, bool, bool]:
    """Returns the quota scope's counter and debt, each before and after (QBA §III-A6)."""
    request, rule, turn = choice.request, choice.rule, choice.turn
    holder = choice.flow if pool.backlog.charged else pool
    count, debt, rules = holder.short_admission_count, holder.promotion_debt, pool.rules
    if (
        rules.class_order is not _QBA
        or rules.admission_point is not _AT_DISPATCH
        or turn is _REDELIVERY
    ):
        return count, count, debt, debt
    if rule is _PROMOTION:
        return count, 0, debt, False
    if request.predicted_class is _SHORT and not debt:
        return count, count + 1, debt, count + 1 >= rules.quota_k
    return count, count, debt, debt
