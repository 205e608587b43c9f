"""The paper's analytical surrogate: a reduced M/G/n queue for mean waits.

Allen-Cunneen with Erlang-C gives FCFS; a two-class priority correction gives predicted
short-first; AA and QBA put a promoted fraction of the long class into the high class, with that
fraction taken from the simulator.

All of it reduces to one identity: with s the count share and sigma the work share of the high
class, `W_X / W_FCFS = (1 - rho s) / (1 - rho sigma)`.  So it explains orderings of the mean.  It
does not predict levels: they are 5 to 60 times below the simulation.

Source:
    QBA §II-B, §III-A, §III-B, equations 1 to 15.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler_service.sim.model import NS_PER_SECOND

if TYPE_CHECKING:
    from scheduler_service.sim.model import EngineShape, RunLog, Workload


@dataclass(frozen=True, slots=True)
class ServiceFit:
    """Effective service times of a calibration run, S = s0 + alpha P + beta D.

    Attributes:
        s0, alpha, beta: Coefficients, seconds and seconds a token.
        servers: Effective parallelism n.
        mean_s: E[S] of all requests, seconds.
        square_s2: E[S^2] of all requests.
        short_mean_s, long_mean_s: E[S] by predicted class.
        short_share: Part of the requests predicted short.
    """

    s0: float
    alpha: float
    beta: float
    servers: int
    mean_s: float
    square_s2: float
    short_mean_s: float
    long_mean_s: float
    short_share: float


def erlang_c(servers: int, offered: float) -> float:
    """Returns the probability that an arrival waits in M/M/n.

    Args:
        servers: n, at least 1.
        offered: Offered load a = lambda / mu, at least 0; 1 is returned from n on.
    """
    if offered >= servers:
        return 1.0
    blocking = 1.0  # Erlang B by its recursion, which is stable for any n
    for i in range(1, servers + 1):
        blocking = offered * blocking / (i + offered * blocking)
    load = offered / servers
    return blocking / (1 - load * (1 - blocking))


def fcfs_wait(rate: float, mean_s: float, square_s2: float, servers: int) -> float:
    """Returns the mean wait of FCFS in seconds, infinite at or beyond saturation (equation 8)."""
    load = rate * mean_s / servers
    if load >= 1:
        return math.inf
    variation = square_s2 / mean_s**2 - 1
    return (1 + variation) / 2 * erlang_c(servers, rate * mean_s) / (servers / mean_s - rate)


def priority_wait(fcfs: float, load: float, count_share: float, work_share: float) -> float:
    """Returns the mean wait when a high class goes first (equations 9 to 11).

    Args:
        fcfs: Mean wait of FCFS.
        load: rho.
        count_share: Part of the requests in the high class.
        work_share: Part of the work in it.
    """
    residual = (1 - load) * fcfs
    high = residual / (1 - load * work_share)
    low = residual / ((1 - load * work_share) * (1 - load))
    return count_share * high + (1 - count_share) * low


def identity(load: float, count_share: float, work_share: float) -> float:
    """Returns W_X / W_FCFS in closed form."""
    return (1 - load * count_share) / (1 - load * work_share)


def wait(fit: ServiceFit, rate: float, promoted: float | None) -> float:
    """Returns the surrogate's mean wait.

    Args:
        fit: Calibrated service times.
        rate: Arrivals a second.
        promoted: Promoted fraction phi of the predicted-long class (0 is PSF); None is FCFS.
    """
    fcfs = fcfs_wait(rate, fit.mean_s, fit.square_s2, fit.servers)
    if promoted is None or math.isinf(fcfs):
        return fcfs
    short, long = fit.short_share, promoted * (1 - fit.short_share)
    count = short + long
    work = (short * fit.short_mean_s + long * fit.long_mean_s) / fit.mean_s
    return priority_wait(fcfs, rate * fit.mean_s / fit.servers, count, min(work, 1.0))


def calibrate(workload: Workload, log: RunLog, shape: EngineShape) -> ServiceFit:
    """Fits the service times to a run, usually FCFS at rate 30 (QBA §IV-A5).

    The parallelism is floor(min(B / q, n_safe)), n_safe being how many requests of the mean
    footprint, P + D / 2, the admission limit holds.

    Args:
        workload: The stream.
        log: A finished run over it.
        shape: The engine of the run.
    """
    import numpy as np  # noqa: PLC0415 - optional, of the extra `sim`

    prompt, response = np.asarray(workload.prompt), np.asarray(workload.response)
    service = (np.asarray(log.finish_ns) - np.asarray(log.start_ns)) / NS_PER_SECOND
    design = np.column_stack([np.ones(len(prompt)), prompt, response])
    s0, alpha, beta = (float(x) for x in np.linalg.lstsq(design, service, rcond=None)[0])
    fitted = design @ np.array([s0, alpha, beta])
    long = np.asarray(workload.predicted_long, dtype=bool)
    safe = shape.kv_limit / float((prompt + response / 2).mean())
    return ServiceFit(
        s0,
        alpha,
        beta,
        max(1, math.floor(min(shape.slots, safe))),
        float(fitted.mean()),
        float((fitted**2).mean()),
        float(fitted[~long].mean()) if (~long).any() else 0.0,
        float(fitted[long].mean()) if long.any() else 0.0,
        float((~long).mean()),
    )
