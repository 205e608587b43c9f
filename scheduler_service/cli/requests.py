"""Commands about requests: `queue`, `request`, `cancel`, `dead-letters …`."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from fairsched.v1 import admin_service_pb2 as pb
from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as scheduler_pb
from scheduler_service.cli import output, values
from scheduler_service.cli.pools import PoolName
from scheduler_service.cli.session import Session, remote
from scheduler_service.core.phrases import count_text

dead_letters = typer.Typer(
    help="Requests whose leases expired too often: list, requeue, discard.", no_args_is_help=True
)

RequestId = Annotated[str, typer.Argument(help="Request.", show_default=False)]
OfUser = Annotated[str, typer.Option("--user", help="Only those of this user.")]
Limit = Annotated[int, typer.Option(min=1, help="Show at most this many.")]


@remote
def queue(
    session: Session,
    pool: PoolName,
    user: OfUser = "",
    state: Annotated[
        list[str] | None,
        typer.Option(help="Only in this state (waiting, leased, …); repeat. Default: all alive."),
    ] = None,
    limit: Limit = 100,
) -> None:
    """Lists the requests of a pool, oldest first."""
    request = pb.ListRequestsRequest(
        pool=pool, user_id=user, states=[_state(name) for name in state or ()]
    )
    found = session.client.pages(session.client.admin.ListRequests, request, "requests")
    _list(session, found, limit, "nothing is in that state" if state else "nothing waits")


@remote
def show_request(session: Session, pool: PoolName, request_id: RequestId) -> None:
    """Shows where a request is, and why it still waits."""
    response = session.client.get_request(pool, request_id)
    if session.json_or([response]):
        return
    info = response.request
    pairs: list[tuple[str, object]] = [
        ("request", info.request_id),
        ("user", info.user_id),
        ("state", state_name(info.state)),
        ("class", class_name(info.predicted_class)),
        ("cost", count_text(info.cost, "unit")),
        ("accepted", f"{info.enqueue_time.ToJsonString()} (sequence {info.sequence})"),
        ("attempts", info.attempts),
    ]
    optional = {
        "first dispatched": info.HasField("first_dispatch_time")
        and info.first_dispatch_time.ToJsonString(),
        "ended": info.HasField("end_time") and info.end_time.ToJsonString(),
        "worker": info.worker_id,
        "reason": info.reason,
        "error": info.error,
        "overtaken": info.overtakes,
        "cancelled": info.cancel_requested and "asked for",
    }
    pairs += [(name, value) for name, value in optional.items() if value]
    output.facts(pairs)
    if response.HasField("wait"):
        output.out.print(output.safe(response.wait.description), style="bold")
        for blocked in response.wait.blocked:
            cause = scheduler_pb.WaitCause.Name(blocked.cause)
            length = output.span(blocked.duration.ToTimedelta())
            output.out.print(f"  held back {length} by: {output.short(cause, 'WAIT_CAUSE_')}")


@remote
def cancel(session: Session, pool: PoolName, request_id: RequestId) -> None:
    """Ends a waiting request at once; asks the holder of a leased one to stop."""
    response = session.client.cancel(pool, request_id)
    if not session.json_or([response]):
        output.out.print(output.safe(f"Request {request_id} is {state_name(response.state)}."))


@dead_letters.command("list")
@remote
def list_dead_letters(
    session: Session, pool: PoolName, user: OfUser = "", limit: Limit = 100
) -> None:
    """Lists dead-lettered requests, oldest first."""
    request = pb.ListDeadLettersRequest(pool=pool, user_id=user)
    found = session.client.pages(session.client.admin.ListDeadLetters, request, "requests")
    _list(session, found, limit, "there are no dead letters")


@dead_letters.command("requeue")
@remote
def requeue_dead_letter(session: Session, pool: PoolName, request_id: RequestId) -> None:
    """Puts one back, uncharged, with fresh attempts."""
    request = pb.RequeueDeadLetterRequest(pool=pool, request_id=request_id)
    response = session.client.admin.RequeueDeadLetter(request)
    if not session.json_or([response]):
        output.out.print(output.safe(f"Request {request_id} is {state_name(response.state)}."))


@dead_letters.command("discard")
@remote
def discard_dead_letter(session: Session, pool: PoolName, request_id: RequestId) -> None:
    """Drops one for good."""
    request = pb.DiscardDeadLetterRequest(pool=pool, request_id=request_id)
    response = session.client.admin.DiscardDeadLetter(request)
    if not session.json_or([response]):
        output.out.print(output.safe(f"Request {request_id} is discarded."))


def state_name(state: int) -> str:
    """Returns a request's state for people."""
    return _name(decision_pb2.RequestState, state, "REQUEST_STATE_")


def class_name(predicted: int) -> str:
    """Returns a predicted class for people."""
    return {1: "short", 2: "long"}.get(predicted, "?")


def _name(kind: Any, number: int, prefix: str) -> str:
    try:
        return output.short(kind.Name(number), prefix)
    except ValueError:
        return str(number)


def _state(name: str) -> Any:
    return values.enum(decision_pb2.RequestState.DESCRIPTOR, name)


def _list(
    session: Session, found: Iterator[scheduler_pb.RequestInfo], limit: int, empty: str
) -> None:
    some = [info for info, _ in zip(found, range(limit + 1), strict=False)]
    if session.json_or(some[:limit]):
        return
    why = any(info.reason or info.error for info in some)
    columns = ("request", "user", "state", "class", ">cost", ">tries", "=accepted UTC")
    shown = output.table(*columns, *(["why"] if why else []))
    for info in some[:limit]:
        cells = (
            info.request_id,
            info.user_id,
            state_name(info.state),
            class_name(info.predicted_class),
            f"{info.cost:,}",
            info.attempts,
            info.enqueue_time.ToDatetime().strftime("%H:%M:%S.%f")[:-3],
        )
        reason = ": ".join(part for part in (info.reason, info.error) if part)
        output.row(shown, *cells, *([reason] if why else []))
    output.show(shown, empty)
    if len(some) > limit:
        output.out.print(f"… and more; --limit shows them (now {limit}).", style="dim")
