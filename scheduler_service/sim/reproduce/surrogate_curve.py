"""Fig. 2 (a): the analytical surrogate over load, calibrated as the paper says.

One FCFS run at rate 30 gives the service times; promoted fractions of AA and QBA come from the
simulator at rates 25 to 33 and are interpolated (and held constant outside).

Source:
    QBA §IV-A5.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from scheduler_service.sim import surrogate
from scheduler_service.sim.kernel import simulate
from scheduler_service.sim.model import PAPER_ENGINE
from scheduler_service.sim.reproduce.checks import Check, Lookup
from scheduler_service.sim.reproduce.sweeps import FIG2, FIG2_PHI, PHI_RATES, Cell
from scheduler_service.sim.specs import MethodSpec, StreamSpec, method_of, stream_of

if TYPE_CHECKING:
    from scheduler_service.sim.surrogate import ServiceFit

CALIBRATION_RATE: Final = 30.0
_SAME_LEVEL: Final = 1.5
_EXACT: Final = 1e-9  # relative; floats


def fit_service() -> ServiceFit:
    """Runs FCFS at the calibration rate and fits the service times."""
    stream = stream_of(StreamSpec(seed=0, rate=CALIBRATION_RATE))
    log = simulate(stream, method_of(MethodSpec("paper:fcfs")), PAPER_ENGINE)
    return surrogate.calibrate(stream, log, PAPER_ENGINE)


def curve(fit: ServiceFit, values: Lookup) -> list[Cell]:
    """Returns the surrogate's mean waits over the loads of Fig. 2.

    Args:
        fit: Service times.
        values: Results that hold the promoted fractions (`fig2_phi`).
    """
    import numpy as np  # noqa: PLC0415 - optional, of the extra `sim`

    measure = FIG2_PHI.measures[0]
    cells = []
    for line in ("FCFS", "PSF", "AA", "QBA"):
        for rate in FIG2.xs:
            promoted: float | None = None if line == "FCFS" else 0.0
            if line in FIG2_PHI.lines:
                known = [values["fig2_phi", line, x, measure] for x in PHI_RATES]
                promoted = float(np.interp(rate, PHI_RATES, known))
            value = surrogate.wait(fit, rate, promoted)
            cells.append(Cell("fig2a", line, rate, "wait_mean_s", value, value, value, 1))
    return cells


def curve_checks(fit: ServiceFit, cells: list[Cell], simulated: Lookup) -> list[Check]:
    """Returns what is claimed of Fig. 2 (a), and how far the levels are from the simulation."""
    value = {(c.line, c.x): c.value for c in cells}
    rates = [r for r in FIG2.xs if math.isfinite(value["FCFS", r])]
    ordered = [
        value["PSF", r] <= min(value["AA", r], value["QBA", r])
        and max(value["AA", r], value["QBA", r]) <= value["FCFS", r]
        for r in rates
    ]
    below = [
        simulated["fig2", line, r, "wait_mean_s"] / value[line, r]
        for line in ("FCFS", "PSF", "AA", "QBA")
        for r in rates
        if ("fig2", line, r, "wait_mean_s") in simulated and value[line, r] > 0
    ]
    closed = max(
        abs(surrogate.priority_wait(1.0, rho, s, sigma) / surrogate.identity(rho, s, sigma) - 1.0)
        for rho in (0.1, 0.5, 0.9)
        for s in (0.2, 0.85)
        for sigma in (0.1, 0.7)
    )
    saturation = fit.servers / fit.mean_s
    return [
        Check(
            "surrogate: PSF <= AA, QBA <= FCFS in the mean",
            all(ordered) and bool(ordered),
            f"{sum(ordered)} of {len(ordered)} stable loads; saturates at {saturation:.1f}/s",
        ),
        Check("surrogate: equals its closed form", closed < _EXACT, f"relative error {closed:.1e}"),
        Check(
            "surrogate: its levels are no prediction of the simulation's",
            bool(below) and max(below) > _SAME_LEVEL,
            f"the simulation is {min(below):.0f} to {max(below):.0f} times higher" if below else "",
        ),
    ]
