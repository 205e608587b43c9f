"""Core and oracle agree on random traces; ten thousand of them are run by `random_traces`."""

import pytest

from scheduler_service.core import decisions as d
from scheduler_service.core.policy import RECENT_DISPATCHES
from tests.property import random_traces
from tests.support import watches
from tests.support.driver import LONG, SHORT, Driver
from tests.support.programs import PATIENT, policy
from tests.support.traces import Trace


@pytest.mark.parametrize("block", range(4))
def test_core_and_oracle_agree(block):
    """Exactly, on every record, with mixed weights, slacks, policies and everything else."""
    for seed in range(block * 100, block * 100 + 100):
        Trace(seed).run()


def test_the_traces_go_everywhere():
    """Every kind of turn, rule, end and record occurs, so that agreement means something."""
    seen: set[object] = set()
    for seed in range(300):
        for record in Trace(seed).run().log:
            seen.add(type(record))
            if isinstance(record, d.Dispatched):
                seen |= {record.turn, record.rule, (record.turn, record.rule)}
            if isinstance(record, d.Ended):
                seen.add(record.state)
            if isinstance(record, d.LeaseEnded):
                seen.add(record.cause)
    assert set(d.Turn) <= seen
    assert set(d.Rule) <= seen
    assert set(d.LeaseEndCause) <= seen
    assert {
        d.RequestState.CANCELLED,
        d.RequestState.EXPIRED,
        d.RequestState.SHED,
        d.RequestState.DEAD_LETTERED,
        d.RequestState.UNPLACEABLE,
        d.RequestState.LEASE_EXPIRED,
    } <= seen
    assert {d.Rejoined, d.Reserved, d.Requeued, d.DeadLetterDropped, d.Rebased} <= seen


@pytest.mark.parametrize("preset", ["sfq", "fair_qba", "qba", "psf", "aa", "fcfs"])
def test_long_runs_outlive_every_window(preset):
    """Past 1024 dispatches the largest cost and the sample lose entries: D and theta fall."""
    rules = policy(preset, quota_k=3, aging_sample_window=64, aging_min_sample=8, **PATIENT)
    driver = Driver(rules, replica=False)
    driver.watch(watches.Band(driver))
    count = RECENT_DISPATCHES + 400
    for number in range(count):
        heavy = number in {5, 900}
        cost = 1000 - 300 * (number > 500) if heavy else 1 + number % 4
        cls = LONG if number % 5 == 0 else SHORT
        driver.enqueue(f"r{number}", "abcdefg"[number % 7], cost, cls)
        driver.now_ns += 10**7 * (number % 3)
        if number > 40:
            for record in driver.next():
                driver.complete(record.lease_id)
    slacks = [record.slack_micros for record in driver.of(d.Dispatched)]
    if preset == "fair_qba":
        assert len(set(slacks)) >= 3, "D rose and fell"


def test_the_script_reports_and_repeats(capsys):
    """`python -m tests.property.random_traces` counts what it did."""
    assert random_traces.main(["--count", "3", "--seed", "7", "--steps", "20"]) == 0
    assert "3 traces" in capsys.readouterr().out
