"""The scheduler: `apply(state, command, log) -> answer`.

A command is decided in steps.  Each step looks at the state, takes one decision, and the state
follows at once (`recording.record`: `evolve`, then the list), because the next step depends on it.
Nothing but `evolve` changes the state, so folding the list into an older copy of the state gives
this state again.

Order of a command:
    1. timers that are due fire, in order of (time, request sequence); before them, `Recover`
       extends the leases that fell due while nobody could renew them;
    2. leases that the caller's message confirms are confirmed;
    3. the command itself;
    4. in gate mode, turns that have become free are granted.

If the command is refused (a `SchedulerError`), what 1 and 2 decided stands and is in the list.
"""

from collections.abc import Callable
from typing import Any, Final, cast

from scheduler_service.core import admin, admission, dead_letters, lifecycle
from scheduler_service.core import answers as a
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.completion import Complete
from scheduler_service.core.dispatch import grant_next
from scheduler_service.core.errors import WrongState
from scheduler_service.core.expiry import fire_due
from scheduler_service.core.granting import Ask
from scheduler_service.core.recording import record
from scheduler_service.core.request import Request
from scheduler_service.core.state import Pool, State
from scheduler_service.core.timers import next_due

_RECOVER: Final = c.Recover
_NONE: Final = d.EmptyReason.NONE

_ANY: Final = d.Offer()


def apply(state: State, command: c.Command, log: list[d.Decision]) -> Any:
    """Applies one command.

    Args:
        state: Everything; changed in place.
        command: Its `now_ns` is at least that of every earlier command.
        log: Receives the decisions in order.

    Returns:
        The answer that belongs to the command (see `commands`), or None.

    Raises:
        SchedulerError: The command is refused; see the functions it is handed to.
    """
    now_ns = command.now_ns
    assert now_ns >= state.now_ns, "time went back"
    kind = type(command)
    if kind is _RECOVER:
        # Before any timer: a lease that fell due while nobody could renew it has not ended.
        record(state, log, d.Recovered(now_ns, cast("c.Recover", command).downtime_ns))
    due_ns = next_due(state)
    if due_ns is not None and due_ns <= now_ns:
        fire_due(state, now_ns, log)
    try:
        return _HANDLERS[kind](state, command, log)
    finally:
        for name in state.gates:
            _grant_gate(state, state.pools[name], command, log)


def next_dispatch(state: State, x: c.NextDispatch, log: list[d.Decision]) -> a.Dispatches:
    """Grants up to `max_dispatches` requests, in rotation over the pools named.

    Raises:
        Unknown: POOL_UNKNOWN.
        WrongState: POOL_MODE, if a pool is a gate, whose turns are its own.
    """
    pools = [_pulled_pool(state, name) for name in x.pools]
    if x.idempotency_key:
        repeated = _repeated(state, x)
        if repeated is not None:
            return repeated
    offer = _see_worker(state, x, pools, log)
    worker = state.workers[x.worker]
    ask = Ask(
        x.now_ns,
        x.worker,
        x.nonce,
        offer,
        x.lease_duration_ns,
        hand_over=x.hand_over,
        idempotency_key=x.idempotency_key,
        peer=x.peer,
    )
    asked = x.max_dispatches
    limit = min(pool.rules.max_leases_per_worker for pool in pools)
    if x.offer.max_leases:
        limit = min(limit, x.offer.max_leases)
    counted = offer.free_tokens >= 0
    granted: list[Request] = []
    reason = _NONE
    turn = 0
    while len(granted) < asked:
        if worker.draining or worker.leases >= limit:
            full = d.EmptyReason.LEASES_FULL
            reason = d.EmptyReason.DRAINING if worker.draining else full
            break
        if not pools:
            break
        turn %= len(pools)
        pool = pools[turn]
        found = grant_next(state, pool, ask, log)
        if isinstance(found, Request):
            granted.append(found)
            turn += 1
            if counted:
                _take_tokens(ask, found.kv_tokens)
        else:
            reason = _weightier(reason, found)
            del pools[turn]
    if len(granted) == asked:
        reason = _NONE
    return a.Dispatches(tuple(granted), reason, ask.stalled_by)


def _pulled_pool(state: State, name: str) -> Pool:
    pool = admission.pool_named(state, name)
    if name in state.gates:
        raise WrongState("POOL_MODE", f"Pool {name!r} is a gate; no worker pulls.", pool=name)
    return pool


def _take_tokens(ask: Ask, tokens: int) -> None:
    offer = ask.offer
    ask.offer = d.Offer(
        max(offer.free_tokens - tokens, 0),
        offer.total_tokens,
        offer.accepts_short,
        offer.accepts_long,
        offer.labels,
        offer.max_leases,
    )


