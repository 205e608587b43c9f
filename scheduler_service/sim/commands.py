"""The commands of the evaluation: `simulate`, `reproduce`, `compare`, `caps`, `tune`.

`app` is mounted by the command line of the service.  Results go to the folder given, default
`fairsched-results`; a stopped command goes on where it was when called again.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Column, Table

from scheduler_service.core.phrases import count_text
from scheduler_service.core.policy import PoolPolicy
from scheduler_service.sim.capacity import at_load
from scheduler_service.sim.single import SingleRun, run_one
from scheduler_service.sim.specs import MethodSpec, RunSpec, StreamSpec

app = typer.Typer(help="Evaluate scheduling policies before deploying them.", add_completion=False)
_console = Console()

DEFAULT_FOLDER = Path("fairsched-results")
_USERS_SHOWN = 25
_NEEDED = ("numpy", "scipy", "matplotlib", "pyarrow")

Out = Annotated[Path, typer.Option("--out", help="Folder for results.")]
Jobs = Annotated[int, typer.Option(min=0, help="Processes; 0 is one a core.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
Traces = Annotated[
    list[Path] | None,
    typer.Option(
        "--trace",
        exists=True,
        dir_okay=False,
        help="Request stream: .csv, .parquet, or a decision log as .jsonl; repeat to merge.",
    ),
]


def _need_extra() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        _console.print(f"Missing: {', '.join(missing)}. Install with: pip install 'fairsched[sim]'")
        raise typer.Exit(2)


Engines = Annotated[int, typer.Option(min=1, help="Engines behind the scheduler.")]
PaperEngine = Annotated[
    bool, typer.Option("--paper-engine", help="The paper's KV rule instead of the safe one.")
]
Load = Annotated[
    float,
    typer.Option(min=0.0, max=5.0, help="Offered over possible; 0 keeps the stream's own rate."),
]
Count = Annotated[int, typer.Option(min=0, help="Requests a run; 0: all of a trace.")]
Pool = Annotated[str, typer.Option(help="Pool to read from a decision log of several pools.")]


def _stream(
    trace: list[Path] | None, count: int, seed: int, load: float, like: RunSpec, pool: str = ""
) -> StreamSpec:
    """Returns the stream that the options mean, at the load they mean."""
    if trace:
        paths = tuple(str(path) for path in trace)
        spec = StreamSpec("trace", seed, 0.0, count, "work", paths=paths, pool=pool)
    else:
        spec = StreamSpec("users", seed, count=count or 5000, by="work")
    return at_load(spec, load, like) if load else spec


@app.command()
def simulate(
    method: Annotated[
        str, typer.Argument(help="A preset (fair_qba, sfq, qba, psf, aa, fcfs) or a baseline.")
    ] = "fair_qba",
    *,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="Policy field, as quota_k=4; repeat.")
    ] = None,
    trace: Traces = None,
    pool: Pool = "",
    load: Load = 0.95,
    count: Count = 5000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the synthetic stream.")] = 0,
    engines: Engines = 1,
    paper_engine: PaperEngine = False,
    faults: Annotated[int | None, typer.Option(help="Seed of faults; none without.")] = None,
    decisions: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write the decision log here.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Runs one policy over one stream and shows what it does to each user."""
    _need_extra()
    shape: Literal["paper", "safe"] = "paper" if paper_engine else "safe"
    try:
        spec = MethodSpec(method, _changes(setting))
        like = RunSpec(StreamSpec(), spec, shape, engines)
        stream = _stream(trace, count, seed, load, like, pool)
        one = run_one(RunSpec(stream, spec, shape, engines), faults=faults, decisions=decisions)
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from error
    if as_json:
        typer.echo(one.as_json())
        return
    _show(one)


