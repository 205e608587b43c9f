"""Why everything but a dispatch was decided, from its record alone."""

from collections.abc import Callable
from typing import Any, Final

from scheduler_service.core import decisions as d
from scheduler_service.core.phrases import (
    Explanation,
    Fact,
    cost_text,
    count_text,
    time_text,
    worker_text,
)

_ENDS: Final = {
    d.RequestState.CANCELLED: "was cancelled",
    d.RequestState.EXPIRED: "waited as long as it may and left, uncharged",
    d.RequestState.SHED: (
        "was shed, uncharged: the pool was full and its user held more than its share of places, "
        "so its newest request made room"
    ),
    d.RequestState.DEAD_LETTERED: "was put aside: its leases expired too often",
    d.RequestState.UNPLACEABLE: "ended, uncharged: no live worker could ever have held it",
    d.RequestState.LEASE_EXPIRED: "ended: the gateway that held its lease fell silent",
}

_LEASE_ENDS: Final = {
    d.LeaseEndCause.EXPIRED: "its time was up",
    d.LeaseEndCause.HAND_OVER: (
        "nobody confirmed it, so the answer reached nobody; the attempt does not count"
    ),
    d.LeaseEndCause.GIVEN_BACK: "its holder gave it back; the attempt does not count",
}


def others(decision: d.Decision, worker_name: str) -> Explanation:
    """Returns why `decision`, not a dispatch, was taken; see `explain`."""
    kind = type(decision)
    if kind in _OF_WORKERS:
        worker = worker_text(getattr(decision, "worker", ""), worker_name)
        return _OF_WORKERS[kind](decision, worker)
    return _EXPLAIN[kind](decision)


def _say(*sentences: str, related: int = 0) -> Explanation:
    return Explanation(sentences, (), (related,) if related else ())


def _by(peer: str) -> str:
    return f" by {peer!r}" if peer else ""


def _request(x: Any, noun: str = "Request") -> str:
    user = f" of user {x.user_id!r}" if x.user_id else ""
    return f"{noun} {x.request_id!r}{user}"


def _whom(x: Any) -> str:
    return f"User {x.user_id!r} of pool {x.pool!r}" if x.user_id else f"Pool {x.pool!r}"


def _accepted(x: d.Accepted) -> Explanation:
    sentences = [
        (
            f"{_request(x)} was accepted into pool {x.pool!r} with cost {x.cost:,}, predicted "
            f"{x.predicted_class.name.lower()}."
        )
    ]
    if x.prompt_tokens or x.output_cap_tokens or x.expected_output_tokens:
        sentences.append(
            f"The cost rests on {x.prompt_tokens:,} prompt tokens and {x.expected_output_tokens:,} "
            f"expected output tokens (cap {x.output_cap_tokens:,})."
        )
    if x.meter_after > x.meter_before:
        sentences.append(
            "Its user had nothing waiting, so its meter rose to the virtual time, "
            f"{cost_text(x.virtual_time)}: time without work is not saved up."
        )
    elif x.rejoined:
        sentences.append(
            f"Its user had nothing waiting; its meter, {cost_text(x.meter_after)}, was not below "
            f"the virtual time, {cost_text(x.virtual_time)}, and stayed."
        )
    else:
        sentences.append("Its user had requests waiting, so its meter did not change.")
    if x.expire_ns:
        sentences.append(f"It may wait {time_text(x.expire_ns - x.now_ns)}.")
    facts = (
        Fact("cost", str(x.cost), "cost units"),
        Fact("meter_before_micros", str(x.meter_before), "micro cost units"),
        Fact("meter_after_micros", str(x.meter_after), "micro cost units"),
        Fact("virtual_time_micros", str(x.virtual_time), "micro cost units"),
    )
    return Explanation(tuple(sentences), facts)


def _ended(x: d.Ended) -> Explanation:
    return _say(
        f"{_request(x)} {_ENDS[x.state]} ({x.reason}){_by(x.peer)}.",
        "No meter changed.",
        related=x.request_sequence,
    )


def _completed(x: d.Completed) -> Explanation:
    how = {
        d.RequestState.SUCCEEDED: "was finished",
        d.RequestState.FAILED: "failed",
        d.RequestState.CANCELLED: "was cancelled while it ran",
    }[x.state]
    error = f": {x.error}" if x.error else ""
    used = ""
    if x.output_tokens >= 0:
        used = f"It used {x.output_tokens:,} output tokens where {x.expected_output_tokens:,} were "
        used += "expected; that teaches the estimator. "
    return _say(
        f"{_request(x)} {how}{_by(x.peer)}{error}.",
        f"{used}Its charge stays as it was: nothing is settled.",
        related=x.request_sequence,
    )


def _lease_ended(x: d.LeaseEnded, worker: str) -> Explanation:
    return _say(
        f"{_request(x)} lost its lease of worker {worker}: {_LEASE_ENDS[x.cause]}.",
        f"It goes first again, uncharged; {count_text(x.failures_after, 'lease')} of it expired "
        "so far.",
    )


def _user_configured(x: d.UserConfigured) -> Explanation:
    weight = f"{x.weight_milli / 1000:g}" if x.weight_milli else "the pool's default"
    before = f"{x.weight_milli_before / 1000:g}"
    cap = {0: "none", -1: "the pool's default"}.get(x.max_in_flight, f"{x.max_in_flight:,}")
    sentences = [f"{_whom(x)} got weight {weight} (before: {before}) and cap {cap}{_by(x.peer)}."]
    if x.meter_after != x.meter_before:
        sentences.append(
            f"Its meter went from {cost_text(x.meter_before)} to {cost_text(x.meter_after)}: what "
            "it was ahead of the virtual time was counted anew under the new weight."
        )
    return _say(*sentences)


