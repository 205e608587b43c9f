"""How far estimated cost is from real cost, and what that does to fairness of real cost.

Names of measures: group (`light_`, `heavy_`, or none for all requests), then

    est_ratio_mean, _p50, _p95    estimated over real cost of a request
    est_total                     sum of estimates over sum of real costs
    est_too_low, est_too_high     amounts by which estimates were too low, too high, over real cost

Fairness is measured twice, by the same code: `charged_` looks at the cost that was charged,
`real_` at the cost that was caused.  Users are heavy or light by real cost.  `late_` looks at the
second half of the run alone, when learned values have settled.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from scheduler_service.estimator.cost import cost_of
from scheduler_service.sim.gps import ideal_shares
from scheduler_service.sim.metrics import (
    Measures,
    by_user,
    fairness,
    flat_by_user,
    heavy_users,
    latency,
    share_error,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from scheduler_service.core.policy import PoolPolicy
    from scheduler_service.sim.estimating import EstimatingCore
    from scheduler_service.sim.model import RunLog, Workload

STEPS: Final = 24
"""Stretches of a run over which the error is shown in time."""

TIME_PREFIX: Final = "time/"
_FAIRNESS: Final = ("share_error_10s", "jain_10s", "gap_max_units", "gps_lag_max_units")


def with_real_cost(workload: Workload, policy: PoolPolicy) -> Workload:
    """Returns the stream with what the estimator's formula gives for real lengths as cost."""
    rates = policy.prompt_cost_milli, policy.output_cost_milli
    sizes = zip(workload.prompt, workload.response, strict=True)
    return dataclasses.replace(workload, cost=[cost_of(p, r, *rates) for p, r in sizes])


def measure_estimates(real: Workload, log: RunLog, method: EstimatingCore) -> Measures:
    """Returns every measure of a run whose costs were estimated.

    Args:
        real: The stream with real costs.
        log: A run over it.
        method: The method that ran.
    """
    found = latency(real, log) | _errors(real, method) | _over_time(real, method)
    found["updates"] = float(method.updates)
    if len(real.users) > 1:
        charged = dataclasses.replace(real, cost=method.charged)
        found |= _fairness("charged_", charged, log, method.slack)
        found |= _fairness("real_", real, log, method.slack)
    return found | _users(real, log, method)


def _fairness(prefix: str, workload: Workload, log: RunLog, slack: dict[int, int]) -> Measures:
    measures, report = fairness(workload, log, slack)
    found = {prefix + name: measures[name] for name in _FAIRNESS}
    found[f"{prefix}gap_over_bound_max"] = report.worst_ratio
    intervals = ideal_shares(workload, log).intervals
    found[f"late_{prefix}share_error_10s"] = share_error(intervals[len(intervals) // 2 :])[0]
    return found


def _error(prefix: str, charged: NDArray[np.float64], real: NDArray[np.float64]) -> Measures:
    import numpy as np  # noqa: PLC0415 - optional, of the extra `sim`

    ratio, difference, total = charged / real, charged - real, float(real.sum())
    p50, p95 = np.percentile(ratio, (50, 95))
    return {
        f"{prefix}est_ratio_mean": float(ratio.mean()),
        f"{prefix}est_ratio_p50": float(p50),
        f"{prefix}est_ratio_p95": float(p95),
        f"{prefix}est_total": float(charged.sum()) / total,
        f"{prefix}est_too_low": float(-difference[difference < 0].sum()) / total + 0.0,
        f"{prefix}est_too_high": float(difference[difference > 0].sum()) / total,
    }


def _errors(real: Workload, method: EstimatingCore) -> Measures:
    import numpy as np  # noqa: PLC0415 - optional, of the extra `sim`

    charged, cost = np.asarray(method.charged, dtype=float), np.asarray(real.cost, dtype=float)
    heavy = np.isin(np.asarray(real.user), sorted(heavy_users(real)))
    late = np.asarray(real.arrival_ns) > real.arrival_ns[-1] // 2
    found = _error("", charged, cost)
    if late.any():
        found |= _error("late_", charged[late], cost[late])
    if heavy.any() and not heavy.all():
        found |= _error("light_", charged[~heavy], cost[~heavy])
        found |= _error("heavy_", charged[heavy], cost[heavy])
    return found


def _over_time(real: Workload, method: EstimatingCore) -> Measures:
    """Returns estimated over real cost of what arrived in each of `STEPS` stretches of time."""
    end_ns = real.arrival_ns[-1] + 1
    sums = [[0, 0] for _ in range(STEPS)]
    for at_ns, charged, cost in zip(real.arrival_ns, method.charged, real.cost, strict=True):
        step = sums[at_ns * STEPS // end_ns]
        step[0] += charged
        step[1] += cost
    return {
        f"{TIME_PREFIX}{(i + 0.5) * end_ns / STEPS / 1e9:.1f}": charged / cost
        for i, (charged, cost) in enumerate(sums)
        if cost
    }


def _users(real: Workload, log: RunLog, method: EstimatingCore) -> Measures:
    """Returns each user's error and shares, and what went to the wrong users."""
    import numpy as np  # noqa: PLC0415 - optional, of the extra `sim`

    rows = by_user(real, log)
    found = flat_by_user(rows)
    charged, cost = np.asarray(method.charged, dtype=float), np.asarray(real.cost, dtype=float)
    user = np.asarray(real.user)
    for number, name in enumerate(real.users):
        own = user == number
        if own.any():
            found |= _error(f"user/{name}/", charged[own], cost[own])
    misses = [abs(row.cost_share - row.ideal_share) for row in rows]
    return found | {"real_user_share_error_max": max(misses), "real_misplaced": sum(misses) / 2}
