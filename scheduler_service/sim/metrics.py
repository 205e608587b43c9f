"""Measures of a run: waits by class and by user, shares, fairness, and what the engines did.

Pooled tails mislead once users are isolated, since the heavy user holds them: light and heavy
users are always shown apart; who is heavy, `heavy` says.

Names of measures: group (`short`, `long`, `light`, `heavy`, or none for all requests), what
(`wait`: arrival to the batch of the first chunk; `ttft`: to the end of the batch of the first
response token), statistic, unit.  Classes are true classes, not predicted ones.

Source:
    QBA §IV (measures); R. Jain's fairness index for the shares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scheduler_service.sim.bound import GapReport, service_gap
from scheduler_service.sim.gps import ideal_shares
from scheduler_service.sim.heavy import heavy_among
from scheduler_service.sim.model import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from scheduler_service.sim.model import EngineShape, RunLog, Workload

Measures = dict[str, float]

_QUANTILES: Final = (50, 90, 99)


def heavy_users(workload: Workload) -> set[int]:
    """Returns the users that ask for more than their fair share."""
    offered = [0] * len(workload.users)
    for user, cost in zip(workload.user, workload.cost, strict=True):
        offered[user] += cost
    return heavy_among(offered, workload.weights_milli)


def waits_s(workload: Workload, log: RunLog) -> NDArray[np.float64]:
    """Returns the wait of every started request in seconds; NaN for those that never started."""
    return _since_arrival_s(workload, log.start_ns)


def _since_arrival_s(workload: Workload, event_ns: list[int]) -> NDArray[np.float64]:
    import numpy as np  # noqa: PLC0415 - optional, of the extra `sim`

    event = np.asarray(event_ns, dtype=np.int64)
    wait = (event - np.asarray(workload.arrival_ns, dtype=np.int64)) / NS_PER_SECOND
    wait[event < 0] = np.nan
    return wait


def _distribution(name: str, values: NDArray[np.float64]) -> Measures:
    import numpy as np  # noqa: PLC0415 - optional, of the extra `sim`

    values = values[~np.isnan(values)]
    if not len(values):
        return {}
    found = {f"{name}_mean_s": float(values.mean())}
    for level, value in zip(_QUANTILES, np.percentile(values, _QUANTILES), strict=True):
        found[f"{name}_p{level}_s"] = float(value)
    return found


def latency(workload: Workload, log: RunLog) -> Measures:
    """Returns mean, P50, P90 and P99 of wait and time to first token, by group."""
    import numpy as np  # noqa: PLC0415 - optional, of the extra `sim`

    long = np.asarray(workload.long, dtype=bool)
    groups = {"": np.ones(len(workload), dtype=bool), "short_": ~long, "long_": long}
    heavy = heavy_users(workload)
    if heavy:
        by_heavy = np.isin(np.asarray(workload.user), sorted(heavy))
        groups |= {"light_": ~by_heavy, "heavy_": by_heavy}
    found: Measures = {}
    columns = {
        "wait": waits_s(workload, log),
        "ttft": _since_arrival_s(workload, log.first_token_ns),
    }
    for group, members in groups.items():
        for what, values in columns.items():
            found |= _distribution(group + what, values[members])
    return found


def engine_use(log: RunLog, shape: EngineShape) -> Measures:
    """Returns throughput, utilisation and KV overflow, over all engines."""
    batches = sum(engine.batches for engine in log.engines)
    tokens = sum(engine.tokens for engine in log.engines)
    busy = sum(engine.busy_ns for engine in log.engines)
    overflow = sum(engine.overflow_batches for engine in log.engines)
    span = max(1, log.end_ns)
    return {
        "throughput_tokens_per_s": tokens / span * NS_PER_SECOND,
        "batch_utilisation": tokens / max(1, batches * shape.token_budget),
        "busy_share": busy / (span * max(1, len(log.engines))),
        "kv_overflow_share": overflow / max(1, batches),
        "kv_peak_tokens": float(max((engine.peak_kv for engine in log.engines), default=0)),
        "unfinished": float(sum(at_ns < 0 for at_ns in log.finish_ns)),
    }


def jain(values: list[float]) -> float:
    """Returns Jain's index: 1 when all are equal, 1/n when one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def share_error(intervals: Sequence[tuple[list[float], list[float]]]) -> tuple[float, float]:
    """Returns share error and Jain's index over (got, ideal) intervals, averaged by cost."""
    errors, indexes, weights = [], [], []
    for got, ideal in intervals:
        total = sum(got)
        if total > 0:
            errors.append(max(abs(g - i) for g, i in zip(got, ideal, strict=True)) / total)
            indexes.append(jain([g / i for g, i in zip(got, ideal, strict=True) if i > 0]))
            weights.append(total)
    whole = sum(weights) or 1.0
    return (
        sum(e * w for e, w in zip(errors, weights, strict=True)) / whole,
        sum(j * w for j, w in zip(indexes, weights, strict=True)) / whole,
    )


