"""Re-decides how leases and requests end; no meter changes in any of it (SFQ §5.1)."""

from scheduler_service.core.decisions import (
    CancelRequested,
    Completed,
    DeadLetterDropped,
    Ended,
    LeaseEndCause,
    LeaseEnded,
    LeaseRenewed,
    PrefillCompleted,
    RejoinCause,
    RequestState,
    Requeued,
)
from scheduler_service.core.policy import PoolMode
from scheduler_service.oracle import quota as quotas
from scheduler_service.oracle.arrivals import shed
from scheduler_service.oracle.book import Book, leave
from scheduler_service.oracle.choice import hopeless
from scheduler_service.oracle.difference import Report
from scheduler_service.oracle.ledger import Pool, Request
from scheduler_service.oracle.timers import cause_at


def leased(
    report: Report,
    pool: Pool,
    record: LeaseEnded | LeaseRenewed | PrefillCompleted | Completed,
) -> Request | None:
    """The request whose live lease the record names; a superseded lease changes nothing."""
    request = pool.requests.get(record.request_id)
    lease = request.lease if request else None
    if request is None or lease is None or lease.lease_id != record.lease_id:
        live = lease.lease_id if lease else "none"
        report.add("lease_id", live, record.lease_id, "a superseded lease changes nothing")
        return None
    report.same("user_id", request.user.user_id, record.user_id, "the request's user")
    return request


def lease_renewed(book: Book, report: Report, pool: Pool, record: LeaseRenewed) -> None:
    """Extends a live lease; naming it confirms it."""
    request = leased(report, pool, record)
    if request is None or request.lease is None:
        return
    report.holds(
        "expire_ns",
        true=record.expire_ns > record.now_ns,
        found=record.expire_ns,
        source="a renewed lease lies in the future",
    )
    request.lease.expire_ns = record.expire_ns
    request.lease.hand_over_ns = 0
    book.note_timer(record.expire_ns)


def prefill_completed(book: Book, report: Report, pool: Pool, record: PrefillCompleted) -> None:
    """Moves the counter where the prefill is the admission point."""
    request = leased(report, pool, record)
    if request is None or request.lease is None:
        return
    source = "QBA §III-A6: a request counts once"
    quota = request.promotes or pool.quota_of(request.user)
    owes = quotas.owes_admission(pool.policy, request)
    report.holds("request_id", true=owes, found=record.request_id, source=source)
    quotas.admitted(pool.policy, quota, request)
    count, debt = record.short_admission_count_after, record.promotion_debt_after
    report.same("short_admission_count_after", quota.count, count, source)
    report.same("promotion_debt_after", quota.debt, debt, source)
    quota.count, quota.debt = count, debt
    request.lease.hand_over_ns = 0
    book.note_timer(request.lease.expire_ns)


def lease_ended(book: Book, report: Report, pool: Pool, record: LeaseEnded) -> None:
    """A lease ran out or came back: the request goes first again, or ends."""
    request = leased(report, pool, record)
    if request is None or request.lease is None:
        return
    lease = request.lease
    report.same("worker", lease.worker, record.worker, "the lease's worker")
    expired = record.cause is LeaseEndCause.EXPIRED
    if lease.due_ns() <= record.now_ns:
        report.same("cause", cause_at(lease), record.cause, "unconfirmed, or too late")
    report.same(
        "failures_after", request.failures + expired, record.failures_after, "only expiries count"
    )
    given_back = record.cause is LeaseEndCause.GIVEN_BACK
    retry_ns = record.now_ns + pool.policy.retry_backoff_ns if given_back else 0
    report.same("retry_ns", retry_ns, record.retry_ns, "back-off of the giver")
    request.failures = record.failures_after
    request.lease = None
    request.state = RequestState.REDELIVERY
    if record.retry_ns:
        request.backoff[record.worker] = record.retry_ns
    state = _end_after(pool, request, record.cause)
    if state is not None:
        book.owe("Ended", pool.name, request.request_id, state)


def _end_after(pool: Pool, request: Request, cause: LeaseEndCause) -> RequestState | None:
    """How a request ends with its lease, if it does."""
    if request.cancelling:
        return RequestState.CANCELLED
    if pool.policy.mode is PoolMode.GATE and cause is LeaseEndCause.EXPIRED:
        return RequestState.LEASE_EXPIRED
    if request.failures >= pool.policy.max_attempts:
        return RequestState.DEAD_LETTERED
    return None


