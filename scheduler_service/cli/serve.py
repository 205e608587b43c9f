"""`fairsched serve`: every setting is a flag; see `scheduler_service.config`."""

import enum
import functools
import inspect
import sys
import types
import typing
from pathlib import Path
from typing import Annotated, Any

import typer

from scheduler_service import config, server
from scheduler_service.cli import output
from scheduler_service.obs.logging import Log

app = typer.Typer(add_completion=False)

_GROUPS = {
    "listen": "Addresses",
    "tls_certificate": "Security",
    "data_dir": "Log on disk",
    "payload_bytes": "Limits",
    "grace_seconds": "Running",
}
"""First setting of each group of flags."""

_ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="FAIRSCHED_CONFIG",
        help="TOML file with settings and pools; flags and environment win over it.",
        exists=True,
        dir_okay=False,
    ),
]
_PrintConfig = Annotated[
    bool, typer.Option("--print-config", help="Print the settings in force, as TOML, and end.")
]


def _run(config_file: Path | None, print_config: bool, flags: dict[str, Any]) -> None:
    try:
        settings = config.load(config_file, flags)
    except config.ConfigRefused as error:
        for key, problem in error.problems:
            said = f"fairsched: {key}: {problem}" if key else f"fairsched: {problem}"
            output.err.print(output.safe(said), style="red")
        raise typer.Exit(server.EXIT_REFUSED) from None
    if print_config:
        output.out.out(config.render(settings), end="")
        return
    log = Log(
        sys.stdout.buffer,
        level=settings.log_level,
        console=settings.log_format is config.LogFormat.CONSOLE,
        mask_user_ids=settings.mask_user_ids,
    )
    log.capture_libraries()
    try:
        read = server.loader(config_file, flags)
        code = server.run(settings, report=log.report, read=read, log=log)
    finally:
        log.close()
    raise typer.Exit(code)


def _flag(name: str, field: Any, group: str) -> inspect.Parameter:
    """Returns the flag of a setting; absent flags are None, so that they state nothing."""
    kind = next(
        (one for one in typing.get_args(field.annotation) if one is not types.NoneType),
        field.annotation,
    )
    default = field.default.value if isinstance(field.default, enum.Enum) else field.default
    shown = "none" if default is None else "empty" if default == "" else default
    option = f"--{name.replace('_', '-')}"
    names = (option, f"--no-{name.replace('_', '-')}") if kind is bool else (option,)
    about = typer.Option(
        None,
        "/".join(names),
        help=f"{field.description} [dim]\\[default: {shown}][/dim]",
        rich_help_panel=group,
        show_default=False,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=about, annotation=kind | None
    )


def _flags() -> list[inspect.Parameter]:
    group, found = "Settings", []
    for name, field in config.Settings.model_fields.items():
        group = _GROUPS.get(name, group)
        if name != "pools":
            found.append(_flag(name, field, group))
    return found


def _command() -> Any:
    own = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
        for name, default, annotation in (
            ("config_file", None, _ConfigFile),
            ("print_config", False, _PrintConfig),
        )
    ]
    parameters = [*own, *_flags()]

    @functools.wraps(_run)
    def serve(config_file: Path | None, print_config: bool, **flags: Any) -> None:
        _run(config_file, print_config, flags)

    serve.__doc__ = (
        "Runs the service until SIGTERM.\n\nEvery flag is also a key of the file and, in upper "
        "case behind FAIRSCHED_, a variable of the environment (FAIRSCHED_DATA_DIR). "
        "SIGHUP reads the file again. Exit codes: 0 stopped in order, 1 refused to start, "
        "70 failed, start it again."
    )
    vars(serve)["__signature__"] = inspect.Signature(parameters)  # what typer reads
    serve.__annotations__ = {p.name: p.annotation for p in parameters}
    return serve


app.command("serve", rich_help_panel="Run")(_command())
