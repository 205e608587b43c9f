"""The commands of the evaluation: `simulate`, `reproduce`, `compare`, `tune`.

`app` is mounted by the command line of the service.  Results go to the folder given, default
`fairsched-results`; a stopped command goes on where it was when called again.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(help="Evaluate scheduling policies before deploying them.")
_console = Console()

DEFAULT_FOLDER = Path("fairsched-results")
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


@app.command()
def reproduce(
    experiments: Annotated[
        list[str] | None,
        typer.Argument(help="fig2 fig3 fig4 fig5 table2 article; all if none is named."),
    ] = None,
    *,
    trace: Traces = None,
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions.")] = 100,
    windows: Annotated[int, typer.Option(min=1, help="Windows of Table II.")] = 100,
    quick: Annotated[bool, typer.Option("--quick", help="3 seeds: under 2 minutes.")] = False,
    out: Out = DEFAULT_FOLDER / "reproduce",
    jobs: Jobs = 0,
    quiet: Quiet = False,
) -> None:
    """Reproduces the figures, the table and the claims of the two documents."""
    _need_extra()
    from scheduler_service.sim.pool import Results  # noqa: PLC0415 - needs the extra
    from scheduler_service.sim.reproduce.experiments import EXPERIMENTS, Plan  # noqa: PLC0415
    from scheduler_service.sim.reproduce.report import write  # noqa: PLC0415

    names = experiments or list(EXPERIMENTS)
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        message = f"unknown: {', '.join(unknown)}; there are {', '.join(EXPERIMENTS)}"
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
    outcomes = [EXPERIMENTS[name](plan, results) for name in names]
    path = write(plan, outcomes)
    for outcome in outcomes:
        held = [c.holds for c in outcome.comparisons] + [c.holds for c in outcome.checks]
        _console.print(f"{outcome.title}: {sum(held)} of {len(held)} hold")
    _console.print(f"Report: {path}")
