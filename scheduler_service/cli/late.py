"""Commands that are loaded when they are called: they need more packages, or more time, to load.

The command line starts fast, and works without the extras that only some commands need.
"""

import importlib
from collections.abc import Callable

import typer
from typer.main import get_command

from scheduler_service.cli import output
from scheduler_service.cli.session import EXIT_USAGE

HELP = ["-h", "--help"]
"""What shows the help of a command, everywhere."""

SETTINGS = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": list[str](),
}
"""What is typed behind the command goes on as it is, `-h` and `--help` too."""


def forward(name: str, module: str, extra: str = "") -> Callable[[typer.Context], None]:
    """Returns a command that hands over to the command `name` of the typer app in `module`.

    Args:
        name: The command, here and there.
        module: Where a typer app is called `app`.
        extra: Extra of the distribution that it needs; empty for none.
    """

    def run(context: typer.Context) -> None:
        try:
            app = importlib.import_module(module).app
        except ModuleNotFoundError as error:
            if not extra or (error.name or "").startswith("scheduler_service"):
                raise
            output.err.print(
                f"`fairsched {name}` needs {error.name}: pip install 'fairsched[{extra}]'",
                markup=False,
            )
            raise typer.Exit(EXIT_USAGE) from None
        command = get_command(app)
        names = getattr(command, "commands", {})
        prefix = [name] if name in names else []
        program = "fairsched" if prefix else f"fairsched {name}"
        settings = {"help_option_names": HELP, **command.context_settings}
        command(args=[*prefix, *context.args], prog_name=program, **settings)

    return run
