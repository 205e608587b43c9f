"""`fairsched explain`: why a request went when it did, or why it still waits."""

from typing import Annotated

import typer

from fairsched.v1 import audit_service_pb2 as pb
from scheduler_service.cli import describe, output, which
from scheduler_service.cli.session import Session, remote
from scheduler_service.core.phrases import cost_text, time_text
from scheduler_service.core.policy import SECOND_NS


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
        output.facts([_fact(fact) for fact in response.facts])
    if response.HasField("decision"):
        output.out.print()
        output.out.print(describe.line(response.decision), soft_wrap=True)
    if response.related_sequences:
        related = ", ".join(map(str, response.related_sequences))
        output.out.print(f"rests on decisions {related}", style="dim")


def _fact(fact: pb.ExplainedFact) -> tuple[str, str]:
    """Returns name and value in the units of the sentences; `--json` has those of the API."""
    match fact.unit:
        case "micro cost units":
            return fact.name.removesuffix("_micros"), f"{cost_text(int(fact.value))} cost units"
        case "thousandths":
            return fact.name.removesuffix("_milli"), output.weight(int(fact.value))
        case "s":
            return fact.name, time_text(round(float(fact.value) * SECOND_NS))
        case "cost units":
            return fact.name, f"{int(fact.value):,} cost units"
        case unit:
            return fact.name, f"{fact.value} {unit}".strip()