def fairness(
    workload: Workload, log: RunLog, slack: dict[int, int] | None = None
) -> tuple[Measures, GapReport]:
    """Returns shares against the ideal, Jain's index and the largest gap against its bound.

    Share error: in each 10 s, the largest difference between a user's share of the cost
    dispatched and its share under GPS; Jain's index of received over ideal; both averaged over
    the intervals by cost.

    Args:
        workload: The stream.
        log: A run over it.
        slack: Slack of each dispatch in micro cost units; none is 0.
    """
    shares = ideal_shares(workload, log)
    report = service_gap(workload, log, slack)
    error, index = share_error(shares.intervals)
    return {
        "share_error_10s": error,
        "jain_10s": index,
        "gps_lag_max_units": shares.lag,
        "gap_max_units": report.gap_micros / 1e6,
        "gap_bound_units": report.bound_micros / 1e6,
        "gap_over_bound_max": report.worst_ratio,
        "bound_violations": float(report.violations),
    }, report


def measure(
    workload: Workload, log: RunLog, shape: EngineShape, slack: dict[int, int] | None = None
) -> Measures:
    """Returns every measure of a run; the fairness ones if there are several users."""
    found = latency(workload, log) | engine_use(log, shape)
    found["promoted_long_share"] = len(log.promoted) / max(1, sum(workload.predicted_long))
    if len(workload.users) > 1:
        found |= fairness(workload, log, slack)[0]
    return found


@dataclass(frozen=True, slots=True)
class UserRow:
    """One user of a run.

    Attributes:
        heavy: Whether it is a heavy user.
        requests: Requests it sent that were started.
        cost_share: Its part of the cost dispatched up to the last arrival.
        ideal_share: The same under the fluid ideal.
        measures: Mean, P50, P90 and P99 of `wait` and `ttft`.
    """

    user: str
    heavy: bool
    requests: int
    cost_share: float
    ideal_share: float
    measures: Measures


def by_user(workload: Workload, log: RunLog) -> list[UserRow]:
    """Returns one row a user, the ones with the largest cost first."""
    import numpy as np  # noqa: PLC0415 - optional, of the extra `sim`

    shares = ideal_shares(workload, log)
    total = max(sum(shares.got), 1.0)
    wait, user = waits_s(workload, log), np.asarray(workload.user)
    ttft = _since_arrival_s(workload, log.first_token_ns)
    heavy = heavy_users(workload)
    rows = []
    for number in sorted(range(len(shares.got)), key=lambda u: (-shares.got[u], u)):
        own = user == number
        measures = _distribution("wait", wait[own]) | _distribution("ttft", ttft[own])
        if measures:
            rows.append(
                UserRow(
                    workload.users[number],
                    number in heavy,
                    int((~np.isnan(wait[own])).sum()),
                    shares.got[number] / total,
                    shares.ideal[number] / total,
                    measures,
                )
            )
    return rows


USER_PREFIX: Final = "user/"


def flat_by_user(rows: list[UserRow]) -> Measures:
    """Returns rows as measures named `user/<user>/<measure>`."""
    found: Measures = {}
    for row in rows:
        values = {
            "heavy": float(row.heavy),
            "requests": float(row.requests),
            "cost_share": row.cost_share,
            "ideal_share": row.ideal_share,
            **row.measures,
        }
        found |= {f"{USER_PREFIX}{row.user}/{name}": value for name, value in values.items()}
    return found


def split_by_user(measures: Measures) -> tuple[Measures, dict[str, Measures]]:
    """Returns the measures of the whole run, and those of each user, of `flat_by_user`."""
    whole: Measures = {}
    users: dict[str, Measures] = {}
    for name, value in measures.items():
        if name.startswith(USER_PREFIX):
            user, _, measure_name = name.removeprefix(USER_PREFIX).rpartition("/")
            users.setdefault(user, {})[measure_name] = value
        else:
            whole[name] = value
    return whole, users
