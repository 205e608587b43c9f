"""Why a request still waits: what it waits for now, and what goes before it.

Reads the state and changes nothing but the order heaps of the backlog, which a reader may tidy.
What the state cannot know is who asks at this moment: the caller states the offers of the workers
whose calls wait, if it knows them.
"""

import enum
from collections.abc import Sequence
from typing import Final, NamedTuple

from scheduler_service.core.ahead import Ahead, ahead_of
from scheduler_service.core.backlog import OUT
from scheduler_service.core.charge import slack_for
from scheduler_service.core.decisions import Offer, RequestState
from scheduler_service.core.phrases import cost_text, count_text, time_text
from scheduler_service.core.policy import ClassOrder, Placement, PoolMode, PredictedClass
from scheduler_service.core.request import Request
from scheduler_service.core.selection import could_hold, fits, frame_of, select
from scheduler_service.core.state import Pool, State

_LONG: Final = PredictedClass.LONG


class WaitCause(enum.IntEnum):
    """What a waiting request waits for."""

    TURN = 1
    WORKER = 2
    USER_CAP = 3
    USER_PAUSED = 4
    POOL_PAUSED = 5
    FIT = 6
    STALLED = 7
    AT_CAPACITY = 8
    RETRY_BACKOFF = 9
    UNPLACEABLE = 10


class Outlook(NamedTuple):
    """Where a waiting request stands.

    Attributes:
        cause: What it waits for now.
        ahead: What goes before it, once nothing but the order holds it back.
        meter: S of its user, micro cost units.
        virtual_time: v of the pool.
        smallest_meter: Smallest S over the selectable users; v without any.
        slack: D in force, micro cost units; -1 when unbounded.
        threshold_ns: theta; -1 while the sample is too small.
        aged: Whether its wait exceeds theta.
        short_admission_count: Counter of the scope that applies to it.
        promotion_debt: Whether that scope owes a promotion.
        blocked_by: Request it waits for, with STALLED, FIT and TURN; may be empty.
        description: All of this in one sentence or two.
    """

    cause: WaitCause
    ahead: Ahead
    meter: int
    virtual_time: int
    smallest_meter: int
    slack: int
    threshold_ns: int
    aged: bool
    short_admission_count: int
    promotion_debt: bool
    blocked_by: str
    description: str


def why_waiting(
    state: State,
    pool: Pool,
    request: Request,
    now_ns: int,
    asking: Sequence[Offer] | None = None,
) -> Outlook:
    """Returns why a request is not dispatched.

    Args:
        state: Everything.
        pool: Pool of the request.
        request: It is WAITING or due for REDELIVERY.
        now_ns: Time of the question.
        asking: What the workers whose calls wait right now could take; None if that is not known.

    Complexity:
        About a millisecond at most (`ahead.BUDGET`), whatever the backlog.
    """
    flow = pool.flows[request.user_id]
    holder = flow if pool.backlog.charged else pool
    threshold_ns = -1
    if len(pool.sample) >= pool.policy.aging_min_sample:
        threshold_ns = pool.sample.quantile(pool.policy.aging_quantile_bp)
    index = pool.backlog.index
    slack = slack_for(pool.rules, pool.recent_costs.largest) if pool.backlog.charged else -1
    cause, blocked_by = _cause(state, pool, request, now_ns, asking)
    outlook = Outlook(
        cause,
        ahead_of(pool, request),
        flow.meter,
        pool.virtual_time,
        index[0][0] if index else pool.virtual_time,
        slack,
        threshold_ns,
        0 <= threshold_ns < now_ns - request.enqueue_ns,
        holder.short_admission_count,
        holder.promotion_debt,
        blocked_by,
        "",
    )
    return outlook._replace(description=_describe(pool, request, outlook, now_ns))


def _cause(
    state: State,
    pool: Pool,
    request: Request,
    now_ns: int,
    asking: Sequence[Offer] | None,
) -> tuple[WaitCause, str]:
    flow = pool.flows[request.user_id]
    if pool.paused:
        return WaitCause.POOL_PAUSED, ""
    if flow.paused:
        return WaitCause.USER_PAUSED, ""
    pulled = pool.policy.mode is PoolMode.PULL
    if pulled and _nobody_could_hold(state, pool, request):
        return WaitCause.UNPLACEABLE, ""
    if request.state is RequestState.REDELIVERY:
        return _cause_of_redelivery(state, request, now_ns, asking), ""
    if flow.place == OUT:
        return WaitCause.USER_CAP, ""
    if request.request_id in pool.reserved_for:
        return WaitCause.FIT, ""
    first = select(pool, frame_of(pool, now_ns)).request
    if not pulled:
        is_next = first is request and not pool.redelivery
        return (WaitCause.AT_CAPACITY if is_next else WaitCause.TURN), ""
    if first is request:
        refused = asking and not any(fits(request, offer) for offer in asking)
        return (WaitCause.FIT if refused else WaitCause.WORKER), ""
    if asking and not any(fits(first, offer) for offer in asking):
        if pool.policy.placement is Placement.STALL:
            return WaitCause.STALLED, first.request_id
        if not any(fits(request, offer) for offer in asking):
            return WaitCause.FIT, ""
    return WaitCause.TURN, ""


