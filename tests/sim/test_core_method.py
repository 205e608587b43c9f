"""The core in the simulator: against references that share no code with it, and its bound."""

import msgspec
import pytest

from scheduler_service.core.invariants import check
from scheduler_service.core.policy import PRESETS
from scheduler_service.sim.baselines.rounds import FirstCome
from scheduler_service.sim.baselines.tags import StartTags
from scheduler_service.sim.bound import service_gap
from scheduler_service.sim.core_method import CoreMethod, paper_policy
from scheduler_service.sim.kernel import simulate
from scheduler_service.sim.model import PAPER_ENGINE, EngineShape
from scheduler_service.sim.workload import UserMix, several_users, synthetic


def busy(seed, count=900, rate=30.0):
    """Returns a crowded stream of one heavy and several light users with weights."""
    workload = several_users(seed, rate, count, mix=UserMix(light_users=5, burst=1 + seed % 3 * 10))
    workload.weights_milli[1] = 2500
    workload.weights_milli[2] = 400
    return workload


@pytest.mark.parametrize("shape", [PAPER_ENGINE, EngineShape()], ids=["live", "reserve"])
@pytest.mark.parametrize("seed", range(3))
def test_sfq_dispatches_as_tags_do(shape, seed):
    """The core at slack 0 gives the order of start tags kept by another implementation."""
    workload = busy(seed)

    core = simulate(workload, CoreMethod("sfq", PRESETS["sfq"]), shape)

    assert core.order == simulate(workload, StartTags(), shape).order
    assert core.finish_ns == simulate(workload, StartTags(), shape).finish_ns


def test_fcfs_is_first_come():
    """The core's fcfs gives the order of arrival, and times of the plain queue."""
    workload = synthetic(1, count=600)

    core = simulate(workload, CoreMethod("fcfs", paper_policy("fcfs")), PAPER_ENGINE)

    assert core.order == list(range(600))
    assert core.finish_ns == simulate(workload, FirstCome(), PAPER_ENGINE).finish_ns


@pytest.mark.parametrize("shape", [PAPER_ENGINE, EngineShape()], ids=["live", "reserve"])
@pytest.mark.parametrize("slack", [0, 250, 1000])
@pytest.mark.parametrize("seed", range(2))
def test_the_bound_holds(shape, slack, seed):
    """Nobody gets ahead by more than 2D + c_i + c_j, whatever the slack, and the state is sound."""
    workload = busy(seed)
    policy = msgspec.structs.replace(PRESETS["fair_qba"], slack_milli=slack)
    method = CoreMethod("fair", policy)

    report = service_gap(workload, simulate(workload, method, shape), method.slack)

    check(method.state)
    assert report.gap_micros > 0
    assert report.violations == 0


def test_without_the_rejoin_rule_the_bound_breaks():
    """The negative control: users who bank idle time get ahead beyond the bound."""
    broken = 0
    for seed in range(4):
        workload = busy(seed)
        log = simulate(workload, StartTags("none"), PAPER_ENGINE)
        broken += service_gap(workload, log).violations > 0

    assert broken >= 3


def test_orderings_of_the_mean_and_the_long_tail():
    """Mean: PSF < QBA < FCFS. Long P99: AA < QBA < PSF. Worst waits: PSF."""
    mean, worst = {}, {}
    for order in ("fcfs", "psf", "aa", "qba"):
        waits, long_waits = [], []
        for seed in (2, 4):
            workload = synthetic(seed, count=2500)
            log = simulate(workload, CoreMethod(order, paper_policy(order)), PAPER_ENGINE)
            own = [s - a for s, a in zip(log.start_ns, workload.arrival_ns, strict=True)]
            waits += own
            long_waits += [w for w, long in zip(own, workload.long, strict=True) if long]
        mean[order] = sum(waits) / len(waits)
        worst[order] = sorted(long_waits)[int(0.99 * len(long_waits))]

    assert mean["psf"] < mean["qba"] < mean["fcfs"]
    assert worst["aa"] < worst["qba"] < worst["psf"]


def test_promotions_pay_for_shorts():
    """Under QBA there is at most one promotion for k short admissions."""
    workload = synthetic(2, count=2000)
    log = simulate(workload, CoreMethod("qba", paper_policy("qba")), PAPER_ENGINE)
    shorts = sum(not long for long in workload.predicted_long)

    assert 0 < len(log.promoted) <= shorts // 5
    assert all(workload.predicted_long[request] for request in log.promoted)


def test_decisions_are_kept_when_asked():
    """The kept log names every acceptance, dispatch and completion."""
    workload = synthetic(0, count=50)
    method = CoreMethod("sfq", PRESETS["sfq"], keep=True)
    simulate(workload, method, PAPER_ENGINE)
    kinds = [type(decision).__name__ for decision in method.decisions]

    assert [kinds.count(kind) for kind in ("Accepted", "Dispatched", "Completed")] == [50] * 3
