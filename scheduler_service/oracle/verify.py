"""The fold: reads a decision log record by record and names what the algorithm contradicts.

Order of work for each record:
    1. time and sequence go forwards;
    2. what the log owes is paid first (`book`);
    3. what was due has fired first, in order (`timers`);
    4. the record is re-decided from its own inputs and the oracle's state;
    5. the oracle's state follows the record, so that one difference does not hide the next.
"""

from collections.abc import Callable

from scheduler_service.core import decisions as d
from scheduler_service.oracle import arrivals, endings, fleet, periods, turns
from scheduler_service.oracle.book import Book
from scheduler_service.oracle.choice import Asking, Choice, Nothing, choose
from scheduler_service.oracle.difference import Difference, Report
from scheduler_service.oracle.timers import Timer, all_timers, timer_of

CONSEQUENCES = (d.BusyPeriodClosed, d.Rebased, d.Rejoined)
UNTIMED = (d.Recovered, d.LogOpened, d.WorkerGone, *CONSEQUENCES)
"""Records before which something may still be due."""

ENGINE_WIDE: dict[type, Callable[..., None]] = {
    d.LogOpened: fleet.log_opened,
    d.Recovered: fleet.recovered,
    d.PoolConfigured: arrivals.pool_configured,
    d.LeasesConfirmed: fleet.leases_confirmed,
    d.WorkerSeen: fleet.worker_seen,
    d.WorkerDrained: fleet.worker_drained,
    d.WorkerGone: fleet.worker_gone,
}
IN_POOL: dict[type, Callable[..., None]] = {
    d.Accepted: arrivals.accepted,
    d.BusyPeriodClosed: periods.busy_period_closed,
    d.CancelRequested: endings.cancel_requested,
    d.Completed: endings.completed,
    d.DeadLetterDropped: endings.dead_letter_dropped,
    d.Dispatched: turns.dispatched,
    d.Ended: endings.ended,
    d.EstimatorUpdated: arrivals.estimator_updated,
    d.LeaseEnded: endings.lease_ended,
    d.LeaseRenewed: endings.lease_renewed,
    d.Paused: periods.paused,
    d.PoolDeleted: periods.pool_deleted,
    d.PrefillCompleted: endings.prefill_completed,
    d.Rebased: periods.rebased,
    d.Rejoined: periods.rejoined,
    d.Requeued: endings.requeued,
    d.Reserved: turns.reserved,
    d.Resumed: periods.resumed,
    d.UserConfigured: arrivals.user_configured,
    d.UserForgotten: arrivals.user_forgotten,
}
"""What re-decides which record; a record of no pool needs none."""


