"""`fairsched explain`: why a request went when it did, or why it still waits."""

from typing import Annotated

import typer

from fairsched.v1 import audit_service_pb2 as pb
from scheduler_service.cli import describe, output, which
from scheduler_service.cli.session import Session, remote


@remote
def explain(
    session: Session,
    request: Annotated[
        str,
        typer.Argument(
            help="Request, or with --sequence a decision.",
            show_default=False,
        ),
    ],
    pool: Annotated[
        str,
        typer.Option(
            help="Pool of the request; without, all that you may see are searched.",
            show_default=False,
        ),
    ] = "",
    sequence: Annotated[
        bool, typer.Option("--sequence", help="The argument is a decision's sequence.")
    ] = False,
) -> None:
    """Says in words and numbers why a request went when it did, or why it still waits."""
    if sequence:
        if not request.isdigit():
            message = f"{request!r} is not a sequence"
            raise typer.BadParameter(message)
        wanted = pb.ExplainDecisionRequest(sequence=int(request))
        response = session.client.audit.ExplainDecision(wanted)
    elif pool:
        response = which.explain_in(session, pool, request)
    else:
        response = which.explained(session, request)
    if session.json_or([response]):
        return
    output.out.print(output.safe(response.text), style="bold")
    if response.facts:
        output.out.print()
        output.facts([(f.name, f"{f.value} {f.unit}".strip()) for f in response.facts])
    if response.HasField("decision"):
        output.out.print()
        output.out.print(describe.line(response.decision), soft_wrap=True)
    if response.related_sequences:
        related = ", ".join(map(str, response.related_sequences))
        output.out.print(f"rests on decisions {related}", style="dim")
