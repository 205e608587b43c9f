"""`fairsched token new`: a bearer token and its entry in the credentials file."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from scheduler_service.cli import output
from scheduler_service.rpc import security

app = typer.Typer(help="Bearer tokens.", no_args_is_help=True)


class Role(StrEnum):
    """What a token may do."""

    GATEWAY = "gateway"
    WORKER = "worker"
    AUDITOR = "auditor"
    ADMIN = "admin"


@app.command("new")
def new_token(
    name: Annotated[str, typer.Argument(help="Kept with every decision that it causes.")],
    role: Annotated[list[Role], typer.Option(help="What it may do; repeat.")],
    pool: Annotated[list[str] | None, typer.Option(help="Only these pools; repeat.")] = None,
    user_prefix: Annotated[
        list[str] | None, typer.Option(help="Only users whose id begins so; repeat.")
    ] = None,
    endpoint: Annotated[
        list[str] | None, typer.Option(help="Worker endpoints that begin so; repeat.")
    ] = None,
    states_cost: Annotated[
        bool, typer.Option("--states-cost", help="May state the cost of a request.")
    ] = False,
) -> None:
    """Makes a token and its entry for the credentials file.

    The entry goes to standard output; the token itself, which is kept nowhere, to standard error.
    """
    token, digest = security.new_token()
    lines = [
        "[[token]]",
        f"name = {json.dumps(name)}",
        f'sha256 = "{digest}"',
        f"roles = {json.dumps([one.value for one in role])}",
    ]
    for key, values in (("pools", pool), ("user_prefixes", user_prefix), ("endpoints", endpoint)):
        if values:
            lines.append(f"{key} = {json.dumps(values)}")
    if states_cost:
        lines.append("states_cost = true")
    entry = "\n".join(lines)
    try:
        security.parse(entry)
    except security.CredentialsError as error:
        raise typer.BadParameter(str(error)) from None
    output.out.print(entry, markup=False)
    output.err.print(f"token (shown once): {token}", markup=False)
