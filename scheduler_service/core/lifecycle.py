"""What happens to a request after its dispatch: renewal, completion, cancellation, expiry.

None of it changes a meter (SFQ §2.6, §5.1).
"""

from typing import TYPE_CHECKING, Final

from scheduler_service.core import answers as a
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.admission import pool_named
from scheduler_service.core.backlog import OUT
from scheduler_service.core.completion import Complete
from scheduler_service.core.dead_letters import drop_oldest
from scheduler_service.core.errors import (
    Denied,
    SchedulerError,
    Superseded,
    Unknown,
    WrongState,
)
from scheduler_service.core.flows import may_be_selected, old_lease, quota_holder, remembered
from scheduler_service.core.policy import AdmissionPoint, ClassOrder, PoolMode, PredictedClass
from scheduler_service.core.recording import after_leaving, record, record_of
from scheduler_service.core.request import Past, Request
from scheduler_service.core.state import Pool, State

if TYPE_CHECKING:
    from scheduler_service.core.gone import Gone

_COMPLETED: Final = d.Completed
_GIVEN_BACK: Final = d.Outcome.GIVEN_BACK
_OUTCOME_SUCCEEDED: Final = d.Outcome.SUCCEEDED
_SUCCEEDED: Final = d.RequestState.SUCCEEDED
_CAP: Final = d.RejoinCause.CAP
_NEW: Final = a.Existing.NEW
_QBA: Final = ClassOrder.QBA
_AT_PREFILL: Final = AdmissionPoint.PREFILL_COMPLETE


def rejoin_freed(
    state: State, pool: Pool, user_id: str, cause: d.RejoinCause, now_ns: int, log: list[d.Decision]
) -> None:
    """Makes a user that was held back selectable again, at `max(S, v)`."""
    flow = pool.flows.get(user_id)
    if flow is None or flow.place != OUT or not may_be_selected(flow):
        return
    after = max(flow.meter, pool.virtual_time)
    record(state, log, d.Rejoined(now_ns, pool.name, user_id, cause, flow.meter, after))


def complete(state: State, x: Complete, log: list[d.Decision]) -> a.Finished:
    """Ends a lease as its worker says; a repeat gets the first answer.

    Raises:
        Unknown: LEASE_UNKNOWN.
        Superseded: LEASE_SUPERSEDED.
        WrongState: LEASE_EXPIRED.
        Denied: LEASE_OF_OTHER_WORKER.
    """
    now_ns, lease_id, outcome, worker = x.now_ns, x.lease_id, x.outcome, x.worker
    request = state.leases.get(lease_id)
    if request is None:
        return _complete_late(state, x)
    lease = request.held_lease
    name = lease.pool
    pool = state.pools[name]
    if worker and lease.worker and worker != lease.worker:
        raise Denied(
            "LEASE_OF_OTHER_WORKER",
            f"Lease {lease_id!r} is held by another worker.",
            leaseId=lease_id,
        )
    if outcome is _GIVEN_BACK and not request.cancel_reason:
        cause = d.LeaseEndCause.HAND_OVER if x.undelivered else d.LeaseEndCause.GIVEN_BACK
        end_lease(state, pool, request, cause, now_ns, log, x.error)
        state_now = d.RequestState.REDELIVERY
        if request.request_id in pool.gone:
            state_now = pool.gone[request.request_id].state
        return a.Finished(name, request.request_id, state_now, _NEW)
    if request.cancel_reason:
        how = d.RequestState.CANCELLED
    elif outcome is _OUTCOME_SUCCEEDED:
        how = _SUCCEEDED
        _count_prefill(state, pool, request, now_ns, log)
    else:
        how = d.RequestState.FAILED
    record_of(
        state,
        log,
        _COMPLETED(
            now_ns,
            name,
            request.request_id,
            lease_id,
            how,
            x.prompt_tokens,
            x.output_tokens,
            x.error,
            x.peer,
            request.sequence,
            request.user_id,
            request.cost,
            request.predicted_class,
            request.prompt_tokens,
            request.output_cap_tokens,
            request.expected_output_tokens,
        ),
        request,
    )
    rejoin_freed(state, pool, request.user_id, _CAP, now_ns, log)
    return a.Finished(name, request.request_id, how, _NEW)