def _cause_of_redelivery(
    state: State, request: Request, now_ns: int, asking: Sequence[Offer] | None
) -> WaitCause:
    spared = {worker for worker, until_ns in request.givers if now_ns < until_ns}
    if spared:
        others = any(
            could_hold(request, worker.offer)
            for worker in state.workers.values()
            if worker.worker not in spared and not worker.draining
        )
        if not others:
            return WaitCause.RETRY_BACKOFF
    if asking and not any(fits(request, offer) for offer in asking):
        return WaitCause.FIT
    return WaitCause.WORKER


def _nobody_could_hold(state: State, pool: Pool, request: Request) -> bool:
    """Whether there are live workers for the pool, and none that could ever hold the request."""
    serving = [
        worker.offer
        for worker in state.workers.values()
        if pool.name in worker.pools and not worker.draining
    ]
    return bool(serving) and not any(could_hold(request, offer) for offer in serving)


# -- in words ---------------------------------------------------------------------------------


def _describe(pool: Pool, request: Request, outlook: Outlook, now_ns: int) -> str:
    waited = time_text(now_ns - request.enqueue_ns)
    lead = f"It has waited {waited} and waits for {_what(request, outlook)}."
    if outlook.cause is WaitCause.TURN:
        return " ".join([lead, *_order(pool, request, outlook)])
    return lead


def _what(request: Request, outlook: Outlook) -> str:
    return {
        WaitCause.TURN: f"its turn: {_before(outlook)}",
        WaitCause.WORKER: "a worker that asks: it is next"
        + (", since its lease was lost" if request.state is RequestState.REDELIVERY else ""),
        WaitCause.USER_CAP: "its user, which runs as many requests as its cap allows",
        WaitCause.USER_PAUSED: "its user's pause to end",
        WaitCause.POOL_PAUSED: "the pool's pause to end",
        WaitCause.FIT: (
            "room: no asking worker can take it now"
            f" (it needs {request.kv_tokens:,} tokens; others passed it "
            f"{count_text(request.overtakes, 'time')})"
        ),
        WaitCause.STALLED: f"request {outlook.blocked_by!r}, which waits for room and blocks all",
        WaitCause.AT_CAPACITY: "the gate, which is at its capacity: it is next",
        WaitCause.RETRY_BACKOFF: "another worker, or the one that gave it back after its back-off",
        WaitCause.UNPLACEABLE: "a worker that could hold it: no live one ever could",
    }[outlook.cause]


def _before(outlook: Outlook) -> str:
    requests, users = outlook.ahead
    if requests == 0:
        return "it comes right after what is being decided"
    return (
        f"about {count_text(requests, 'request')} of {count_text(users, 'user')} "
        f"{'goes' if requests == 1 else 'go'} first"
    )


def _order(pool: Pool, request: Request, outlook: Outlook) -> list[str]:
    sentences = []
    if outlook.slack >= 0:
        edge = outlook.smallest_meter + outlook.slack
        place = "within" if outlook.meter <= edge else "past"
        sentences.append(
            f"Its user's meter is {cost_text(outlook.meter)}, {place} the window that begins at "
            f"the smallest, {cost_text(outlook.smallest_meter)}, and ends at {cost_text(edge)}."
        )
    if request.predicted_class is not _LONG or pool.policy.class_order is not ClassOrder.QBA:
        return sentences
    k = pool.policy.quota_k
    owed = (
        "a promotion is owed"
        if outlook.promotion_debt
        else (f"{outlook.short_admission_count} of {k} short admissions have earned one")
    )
    if outlook.threshold_ns < 0:
        sentences.append("It is predicted long; too few waits are known for it to age.")
    elif outlook.aged:
        sentences.append(f"It is predicted long and aged, so it may be promoted: {owed}.")
    else:
        theta = time_text(outlook.threshold_ns)
        sentences.append(f"It is predicted long and may be promoted from {theta} on: {owed}.")
    return sentences
