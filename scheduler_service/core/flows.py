"""Moves of requests and users between the tables of a pool.

Every change of a queue, of who is selectable and of who is remembered goes through here, so that
the counts kept beside the tables cannot drift from them.
"""

from heapq import heappop, heappush
from typing import Any, Final

from scheduler_service.core.backlog import OUT
from scheduler_service.core.decisions import Completed, RequestState
from scheduler_service.core.gone import Gone
from scheduler_service.core.held import HeldIndex
from scheduler_service.core.policy import PredictedClass
from scheduler_service.core.request import Past, Request, sequence_of
from scheduler_service.core.state import Flow, Pool, State
from scheduler_service.core.sweeping import sweep

_SHORT: Final = PredictedClass.SHORT
_SWEPT_ABOVE: Final = 64

FORGOTTEN_AT_ONCE: Final = 8
"""Ended ids forgotten with one record: many that fall due together would stop everybody."""


def flow_of(pool: Pool, user_id: str) -> Flow:
    """Returns the user's flow, made at `v` with the user's settings if it has none."""
    flow = pool.flows.get(user_id)
    if flow is None:
        settings = pool.settings.get(user_id)
        flow = Flow(
            user_id=user_id,
            meter=pool.virtual_time,
            weight_milli=weight_of(pool, user_id),
            max_in_flight=cap_of(pool, user_id),
            paused=settings is not None and settings.paused,
        )
        pool.flows[user_id] = flow
    return flow


def taken(state: State, pool: Pool, x: Completed) -> Request:
    """Returns the request of the completion being taken; it is looked up unless it is at hand."""
    request, state.at_hand = state.at_hand, None
    return pool.requests[x.request_id] if request is None else request


def quota_holder(pool: Pool, flow: Flow, request: Request) -> Flow | Pool:
    """Returns whose counter a request moves: for a promotion, the one it was made on."""
    if request.promoted:
        return pool if request.promoted_by_pool else flow
    return flow if pool.backlog.charged else pool


def weight_of(pool: Pool, user_id: str) -> int:
    """Returns the weight in thousandths that is in force for a user."""
    settings = pool.settings.get(user_id)
    own = 0 if settings is None else settings.weight_milli
    return own or pool.policy.default_weight_milli


def cap_of(pool: Pool, user_id: str) -> int:
    """Returns the cap of leased requests that is in force for a user; 0 is none."""
    settings = pool.settings.get(user_id)
    own = -1 if settings is None else settings.max_in_flight
    return pool.policy.max_in_flight_per_user if own < 0 else own


def may_be_selected(flow: Flow) -> bool:
    """Whether nothing but the order holds the user back."""
    return flow.waiting > 0 and not flow.paused and not 0 < flow.max_in_flight <= flow.in_flight


def link(pool: Pool, flow: Flow, request: Request) -> None:
    """Puts a waiting request at the tail of its queue and follows with the backlog."""
    short = request.predicted_class is _SHORT
    newest = flow.newest_short if short else flow.newest_long
    if newest is not None:
        newest.newer, request.older = request, newest
    elif short:
        flow.oldest_short = request
    else:
        flow.oldest_long = request
    if short:
        flow.newest_short = request
    else:
        flow.newest_long = request
    flow.waiting += 1
    pool.waiting += 1
    pool.waiting_shorts += short
    pool.busy = True
    if flow.waiting == 1:
        pool.waiting_weight_milli += flow.weight_milli
        if may_be_selected(flow):
            pool.backlog.join(flow)
    elif newest is None and flow.place != OUT:
        pool.backlog.update(flow, request.predicted_class)
    _follow_held(pool, flow)


def unlink(pool: Pool, flow: Flow, request: Request) -> None:
    """Takes a waiting request out of its queue; the backlog must follow (`settle`)."""
    older, newer = request.older, request.newer
    short = request.predicted_class is _SHORT
    request.older = request.newer = None
    if older is not None:
        older.newer = newer
    elif short:
        flow.oldest_short = newer
    else:
        flow.oldest_long = newer
    if newer is not None:
        newer.older = older
    elif short:
        flow.newest_short = older
    else:
        flow.newest_long = older
    flow.waiting -= 1
    pool.waiting -= 1
    pool.waiting_shorts -= short
    if flow.waiting == 0:
        pool.waiting_weight_milli -= flow.weight_milli
    if pool.held_index is not None:
        _follow_held(pool, flow)
    if pool.reservations:
        worker = pool.reserved_for.pop(request.request_id, None)
        if worker is not None:
            del pool.reservations[worker]


def settle(pool: Pool, flow: Flow, changed: PredictedClass) -> None:
    """Makes the backlog follow a flow that lost a request or whose meter or cap changed.

    A user that becomes selectable again is not joined here: that is a decision (`Rejoined`).
    """
    if flow.place == OUT:
        return
    if flow.waiting == 0 or flow.paused or 0 < flow.max_in_flight <= flow.in_flight:
        pool.backlog.leave(flow)
    else:
        pool.backlog.update(flow, changed)


def rest(pool: Pool, flow: Flow) -> None:
    """Forgets a user without work, or remembers it by meter until `v` has caught up.

    Source:
        SFQ §7.2 (state of idle users at or below v can be discarded).
    """
    if flow.waiting or flow.in_flight:
        return
    in_quota = flow.short_admission_count > 0 or flow.promotion_debt
    if not in_quota and (flow.meter <= pool.virtual_time or not pool.backlog.charged):
        del pool.flows[flow.user_id]
        return
    known = flow.idle_entry
    if known is not None:
        meter: int = known[0]
        if meter <= flow.meter and known[2] is in_quota:
            return  # when that comes up, the meter is looked at again
    entry: tuple[Any, ...] = (flow.meter, flow.user_id, in_quota)
    flow.idle_entry = entry
    heap = pool.idle_in_quota if in_quota else pool.idle
    heappush(heap, entry)
    if len(heap) <= _SWEPT_ABOVE + len(pool.flows):
        return
    flows = pool.flows
    if in_quota:
        pool.quota_place = sweep(heap, pool.quota_place, lambda x: _idle_flow(flows, x) is None)
    else:
        pool.idle_place = sweep(heap, pool.idle_place, lambda x: _idle_flow(flows, x) is None)