def _complete_late(state: State, x: Complete) -> a.Finished:
    """Answers a call on a lease that has ended: the first answer, or why it changes nothing."""
    past = _known_old_lease(state, x.lease_id)
    name, request_id = past.pool, past.request_id
    pool = state.pools[name]
    gone = pool.gone.get(request_id)
    if gone is not None and gone.lease_id == x.lease_id:
        return a.Finished(name, request_id, gone.state, a.Existing.REPEATED)
    known = pool.requests.get(request_id) or gone
    if known is not None and x.lease_id in known.given_back:
        dead = pool.dead.get(request_id)
        ended_it = dead is not None and dead.old_leases[-1] == x.lease_id
        how = d.RequestState.DEAD_LETTERED if ended_it else d.RequestState.REDELIVERY
        return a.Finished(name, request_id, how, a.Existing.REPEATED)
    raise _late(pool, request_id, x.lease_id)


def _known_old_lease(state: State, lease_id: str) -> Past:
    known = old_lease(state, lease_id)
    if known is None:
        raise Unknown("LEASE_UNKNOWN", f"There is no lease {lease_id!r}.", leaseId=lease_id)
    return known


def _late(pool: Pool, request_id: str, lease_id: str) -> SchedulerError:
    request: Request | Gone | None = pool.requests.get(request_id) or pool.gone.get(request_id)
    superseded = (
        request.lease is not None
        if isinstance(request, Request)
        else bool(request and request.lease_id)
    )
    if superseded:
        return Superseded(
            "LEASE_SUPERSEDED",
            f"Request {request_id!r} has been granted under another lease since.",
            leaseId=lease_id,
            requestId=request_id,
        )
    return WrongState(
        "LEASE_EXPIRED",
        f"Lease {lease_id!r} has ended and the request is no longer this worker's.",
        leaseId=lease_id,
        requestId=request_id,
    )


def end_lease(
    state: State,
    pool: Pool,
    request: Request,
    cause: d.LeaseEndCause,
    now_ns: int,
    log: list[d.Decision],
    error: str = "",
) -> None:
    """Ends a lease unfinished; then the request goes first again, or ends."""
    lease = request.held_lease
    request_id, policy = request.request_id, pool.policy
    failures = request.failures + (cause is d.LeaseEndCause.EXPIRED)
    retry_ns = now_ns + policy.retry_backoff_ns if cause is d.LeaseEndCause.GIVEN_BACK else 0
    record(
        state,
        log,
        d.LeaseEnded(
            now_ns,
            pool.name,
            request_id,
            lease.lease_id,
            lease.worker,
            cause,
            failures,
            retry_ns,
            error,
            request.user_id,
        ),
    )
    if request.cancel_reason:
        end(state, pool, request, d.RequestState.CANCELLED, request.cancel_reason, now_ns, log)
    elif policy.mode is PoolMode.GATE and cause is d.LeaseEndCause.EXPIRED:
        end(state, pool, request, d.RequestState.LEASE_EXPIRED, "GATE_LEASE_EXPIRED", now_ns, log)
    elif failures >= policy.max_attempts:
        how = d.RequestState.DEAD_LETTERED
        end(state, pool, request, how, "MAX_ATTEMPTS", now_ns, log)
        drop_oldest(state, pool, now_ns, log)


def end(
    state: State,
    pool: Pool,
    request: Request,
    how: d.RequestState,
    reason: str,
    now_ns: int,
    log: list[d.Decision],
    peer: str = "",
) -> None:
    """Ends a request that waits or is due for redelivery."""
    waited = request.state is d.RequestState.WAITING
    ended = d.Ended(
        now_ns,
        pool.name,
        request.request_id,
        how,
        reason,
        peer,
        request.sequence,
        request.user_id,
    )
    record(state, log, ended)
    if waited:
        after_leaving(state, pool, now_ns, log)
    else:
        rejoin_freed(state, pool, request.user_id, _CAP, now_ns, log)