def _weightier(first: d.EmptyReason, second: d.EmptyReason) -> d.EmptyReason:
    """Returns the reason a worker of several pools is told: the one that says most."""
    if first in {_NONE, d.EmptyReason.EMPTY}:
        return second
    return first


def _repeated(state: State, x: c.NextDispatch) -> a.Dispatches | None:
    """Returns the live leases that an earlier call with the same key was granted."""
    known = state.keys.get((x.worker, x.idempotency_key))
    if known is None:
        return None
    live = (state.leases.get(lease_id) for _, _, lease_id in known)
    granted = tuple(request for request in live if request is not None)
    return a.Dispatches(granted, _NONE, "", a.Existing.REPEATED)


def _see_worker(
    state: State, x: c.NextDispatch, pools: list[Pool], log: list[d.Decision]
) -> d.Offer:
    """Notes what the worker has in all, and confirms the leases it was granted before.

    Returns:
        The offer with the worker's total capacity filled in: a worker that states only what is
        free is taken to have the most it ever stated.
    """
    worker = state.workers.get(x.worker)
    if worker is not None and worker.provisional:
        record(state, log, d.LeasesConfirmed(x.now_ns, x.worker))
    offer, known = x.offer, d.Offer() if worker is None else worker.offer
    if offer.total_tokens < 0 <= offer.free_tokens:
        total = max(offer.free_tokens, known.total_tokens)
        offer = d.Offer(
            offer.free_tokens,
            total,
            offer.accepts_short,
            offer.accepts_long,
            offer.labels,
            offer.max_leases,
        )
    served = x.pools if len(x.pools) == 1 else tuple(sorted(x.pools))
    if (
        worker is not None
        and known.total_tokens == offer.total_tokens
        and known.accepts_short == offer.accepts_short
        and known.accepts_long == offer.accepts_long
        and known.labels == offer.labels
        and worker.pools == served
        and x.now_ns - worker.last_seen_ns < pools[0].rules.worker_ttl_ns // 2
    ):
        return offer
    admin.make_room_for_worker(state, x.worker)
    name = x.worker if worker is None else worker.name
    endpoint = "" if worker is None else worker.endpoint
    seen = d.WorkerSeen(x.now_ns, x.worker, name, served, offer, endpoint, registered=False)
    record(state, log, seen)
    return offer


def _grant_gate(state: State, pool: Pool, command: c.Command, log: list[d.Decision]) -> None:
    """Grants turns of a gate while its capacity has room."""
    policy = pool.policy
    ask = Ask(command.now_ns, "", command.nonce, _ANY, 0, hand_over=False)
    while pool.backlog.selectable or pool.redelivery:
        if pool.leased >= policy.gate_max_in_flight:
            return
        if policy.gate_max_in_flight_cost and pool.leased:
            ask.free_cost = policy.gate_max_in_flight_cost - pool.in_flight_cost
        if not isinstance(grant_next(state, pool, ask, log), Request):
            return


def _tick(_state: State, _command: c.Tick, _log: list[d.Decision]) -> None:
    """Does nothing: the timers have fired."""


def _open_log(state: State, x: c.OpenLog, log: list[d.Decision]) -> None:
    known = (state.algorithm_version, state.durability, state.config_digest)
    if known != (d.ALGORITHM_VERSION, x.durability, x.config_digest):
        record(
            state, log, d.LogOpened(x.now_ns, d.ALGORITHM_VERSION, x.durability, x.config_digest)
        )


_HANDLERS: Final[dict[type[c.Command], Callable[[State, Any, list[d.Decision]], Any]]] = {
    c.Enqueue: admission.enqueue,
    c.NextDispatch: next_dispatch,
    Complete: lifecycle.complete,
    c.RenewLease: lifecycle.renew,
    c.Cancel: lifecycle.cancel,
    c.Requeue: dead_letters.requeue,
    c.Discard: dead_letters.discard,
    c.ForgetUser: admin.forget_user,
    c.Tick: _tick,
    c.ConfigurePool: admin.configure_pool,
    c.DeletePool: admin.delete_pool,
    c.ConfigureUser: admin.configure_user,
    c.Pause: admin.pause,
    c.Resume: admin.resume,
    c.RegisterWorker: admin.register_worker,
    c.DrainWorker: admin.drain_worker,
    c.UpdateEstimator: admin.update_estimator,
    c.OpenLog: _open_log,
    c.Recover: _tick,
}