def _rejoined(x: d.Rejoined) -> Explanation:
    cause = {
        d.RejoinCause.CAP: "its cap",
        d.RejoinCause.RESUMED: "a pause",
        d.RejoinCause.UNPLACEABLE: "the lack of a live worker that could hold its requests",
    }[x.cause]
    return _say(
        f"{_whom(x)} may be selected again after {cause} held it back.",
        f"Its meter went from {cost_text(x.meter_before)} to {cost_text(x.meter_after)}: at least "
        "the virtual time, so held-back time is not saved up.",
    )


def _paused(x: d.Paused) -> Explanation:
    until = f" for {time_text(x.until_ns - x.now_ns)}" if x.until_ns else ""
    return _say(f"{_whom(x)} was paused{until}{_by(x.peer)}; leases go on.")


def _resumed(x: d.Resumed) -> Explanation:
    why = "when its pause was over" if x.by_timer else f"by a call{_by(x.peer)}"
    return _say(f"{_whom(x)} was resumed {why}.")


def _pool_configured(x: d.PoolConfigured) -> Explanation:
    what = "created" if x.created else "given another policy"
    return _say(
        f"Pool {x.pool!r} was {what}{_by(x.peer)}: policy {x.policy_digest}, from preset "
        f"{x.policy.preset!r}."
    )


def _prefill_completed(x: d.PrefillCompleted) -> Explanation:
    debt = " and a promotion is owed" if x.promotion_debt_after else ""
    return _say(
        f"The prefill of {_request(x, 'request')} is complete, which is when its admission counts: "
        f"the counter is at {x.short_admission_count_after}{debt}."
    )


def _busy_period_closed(x: d.BusyPeriodClosed) -> Explanation:
    return _say(
        f"Nothing waits in pool {x.pool!r} any more, so the virtual time rose from "
        f"{cost_text(x.virtual_time_before)} to the largest meter, "
        f"{cost_text(x.virtual_time_after)}: everybody starts level."
    )


def _rebased(x: d.Rebased) -> Explanation:
    return _say(
        f"{cost_text(x.offset_micros)} was taken off the virtual time and every meter of pool "
        f"{x.pool!r}, to keep the numbers small; no order changed."
    )


def _estimator_updated(x: d.EstimatorUpdated) -> Explanation:
    cutoff = f"{x.short_cutoff:,} tokens" if x.short_cutoff else "not set"
    return _say(
        f"Pool {x.pool!r} uses {count_text(len(x.ratios), 'output ratio')} learned from real "
        f"usage from here on; the cutoff between short and long is {cutoff}."
    )


def _worker_seen(x: d.WorkerSeen) -> Explanation:
    how = "registered" if x.registered else "asked for work, or changed what it can take"
    return _say(f"Worker {x.worker_name!r} (session {x.worker!r}) {how}.")


_EXPLAIN: Final[dict[type[Any], Callable[[Any], Explanation]]] = {
    d.LogOpened: lambda x: _say(
        f"The log goes on under version {x.algorithm_version} of the rules, durability "
        f"{x.durability!r}."
    ),
    d.Recovered: lambda x: _say(
        f"The service is back; every live lease was extended by {time_text(x.downtime_ns)}, in "
        "which nobody could renew it."
    ),
    d.PoolConfigured: _pool_configured,
    d.PoolDeleted: lambda x: _say(f"Pool {x.pool!r}, which was empty, was deleted{_by(x.peer)}."),
    d.UserConfigured: _user_configured,
    d.Paused: _paused,
    d.Resumed: _resumed,
    d.Rejoined: _rejoined,
    d.Accepted: _accepted,
    d.LeaseRenewed: lambda x: _say(
        f"The lease of {_request(x, 'request')} was extended: "
        f"{time_text(x.expire_ns - x.now_ns)} from then."
    ),
    d.PrefillCompleted: _prefill_completed,
    d.Completed: _completed,
    d.CancelRequested: lambda x: _say(
        f"{_request(x)} is to be cancelled ({x.reason}){_by(x.peer)}; its holder learns it at its "
        "next call."
    ),
    d.Ended: _ended,
    d.Requeued: lambda x: _say(
        f"{_request(x)} was put back{_by(x.peer)} with fresh attempts; it goes first, uncharged."
    ),
    d.BusyPeriodClosed: _busy_period_closed,
    d.Rebased: _rebased,
    d.WorkerSeen: _worker_seen,
    d.EstimatorUpdated: _estimator_updated,
    d.DeadLetterDropped: lambda x: _say(
        f"{_request(x)} was dropped from the dead letters{_by(x.peer)}.",
        related=x.request_sequence,
    ),
    d.UserForgotten: lambda x: _say(
        f"The settings of user {x.user_id!r} were deleted{_by(x.peer)}."
    ),
}

_OF_WORKERS: Final[dict[type[Any], Callable[[Any, str], Explanation]]] = {
    d.LeaseEnded: _lease_ended,
    d.LeasesConfirmed: lambda _, worker: _say(
        f"Worker {worker} called again, so its leases had reached it."
    ),
    d.Reserved: lambda x, worker: _say(
        f"{_request(x)} had been overtaken too often, so worker {worker}, which could hold it, "
        "gets nothing else until it fits."
    ),
    d.WorkerDrained: lambda x, worker: _say(
        f"Worker {worker} gets no new work{_by(x.peer)}; its leases go on."
    ),
    d.WorkerGone: lambda _, worker: _say(
        f"Worker {worker}, which held no lease, was silent for too long and is forgotten."
    ),
}
"""Of what concerns a worker; the second argument is the worker as text."""
