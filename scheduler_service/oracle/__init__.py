"""A second, naive scheduler that re-decides a decision log, exactly and on its own.

The oracle reads the log as an auditor would: record by record, with nothing but the records.  It
keeps its own state (plain lists and dictionaries of requests, users and pools, no indexes), derives
from it what the algorithm would have decided at each record, and names every difference.  It
shares no code with the scheduling core; it knows only the data definitions of policies and records.

Modules:
    ledger: The oracle's state and the questions that can be asked about it.
    choice: What a worker that asks now must get.
    quota: Short-admission counters and promotion debts (QBA §III-A6).
    timers: What is due, and in which order it must fire.
    turns: The re-decision of one dispatch record.
    arrivals: The re-decision of acceptance, shedding, weights and policies.
    endings: The re-decision of how leases and requests end.
    verify: The fold that ties these together.
"""

from scheduler_service.oracle.difference import Difference
from scheduler_service.oracle.verify import Oracle

__all__ = ["Difference", "Oracle"]
