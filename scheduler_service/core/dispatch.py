"""Granting turns: redeliveries, reservations, then the selection (SFQ §2.3, QBA §III-A).

A call for many requests is that many selections: each one sees what the one before it changed.
"""

from typing import Final

from scheduler_service.core.backlog import OUT
from scheduler_service.core.decisions import (
    Decision,
    EmptyReason,
    RejoinCause,
    Rejoined,
    RequestState,
    Reserved,
    Rule,
    Turn,
)
from scheduler_service.core.granting import Ask, grant, write_grant
from scheduler_service.core.lifecycle import end
from scheduler_service.core.policy import ClassOrder, Placement, PredictedClass
from scheduler_service.core.recording import record
from scheduler_service.core.request import Request
from scheduler_service.core.selection import (
    Choice,
    Frame,
    candidates,
    could_hold,
    farthest,
    fits,
    frame_of,
    select,
)
from scheduler_service.core.state import Flow, Pool, State

_SHORT: Final = PredictedClass.SHORT
_LOOKS_MAX: Final = 64
"""Looks of one call that may clear unplaceable requests out of the way."""

_NO_OVERTAKING: Final[tuple[str, ...]] = ()


def grant_next(state: State, pool: Pool, ask: Ask, log: list[Decision]) -> Request | EmptyReason:
    """Grants the next request of `pool` to the asking worker, or says why there is none.

    What nobody can serve is cleared out of the way first, so many looks a call and no more: the
    rest is cleared by the next one.
    """
    for _ in range(_LOOKS_MAX):
        found = _grant_once(state, pool, ask, log)
        if found is not None:
            return found
    return EmptyReason.HELD_BY_FIT


def _grant_once(
    state: State, pool: Pool, ask: Ask, log: list[Decision]
) -> Request | EmptyReason | None:
    """Grants the next request, or says why there is none; None when a look cleared the way."""
    if pool.paused:
        return EmptyReason.PAUSED
    if pool.redelivery and pool.name not in ask.passed_redelivery:
        due_again = _grant_redelivery(state, pool, ask, log)
        if due_again is not None:
            return due_again
        ask.passed_redelivery = (*ask.passed_redelivery, pool.name)
    if pool.reservations:
        request_id = pool.reservations.get(ask.worker)
        if request_id is not None:
            kept = _grant_reserved(state, pool, ask, pool.requests[request_id], log)
            if kept is not None:
                return kept
    if pool.backlog.selectable == 0:
        return _why_nothing(pool)
    frame = frame_of(pool, ask.now_ns)
    choice = select(pool, frame)
    if ask.free_cost is not None and choice.request.cost > ask.free_cost:
        return EmptyReason.AT_CAPACITY
    if _suits(choice.request, ask):
        return grant(state, pool, ask, frame, choice, _NO_OVERTAKING, log)
    return _grant_past_misfits(state, pool, ask, frame, log)


def _why_nothing(pool: Pool) -> EmptyReason:
    if pool.waiting == 0:
        return EmptyReason.HELD_BY_FIT if pool.redelivery else EmptyReason.EMPTY
    if any(flow.waiting and not flow.paused for flow in pool.flows.values()):
        return EmptyReason.HELD_BY_CAP
    return EmptyReason.PAUSED


def _grant_redelivery(state: State, pool: Pool, ask: Ask, log: list[Decision]) -> Request | None:
    """Grants the oldest request due again that this worker can take; it is not charged."""
    for _, request_id in pool.redelivery:
        request = pool.requests[request_id]
        flow = pool.flows[request.user_id]
        if flow.paused or not _suits(request, ask) or _is_spared(request, ask):
            continue
        choice = Choice(flow, request, request.rule, Turn.REDELIVERY)
        write_grant(state, pool, ask, _NO_FRAME, choice, _NO_OVERTAKING, log)
        return request
    return None


def _suits(request: Request, ask: Ask) -> bool:
    """Whether the asker can take the request; a gate places nothing, so everything suits it."""
    if ask.takes_any and not request.labels:
        return True
    return not ask.worker or fits(request, ask.offer)


def _is_spared(request: Request, ask: Ask) -> bool:
    """Whether the asker gave the request back and is not to be offered it yet."""
    return any(
        worker == ask.worker and ask.now_ns < until_ns for worker, until_ns in request.givers
    )


_NO_FRAME: Final = Frame(0, "", -1, -1, -1)


def _grant_reserved(
    state: State, pool: Pool, ask: Ask, request: Request, log: list[Decision]
) -> Request | EmptyReason | None:
    """Grants the request this worker is kept for, or nothing else while it is that one's turn.

    Returns None when the worker goes on to the usual selection: the request's user is held back, or
    is further ahead than overtaking may reach, since other requests of it can have been dispatched
    after the worker was reserved. Keeping the worker empty then could stop the pool for good: with
    nobody else dispatched virtual time stands still, and the user stays ahead.
    """
    flow = pool.flows[request.user_id]
    if flow.place == OUT:
        return None
    frame = frame_of(pool, ask.now_ns)
    if pool.backlog.charged and flow.meter > farthest(pool, frame):
        return None
    if not _suits(request, ask):
        return EmptyReason.RESERVED
    rule = Rule.SHORT_FIRST if request.predicted_class is _SHORT else Rule.LONG
    if pool.policy.class_order is ClassOrder.FCFS:
        rule = Rule.FIRST_COME
    choice = Choice(flow, request, rule, Turn.RESERVED)
    return grant(state, pool, ask, frame, choice, _NO_OVERTAKING, log)


