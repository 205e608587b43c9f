"""`fairsched tail`: decisions as they become durable."""

from typing import Annotated, Any

import typer

from fairsched import errors
from fairsched.v1 import audit_service_pb2 as pb
from fairsched.v1 import decision_pb2
from scheduler_service.cli import describe, output, values
from scheduler_service.cli.session import Session, remote


@remote
def tail(
    session: Session,
    pool: Annotated[list[str] | None, typer.Option(help="Only of this pool; repeat.")] = None,
    user: Annotated[list[str] | None, typer.Option(help="Only of this user; repeat.")] = None,
    request: Annotated[list[str] | None, typer.Option(help="Only of this request; repeat.")] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only of this kind (dispatched, accepted, completed, …); repeat."),
    ] = None,
    after: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Begin behind this sequence; 0 is the whole log. "
            "Default: now; with --no-follow, the whole log.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option(help="Go on with what comes; else stop at the newest decision.")
    ] = True,
) -> None:
    """Shows decisions live; goes on after a restart of the service without a gap."""
    wanted = pb.DecisionFilter(
        pools=pool or (),
        user_ids=user or (),
        request_ids=request or (),
        kinds=[_kind(name) for name in kind or ()],
    )
    try:
        if follow:
            # Once it has answered, it may come and go.
            session.client.audit.ListDecisions(pb.ListDecisionsRequest(page_size=1))
            decisions = session.client.watch(after, wanted)
        else:
            page = pb.ListDecisionsRequest(after_sequence=after or 0, filter=wanted, page_size=1000)
            decisions = session.client.pages(session.client.audit.ListDecisions, page, "decisions")
        for decision in decisions:
            if not session.json_or([decision]):
                output.out.print(describe.line(decision), soft_wrap=True)
    except KeyboardInterrupt:
        return
    except errors.TrimmedError as error:
        oldest = error.metadata.get("oldestSequence", "the oldest sequence")
        output.err.print(f"The log no longer goes back that far; begin at {oldest}.")
        raise


def _kind(name: str) -> Any:
    return values.enum(decision_pb2.DecisionKind.DESCRIPTOR, name)
