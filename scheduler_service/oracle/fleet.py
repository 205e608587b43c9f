"""Folds what the log says about workers and the service itself."""

from scheduler_service.core.decisions import (
    LeasesConfirmed,
    LogOpened,
    Recovered,
    WorkerDrained,
    WorkerGone,
    WorkerSeen,
)
from scheduler_service.oracle.book import Book
from scheduler_service.oracle.difference import Report
from scheduler_service.oracle.ledger import Request, Worker


def _leases(book: Book, worker: str | None = None) -> list[Request]:
    """Requests under a live lease, of one worker or of all."""
    return [
        request
        for pool in book.pools.values()
        for request in pool.flight()
        if request.lease is not None and worker in {None, request.lease.worker}
    ]


def log_opened(_book: Book, _report: Report, _record: LogOpened) -> None:
    """A log begins, or goes on under another version: nothing is decided."""


def recovered(book: Book, report: Report, record: Recovered) -> None:
    """Extends live leases by the downtime; waiting limits are not extended."""
    report.holds(
        "downtime_ns", true=record.downtime_ns >= 0, found=record.downtime_ns, source="recovery"
    )
    for request in _leases(book):
        lease = request.lease
        assert lease is not None
        lease.expire_ns += record.downtime_ns
        if lease.hand_over_ns:
            lease.hand_over_ns += record.downtime_ns


def leases_confirmed(book: Book, _report: Report, record: LeasesConfirmed) -> None:
    """Confirms every provisional lease of the worker."""
    for request in _leases(book, record.worker):
        assert request.lease is not None
        request.lease.hand_over_ns = 0
        book.note_timer(request.lease.expire_ns)


def worker_seen(book: Book, _report: Report, record: WorkerSeen) -> None:
    """A worker appears or changes what it has in all."""
    old = book.workers.get(record.worker)
    draining = old is not None and old.draining and not record.registered
    book.workers[record.worker] = Worker(record.worker, record.pools, record.offer, draining)


def worker_drained(book: Book, report: Report, record: WorkerDrained) -> None:
    """A worker gets no new work; what it was kept for is free for others."""
    worker = book.workers.get(record.worker)
    report.holds("worker", true=worker is not None, found=record.worker, source="a known worker")
    if worker is not None:
        worker.draining = True
    for pool in book.pools.values():
        pool.reservations.pop(record.worker, None)


def worker_gone(book: Book, report: Report, record: WorkerGone) -> None:
    """A silent worker without leases is forgotten."""
    leases = len(_leases(book, record.worker))
    report.same("worker", 0, leases, "a worker with leases is not forgotten")
    book.workers.pop(record.worker, None)
    for pool in book.pools.values():
        pool.reservations.pop(record.worker, None)