def _grant_past_misfits(
    state: State, pool: Pool, ask: Ask, frame: Frame, log: list[Decision]
) -> Request | EmptyReason | None:
    """Looks past candidates that do not fit, as far as the placement rule allows."""
    policy = pool.policy
    overtook: list[str] = []
    unplaceable: list[Request] = []
    found: Choice | None = None
    stalled_by = ""
    for examined, choice in enumerate(candidates(pool, frame)):
        if examined >= policy.overtake_scan:
            break
        request = choice.request
        if _suits(request, ask):
            found = choice
            break
        holdable = _any_could_hold(state, pool, request, ask)
        if not holdable and ask.now_ns - request.enqueue_ns >= policy.unplaceable_wait_ns:
            unplaceable.append(request)
            continue
        if holdable and policy.placement is Placement.STALL:
            stalled_by = request.request_id
            break
        if _is_due_a_worker(pool, request, ask):
            reserved = Reserved(
                ask.now_ns, pool.name, request.request_id, ask.worker, request.user_id
            )
            record(state, log, reserved)
            return EmptyReason.RESERVED
        overtook.append(request.request_id)
    if unplaceable:
        for request in unplaceable:
            _end_unplaceable(state, pool, request, ask.now_ns, log)
        return None
    if found is not None:
        return grant(state, pool, ask, frame, found, tuple(overtook), log)
    if stalled_by:
        ask.stalled_by = stalled_by
        return EmptyReason.STALLED_BY
    if pool.backlog.charged and _pass_unplaceable(state, pool, ask, log):
        return None
    return EmptyReason.HELD_BY_FIT


def _pass_unplaceable(state: State, pool: Pool, ask: Ask, log: list[Decision]) -> bool:
    """Moves users up that nobody alive can serve, so that they do not stall the pool.

    Overtaking reaches only so far past the smallest meter.  If those who stand there have nothing
    that any live worker could hold, and without them somebody could be served now, they count as
    held back: they rejoin beside the first user that a live worker can serve.  They keep their
    requests, and their place among equals.

    Returns:
        Whether anybody was moved; then the next selection finds a request that suits.
    """
    backlog = pool.backlog
    passed: list[Flow] = []
    reached: int | None = None
    for meter, _, user_id in backlog.index:
        flow = pool.flows[user_id]
        heads = (backlog.short_of(flow), backlog.long_of(flow))
        if any(head is not None and _any_could_hold(state, pool, head, ask) for head in heads):
            reached = meter
            break
        passed.append(flow)
    if reached is None:
        return False
    moved = [(flow, flow.meter) for flow in passed if flow.meter < reached]
    if not moved:
        return False
    _move(pool, [(flow, reached) for flow, _ in moved])
    served = _would_grant(state, pool, ask)
    _move(pool, moved)
    if served:
        cause = RejoinCause.UNPLACEABLE
        for flow, before in moved:
            rejoined = Rejoined(ask.now_ns, pool.name, flow.user_id, cause, before, reached)
            record(state, log, rejoined)
    return served


def _move(pool: Pool, meters: list[tuple[Flow, int]]) -> None:
    """Sets meters for a look at what would follow; the caller sets them back in the same step."""
    for flow, meter in meters:
        flow.meter = meter
        pool.backlog.update(flow, _SHORT)


def _would_grant(state: State, pool: Pool, ask: Ask) -> bool:
    """Whether a selection among the users as they stand would end with a grant."""
    policy = pool.policy
    for examined, choice in enumerate(candidates(pool, frame_of(pool, ask.now_ns))):
        if examined >= policy.overtake_scan:
            return False
        if _suits(choice.request, ask):
            return True
        if policy.placement is Placement.STALL and _any_could_hold(
            state, pool, choice.request, ask
        ):
            return False
        if _is_due_a_worker(pool, choice.request, ask):
            return False
    return False


def _is_due_a_worker(pool: Pool, request: Request, ask: Ask) -> bool:
    """Whether the asker is to be kept for a request that was overtaken too often."""
    return (
        request.overtakes >= pool.policy.max_overtakes
        and ask.worker != ""
        and ask.worker not in pool.reservations
        and request.request_id not in pool.reserved_for
        and could_hold(request, ask.offer)
    )


def _end_unplaceable(
    state: State, pool: Pool, request: Request, now_ns: int, log: list[Decision]
) -> None:
    end(state, pool, request, RequestState.UNPLACEABLE, "NO_WORKER_CAN_HOLD", now_ns, log)


def _any_could_hold(state: State, pool: Pool, request: Request, ask: Ask) -> bool:
    """Whether any live worker could hold the request, were it idle; looked up once a call."""
    kind = (pool.name, request.kv_tokens, request.predicted_class, request.labels)
    known = ask.holdable.get(kind)
    if known is None:
        known = ask.holdable[kind] = any(
            pool.name in worker.pools and not worker.draining and could_hold(request, worker.offer)
            for worker in state.workers.values()
        )
    return known
