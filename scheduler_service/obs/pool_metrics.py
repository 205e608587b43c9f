"""The numbers of one pool, as rows of a metrics page."""

from collections.abc import Callable, Sequence
from heapq import nlargest

from scheduler_service.app.census import census, oldest_unplaceable_ns
from scheduler_service.app.histogram import DurationHistogram
from scheduler_service.app.observation import Observation
from scheduler_service.app.tally import WAIT_BOUNDS_NS, PoolTally
from scheduler_service.core.policy import MICRO
from scheduler_service.core.state import Pool
from scheduler_service.estimator.learning import Errors, PoolLearner

_NS = 1e9

_Labels = tuple[str, ...]
_Buckets = list[tuple[str, float]]


class Rows:
    """Numbers of a page, by metric.

    Attributes:
        values: Name -> (label values, value).
        histograms: Name -> (label values, cumulative buckets, sum).
    """

    def __init__(self) -> None:
        self.values: dict[str, list[tuple[_Labels, float]]] = {}
        self.histograms: dict[str, list[tuple[_Labels, _Buckets, float]]] = {}

    def add(self, name: str, value: float, *labels: str) -> None:
        """Adds one number."""
        self.values.setdefault(name, []).append((labels, value))

    def histogram(self, name: str, durations: DurationHistogram, *labels: str) -> None:
        """Adds one histogram."""
        self.buckets(name, durations.bounds_ns, durations.counts, durations.sum_ns, *labels)

    def buckets(
        self, name: str, bounds_ns: Sequence[int], counts: list[int], sum_ns: int, *labels: str
    ) -> None:
        """Adds one histogram, given counts that are not cumulative."""
        total, found = 0, []
        for bound_ns, count in zip((*bounds_ns, None), counts, strict=True):
            total += count
            found.append(("+Inf" if bound_ns is None else str(bound_ns / _NS), float(total)))
        self.histograms.setdefault(name, []).append((labels, found, sum_ns / _NS))


def pool_rows(
    rows: Rows, name: str, seen: Observation, users_max: int, mask: Callable[[str], str]
) -> None:
    """Adds all rows of one pool; a pool that has gone meanwhile has none."""
    pool = seen.engine.state.pools.get(name)
    tally = seen.tally.pools.get(name)
    if pool is None or tally is None:
        return
    _now(rows, pool, seen)
    _happened(rows, name, tally)
    learner = seen.learners.get(name)
    _estimates(rows, name, Errors() if learner is None else learner.errors)
    if users_max:
        _users(rows, name, tally, learner, users_max, mask)


def _now(rows: Rows, pool: Pool, seen: Observation) -> None:
    now_ns = seen.engine.now_ns()
    x, name = census(pool, now_ns), pool.name
    unplaceable_ns = oldest_unplaceable_ns(seen.engine.state, pool, now_ns)
    numbers: dict[str, float] = {
        "fairsched_waiting_requests": x.waiting,
        "fairsched_leases": x.leased,
        "fairsched_redelivery_requests": x.redelivery,
        "fairsched_dead_letters": x.dead_letters,
        "fairsched_remembered_requests": x.remembered,
        "fairsched_users": x.users,
        "fairsched_backlogged_users": x.selectable_users,
        "fairsched_paused": int(pool.paused),
        "fairsched_in_flight_cost_units": x.in_flight_cost,
        "fairsched_oldest_wait_seconds": max(x.oldest_wait_ns, 0) / _NS,
        "fairsched_oldest_unplaceable_wait_seconds": max(unplaceable_ns, 0) / _NS,
        "fairsched_virtual_time_cost_units": x.virtual_time / MICRO,
        "fairsched_fairness_gap_cost_units": x.gap / MICRO,
        "fairsched_quota_k": pool.policy.quota_k,
        "fairsched_aging_sample_size": x.sample_size,
        "fairsched_short_cutoff_tokens": x.short_cutoff,
        "fairsched_output_ratio": x.output_ratio_milli / 1000,
    }
    if x.bound >= 0:
        numbers["fairsched_fairness_bound_cost_units"] = x.bound / MICRO
        numbers["fairsched_slack_cost_units"] = x.slack / MICRO
    else:
        numbers["fairsched_short_admissions"] = x.short_admission_count
        numbers["fairsched_promotion_debt"] = int(x.promotion_debt)
    if x.threshold_ns >= 0:
        numbers["fairsched_aging_threshold_seconds"] = x.threshold_ns / _NS
    for metric, value in numbers.items():
        rows.add(metric, value, name)


def _happened(rows: Rows, name: str, tally: PoolTally) -> None:
    rows.add("fairsched_enqueues_total", tally.accepted, name)
    for (turn, rule), count in tally.dispatches.items():
        labels = (turn.name.lower(), rule.name.lower())
        rows.add("fairsched_dispatches_total", count, name, *labels)
    rows.add("fairsched_redeliveries_total", tally.redelivered, name)
    rows.add("fairsched_charge_cost_units_total", tally.cost, name)
    rows.add("fairsched_overtakes_total", tally.overtakes, name)
    for state, count in tally.ended.items():
        rows.add("fairsched_ends_total", count, name, state.name.lower())
    for cause, count in tally.leases_ended.items():
        rows.add("fairsched_lease_ends_total", count, name, cause.name.lower())
    for reason, count in tally.refused.items():
        rows.add("fairsched_rejections_total", count, name, reason)
    rows.add("fairsched_rejoins_total", tally.rejoins, name)
    rows.add("fairsched_busy_periods_total", tally.busy_periods, name)
    for kind, waits in tally.waits.items():
        label = kind.name.lower()
        rows.buckets(
            "fairsched_wait_seconds", WAIT_BOUNDS_NS, waits.counts, waits.sum_ns, name, label
        )


def _estimates(rows: Rows, name: str, errors: Errors) -> None:
    rows.add("fairsched_measured_requests_total", errors.measured, name)
    rows.add("fairsched_estimated_cost_units_total", errors.charged_cost, name)
    rows.add("fairsched_used_cost_units_total", errors.real_cost, name)
    error = "fairsched_cost_error_cost_units_total"
    rows.add(error, errors.too_low_cost, name, "too_low")
    rows.add(error, errors.too_high_cost, name, "too_high")
    rows.add("fairsched_classified_requests_total", errors.shorts, name, "short")
    rows.add("fairsched_classified_requests_total", errors.longs, name, "long")
    wrong = "fairsched_mispredictions_total"
    rows.add(wrong, errors.long_as_short, name, "long_as_short")
    rows.add(wrong, errors.short_as_long, name, "short_as_long")


def _users(
    rows: Rows,
    name: str,
    tally: PoolTally,
    learner: PoolLearner | None,
    users_max: int,
    mask: Callable[[str], str],
) -> None:
    """Adds the largest users by cost, and everybody else together."""
    largest = nlargest(users_max, tally.users.items(), key=lambda item: item[1].cost)
    named = 0
    for user_id, user in largest:
        label = mask(user_id)
        named += user.cost
        rows.add("fairsched_user_cost_units_total", user.cost, name, label)
        errors = None if learner is None else learner.user_errors.get(user_id)
        if errors is not None:
            used, charged = errors.real_cost, errors.charged_cost
            rows.add("fairsched_user_used_cost_units_total", used, name, label)
            rows.add("fairsched_user_estimated_cost_units_total", charged, name, label)
    rows.add("fairsched_other_users_cost_units_total", tally.cost - named, name)