def completed(book: Book, report: Report, pool: Pool, record: Completed) -> None:
    """A worker finished: nothing is refunded and nothing settled."""
    request = leased(report, pool, record)
    if request is None:
        return
    report.same("request_sequence", request.sequence, record.request_sequence, "the request")
    report.same("cost", request.cost, record.cost, "the request")
    report.same("predicted_class", request.predicted_class, record.predicted_class, "the request")
    allowed = (
        {RequestState.CANCELLED}
        if request.cancelling
        else {RequestState.SUCCEEDED, RequestState.FAILED}
    )
    report.holds("state", true=record.state in allowed, found=record.state, source="end of a lease")
    if record.state is RequestState.SUCCEEDED:
        report.holds(
            "state",
            true=not quotas.owes_admission(pool.policy, request),
            found="prefill not counted",
            source="success implies the prefill",
        )
    quotas.release(request)
    leave(book, pool, request, record.state)


def cancel_requested(_book: Book, report: Report, pool: Pool, record: CancelRequested) -> None:
    """A leased request is to stop; a waiting one would have ended at once."""
    request = pool.requests.get(record.request_id)
    if request is None or request.lease is None:
        report.add("request_id", "a leased request", record.request_id, "cancellation")
        return
    report.same("user_id", request.user.user_id, record.user_id, "the request's user")
    request.cancelling = True


def requeued(book: Book, report: Report, pool: Pool, record: Requeued) -> None:
    """A dead letter goes first again, with fresh attempts and nobody to be spared."""
    request = pool.requests.get(record.request_id)
    if request is None or request.state is not RequestState.DEAD_LETTERED:
        report.add("request_id", "a dead-lettered request", record.request_id, "requeue")
        return
    report.same("user_id", request.user.user_id, record.user_id, "the request's user")
    pool.dead.remove(request)
    pool.renew_blank(request.user, pool.virtual_time)
    request.state = RequestState.REDELIVERY
    request.failures = 0
    request.backoff.clear()
    request.user.flight.append(request)
    book.freed(pool, request.user, RejoinCause.CAP)


def dead_letter_dropped(book: Book, report: Report, pool: Pool, record: DeadLetterDropped) -> None:
    """A dead letter is gone for good, by a call or because there are too many."""
    book.pay("DeadLetterDropped", pool.name, record.request_id)
    request = pool.requests.get(record.request_id)
    if request is None or request.state is not RequestState.DEAD_LETTERED:
        report.add("request_id", "a dead-lettered request", record.request_id, "discard")
        return
    report.same("request_sequence", request.sequence, record.request_sequence, "the request")
    report.same("user_id", request.user.user_id, record.user_id, "the request's user")
    pool.dead.remove(request)
    del pool.requests[record.request_id]


def ended(book: Book, report: Report, pool: Pool, record: Ended) -> None:
    """A request ends without a worker: cancelled, expired, shed, unplaceable or given up."""
    owed = book.pay("Ended", pool.name, record.request_id)
    request = pool.requests.get(record.request_id)
    if request is None or request.state is RequestState.DEAD_LETTERED:
        report.add("request_id", "a live request", record.request_id, "a request ends once")
        return
    report.same("request_sequence", request.sequence, record.request_sequence, "the request")
    report.same("user_id", request.user.user_id, record.user_id, "the request's user")
    if owed is not None:
        report.same("state", owed.detail, record.state, "end of the last lease")
    elif record.state is RequestState.SHED:
        shed(book, report, pool, request, record)
        return
    else:
        _check_end(book, report, pool, request, record)
    quotas.release(request)
    leave(book, pool, request, record.state)
    if record.state is RequestState.DEAD_LETTERED:
        pool.dead.append(request)
        book.bound_dead_letters(pool)


def _check_end(book: Book, report: Report, pool: Pool, request: Request, record: Ended) -> None:
    """The ends that come on their own: by call, by time, or because nothing can hold it."""
    waiting = request.state is RequestState.WAITING
    match record.state:
        case RequestState.CANCELLED:
            good, source = request.lease is None, "a leased request is asked to stop first"
        case RequestState.EXPIRED:
            due = 0 < request.expire_ns <= record.now_ns
            good, source = waiting and due, "max_wait of a waiting request"
        case RequestState.UNPLACEABLE:
            late = record.now_ns - request.accept_ns >= pool.policy.unplaceable_wait_ns
            good = request.lease is None and late and hopeless(pool, book.workers, request)
            source = "no live worker could ever hold it"
        case _:
            good, source = False, "only after the last lease"
    report.holds("state", true=good, found=(record.state.name, request.state.name), source=source)
