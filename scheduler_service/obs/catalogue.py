"""Every metric: name, kind, labels, unit, stability, help.

Names are `fairsched_` + noun + unit (+ `_total` for counters).  A name with `debug_` may change
with any release; all others are as stable as the API.  Labels are few and bounded: pools (the first
`POOLS_SHOWN_MAX`), enums, RPC names, reasons.  User ids are a label only where an operator asks for
the largest users by name.  A test compares this table with the one in OPERATING.md.
"""

from typing import NamedTuple


class Metric(NamedTuple):
    """One metric.

    Attributes:
        kind: "gauge", "counter" or "histogram".
        labels: Names of its labels.
        unit: Unit of its values; empty for a plain number.
        help: What it is, one sentence.
        stable: Whether its name and meaning stay.
    """

    kind: str
    labels: tuple[str, ...]
    unit: str
    help: str
    stable: bool = True


POOLS_SHOWN_MAX = 100
"""Pools with metrics of their own, the oldest first; keeps a page below 2 MB."""


def _gauge(help_text: str, unit: str = "", *labels: str, stable: bool = True) -> Metric:
    return Metric("gauge", labels, unit, help_text, stable)


def _pool(help_text: str, unit: str = "", *labels: str) -> Metric:
    return Metric("gauge", ("pool", *labels), unit, help_text)


def _counter(help_text: str, unit: str = "", *labels: str) -> Metric:
    return Metric("counter", labels, unit, help_text)


def _histogram(help_text: str, *labels: str) -> Metric:
    return Metric("histogram", labels, "seconds", help_text)


_COST = "cost units"

SERVICE: dict[str, Metric] = {
    "fairsched_build_info": _gauge(
        "Always 1; says which version of the service and of the rules runs.",
        "",
        "version",
        "algorithm_version",
        "durability",
    ),
    "fairsched_start_time_seconds": _gauge("When the service began to count.", "seconds"),
    "fairsched_ready": _gauge("1 while calls should be sent here, else 0."),
    "fairsched_problems": _gauge("Problems that make it not ready, by name.", "", "problem"),
    "fairsched_sequence": _gauge("Last durable sequence of the decision log."),
    "fairsched_head_hash48": _gauge(
        "First 48 bits of the hash of that decision, as a number: compare it with the log later."
    ),
    "fairsched_oldest_sequence": _gauge("First sequence that the decision log still holds."),
    "fairsched_pending_decisions": _gauge("Decisions taken and not durable yet."),
    "fairsched_decisions_total": _counter("Decisions taken.", "", "kind"),
    "fairsched_decide_duration_seconds": _histogram(
        "Time to decide one command, or completions that came together, in memory; no commit."
    ),
    "fairsched_commits_total": _counter("Groups of decisions made durable."),
    "fairsched_commit_duration_seconds": _histogram(
        "Time to append and sync one group of decisions."
    ),
    "fairsched_rpc_duration_seconds": _histogram(
        "Time from a call's arrival in the service to its end, waiting included.", "rpc"
    ),
    "fairsched_rpcs_total": _counter("Calls that have ended.", "", "rpc", "code"),
    "fairsched_rpc_errors_total": _counter(
        "Calls, and items of batches, that were refused.", "", "rpc", "reason"
    ),
    "fairsched_parked_calls": _gauge("Calls that wait for something to happen."),
    "fairsched_streams": _gauge("Open sessions and watches."),
    "fairsched_watches": _gauge("Open watches of the decision log."),
    "fairsched_workers": _gauge("Workers the service has heard of."),
    "fairsched_pools": _gauge("Pools, shown here or not."),
    "fairsched_log_bytes": _gauge("Records kept in the decision log.", "bytes"),
    "fairsched_store_bytes": _gauge("All files of the store.", "bytes"),
    "fairsched_store_journal_bytes": _gauge("The write-ahead file of the store alone.", "bytes"),
    "fairsched_disk_free_bytes": _gauge(
        "Free space of the file system; -1 if the store has none.", "bytes"
    ),
    "fairsched_audit_ring_bytes": _gauge("Recent records kept in memory for readers.", "bytes"),
    "fairsched_log_lines_dropped_total": _counter("Log lines dropped since nobody took them."),
    "fairsched_invariant_violations_total": _counter(
        "Laws of the core found broken, restarts included; the service stops at the first."
    ),
    "fairsched_debug_loop_lag_max_seconds": _gauge(
        "Longest time the event loop was late since the start.", "seconds", stable=False
    ),
}
"""Of the service as a whole."""

