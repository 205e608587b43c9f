"""What `fairsched tune` considers, refuses and shows."""

import csv

import pytest
from typer.testing import CliRunner

from scheduler_service.sim import tune, tune_report
from scheduler_service.sim.commands import app
from scheduler_service.sim.specs import MethodSpec, StreamSpec

RUN = CliRunner()


def call(*arguments):
    return RUN.invoke(app, list(map(str, arguments)))


def said(result):
    return " ".join(result.output.replace("│", " ").split())


@pytest.fixture
def trace(tmp_path):
    """Returns a function that writes a trace of (arrival, user, prompt, response)."""

    def write(rows):
        path = tmp_path / f"your-{len(list(tmp_path.glob('*.csv')))}.csv"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["arrival_s", "user_id", "prompt_tokens", "response_tokens"])
            writer.writerows(rows)
        return path

    return write


def flood(count=150):
    """One user with two thirds of the cost, short and long; two others."""
    return [
        (at / 20, ("heavy", "b", "heavy", "heavy", "c")[at % 5], 40 + at % 7, 400 if at % 9 else 5)
        for at in range(count)
    ]


@pytest.fixture
def small_grid(monkeypatch):
    """A grid of a few settings, since every one is a run."""
    methods = [tune.FCFS, tune.DEFAULT, *map(MethodSpec, ("psf", "aa", "qba", "sfq"))]
    monkeypatch.setattr(tune, "_grid", lambda: methods)


def options(tmp_path):
    return ("--load", 1.2, "--out", tmp_path / "out", "--jobs", 1, "--quiet")


@pytest.mark.usefixtures("small_grid")
def test_fairness_is_not_turned_off_unasked(tmp_path, trace):
    """Without goals, what is recommended has a bound; `--any` takes the least mean wait of all."""
    path = trace(flood())
    fair = call("tune", "--trace", path, *options(tmp_path))
    free = call("tune", "--trace", path, "--any", *options(tmp_path))

    assert fair.exit_code == free.exit_code == 0, fair.output + free.output
    assert fair.output.split('"')[1] in {"sfq", "fair_qba"}
    assert free.output.split('"')[1] == "psf"
    assert "Not considered, since it is less fair: psf" in said(fair)
    assert "--any" in said(fair)


@pytest.mark.usefixtures("small_grid")
def test_the_terminal_shows_what_the_choice_costs(tmp_path, trace):
    """The chosen setting, the default and FCFS, side by side, and why."""
    result = call("tune", "--trace", trace(flood()), *options(tmp_path))
    lines = result.output.splitlines()

    for row in ("chosen", "default: fair_qba", "fcfs"):
        assert sum(f"│ {row}" in line for line in lines) == 1, result.output
    for column in ("mean wait", "light users' P99", "long P99", "largest gap"):
        assert column in result.output
    assert "No goals. Chosen: the least mean wait among the settings as fair as" in said(result)
    assert "0 of 0" not in (tmp_path / "out" / "report.md").read_text()


def test_as_fair_is_a_bound_and_a_gap_near_the_defaults():
    """A setting without a bound is not as fair, whatever its gap; nor is one with a wide gap."""
    default = {"gap_max_units": 100.0}

    assert tune.as_fair(MethodSpec("sfq"), {"gap_max_units": 200.0}, default)
    assert not tune.as_fair(MethodSpec("sfq"), {"gap_max_units": 201.0}, default)
    assert not tune.as_fair(tune.fair(16_000, 5, 8000), {"gap_max_units": 900.0}, default)
    for order in ("fcfs", "psf", "aa", "qba"):
        assert not tune.as_fair(MethodSpec(order), {"gap_max_units": 10.0}, default)
    assert not tune.as_fair(MethodSpec("psf"), {}, {})


def test_goals_are_looked_at_before_the_grid_runs(tmp_path, trace, monkeypatch):
    """A goal that the stream cannot have is refused at once, in words."""
    ran = []
    real = tune.run_all

    def counted(specs, *args, **named):
        specs = list(specs)
        ran.extend(specs)
        real(specs, *args, **named)

    monkeypatch.setattr(tune, "run_all", counted)
    alone = trace([(at / 10, "a", 10, 10) for at in range(60)])
    single = call("tune", "--trace", alone, "--goal", "light_wait_p99_s<2", *options(tmp_path))
    assert single.exit_code == 2
    assert "this stream has no light users, since it has a single user" in said(single)
    assert "try wait_p99_s" in said(single)

    alike = trace([(at / 10, "ab"[at % 2], 10, 10) for at in range(60)])
    equal = call("tune", "--trace", alike, "--goal", "light_wait_p99_s<2", *options(tmp_path))
    assert "all its 2 users ask for about the same" in said(equal)
    assert not ran

    unknown = call("tune", "--trace", alike, "--goal", "joy<1", *options(tmp_path))
    assert unknown.exit_code == 2
    assert "no measure joy" in said(unknown)
    assert len(ran) == 1, "the default alone says which measures there are"


@pytest.mark.usefixtures("small_grid")
def test_a_trace_of_two_users_has_a_light_one(tmp_path, trace):
    """The documented goal can be asked for of every trace whose users differ."""
    path = trace([(at / 10, "ab"[at % 3 > 0], 10, 10) for at in range(90)])
    result = call("tune", "--trace", path, "--goal", "light_wait_p99_s<20", *options(tmp_path))

    assert result.exit_code == 0, result.output
    assert "light_wait_p99_s" in result.output
    assert "Goals met: 1 of 1;" in said(result)


def test_a_setting_that_would_have_been_taken_is_named():
    """Nothing is said of less fair settings that are no better."""
    plan = tune.Plan(None, StreamSpec(), ())
    best = tune.Choice(tune.DEFAULT, {"wait_mean_s": 1.0}, 0.0)
    fcfs = tune.Choice(tune.FCFS, {"wait_mean_s": 2.0}, 0.0, as_fair=False)
    found = tune.Found(plan, best, best, fcfs, [best, fcfs])

    assert "Not considered" not in tune_report.why(found)
    assert "; 1 of 2." in tune_report.why(found)