def _count_prefill(
    state: State, pool: Pool, request: Request, now_ns: int, log: list[d.Decision]
) -> None:
    """Moves the quota where prefill completion is the admission point (QBA §III-A6)."""
    rules = pool.rules
    moves = rules.class_order is _QBA and rules.admission_point is _AT_PREFILL
    if request.counted or not (moves or request.promoted):
        return
    lease = request.held_lease
    holder = quota_holder(pool, pool.flows[request.user_id], request)
    count, debt = holder.short_admission_count, holder.promotion_debt
    if request.promoted:
        count, debt = 0, False
    elif request.predicted_class is PredictedClass.SHORT and not debt:
        count += 1
        debt = count >= rules.quota_k
    record(
        state,
        log,
        d.PrefillCompleted(
            now_ns,
            pool.name,
            request.request_id,
            lease.lease_id,
            count,
            debt,
            request.user_id,
        ),
    )


def renew(state: State, x: c.RenewLease, log: list[d.Decision]) -> tuple[a.Renewed, ...]:
    """Extends each lease by itself; one that cannot be extended spoils no other."""
    answers = []
    prefilled = set(x.prefill_complete)
    for lease_id in dict.fromkeys((*x.lease_ids, *x.prefill_complete)):
        request = state.leases.get(lease_id)
        if request is None:
            answers.append(a.Renewed(lease_id, _renewal_problem(state, lease_id)))
            continue
        lease = request.held_lease
        name = lease.pool
        pool = state.pools[name]
        if x.worker and lease.worker and x.worker != lease.worker:
            answers.append(a.Renewed(lease_id, "LEASE_OF_OTHER_WORKER"))
            continue
        if lease_id in prefilled:
            _count_prefill(state, pool, request, x.now_ns, log)
        duration = x.lease_duration_ns or pool.policy.lease_duration_ns
        expire_ns = max(lease.expire_ns, x.now_ns + duration)
        if expire_ns > lease.expire_ns or lease.hand_over_ns:
            renewed = d.LeaseRenewed(
                x.now_ns, name, request.request_id, lease_id, expire_ns, request.user_id
            )
            record(state, log, renewed)
        answers.append(
            a.Renewed(lease_id, "", expire_ns, cancel_requested=bool(request.cancel_reason))
        )
    return tuple(answers)


def _renewal_problem(state: State, lease_id: str) -> str:
    known = old_lease(state, lease_id)
    if known is None:
        return "LEASE_UNKNOWN"
    return _late(state.pools[known.pool], known.request_id, lease_id).reason


def cancel(state: State, x: c.Cancel, log: list[d.Decision]) -> a.Finished:
    """Ends a waiting request at once; a leased one ends when its worker or lease lets go.

    Raises:
        Unknown: POOL_UNKNOWN, REQUEST_UNKNOWN.
    """
    pool = pool_named(state, x.pool)
    request = pool.requests.get(x.request_id)
    if request is None:
        gone = remembered(pool, x.request_id, x.now_ns)
        if gone is None:
            raise Unknown(
                "REQUEST_UNKNOWN",
                f"There is no request {x.request_id!r} in pool {x.pool!r}.",
                pool=x.pool,
                requestId=x.request_id,
            )
        return a.Finished(x.pool, x.request_id, gone.state, a.Existing.REPEATED)
    if request.state is d.RequestState.LEASED:
        existing = a.Existing.REPEATED if request.cancel_reason else _NEW
        if not request.cancel_reason:
            wanted = d.CancelRequested(
                x.now_ns, x.pool, x.request_id, x.reason, x.peer, request.user_id
            )
            record(state, log, wanted)
        return a.Finished(x.pool, x.request_id, d.RequestState.LEASED, existing)
    end(state, pool, request, d.RequestState.CANCELLED, x.reason, x.now_ns, log, x.peer)
    return a.Finished(x.pool, x.request_id, d.RequestState.CANCELLED, _NEW)
