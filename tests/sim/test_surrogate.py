"""The surrogate against closed forms."""

import math

import pytest

from scheduler_service.sim.baselines.rounds import FirstCome
from scheduler_service.sim.kernel import simulate
from scheduler_service.sim.model import PAPER_ENGINE
from scheduler_service.sim.surrogate import (
    ServiceFit,
    calibrate,
    erlang_c,
    fcfs_wait,
    identity,
    priority_wait,
    wait,
)
from scheduler_service.sim.workload import synthetic

FIT = ServiceFit(0.0, 0.0, 0.0, 12, 0.34, 0.15, 0.29, 0.65, 0.85)


def test_erlang_c_has_its_closed_forms():
    """One server waits with probability rho; two with 2 rho^2 / (1 + rho); saturated always."""
    for load in (0.1, 0.5, 0.9):
        assert erlang_c(1, load) == pytest.approx(load)
        assert erlang_c(2, 2 * load) == pytest.approx(2 * load**2 / (1 + load))
    assert erlang_c(3, 3.0) == 1.0


def test_fcfs_is_exact_for_one_server():
    """M/M/1 waits rho / (mu - lambda); M/D/1 half of that; beyond saturation for ever."""
    assert fcfs_wait(0.5, 1.0, 2.0, 1) == pytest.approx(1.0)
    assert fcfs_wait(0.5, 1.0, 1.0, 1) == pytest.approx(0.5)
    assert fcfs_wait(1.0, 1.0, 2.0, 1) == math.inf


@pytest.mark.parametrize("load", [0.1, 0.6, 0.97])
@pytest.mark.parametrize("count_share", [0.0, 0.4, 0.85, 1.0])
@pytest.mark.parametrize("work_share", [0.0, 0.3, 0.7, 1.0])
def test_priority_is_the_identity(load, count_share, work_share):
    """W_X / W_FCFS = (1 - rho s) / (1 - rho sigma)."""
    ratio = priority_wait(7.0, load, count_share, work_share) / 7.0

    assert ratio == pytest.approx(identity(load, count_share, work_share))


def test_promoting_all_is_fcfs():
    """With nobody promoted it is PSF, in between it is in between, with all promoted FCFS."""
    fcfs, psf, some, everyone = (wait(FIT, 30.0, promoted) for promoted in (None, 0.0, 0.5, 1.0))

    assert psf < some < fcfs
    assert everyone == pytest.approx(fcfs, rel=0.01)


def test_calibration_recovers_the_engine():
    """Fitted service times have the mean that was measured, and a sensible parallelism."""
    workload = synthetic(0, rate=30.0, count=3000)
    log = simulate(workload, FirstCome(), PAPER_ENGINE)
    fit = calibrate(workload, log, PAPER_ENGINE)
    measured = sum(f - s for f, s in zip(log.finish_ns, log.start_ns, strict=True)) / 3000 / 1e9

    assert fit.mean_s == pytest.approx(measured)
    assert 0 < fit.alpha < fit.beta < 0.001
    assert 8 <= fit.servers <= 16
    assert fit.short_mean_s < fit.mean_s < fit.long_mean_s
