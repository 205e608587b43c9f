"""`fairsched bench`: the benchmark suite of the source checkout that this package runs from."""

import os
import subprocess
import sys
from pathlib import Path

import typer

from scheduler_service.cli import output
from scheduler_service.cli.session import EXIT_USAGE

ROOT = Path(__file__).parents[2]

app = typer.Typer(add_completion=False)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True,
                               "help_option_names": list[str]()})  # fmt: skip
def bench(context: typer.Context) -> None:
    """Measures the service on this machine; `--list` names the benchmarks, `--quick` is short."""
    if not (ROOT / "tests" / "bench" / "__main__.py").is_file():
        output.err.print(
            "The benchmark suite is part of the source repository: `make bench` there."
        )
        raise typer.Exit(EXIT_USAGE)
    before = os.environ.get("PYTHONPATH", "")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), before]))}
    command = [sys.executable, "-m", "tests.bench", *context.args]
    raise typer.Exit(subprocess.call(command, env=environment))  # noqa: S603 - no shell; arguments are the user's own
