"""What another policy would have done with what really came: a log's arrivals, decided again.

The arrivals are those of the log, whatever the policy (open loop: nobody comes earlier or later for
being served better).  The servers are modelled as slots: as many as leases were ever live at once,
and a request holds its slot as long as its last lease was held in reality.  So orders are decided
by the real core, while latencies are modelled: a change of order would have changed batches, and
with them durations, which a log cannot tell.

What the policy of the log does in the same model stands beside it, so that a difference is one of
policies and not one of model and reality.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.completion import Complete
from scheduler_service.core.policy import (
    SECOND_NS,
    PoolMode,
    PoolPolicy,
    PredictedClass,
    violations,
)
from scheduler_service.core.scheduler import apply
from scheduler_service.core.state import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PERCENT = 99


class LoggedRequest(NamedTuple):
    """A request as the log tells it; times in nanoseconds, `order` is that of acceptance."""

    order: int
    accept_ns: int
    request_id: str
    user_id: str
    cost: int
    predicted_class: PredictedClass
    weight_milli: int
    service_ns: int
    wait_ns: int


@dataclass
class Logged:
    """What was read from a log for one pool.

    Attributes:
        policy: The policy in force at its end.
        requests: Requests that were dispatched and came to an end, by time of acceptance.
        slots: Leases that were live at once, at most.
        left_out: Requests that never ran to an end: shed, expired, cancelled, still alive.
    """

    policy: PoolPolicy = field(default_factory=PoolPolicy)
    requests: list[LoggedRequest] = field(default_factory=list)
    slots: int = 0
    left_out: int = 0


class LogUnusableError(ValueError):
    """The log holds nothing that could be decided again."""


def pools_of(log: Iterable[d.Decision]) -> list[str]:
    """Returns the names of the pools in which requests were accepted."""
    return sorted({x.pool for x in log if isinstance(x, d.Accepted)})


def read(log: Iterable[d.Decision], pool: str) -> Logged:
    """Reads the requests of one pool.

    Raises:
        LogUnusableError: No request of the pool ran to an end.
    """
    found = Logged()
    accepted: dict[str, tuple[int, d.Accepted]] = {}
    started: dict[str, tuple[int, int]] = {}
    live = order = 0
    for x in log:
        if getattr(x, "pool", "") != pool:
            continue
        if isinstance(x, d.PoolConfigured):
            found.policy = x.policy
        elif isinstance(x, d.Accepted):
            accepted[x.request_id] = (order := order + 1, x)
        elif isinstance(x, d.Dispatched):
            live += 1
            found.slots = max(found.slots, live)
            first_wait = started.get(x.request_id, (0, x.wait_ns))[1]
            started[x.request_id] = (x.now_ns, first_wait)
        elif isinstance(x, d.LeaseEnded):
            live -= 1
        elif isinstance(x, d.Completed):
            live -= 1
            one = accepted.pop(x.request_id, None)
            if one is not None:
                began_ns, wait_ns = started.pop(x.request_id)
                found.requests.append(_logged(*one, max(x.now_ns - began_ns, 1), wait_ns))
    found.left_out = len(accepted)
    found.requests.sort()
    if not found.requests:
        message = f"the log holds no finished request of pool {pool!r}"
        raise LogUnusableError(message)
    return found


def _logged(order: int, x: d.Accepted, service_ns: int, wait_ns: int) -> LoggedRequest:
    return LoggedRequest(
        order,
        x.now_ns,
        x.request_id,
        x.user_id,
        x.cost,
        x.predicted_class,
        x.weight_milli,
        service_ns,
        wait_ns,
    )


def changed(policy: PoolPolicy, preset: PoolPolicy | None, changes: dict[str, int]) -> PoolPolicy:
    """Returns the policy to try: a preset or the log's own, with single values changed.

    What is no rule (limits, leases, costs) stays as the log had it.

    Raises:
        ValueError: A value is out of range.
    """
    values = msgspec.to_builtins(policy)
    if preset is not None:
        rules = {name: getattr(preset, name) for name in _RULES}
        values |= msgspec.to_builtins(rules)
    made = msgspec.convert(values | changes, PoolPolicy)
    wrong = violations(made)
    if wrong:
        raise ValueError("; ".join(f"{name} {text}" for name, text in wrong))
    return made


_RULES = (
    "preset",
    "slack_kind",
    "slack_milli",
    "slack_micros",
    "class_order",
    "within_user",
    "placement",
    "quota_k",
    "aging_quantile_bp",
    "aging_sample_window",
    "aging_min_sample",
    "admission_point",
    "max_passes",
)


def replay(logged: Logged, policy: PoolPolicy, weights: dict[str, int]) -> list[int]:
    """Returns the modelled wait of every request, nanoseconds, in their order.

    Args:
        logged: What came.
        policy: Who decides now; as a pool that workers pull from, without limits of waiting.
        weights: Weights in thousandths that differ from those of the log.
    """
    state = State()
    log: list[d.Decision] = []
    policy = msgspec.structs.replace(
        policy,
        mode=PoolMode.PULL,
        max_wait_ns=0,
        max_waiting=100_000_000,
        max_waiting_per_user=100_000_000,
        hand_over_ns=0,
        lease_duration_ns=86_400 * SECOND_NS,
    )
    origin = logged.requests[0].accept_ns
    make = c.ConfigurePool(now_ns=0, pool="p", policy=policy, policy_digest="whatif", create=True)
    apply(state, make, log)
    _set_weights(state, logged, weights, log)
    waits = [0] * len(logged.requests)
    ends: list[tuple[int, str]] = []
    free, arrived = logged.slots, 0
    while arrived < len(waits) or ends:
        came_ns = logged.requests[arrived].accept_ns - origin if arrived < len(waits) else None
        if ends and (came_ns is None or ends[0][0] <= came_ns):
            now_ns, lease_id = heappop(ends)
            done = d.Outcome.SUCCEEDED
            apply(state, Complete(now_ns=now_ns, lease_id=lease_id, outcome=done), log)
            free += 1
        else:
            assert came_ns is not None
            now_ns = came_ns
            one = logged.requests[arrived]
            arrival = c.Enqueue(
                now_ns=now_ns,
                pool="p",
                request_id=str(arrived),
                user_id=one.user_id,
                cost=one.cost,
                predicted_class=one.predicted_class,
            )
            apply(state, arrival, log)
            arrived += 1
        if free:
            free -= _fill(state, logged, now_ns, free, waits, ends, log)
        log.clear()
    return waits


def _fill(
    state: State,
    logged: Logged,
    now_ns: int,
    free: int,
    waits: list[int],
    ends: list[tuple[int, str]],
    log: list[d.Decision],
) -> int:
    """Gives free slots out; returns how many were taken."""
    ask = c.NextDispatch(
        now_ns=now_ns, nonce="s", pools=("p",), worker="w", max_dispatches=free, hand_over=False
    )
    answer = apply(state, ask, log)
    for request in answer.granted:
        index = int(request.request_id)
        waits[index] = now_ns - request.enqueue_ns
        heappush(ends, (now_ns + logged.requests[index].service_ns, request.held_lease.lease_id))
    return len(answer.granted)


def _set_weights(
    state: State, logged: Logged, weights: dict[str, int], log: list[d.Decision]
) -> None:
    last = {one.user_id: one.weight_milli for one in logged.requests}
    for user_id, weight in (last | weights).items():
        setting = c.ConfigureUser(
            now_ns=0, pool="p", user_id=user_id, weight_milli=weight, max_in_flight=-1
        )
        apply(state, setting, log)


class Group(NamedTuple):
    """Waits of some requests, seconds: as logged, modelled as logged, modelled with the change."""

    name: str
    requests: int
    cost: int
    logged_mean: float
    before_mean: float
    after_mean: float
    before_p99: float
    after_p99: float


def groups(logged: Logged, before: Sequence[int], after: Sequence[int]) -> list[Group]:
    """Returns everything, each class, and each user by cost, largest first."""
    every = list(range(len(logged.requests)))
    found = [_group("all", every, logged, before, after)]
    for name, wanted in (("short", PredictedClass.SHORT), ("long", PredictedClass.LONG)):
        of_class = [i for i in every if logged.requests[i].predicted_class is wanted]
        if of_class:
            found.append(_group(f"predicted {name}", of_class, logged, before, after))
    users: dict[str, list[int]] = {}
    for i in every:
        users.setdefault(logged.requests[i].user_id, []).append(i)
    of_users = [_group(user, which, logged, before, after) for user, which in users.items()]
    return found + sorted(of_users, key=lambda group: (-group.cost, group.name))


def _group(
    name: str, which: list[int], logged: Logged, before: Sequence[int], after: Sequence[int]
) -> Group:
    def mean(values: list[int]) -> float:
        return sum(values) / len(values) / SECOND_NS

    def p99(values: list[int]) -> float:
        return sorted(values)[-(-_PERCENT * len(values) // 100) - 1] / SECOND_NS

    was, now = [before[i] for i in which], [after[i] for i in which]
    return Group(
        name,
        len(which),
        sum(logged.requests[i].cost for i in which),
        mean([logged.requests[i].wait_ns for i in which]),
        mean(was),
        mean(now),
        p99(was),
        p99(now),
    )
