"""Output caps, estimated costs, and what they do to fairness of real cost."""

import dataclasses

import pytest
from typer.testing import CliRunner

from scheduler_service.core.policy import PRESETS
from scheduler_service.sim import caps
from scheduler_service.sim.cap_measures import measure_estimates, with_real_cost
from scheduler_service.sim.commands import app
from scheduler_service.sim.estimating import LEARNING, EstimatingCore
from scheduler_service.sim.kernel import simulate
from scheduler_service.sim.model import NS_PER_SECOND, EngineShape
from scheduler_service.sim.output_caps import CAP_MODELS, capped
from tests.sim.streams import random_stream, stream

SHAPE = EngineShape()


def _run(workload, given, learning, policy="fair_qba", interval_ns=NS_PER_SECOND // 10):
    real = with_real_cost(workload, PRESETS[policy])
    method = EstimatingCore(policy, PRESETS[policy], given, learning, interval_ns)
    return real, simulate(real, method, SHAPE), method


def test_a_cap_ends_what_is_longer():
    """With caps for everybody nothing is longer than they are, and what was cut is counted."""
    workload = stream([(0, 0, 5, 900), (1, 0, 5, 2000), (2, 0, 5, 1024)])

    found = capped(workload, "1024")

    assert (found.workload.response, found.caps, found.cut) == ([900, 1024, 1024], [1024] * 3, 1)
    assert capped(workload, "4096").workload is workload


def test_users_caps_are_their_own_p99_as_a_power_of_two():
    """Nearest rank, rounded up; one in a hundred may be cut."""
    short = [(i, 0, 5, 3) for i in range(99)]
    rows = [*short, (99, 0, 5, 4000), (100, 1, 5, 64), (101, 1, 5, 65)]

    found = capped(stream(rows), "user_p99")

    assert (found.caps[0], found.caps[-1], found.cut) == (4, 128, 1)
    assert found.workload.response[99] == 4


@pytest.mark.parametrize("policy", ["sfq", "fair_qba"])
def test_known_outputs_are_charged_as_they_are(policy):
    """With outputs known the charge is the real cost, and both looks at fairness agree."""
    workload = random_stream(1)
    real, log, method = _run(workload, [128] * len(workload), "known", policy)
    found = measure_estimates(real, log, method)

    assert method.charged == real.cost
    assert found["est_ratio_mean"] == found["est_total"] == 1
    assert found["charged_gap_max_units"] == found["real_gap_max_units"] > 0
    assert found["real_gap_over_bound_max"] <= 1


def test_without_learning_half_of_the_cap_is_expected():
    """The prior alone: prompt and half of the cap, whatever was seen."""
    workload = random_stream(2)
    real, log, method = _run(workload, [1000] * len(workload), "none")
    found = measure_estimates(real, log, method)

    assert method.charged == [prompt + 500 for prompt in workload.prompt]
    assert found["est_too_low"] == 0
    assert found["est_too_high"] == pytest.approx(found["est_total"] - 1)


def test_learning_is_the_services_own():
    """The pool's ratio leaves each user's bias, users' ratios take it away; both stand in state."""
    rows = [(i * 40_000_000, i % 2, 10, 10 if i % 2 else 100) for i in range(2000)]
    learned = {"none": set(), "pool": {""}, "known": set(), "user": {"", "user-0", "user-1"}}
    totals, of_short_user = {}, {}
    for learning in LEARNING:
        real, log, method = _run(stream(rows), [1000] * len(rows), learning, interval_ns=10**9)
        totals[learning] = measure_estimates(real, log, method)["late_est_total"]
        of_short_user[learning] = sum(method.charged[-99::2]) / sum(real.cost[-99::2])
        assert set(method.state.pools["sim"].ratios) == learned[learning]
        assert method.updates >= 1

    assert totals["none"] > 3 * totals["pool"] > 3 * totals["known"] == 3
    assert of_short_user["none"] > 20 > of_short_user["pool"] > 3 > of_short_user["user"]


def test_the_charged_bound_holds_whatever_the_estimate():
    """The service's promise is about charges: with any estimate it is kept, for real cost not."""
    workload = random_stream(3, count=400, mean_gap_ns=4_000_000)
    workload = dataclasses.replace(
        workload,
        response=[1 if user else 80 for user in workload.user],
        predicted_response=[80] * 400,
    )
    real, log, method = _run(workload, [1000] * len(workload), "none", "sfq")
    found = measure_estimates(real, log, method)

    assert found["charged_gap_over_bound_max"] <= 1
    assert found["real_gap_over_bound_max"] > 1


def test_an_engine_made_slow_has_the_load(tmp_path):
    """The stream keeps its own timeline; the engine is made so slow that it is the load."""
    plan = caps.quick(caps.Plan(tmp_path))
    name, spec = next(iter(plan.streams.items()))

    factor = caps.slowdown(spec, 1.2)

    assert name == "multi_tenant"
    assert caps.slowdown(spec, 0.6) == pytest.approx(factor / 2, rel=1e-3)


def test_the_command_writes_report_tables_and_pictures(tmp_path):
    """Every cap model, way of learning and policy has its row; a second call changes nothing."""
    arguments = ["caps", "--quick", "--count", "100", "--jobs", "1", "--quiet", "--out"]
    first = CliRunner().invoke(app, [*arguments, str(tmp_path)])
    text = (tmp_path / "report.md").read_text()
    again = CliRunner().invoke(app, [*arguments, str(tmp_path)])

    assert first.exit_code == again.exit_code == 0, first.output
    assert "The first 100 requests; learned values come into force every 10 s." in first.output
    assert text == (tmp_path / "report.md").read_text()
    for name in ("multi_tenant", "azure"):
        assert f"## {name}" in text
        assert (tmp_path / f"caps_time_{name}.svg").exists()
    assert (tmp_path / "caps_share_multi_tenant.png").exists()
    assert not (tmp_path / "caps_share_azure.png").exists(), "these are requests of one user"
    rows = (tmp_path / "caps.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * len(caps.POLICIES) * len(CAP_MODELS) * len(LEARNING)
    assert rows[0].startswith("stream,policy,caps,learning,")
    assert (tmp_path / "caps_users.csv").exists()
    assert (tmp_path / "caps_over_time.csv").exists()


def test_what_quick_changes_is_said_and_can_be_changed_back(tmp_path, monkeypatch):
    """`--help` says what is in force with `--quick`; what is asked for by hand is done."""
    plans = []
    monkeypatch.setattr(caps, "run", lambda plan: plans.append(plan) or tmp_path / "report.md")
    shown = CliRunner().invoke(app, ["caps", "--help"], env={"COLUMNS": "200"}).output
    for arguments in ([], ["--quick"], ["--quick", "--learn-every", "30"]):
        result = CliRunner().invoke(app, ["caps", *arguments])
        assert f"every {plans[-1].interval_s:g} s" in result.output

    assert [plan.interval_s for plan in plans] == [60.0, 10.0, 30.0]
    assert "60; 10 with --quick" in shown
    assert "learned from every 10 s" in shown
