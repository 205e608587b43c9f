"""The oracle's knowledge at a snapshot, so that a pruned log can be re-decided from there.

The oracle normally learns everything from the records.  Where those are gone it is told what the
state was: the same facts in its own words, and nothing that is derived from them.  What a snapshot
does not hold is filled in on the safe side: the largest charge of one user is taken to be the
pool's, and recent charges that can no longer be the largest are taken to be nothing.
"""

from collections import deque

from scheduler_service.core import request as requests
from scheduler_service.core import state as core
from scheduler_service.core.decisions import RequestState
from scheduler_service.core.policy import UserSettings
from scheduler_service.core.windows import SlidingMax
from scheduler_service.oracle import Oracle
from scheduler_service.oracle.ledger import Lease, Pool, Quota, Request, User, Worker


def oracle_at(state: core.State) -> Oracle:
    """Returns an oracle that knows what `state` says and expects the record after it."""
    oracle = Oracle()
    book = oracle.book
    book.sequence, book.now_ns = state.sequence, state.now_ns
    book.earliest_ns = 0
    for name, known in state.pools.items():
        book.pools[name] = _pool(known)
    for key, worker in state.workers.items():
        book.workers[key] = Worker(key, worker.pools, worker.offer, worker.draining)
    return oracle


def _pool(known: core.Pool) -> Pool:
    pool = Pool(
        known.name,
        known.policy,
        known.policy_digest,
        virtual_time=known.virtual_time,
        meter_max=known.largest_meter,
        passes=known.passes,
        paused_until=known.pause_until_ns if known.paused else None,
        slack_seen=known.slack_max,
        charge_seen=known.charge_max,
    )
    pool.sample = known.sample.dump()
    _fill(pool.costs, known.recent_costs)
    _fill(pool.charges, known.recent_charges)
    pool.quota = Quota(known.short_admission_count, known.promotion_debt)
    for user_id in {**known.flows, **known.settings}:
        pool.users[user_id] = _user(known, user_id)
    for request in sorted(known.requests.values(), key=lambda one: one.sequence):
        _add_request(pool, request)
    for request in known.dead.values():
        pool.user(request.user_id)
        dead = _request(pool, request, RequestState.DEAD_LETTERED)
        pool.requests[request.request_id] = dead
        pool.dead.append(dead)
    for worker, request_id in known.reservations.items():
        pool.reservations[worker] = pool.requests[request_id]
    for user in pool.users.values():
        user.held = pool.holds_back(user)
    return pool


def _fill(window: deque[int], known: SlidingMax) -> None:
    """Puts the values that can still become the largest at their ages, the oldest first."""
    by_age = dict(known.dump())
    window.extend(by_age.get(age, 0) for age in range(max(by_age, default=-1), -1, -1))


def _user(known: core.Pool, user_id: str) -> User:
    settings = known.settings.get(user_id, UserSettings())
    flow = known.flows.get(user_id)
    user = User(
        user_id,
        meter=known.virtual_time if flow is None else flow.meter,
        weight_milli=settings.weight_milli,
        cap=settings.max_in_flight,
        paused_until=settings.pause_until_ns if settings.paused else None,
        charge_max=known.charge_max,
    )
    if flow is not None:
        user.quota = Quota(flow.short_admission_count, flow.promotion_debt)
    return user


def _add_request(pool: Pool, request: requests.Request) -> None:
    made = _request(pool, request, request.state)
    pool.requests[request.request_id] = made
    user = made.user
    if request.state is RequestState.WAITING:
        user.waiting.append(made)
    else:
        user.flight.append(made)
    if request.promoted and not request.counted:
        made.promotes = pool.quota if request.promoted_by_pool else user.quota
        made.promotes.promoting = made


def _request(pool: Pool, known: requests.Request, state: RequestState) -> Request:
    made = Request(
        sequence=known.sequence,
        request_id=known.request_id,
        user=pool.users[known.user_id],
        cost=known.cost,
        predicted_class=known.predicted_class,
        kv_tokens=known.kv_tokens,
        labels=frozenset(known.labels),
        accept_ns=known.enqueue_ns,
        expire_ns=known.expire_ns,
        state=state,
        failures=known.failures,
        overtakes=known.overtakes,
        rule=None if state is RequestState.WAITING else known.rule,
        cancelling=bool(known.cancel_reason),
        counted=known.counted,
    )
    made.backoff.update(known.givers)
    lease = known.lease
    if lease is not None and state is RequestState.LEASED:
        made.lease = Lease(lease.lease_id, lease.worker, "", lease.expire_ns, lease.hand_over_ns)
    return made