def _changes(settings: list[str] | None) -> tuple[tuple[str, int], ...]:
    """Reads `field=value` options; values are whole numbers."""
    found = {}
    for text in settings or ():
        name, sign, value = text.partition("=")
        if not sign or name not in PoolPolicy.__struct_fields__:
            message = f"{text!r} is not a policy field and a value"
            raise ValueError(message)
        found[name] = int(value)
    return tuple(sorted(found.items()))


def _show(one: SingleRun) -> None:
    waits = Table("requests", "mean", "P50", "P90", "P99", title="Wait, seconds")
    for group in ("", "short_", "long_", "light_", "heavy_"):
        values = [one.measures.get(f"{group}wait_{s}_s") for s in ("mean", "p50", "p90", "p99")]
        if values[0] is not None:
            waits.add_row(group.strip("_") or "all", *(f"{v:.3f}" for v in values if v is not None))
    _console.print(waits)
    users = Table(
        "user", "requests", "share", "ideal share", "mean wait", "P99 wait", title="Users"
    )
    for row in one.users[:_USERS_SHOWN]:
        users.add_row(
            f"{row.user}{' (heavy)' if row.heavy else ''}",
            str(row.requests),
            f"{row.cost_share:.1%}",
            f"{row.ideal_share:.1%}",
            f"{row.measures['wait_mean_s']:.3f}",
            f"{row.measures['wait_p99_s']:.3f}",
        )
    _console.print(users)
    rest = {k: v for k, v in one.measures.items() if "wait" not in k and "ttft" not in k}
    for name, value in {**rest, **one.notes}.items():
        _console.print(f"{name}: {value:.6g}")


@app.command()
def reproduce(
    experiments: Annotated[
        list[str] | None,
        typer.Argument(help="fig2 fig3 fig4 fig5 table2 article, or numbers; all if none."),
    ] = None,
    *,
    trace: Traces = None,
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions.")] = 100,
    windows: Annotated[int, typer.Option(min=1, help="Windows of Table II.")] = 100,
    quick: Annotated[
        bool, typer.Option("--quick", help="3 seeds, 20 windows: under 2 minutes.")
    ] = False,
    out: Out = DEFAULT_FOLDER / "reproduce",
    jobs: Jobs = 0,
    quiet: Quiet = False,
) -> None:
    """Reproduces the figures, the table and the claims of the two documents."""
    _need_extra()
    from scheduler_service.sim.pool import Results
    from scheduler_service.sim.reproduce.experiments import EXPERIMENTS, PARTS, Plan
    from scheduler_service.sim.reproduce.report import write

    names = experiments or list(EXPERIMENTS)
    known = {**EXPERIMENTS, **PARTS}
    unknown = [name for name in names if name not in known]
    if unknown:
        message = f"unknown: {', '.join(unknown)}; there are {', '.join(known)}"
        raise typer.BadParameter(message)
    plan = Plan(
        out,
        3 if quick else seeds,
        min(windows, 20) if quick else windows,
        tuple(str(path) for path in trace or ()),
        jobs,
        quiet,
    )
    results = Results(out)
    outcomes = [known[name](plan, results) for name in names]
    path = write(plan, outcomes)
    for outcome in outcomes:
        held = [c.holds for c in outcome.comparisons] + [c.holds for c in outcome.checks]
        _console.print(f"{outcome.title}: {sum(held)} of {len(held)} hold")
    _console.print(f"Report: {path}")


@app.command()
def compare(
    *,
    trace: Traces = None,
    load: Annotated[float, typer.Option(min=0.05, max=3.0, help="Offered over possible.")] = 0.95,
    seeds: Annotated[int, typer.Option(min=1, help="Synthetic repetitions.")] = 10,
    count: Count = 5000,
    engines: Engines = 1,
    paper_engine: PaperEngine = False,
    out: Out = DEFAULT_FOLDER / "compare",
    jobs: Jobs = 0,
    quiet: Quiet = False,
) -> None:
    """Compares every method over the same streams, and what slack, k and gamma trade."""
    _need_extra()
    from scheduler_service.sim import compare as comparison

    plan = comparison.Plan(
        out,
        tuple(str(path) for path in trace or ()),
        load,
        seeds,
        count,
        "paper" if paper_engine else "safe",
        engines,
        jobs,
        quiet,
    )
    _console.print(f"Report: {comparison.run(plan)}")


