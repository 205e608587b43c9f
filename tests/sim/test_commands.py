"""The commands, and that a run depends on nothing but its inputs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scheduler_service.sim import compare, tune
from scheduler_service.sim.commands import app
from scheduler_service.sim.compare import METHODS
from scheduler_service.sim.data import MULTI_TENANT_SAMPLE
from scheduler_service.sim.specs import MethodSpec, method_of, policy_of

RUN = CliRunner()
ROOT = Path(__file__).parent.parent.parent


def call(*arguments):
    return RUN.invoke(app, list(map(str, arguments)))


def test_simulate_shows_users_and_measures():
    """The default run prints waits by group, users and the bound."""
    result = call("simulate", "--count", 300)

    assert result.exit_code == 0, result.output
    for text in ("Wait, seconds", "light-1", "bound_violations: 0", "kv_overflow_share: 0"):
        assert text in result.output


def test_simulate_takes_settings_traces_and_faults(tmp_path):
    """Policy fields, a trace, engines, faults and the decision log go together."""
    log = tmp_path / "log.jsonl"
    result = call(
        "simulate",
        "fair_qba",
        "--set",
        "quota_k=3",
        "--trace",
        MULTI_TENANT_SAMPLE[0],
        "--count",
        300,
        "--engines",
        2,
        "--faults",
        1,
        "--decisions",
        log,
        "--json",
    )
    found = json.loads(result.output)

    assert found["run"]["method"]["changes"] == [["quota_k", 3]]
    assert found["measures"]["bound_violations"] == 0
    assert found["notes"]["leases_ended"] > 0
    assert '"quota_k":3' in log.read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["simulate", "nobody"], "no method"),
        (["simulate", "--set", "colour=1"], "not a policy field"),
        (["simulate", "--set", "quota_k=0"], "must be 1 to"),
        (["simulate", "drr", "--faults", "1"], "is a baseline"),
        (["reproduce", "fig9"], "unknown: fig9"),
        (["tune", "--goal", "fast"], "is no goal"),
    ],
)
def test_mistakes_are_explained(arguments, problem):
    """A wrong option ends with status 2 and says what would be right."""
    result = call(*arguments)

    assert result.exit_code == 2
    assert problem in " ".join(result.output.replace("│", " ").split())


def test_runs_do_not_depend_on_hashing():
    """Two processes with different hash seeds give the same JSON, to the byte."""
    command = [
        sys.executable,
        "-c",
        "from scheduler_service.sim.commands import app; app()",
        "simulate",
        "--count",
        "300",
        "--engines",
        "2",
        "--faults",
        "2",
        "--json",
    ]
    outputs = [
        subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    ]

    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 1000


def test_compare_puts_all_methods_side_by_side(tmp_path):
    """The report has a row for every method and stream, pictures, and a recommendation."""
    plan = compare.Plan(tmp_path, seeds=1, count=60, jobs=1, quiet=True)
    text = compare.run(plan).read_text()

    for method in METHODS:
        assert text.count(f"| {method.label} |") == 3
    for name in ("synthetic", "azure", "multi_tenant"):
        assert (tmp_path / f"tradeoff_{name}.svg").exists()
        assert f"- {name}: fair_qba" in text
    assert (tmp_path / "methods.csv").read_text().count("\n") == 1 + 3 * len(METHODS)
    users = (tmp_path / "methods_users.csv").read_text()
    assert users.splitlines()[0].startswith("stream,method,user,heavy,requests,cost_share")
    assert "synthetic,fair_qba,light-1," in users
    assert "passed 0 times" in text


def test_tune_finds_a_setting_that_meets_the_goals(tmp_path):
    """The least mean wait among the settings that meet the goals; all tried ones are listed."""
    result = call(
        "tune",
        "--goal",
        "light_wait_p99_s<30",
        "--goal",
        "gap_max_units<=20000",
        "--count",
        150,
        "--out",
        tmp_path,
        "--jobs",
        1,
        "--quiet",
    )
    report = (tmp_path / "report.md").read_text()

    assert result.exit_code == 0, result.output
    assert "preset = " in result.output
    assert "Goals met: 2 of 2;" in report
    assert (tmp_path / "tried.csv").read_text().count("\n") > 50


def test_the_best_choice_misses_least_then_waits_least():
    """Goals come before the mean wait."""
    goal = tune.parse_goal("wait_p99_s < 2")

    def choice(name, p99, mean):
        measures = {"wait_p99_s": p99, "wait_mean_s": mean}
        return tune.Choice(MethodSpec(name), measures, goal.missed_by(measures))

    slow, fast, tail = choice("sfq", 1.9, 1.0), choice("fcfs", 1.5, 0.8), choice("psf", 3.0, 0.1)

    assert tune.best_of([slow, fast, tail]) is fast
    assert tune.best_of([choice("qba", 5.0, 0.1), tail]) is tail


def test_every_method_can_be_made():
    """All methods of the comparison exist, and labels tell settings apart."""
    assert len({method.label for method in METHODS}) == len(METHODS)
    for method in METHODS:
        assert method_of(method).waiting == 0
    assert policy_of(MethodSpec("paper:qba")).aging_sample_window == 0


def test_goals_must_name_a_measure(tmp_path):
    """An unknown measure is an error that lists the known ones."""
    result = call(
        "tune", "--goal", "joy<1", "--count", 60, "--out", tmp_path, "--jobs", 1, "--quiet"
    )

    assert result.exit_code == 2
    assert "no measure joy" in " ".join(result.output.replace("│", " ").split())
