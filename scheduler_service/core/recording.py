"""Taking a decision: it is folded into the state and put on the list, in that order."""

from scheduler_service.core.decisions import BusyPeriodClosed, Decision, Rebased
from scheduler_service.core.evolve import evolve
from scheduler_service.core.grant import Grant
from scheduler_service.core.policy import REBASE_AT_MICROS
from scheduler_service.core.request import Request
from scheduler_service.core.state import Pool, State


def record(state: State, log: list[Decision], decision: Decision) -> None:
    """Takes `decision`: the state follows, and the caller of the core finds it in `log`."""
    evolve(state, decision)
    log.append(decision)


def record_of(state: State, log: list[Decision], decision: Decision, request: Request) -> None:
    """Takes the completion of a request that is at hand: the fold need not look it up."""
    state.at_hand = request
    record(state, log, decision)


def record_grant(state: State, log: list[Decision], decision: Decision, grant: Grant) -> None:
    """Takes a dispatch that is at hand: the fold need not read it from its record."""
    state.grant = grant
    record(state, log, decision)


def after_leaving(state: State, pool: Pool, now_ns: int, log: list[Decision]) -> None:
    """Closes the busy period if nothing waits any more, and rebases when `v` is large.

    To be called whenever a request has left the queue, for whatever reason.

    Source:
        SFQ §2.5 (global idle), §5.3 (leases do not count as waiting), §7.2 (rebase).
    """
    if not pool.backlog.charged:
        return
    if pool.busy and pool.waiting == 0:
        before = pool.virtual_time
        after = max(before, pool.largest_meter)
        record(state, log, BusyPeriodClosed(now_ns, pool.name, before, after))
    if pool.virtual_time >= REBASE_AT_MICROS:
        record(state, log, Rebased(now_ns, pool.name, pool.virtual_time))