@app.command()
def caps(
    *,
    trace: Traces = None,
    name: Annotated[str, typer.Option(help="What the stream of --trace is called.")] = "trace",
    load: Annotated[float, typer.Option(min=0.05, max=5.0, help="Offered over possible.")] = 1.2,
    count: Count = 0,
    learn_every: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            help="Shortest time between two learned updates, seconds.",
            show_default="60; 10 with --quick",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="800 requests unless --count says less, learned from every 10 s."
        ),
    ] = False,
    out: Out = DEFAULT_FOLDER / "caps",
    jobs: Jobs = 0,
    quiet: Quiet = False,
) -> None:
    """Shows how far estimates from output caps are from real cost, and how unfair that makes it."""
    _need_extra()
    from scheduler_service.sim import caps as study

    paths = tuple(str(path) for path in trace or ())
    traces = ((name, paths),) if paths else ()
    plan = study.Plan(out, traces, load=load, count=count, jobs=jobs, quiet=quiet)
    if quick:
        plan = study.quick(plan)
    if learn_every is not None:
        plan = dataclasses.replace(plan, interval_s=learn_every)
    length = f"The first {count_text(plan.count, 'request')}" if plan.count else "All requests"
    _console.print(f"{length}; learned values come into force every {plan.interval_s:g} s.")
    _console.print(f"Report: {study.run(plan)}")


@app.command()
def tune(
    *,
    goal: Annotated[
        list[str] | None,
        typer.Option("--goal", help="Upper limit, as light_wait_p99_s<2; repeat."),
    ] = None,
    trace: Traces = None,
    pool: Pool = "",
    load: Load = 0.95,
    count: Count = 5000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the synthetic stream.")] = 0,
    engines: Engines = 1,
    paper_engine: PaperEngine = False,
    any_setting: Annotated[
        bool,
        typer.Option("--any", help="Consider settings less fair than the default, too."),
    ] = False,
    out: Out = DEFAULT_FOLDER / "tune",
    jobs: Jobs = 0,
    quiet: Quiet = False,
) -> None:
    """Finds slack, k, gamma and policy for a stream and goals, and says what they cost.

    Only settings as fair as the default are considered: those with a finite slack whose largest
    gap on the stream is at most twice the default's. `--any` lifts that.
    """
    _need_extra()
    from scheduler_service.sim import tune as tuning
    from scheduler_service.sim import tune_report

    shape: Literal["paper", "safe"] = "paper" if paper_engine else "safe"
    like = RunSpec(StreamSpec(), MethodSpec("fair_qba"), shape, engines)
    try:
        goals = tuple(tuning.parse_goal(text) for text in goal or ())
        stream = _stream(trace, count, seed, load, like, pool)
        plan = tuning.Plan(out, stream, goals, shape, engines, jobs, quiet, any_setting)
        found = tuning.run(plan)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    path = tune_report.write(found)
    _console.print(tune_report.settings_text(found.best.method))
    head, rows = tune_report.short_table(found)
    columns = (Column(title, justify="right") for title in head[1:])
    table = Table(head[0], *columns, title="Waits in seconds, gap in cost units")
    for row in rows:
        table.add_row(*row)
    _console.print(table)
    for wanted in goals:
        met = "met" if wanted.missed_by(found.best.measures) == 0 else "not met"
        value = found.best.measures[wanted.measure]
        _console.print(f"{wanted.measure}: {value:.3g}, at most {wanted.limit:g}: {met}")
    _console.print(tune_report.why(found))
    _console.print(f"Report: {path}")