def _idle_flow(flows: dict[str, Flow], entry: tuple[Any, ...]) -> Flow | None:
    """Returns whose entry it is, if it is not void."""
    flow = flows.get(entry[1])
    return flow if flow is not None and flow.idle_entry == entry else None


def forget_idle(pool: Pool) -> None:
    """Forgets idle users that `v` has caught up with; call after `v` rose."""
    idle, virtual_time = pool.idle, pool.virtual_time
    while idle:
        meter: int = idle[0][0]
        if meter > virtual_time:
            return
        flow = _take_idle(pool, idle)
        if flow is not None and _is_idle(flow):
            del pool.flows[flow.user_id]


def make_room_for_user(pool: Pool) -> bool:
    """Forgets one idle user that only a started quota keeps; returns whether there was one."""
    idle, virtual_time = pool.idle_in_quota, pool.virtual_time
    while idle and idle[0][0] <= virtual_time:
        flow = _take_idle(pool, idle)
        if flow is not None:
            del pool.flows[flow.user_id]
            return True
    return False


def _take_idle(pool: Pool, heap: list[tuple[Any, ...]]) -> Flow | None:
    """Takes the first entry off, and returns its user if that is without work.

    A user whose meter has risen since is entered anew, so that users come in the order of what
    their meters are now.
    """
    entry = heappop(heap)
    flow = _idle_flow(pool.flows, entry)
    if flow is None:
        return None
    flow.idle_entry = None
    if flow.in_flight or flow.waiting:
        return None
    if flow.meter != entry[0]:
        again: tuple[Any, ...] = (flow.meter, flow.user_id, entry[2])
        flow.idle_entry = again
        heappush(heap, again)
        return None
    return flow


def _is_idle(flow: Flow) -> bool:
    return (
        flow.waiting == 0
        and flow.in_flight == 0
        and flow.short_admission_count == 0
        and not flow.promotion_debt
    )


def remember(state: State, pool: Pool, request: Request, how: RequestState, reason: str) -> None:
    """Replaces an ended request by what is remembered of it, and forgets what is due."""
    lease = request.lease
    lease_id = "" if lease is None else lease.lease_id
    past = Past(pool.name, request.request_id, state.now_ns, lease_id, request.old_leases)
    if lease is not None:
        state.old_leases[lease.dispatch_sequence] = past
    pool.gone[request.request_id] = Gone(
        request.request_id,
        request.user_id,
        request.sequence,
        request.cost,
        request.predicted_class,
        request.content_digest,
        how,
        reason,
        lease_id,
        request.enqueue_ns,
        request.first_dispatch_ns,
        state.now_ns,
        request.attempts,
        request.given_back,
    )
    pool.forget_queue.append(past)
    del pool.requests[request.request_id]
    forget_ended(state, pool)


def forget_ended(state: State, pool: Pool) -> None:
    """Forgets ended ids that are past the retention time or count; only the fold calls this."""
    queue, rules = pool.forget_queue, pool.rules
    limit_ns = state.now_ns - rules.retention_ns
    for _ in range(FORGOTTEN_AT_ONCE):
        if not queue or (queue[0].end_ns > limit_ns and len(queue) <= rules.retention_count):
            return
        past = queue.popleft()
        gone = pool.gone.get(past.request_id)
        if gone is not None and gone.end_ns == past.end_ns:
            del pool.gone[past.request_id]
        forget_leases(state, past)


def forget_leases(state: State, past: Past) -> None:
    """Forgets the leases of a request that has ended."""
    for lease_id in past.lease_ids():
        state.old_leases.pop(sequence_of(lease_id), None)


def old_lease(state: State, lease_id: str) -> Past | None:
    """Returns what is remembered of a lease that has ended, if anything."""
    known = state.old_leases.get(sequence_of(lease_id))
    return known if known is not None and lease_id in known.lease_ids() else None


def remembered(pool: Pool, request_id: str, now_ns: int) -> Gone | None:
    """Returns what is remembered of an ended request at `now_ns`, if anything."""
    gone = pool.gone.get(request_id)
    if gone is None or gone.end_ns <= now_ns - pool.rules.retention_ns:
        return None
    return gone


def forget_keys(state: State, pool: Pool) -> None:
    """Forgets idempotency keys that are past the pool's retention time or count."""
    queue, rules = state.key_queue, pool.rules
    limit_ns = state.now_ns - rules.retention_ns
    for _ in range(FORGOTTEN_AT_ONCE):
        if not queue or (queue[0][0] > limit_ns and len(queue) <= rules.retention_count):
            return
        state.keys.pop(queue.popleft()[1], None)


def watch_held(pool: Pool) -> HeldIndex:
    """Returns the index of places held, built if the pool had no need of it so far."""
    if pool.held_index is None:
        pool.held_index = HeldIndex(flow for flow in pool.flows.values() if flow.waiting)
    return pool.held_index


def _follow_held(pool: Pool, flow: Flow) -> None:
    index = pool.held_index
    if index is None:
        return
    if pool.waiting * 4 < pool.policy.max_waiting * 3:
        pool.held_index = None
    else:
        index.update(flow)
