"""`fairsched explain`: why a request went when it did, or why it still waits."""

from typing import Annotated

import typer

from fairsched.v1 import admin_service_pb2
from fairsched.v1 import audit_service_pb2 as pb
from scheduler_service.cli import describe, output
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
        str, typer.Option(help="Pool of the request; may be left out if there is only one.")
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
    else:
        key = pb.RequestKey(pool=pool or only_pool(session), request_id=request)
        wanted = pb.ExplainDecisionRequest(request=key)
    response = session.client.audit.ExplainDecision(wanted)
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


def only_pool(session: Session) -> str:
    """Returns the name of the service's only pool.

    Raises:
        BadParameter: There are several, or none.
    """
    request = admin_service_pb2.GetStatsRequest(page_size=2)
    names = [one.pool for one in session.client.admin.GetStats(request).pools]
    if len(names) != 1:
        message = "say which pool with --pool" if names else "there is no pool"
        raise typer.BadParameter(message)
    return names[0]
