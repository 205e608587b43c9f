"""What every command that talks to a running service has: connection options, output, errors.

`@remote` gives a command its connection options, so that they can be stated behind any command,
and turns what goes wrong into one clear line and a documented exit code:

    0    done
    1    the service refused: the line says why
    2    the command was called wrongly
    3    nobody answers, or not in time
    4    there is no such pool, user, request, worker or decision
    5    the token is missing or unknown, or does not allow it
    70   a defect in this program
    130  interrupted
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from google.protobuf.message import Message

from fairsched import Fairsched, Tls, errors
from scheduler_service.cli import away, output

EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_AWAY = 3
EXIT_UNKNOWN = 4
EXIT_DENIED = 5
EXIT_DEFECT = 70
EXIT_INTERRUPTED = 130

DEFAULT_TARGET = "127.0.0.1:50051"
"""Where the service listens when nothing is configured."""

_GROUP = "Connection"
Target = Annotated[
    str,
    typer.Option(
        envvar="FAIRSCHED_TARGET", help="Where the service listens.", rich_help_panel=_GROUP
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        envvar="FAIRSCHED_TOKEN_FILE",
        help="File with the bearer token.",
        rich_help_panel=_GROUP,
        exists=True,
        dir_okay=False,
    ),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        envvar="FAIRSCHED_CLIENT_TLS_CA",
        help="Certificates to trust; speaks TLS.",
        rich_help_panel=_GROUP,
        exists=True,
        dir_okay=False,
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(
        envvar="FAIRSCHED_CLIENT_TLS_CERT",
        help="Own certificate, for mutual TLS.",
        rich_help_panel=_GROUP,
        exists=True,
        dir_okay=False,
    ),
]
TlsKey = Annotated[
    Path | None,
    typer.Option(
        envvar="FAIRSCHED_CLIENT_TLS_KEY",
        help="Its private key.",
        rich_help_panel=_GROUP,
        exists=True,
        dir_okay=False,
    ),
]
TlsName = Annotated[
    str | None,
    typer.Option(
        envvar="FAIRSCHED_CLIENT_TLS_NAME",
        help="Name that the service's certificate carries, if not the target's.",
        rich_help_panel=_GROUP,
    ),
]
Timeout = Annotated[
    float,
    typer.Option(help="Deadline of a call, seconds.", rich_help_panel=_GROUP, min=0.1, max=3600),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]


@dataclasses.dataclass(frozen=True, slots=True)
class Session:
    """What a command works with.

    Attributes:
        client: The connection.
        target: Where it leads.
        as_json: Whether a script reads the output.
    """

    client: Fairsched
    target: str
    as_json: bool

    def json_or(self, messages: Iterable[Message]) -> bool:
        """Prints messages as JSON if that is wanted, and returns whether it did."""
        if self.as_json:
            output.print_json(messages)
        return self.as_json


def _connect(
    target: Target = DEFAULT_TARGET,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_name: TlsName = None,
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> Session:
    if (tls_cert is None) != (tls_key is None):
        message = "--tls-cert and --tls-key go together"
        raise typer.BadParameter(message)
    encrypted = tls_ca or tls_cert or tls_name
    tls = Tls(tls_ca, tls_cert, tls_key, tls_name) if encrypted else None
    token = token_file.read_text().strip() if token_file else None
    return Session(Fairsched(target, token=token, tls=tls, timeout=timeout), target, as_json)


_OPTIONS = [
    option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    for option in inspect.signature(_connect).parameters.values()
]


def remote(command: Callable[..., None]) -> Callable[..., None]:
    """Makes a function whose first argument is a `Session` a command with connection options."""
    parameters = list(inspect.signature(command).parameters.values())[1:]

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        options = {option.name: arguments.pop(option.name) for option in _OPTIONS}
        session = _connect(**options)
        try:
            command(session, **arguments)
        except errors.FairschedError as error:
            fail(error, session.target)
        finally:
            session.client.close()

    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    vars(run)["__signature__"] = inspect.Signature([*own, *_OPTIONS])  # what typer reads
    run.__annotations__ = {p.name: p.annotation for p in (*own, *_OPTIONS)}
    return run


def fail(error: errors.FairschedError, target: str) -> NoReturn:
    """Says what went wrong in one line, and ends with the exit code for it."""
    text = str(error)
    if isinstance(error, errors.UnavailableError | errors.DeadlineError):
        text = away.sentence(error, target)
    if isinstance(error, errors.CallError) and error.retry_after:
        text += f" (try again in {output.span(error.retry_after)})"
    output.err.print(output.safe(f"fairsched: {text}"), style="red")
    raise typer.Exit(exit_code(error)) from None


def exit_code(error: errors.FairschedError) -> int:
    """Returns the exit code for an error."""
    if isinstance(error, errors.UnavailableError | errors.DeadlineError):
        return EXIT_AWAY
    if isinstance(error, errors.NotFoundError):
        return EXIT_UNKNOWN
    if isinstance(error, errors.DeniedError | errors.UnauthenticatedError):
        return EXIT_DENIED
    return EXIT_REFUSED