class Oracle:
    """Folds a decision log and re-decides it.

    Attributes:
        book: What it knows; plain data.
    """

    def __init__(self) -> None:
        self.book = Book()

    def feed(self, sequence: int, decision: d.Decision) -> list[Difference]:
        """Reads one record.

        Args:
            sequence: Its sequence in the log.
            decision: The record.

        Returns:
            Every difference between the record and what the algorithm decides; empty when it
            is right.
        """
        book = self.book
        report = Report(sequence, type(decision).__name__)
        report.holds(
            "sequence", true=sequence > book.sequence, found=sequence, source="a log is ordered"
        )
        report.holds(
            "now_ns", true=decision.now_ns >= book.now_ns, found=decision.now_ns, source="time"
        )
        book.sequence, book.now_ns = sequence, max(book.now_ns, decision.now_ns)
        paid = self._check_owed(report, decision)
        if not paid and not isinstance(decision, UNTIMED):
            self._check_timers(report, decision)
        self._decide(report, decision)
        return report.found

    def expect(self, pool: str, worker: str, offer: d.Offer, now_ns: int) -> Choice | Nothing:
        """Says what `worker` gets from `pool` if it asks now; what is due must have fired."""
        own = self.book.pools[pool]
        leases = self.book.leases_of(worker)
        return choose(own, self.book.workers, Asking(worker, offer, now_ns, own.theta(), leases))

    def finish(self) -> list[Difference]:
        """Names what the log still owes at its end."""
        report = Report(self.book.sequence, "end of log")
        for owed in self.book.owed:
            report.add(owed.record, owed.key or owed.pool, "nothing", "owed at the end")
        return report.found

    def _check_owed(self, report: Report, decision: d.Decision) -> bool:
        """Names what is owed and not paid by this record; says whether this one pays."""
        record = report.record
        pool = getattr(decision, "pool", "")
        keys = {"", getattr(decision, "request_id", ""), getattr(decision, "user_id", "")}
        pays = any(
            (owed.record, owed.pool) == (record, pool) and owed.key in keys
            for owed in self.book.owed
        )
        if self.book.owed and not pays and not self._on_the_way(decision):
            for owed in self.book.owed:
                report.add(f"missing {owed.record}", owed.key or owed.pool, record, "must follow")
            self.book.owed.clear()
        return pays

    def _on_the_way(self, decision: d.Decision) -> bool:
        """Whether only a dispatch is owed, and this record makes way for it."""
        match decision:
            case d.Ended(state=d.RequestState.UNPLACEABLE):
                pass
            case d.Rejoined(cause=d.RejoinCause.UNPLACEABLE):
                pass
            case _:
                return False
        return all(owed.record == "Dispatched" for owed in self.book.owed)

    def _check_timers(self, report: Report, decision: d.Decision) -> None:
        book = self.book
        own = self._timer(decision)
        if own is not None:
            report.holds(
                "now_ns",
                true=own.time_ns <= decision.now_ns,
                found=(decision.now_ns, own.time_ns),
                source="a timer fires when it is due",
            )
        if decision.now_ns < book.earliest_ns:
            return
        timers = all_timers(book.pools)
        if timers:
            book.earliest_ns = timers[0].time_ns
        due = [timer for timer in timers if timer.time_ns <= decision.now_ns]
        if due and not _first(due, own):
            name = due[0].request.request_id if due[0].request else "pause"
            report.add(
                "missed timer", (due[0].time_ns, name), own and own[:2], "due timers fire first"
            )

    def _timer(self, decision: d.Decision) -> Timer | None:
        """The timer that this record says has fired."""
        match decision:
            case d.Ended(state=d.RequestState.EXPIRED):
                pass
            case d.LeaseEnded(cause=d.LeaseEndCause.EXPIRED):
                pass
            case d.LeaseEnded(cause=d.LeaseEndCause.HAND_OVER):
                own = self._timer_of(decision)
                return own if own and own.time_ns <= decision.now_ns else None
            case d.Resumed(by_timer=True):
                until = self._paused_until(decision)
                return Timer(until, 0) if until else None
            case _:
                return None
        return self._timer_of(decision)

    def _timer_of(self, record: d.Ended | d.LeaseEnded) -> Timer | None:
        pool = self.book.pools.get(record.pool)
        request = pool.requests.get(record.request_id) if pool else None
        return timer_of(request) if request else None

    def _paused_until(self, record: d.Resumed) -> int | None:
        pool = self.book.pools.get(record.pool)
        if pool is None or not record.user_id:
            return pool.paused_until if pool else None
        return pool.user(record.user_id).paused_until

    def _decide(self, report: Report, decision: d.Decision) -> None:
        own = ENGINE_WIDE.get(type(decision))
        if own is not None:
            own(self.book, report, decision)
            return
        pool = self.book.pools.get(getattr(decision, "pool", ""))
        if pool is None:
            report.add("pool", "a known pool", decision, "pools are created first")
            return
        IN_POOL[type(decision)](self.book, report, pool, decision)


def _first(due: list[Timer], own: Timer | None) -> bool:
    """Whether `own` may fire now: nothing that is due comes before it."""
    if own is None:
        return False
    if own.request is None:
        return own.time_ns == due[0].time_ns
    requests = [timer for timer in due if timer.request is not None]
    return due[0].time_ns == own.time_ns and requests[0].request is own.request
