"""Re-decides busy periods, rebases, pauses and rejoins.

Source:
    SFQ §2.4, §2.5, §7.2.
"""

from scheduler_service.core.decisions import (
    BusyPeriodClosed,
    Paused,
    PoolDeleted,
    Rebased,
    RejoinCause,
    Rejoined,
    Resumed,
)
from scheduler_service.core.policy import REBASE_AT_MICROS
from scheduler_service.oracle.book import Book
from scheduler_service.oracle.choice import stuck_behind
from scheduler_service.oracle.difference import Report
from scheduler_service.oracle.ledger import Pool


def busy_period_closed(book: Book, report: Report, pool: Pool, record: BusyPeriodClosed) -> None:
    """Nothing waits: `v` rises to the largest meter, and everybody starts level."""
    owed = book.pay("BusyPeriodClosed", pool.name)
    report.holds(
        "BusyPeriodClosed",
        true=owed is not None,
        found=pool.waiting_count(),
        source="SFQ §2.5: when the last waiting request leaves, and only then",
    )
    source = "SFQ §2.5: v = max(v, max S)"
    report.same("virtual_time_before", pool.virtual_time, record.virtual_time_before, source)
    after = max(pool.virtual_time, pool.meter_max)
    report.same("virtual_time_after", after, record.virtual_time_after, source)
    pool.virtual_time = record.virtual_time_after
    pool.slack_seen = pool.charge_seen = 0
    for user in pool.users.values():
        user.charge_max = 0
    book.settle(pool)


def rebased(book: Book, report: Report, pool: Pool, record: Rebased) -> None:
    """Everything is taken down by `v`; differences, and so the order, stay."""
    owed = book.pay("Rebased", pool.name)
    report.holds(
        "Rebased",
        true=owed is not None and pool.virtual_time >= REBASE_AT_MICROS,
        found=pool.virtual_time,
        source="SFQ §7.2: when v reaches 2^60, and only then",
    )
    report.same("offset_micros", pool.virtual_time, record.offset_micros, "the offset is v")
    pool.virtual_time -= record.offset_micros
    pool.meter_max = max(pool.meter_max - record.offset_micros, 0)
    for user in pool.users.values():
        user.meter = max(user.meter - record.offset_micros, 0)


def rejoined(book: Book, report: Report, pool: Pool, record: Rejoined) -> None:
    """A held-back user is selectable again; time held back is not saved up."""
    if record.cause is RejoinCause.UNPLACEABLE:
        _passed_by(book, report, pool, record)
        return
    owed = book.pay("Rejoined", pool.name, record.user_id)
    report.holds(
        "user_id",
        true=owed is not None,
        found=record.user_id,
        source="a rejoin is when a held-back user with waiting requests comes free",
    )
    if owed is not None:
        report.same("cause", owed.detail, record.cause, "what held the user back")
    user = pool.user(record.user_id)
    source = "S = max(S, v)"
    report.same("meter_before", user.meter, record.meter_before, source)
    report.same("meter_after", max(user.meter, pool.virtual_time), record.meter_after, source)
    pool.raise_meter(user, record.meter_after)


def _passed_by(book: Book, report: Report, pool: Pool, record: Rejoined) -> None:
    """Nobody alive can serve the user: it moves up to the first user that can be served.

    That one must be served at once: then `v` follows, and the user that moved is no further ahead
    of it than before.
    """
    user = pool.user(record.user_id)
    stuck, first = stuck_behind(pool, book.workers)
    source = "a request that no live worker could hold never stalls the pool"
    report.holds("user_id", true=user in stuck, found=record.user_id, source=source)
    report.same("meter_before", user.meter, record.meter_before, source)
    report.same("meter_after", first, record.meter_after, source)
    pool.raise_meter(user, record.meter_after)
    if not any(owed.record == "Dispatched" for owed in book.owed):
        book.owe("Dispatched", pool.name)


def paused(book: Book, report: Report, pool: Pool, record: Paused) -> None:
    """Stops a pool or one user of it."""
    report.holds(
        "until_ns",
        true=record.until_ns == 0 or record.until_ns > record.now_ns,
        found=record.until_ns,
        source="a pause ends in the future",
    )
    book.note_timer(record.until_ns)
    if not record.user_id:
        pool.paused_until = record.until_ns
        return
    user = pool.user(record.user_id)
    user.paused_until = record.until_ns
    user.held = pool.holds_back(user)


def resumed(book: Book, report: Report, pool: Pool, record: Resumed) -> None:
    """A pause ends; a user with waiting requests rejoins."""
    user = pool.user(record.user_id) if record.user_id else None
    until = user.paused_until if user else pool.paused_until
    report.holds("user_id", true=until is not None, found=record.user_id, source="was paused")
    if user is None:
        pool.paused_until = None
        return
    user.paused_until = None
    book.freed(pool, user, RejoinCause.RESUMED)


def pool_deleted(book: Book, report: Report, pool: Pool, record: PoolDeleted) -> None:
    """An empty pool is gone."""
    empty = not pool.waiting_count() and not pool.flight()
    report.holds("pool", true=empty, found=record.pool, source="only an empty pool is deleted")
    del book.pools[pool.name]