POOL: dict[str, Metric] = {
    "fairsched_waiting_requests": _pool("Requests that wait."),
    "fairsched_leases": _pool("Requests that are leased."),
    "fairsched_redelivery_requests": _pool("Requests whose lease was lost, due to go first."),
    "fairsched_dead_letters": _pool("Dead-lettered requests kept."),
    "fairsched_remembered_requests": _pool("Ended requests whose ids are remembered."),
    "fairsched_users": _pool("Users with state."),
    "fairsched_backlogged_users": _pool(
        "Users with waiting requests that nothing but the order holds back."
    ),
    "fairsched_held_users": _pool(
        "Users with waiting requests that their cap or a pause holds back.", "", "cause"
    ),
    "fairsched_misfit_requests": _pool(
        "Waiting requests whose turn came and that a worker which asked could not take."
    ),
    "fairsched_stalled_seconds_total": Metric(
        "counter",
        ("pool",),
        "s",
        "Time in which a worker asked and got nothing, for a request that did not fit it.",
    ),
    "fairsched_paused": _pool("1 while the whole pool is paused, else 0."),
    "fairsched_in_flight_cost_units": _pool("Cost of everything leased.", _COST),
    "fairsched_oldest_wait_seconds": _pool("Age of the oldest waiting request; 0 without.", "s"),
    "fairsched_oldest_unplaceable_wait_seconds": _pool(
        "Age of the oldest waiting request that no live worker could hold; 0 without.", "s"
    ),
    "fairsched_virtual_time_cost_units": _pool("Virtual time v.", _COST),
    "fairsched_fairness_gap_cost_units": _pool(
        "Largest difference of two selectable users' meters.", _COST
    ),
    "fairsched_fairness_bound_cost_units": _pool(
        "What the gap never exceeds, D + L of the busy period; absent with unbounded slack.", _COST
    ),
    "fairsched_slack_cost_units": _pool("Slack D; absent when unbounded.", _COST),
    "fairsched_quota_k": _pool("Short admissions that earn one promotion."),
    "fairsched_short_admissions": _pool(
        "Short admissions since the last promotion; with unbounded slack only."
    ),
    "fairsched_promotion_debt": _pool("1 while a promotion is owed; with unbounded slack only."),
    "fairsched_aging_threshold_seconds": _pool(
        "Aging threshold theta; absent while too few waits are known.", "s"
    ),
    "fairsched_aging_sample_size": _pool("Waits the threshold is taken from."),
    "fairsched_short_cutoff_tokens": _pool("Cutoff tau between short and long; 0: none.", "tokens"),
    "fairsched_output_ratio": _pool("Expected output as a part of the output cap."),
    "fairsched_enqueues_total": Metric("counter", ("pool",), "", "Requests accepted."),
    "fairsched_dispatches_total": Metric(
        "counter", ("pool", "turn", "rule"), "", "First dispatches, by how and by which rule."
    ),
    "fairsched_redeliveries_total": Metric(
        "counter", ("pool",), "", "Dispatches of requests whose lease was lost."
    ),
    "fairsched_charge_cost_units_total": Metric(
        "counter", ("pool",), _COST, "Cost of first dispatches; charged unless slack is unbounded."
    ),
    "fairsched_overtakes_total": Metric(
        "counter", ("pool",), "", "Times a request was passed over since it did not fit."
    ),
    "fairsched_ends_total": Metric("counter", ("pool", "state"), "", "Requests that have ended."),
    "fairsched_lease_ends_total": Metric(
        "counter", ("pool", "cause"), "", "Leases that ended unfinished."
    ),
    "fairsched_rejections_total": Metric(
        "counter", ("pool", "reason"), "", "Requests that were not accepted."
    ),
    "fairsched_rejoins_total": Metric(
        "counter", ("pool",), "", "Users selectable again after their cap or a pause."
    ),
    "fairsched_busy_periods_total": Metric(
        "counter", ("pool",), "", "Times nothing waited any more."
    ),
    "fairsched_wait_seconds": Metric(
        "histogram", ("pool", "class"), "s", "Time from acceptance to the first dispatch."
    ),
    "fairsched_measured_requests_total": Metric(
        "counter", ("pool",), "", "Completed requests with reported usage."
    ),
    "fairsched_estimated_cost_units_total": Metric(
        "counter", ("pool",), _COST, "What these were charged."
    ),
    "fairsched_used_cost_units_total": Metric(
        "counter", ("pool",), _COST, "What these really used."
    ),
    "fairsched_cost_error_cost_units_total": Metric(
        "counter", ("pool", "direction"), _COST, "How far their charges were too low, too high."
    ),
    "fairsched_classified_requests_total": Metric(
        "counter", ("pool", "class"), "", "Completed requests by what they really were."
    ),
    "fairsched_mispredictions_total": Metric(
        "counter", ("pool", "direction"), "", "Completed requests predicted to be the other class."
    ),
    "fairsched_user_cost_units_total": Metric(
        "counter",
        ("pool", "user"),
        _COST,
        "Cost of first dispatches of the largest users, as many as were asked for.",
    ),
    "fairsched_other_users_cost_units_total": Metric(
        "counter", ("pool",), _COST, "Cost of first dispatches of all other users together."
    ),
    "fairsched_user_used_cost_units_total": Metric(
        "counter", ("pool", "user"), _COST, "What these users' requests really used, as reported."
    ),
    "fairsched_user_estimated_cost_units_total": Metric(
        "counter", ("pool", "user"), _COST, "What the same requests were charged."
    ),
}
"""Of each pool."""

METRICS = SERVICE | POOL
"""All of them, by name."""
