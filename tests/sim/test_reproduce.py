"""The two documents' experiments, in small."""

import dataclasses
import pickle

import msgspec

from scheduler_service.sim import plots
from scheduler_service.sim.pool import Results, run_all
from scheduler_service.sim.reproduce import article, checks, surrogate_curve, sweeps
from scheduler_service.sim.reproduce.experiments import EXPERIMENTS, Plan
from scheduler_service.sim.reproduce.published import PUBLISHED, TABLE2
from scheduler_service.sim.reproduce.report import write
from scheduler_service.sim.specs import MethodSpec, RunSpec, StreamSpec, key_of


def test_the_core_makes_the_articles_table():
    """All eight rows of SFQ §2.7."""
    assert article.table_2_7() == article.TABLE_2_7


def test_the_articles_claims_hold():
    """Every claim of the article that is played holds."""
    found = article.claims(
        article.gap_table(3), article.quantum_table((10, 4000, 16_000)), article.trait_table()
    )

    assert [check.statement for check in found if not check.holds] == []


def test_the_loophole_is_the_reset():
    """The lead of leaving and rejoining stays within two requests, unless return resets."""
    fair, reset = article.rejoin_lead("sfq", 200), article.rejoin_lead("sfq_reset", 200)

    assert max(map(abs, fair)) <= 2 * article.REJOIN_COST
    assert reset[-1] == 200 * article.REJOIN_COST


def test_every_published_point_is_in_its_sweep():
    """Each published number has a line and a point that is run."""
    for published in PUBLISHED:
        sweep = sweeps.SWEEPS[published.experiment]

        assert published.line in sweep.lines
        assert published.x in sweep.xs
        assert published.measure in sweep.measures


def test_comparisons_know_their_tolerance():
    """10 % for means and 15 % for P99s, relative to the published value."""
    values = {
        ("fig4", "QBA", 0.0, "wait_mean_s"): 1.42 * 1.09,
        ("fig4", "QBA", 0.0, "short_wait_p99_s"): 3.44 * 0.84,
    }
    found = checks.compare_numbers(values)

    assert [(c.measure, c.tolerance, c.holds) for c in found] == [
        ("wait_mean_s", 0.10, True),
        ("short_wait_p99_s", 0.15, False),
    ]


def test_table2_pools_means_and_takes_medians():
    """Means are pooled over windows, P99s are medians, orderings are counted by window."""
    runs = {}
    for window in range(3):
        for by in ("response", "work"):
            for place, line in enumerate(("PSF", "QBA", "AA", "FCFS")):
                value = float(window * window + place)
                runs[by, line, window] = {
                    "wait_mean_s": value,
                    "wait_p99_s": value,
                    "short_wait_p99_s": value,
                    "long_wait_p99_s": -value,
                    "ttft_p99_s": value,
                    "kv_overflow_share": 0.0,
                }
    rows, found = checks.table2(runs)
    psf = next(row for row in rows if (row.label, row.line) == ("work", "PSF"))

    assert psf.ours[:2] == (5 / 3, 1.0)
    assert psf.published == TABLE2["PSF"]
    assert all(check.holds for check in found)
    assert found[0].detail == "3 of 3 windows"


def test_sweeps_share_runs():
    """FCFS does not depend on labels, k or gamma: it is run once a seed."""
    specs = [spec for sweep in (sweeps.FIG4, sweeps.FIG5) for spec in sweep.specs(1)]
    unique = {key_of(spec) for spec in specs}

    assert len(specs) == 2 * 9 * 4
    assert len(unique) == 1 + 3 * (9 + 9 - 1)


def test_results_are_kept_and_resumed(tmp_path):
    """A run that is stored is not run again, a torn last line is, and the key is the run."""
    spec = RunSpec(StreamSpec(count=50), MethodSpec("paper:fcfs"))
    other = RunSpec(StreamSpec(count=50, seed=1), MethodSpec("paper:fcfs"))
    run_all([spec, spec, other], Results(tmp_path), title="", jobs=1, quiet=True)
    file = tmp_path / "runs.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + lines[1][:40])
    again = Results(tmp_path)

    assert len(lines) == 2
    assert again.missing([spec, other]) == [other]
    assert again[spec]["unfinished"] == 0
    assert key_of(spec) != key_of(RunSpec(spec.stream, MethodSpec("paper:psf")))


def test_a_run_has_the_same_key_in_every_process():
    """Results are found again by what another process has sent or stored."""
    spec = RunSpec(StreamSpec(rate=31.0), MethodSpec("paper:fcfs"))
    sent = msgspec.json.decode(msgspec.json.encode(spec), type=RunSpec)
    pickled = pickle.loads(pickle.dumps(spec))  # noqa: S301 - our own, as the pool of processes does

    assert key_of(spec) == key_of(sent) == key_of(pickled)


def test_an_experiment_makes_a_report(tmp_path):
    """Experiments write pictures, tables and a report that names what does not reproduce."""
    plan = Plan(tmp_path, seeds=1, windows=2, jobs=1, quiet=True)
    outcome = EXPERIMENTS["table2"](plan, Results(tmp_path))
    text = write(plan, [outcome]).read_text()
    made = {path.name for path in tmp_path.iterdir()}

    assert "does not reproduce from the public 2023 traces" in text
    assert "of 6." in text
    assert {"table2.svg", "table2.png", "checks.csv", "checks.parquet", "results.csv"} <= made
    assert {"results.parquet", "report.md", "runs.jsonl"} <= made
    assert str(tmp_path) not in text


def test_figures_are_drawn_with_the_surrogate(tmp_path, monkeypatch):
    """Fig. 2 at two loads and one seed: cells of both models, checks, and a picture."""
    small = dataclasses.replace(sweeps.FIG2, xs=(31.0, 32.0))
    monkeypatch.setattr(sweeps, "FIG2", small)
    monkeypatch.setattr(surrogate_curve, "FIG2", small)
    plan = Plan(tmp_path, seeds=1, jobs=1, quiet=True)
    outcome = EXPERIMENTS["fig2"](plan, Results(None))
    loads = {(c.experiment, c.line, c.x) for c in outcome.cells if c.measure == "wait_mean_s"}

    assert loads == {
        (experiment, line, x)
        for experiment in ("fig2", "fig2a")
        for line in ("FCFS", "PSF", "AA", "QBA")
        for x in (31.0, 32.0)
    }
    assert [check.holds for check in outcome.checks if "closed form" in check.statement] == [True]
    assert "mathdefault" not in (tmp_path / "fig2.svg").read_text()  # its axis is logarithmic


def test_pictures_are_the_same_bytes(tmp_path):
    """An SVG depends on the data only."""
    panel = plots.Panel("t", "x", "y", [("QBA", [1.0, 2.0], [1.0, 3.0], [0.5, 2.0], [1.5, 4.0])])
    for name in ("a", "b"):
        plots.draw_panels(tmp_path, name, [panel], "caption")

    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
