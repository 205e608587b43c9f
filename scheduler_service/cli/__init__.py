"""The command line: `fairsched serve`, `demo`, and everything an operator does with a service."""

import importlib.metadata
import os
import sys

import typer

from scheduler_service.cli import (
    explain,
    late,
    output,
    overview,
    pools,
    requests,
    session,
    tail,
    tokens,
    top,
    users,
    workers,
)
from scheduler_service.core import COMPILED

_RUN = "Run"
_LOOK = "Look"
_CHANGE = "Change"
_EVALUATE = "Evaluate"

_EPILOG = (
    "Exit codes: 0 done, 1 refused, 2 wrong usage, 3 nobody answers, 4 no such thing, "
    "5 not allowed, 70 a defect here, 130 interrupted. FAIRSCHED_TARGET and FAIRSCHED_TOKEN_FILE "
    "stand for --target and --token-file."
)

app = typer.Typer(
    name="fairsched",
    help="Decides whose LLM request is dispatched next.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": late.HELP},
)


def _version(wanted: bool) -> None:
    if wanted:
        core = "compiled" if COMPILED else "source"
        output.out.print(f"fairsched {importlib.metadata.version('fairsched')}, core: {core}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """Decides whose LLM request is dispatched next."""


for _name, _module, _extra, _help in (
    ("serve", "scheduler_service.cli.serve", "", "Run the service."),
    ("demo", "scheduler_service.demo.command", "sim", "See it work: FCFS against fair_qba."),
    ("bench", "scheduler_service.cli.bench", "", "Measure decisions a second on this machine."),
):
    app.command(_name, help=_help, context_settings=late.SETTINGS, rich_help_panel=_RUN)(
        late.forward(_name, _module, _extra)
    )

app.command("top", rich_help_panel=_LOOK)(top.top)
app.command("stats", rich_help_panel=_LOOK)(overview.stats)
app.command("queue", rich_help_panel=_LOOK)(requests.queue)
app.command("request", rich_help_panel=_LOOK)(requests.show_request)
app.command("explain", rich_help_panel=_LOOK)(explain.explain)
app.command("tail", rich_help_panel=_LOOK)(tail.tail)
app.command("dump", rich_help_panel=_LOOK)(overview.dump)
app.command(
    "audit",
    help="Verify or export a decision log.",
    context_settings=late.SETTINGS,
    rich_help_panel=_LOOK,
)(late.forward("audit", "scheduler_service.cli.audit", "sim"))

app.add_typer(pools.app, name="pools", rich_help_panel=_CHANGE)
app.add_typer(users.app, name="users", rich_help_panel=_CHANGE)
app.command("weight", rich_help_panel=_CHANGE)(users.set_weight)
app.command("pause", rich_help_panel=_CHANGE)(pools.pause)
app.command("resume", rich_help_panel=_CHANGE)(pools.resume)
app.command("cancel", rich_help_panel=_CHANGE)(requests.cancel)
app.add_typer(workers.app, name="workers", rich_help_panel=_CHANGE)
app.add_typer(requests.dead_letters, name="dead-letters", rich_help_panel=_CHANGE)
app.add_typer(tokens.app, name="token", rich_help_panel=_CHANGE)

for _name, _help in (
    ("simulate", "Run one policy over one request stream."),
    ("compare", "Compare policies over request streams."),
    ("reproduce", "Reproduce the figures and tables of the two documents."),
    ("caps", "Show how far estimates from output caps are from real cost."),
    ("tune", "Find the policy that meets your goals on your own trace."),
):
    app.command(_name, help=_help, context_settings=late.SETTINGS, rich_help_panel=_EVALUATE)(
        late.forward(_name, "scheduler_service.sim.commands", "sim")
    )
app.command(
    "whatif",
    help="Decide a real log again under another policy.",
    context_settings=late.SETTINGS,
    rich_help_panel=_EVALUATE,
)(late.forward("whatif", "scheduler_service.cli.whatif", "sim"))


def main() -> None:
    """Runs the command line; never shows a traceback unless FAIRSCHED_DEBUG is set."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(session.EXIT_INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if os.environ.get("FAIRSCHED_DEBUG"):
            raise
        output.err.print(f"fairsched: defect: {type(error).__name__}: {error}", style="red")
        output.err.print("FAIRSCHED_DEBUG=1 shows where.")
        sys.exit(session.EXIT_DEFECT)
