"""Runs with faults: everything accepted ends exactly once, and repeats exactly."""

import pytest

from scheduler_service.core import decisions as d
from scheduler_service.core.invariants import check
from scheduler_service.core.policy import PRESETS
from scheduler_service.sim.baselines.rounds import FirstCome
from scheduler_service.sim.engine import NORMAL_SPEED
from scheduler_service.sim.faults import Fault, FaultPlan, FaultyCore, seeded_plan
from scheduler_service.sim.kernel import simulate
from scheduler_service.sim.model import NS_PER_SECOND, EngineShape
from scheduler_service.sim.workload import several_users


def play(seed, plan, engines=2, preset="fair_qba", count=500):
    workload = several_users(seed, 30.0, count)
    method = FaultyCore(preset, PRESETS[preset], keep=True)
    log = simulate(workload, method, EngineShape(), engines, plan)
    check(method.state)
    return log, method


@pytest.mark.parametrize("preset", ["fair_qba", "sfq", "qba"])
@pytest.mark.parametrize("seed", range(2))
def test_every_request_ends_once(seed, preset):
    """With dying, slow and lossy workers each request is completed or dead-lettered, once."""
    log, method = play(seed, seeded_plan(seed, 2, 15 * NS_PER_SECOND), preset=preset)
    ended = [
        decision.request_id
        for decision in method.decisions
        if isinstance(decision, d.Completed | d.Ended)
    ]

    assert sorted(ended, key=int) == [str(i) for i in range(500)]
    assert log.notes["leases_ended"] > 0
    assert (method.waiting, method.state.leases) == (0, {})


def test_redelivery_is_not_charged():
    """A request that comes back is dispatched again at no charge."""
    plan = FaultPlan([Fault(3 * NS_PER_SECOND, 0, "die"), Fault(4 * NS_PER_SECOND, 0, "return")])
    log, method = play(1, plan, engines=1, count=200)
    again = [
        decision
        for decision in method.decisions
        if isinstance(decision, d.Dispatched) and decision.attempt > 1
    ]

    assert len(again) == sum(log.attempts.values()) > 0
    assert {decision.charge_micros for decision in again} == {0}
    assert {decision.turn for decision in again} == {d.Turn.REDELIVERY}
    assert min(log.finish_ns) > 0


def test_a_lost_grant_comes_back():
    """A grant that never arrives is redelivered when its lease or hand-over ends."""
    log, _ = play(2, FaultPlan([Fault(NS_PER_SECOND, 0, "lose")]), engines=1, count=100)

    assert log.notes["grants_lost"] == 1
    assert sum(log.attempts.values()) == 1
    assert min(log.finish_ns) > 0


def test_a_slow_worker_takes_longer():
    """Batches of a slow engine take the stated multiple."""
    slow = FaultPlan([Fault(1, 0, "slow", 5 * NORMAL_SPEED)])
    healthy, _ = play(3, FaultPlan(), engines=1, count=100)
    late, _ = play(3, slow, engines=1, count=100)

    assert late.engines[0].busy_ns > 3 * healthy.engines[0].busy_ns
    assert late.notes == {}


def test_without_faults_leases_change_nothing():
    """An empty plan, with short leases and renewals, gives the run of long leases."""
    with_leases, method = play(4, FaultPlan(), engines=1, preset="sfq")
    plain = simulate(
        several_users(4, 30.0, 500), FaultyCore("sfq", PRESETS["sfq"]), EngineShape(), 1
    )

    assert with_leases.order == plain.order
    assert any(isinstance(decision, d.LeaseRenewed) for decision in method.decisions)


def test_the_same_seed_gives_the_same_decisions():
    """Two runs of one plan take the same decisions."""
    plans = [seeded_plan(5, 2, 10 * NS_PER_SECOND) for _ in range(2)]

    assert play(5, plans[0])[1].decisions == play(5, plans[1])[1].decisions


def test_baselines_have_no_leases():
    """A baseline cannot be run with faults, and says so."""
    with pytest.raises(TypeError, match="no leases"):
        simulate(several_users(0, 30.0, 10), FirstCome(), EngineShape(), 1, FaultPlan())
