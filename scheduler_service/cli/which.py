"""Which pool is meant when none is stated."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import grpc
import typer

from fairsched import errors
from fairsched.v1 import admin_service_pb2
from fairsched.v1 import audit_service_pb2 as pb
from scheduler_service.cli.session import Session

_Answer = TypeVar("_Answer")

NAMES_MAX = 20
"""Pools named in one sentence."""


def only_pool(session: Session) -> str:
    """Returns the name of the service's only pool.

    Raises:
        BadParameter: There are several, which are named, or none.
    """
    names = _pools(session)
    if len(names) != 1:
        message = f"say which pool: {listed(names)}" if names else "there is no pool"
        raise typer.BadParameter(message)
    return names[0]


def explained(session: Session, request_id: str) -> pb.ExplainDecisionResponse:
    """Explains a request, in whatever pool it is.

    What the service remembers is looked at first: looking through the log takes longer.

    Raises:
        BadParameter: Several pools have such a request.
        NotFoundError: No pool has.
    """
    names = _pools(session)
    if len(names) > 1:
        known = list(_found(names, lambda pool: session.client.get_request(pool, request_id)))
        _require_one(request_id, known)
        names = known or names
    if len(names) == 1:
        return explain_in(session, names[0], request_id)
    answers = _found(names, lambda pool: explain_in(session, pool, request_id))
    _require_one(request_id, list(answers))
    for answer in answers.values():
        return answer
    where = f"pools looked through: {listed(names)}" if names else "there is no pool"
    message = f"There is no request {request_id!r}; {where}."
    raise errors.NotFoundError(grpc.StatusCode.NOT_FOUND, message, reason="REQUEST_UNKNOWN")


def explain_in(session: Session, pool: str, request_id: str) -> pb.ExplainDecisionResponse:
    """Explains a request of a pool."""
    key = pb.RequestKey(pool=pool, request_id=request_id)
    return session.client.audit.ExplainDecision(pb.ExplainDecisionRequest(request=key))


def listed(names: Sequence[str]) -> str:
    """Returns names in one line, not too many of them."""
    shown = ", ".join(names[:NAMES_MAX])
    return shown if len(names) <= NAMES_MAX else f"{shown} and {len(names) - NAMES_MAX} more"


def _pools(session: Session) -> list[str]:
    """Returns the pools that the caller may see."""
    request = admin_service_pb2.GetStatsRequest(page_size=1000)
    return [
        one.pool for one in session.client.pages(session.client.admin.GetStats, request, "pools")
    ]


def _found(names: Sequence[str], ask: Callable[[str], _Answer]) -> dict[str, _Answer]:
    """Returns the answers of those that know what is asked for."""
    found = {}
    for name in names:
        try:
            found[name] = ask(name)
        except errors.NotFoundError:
            continue
    return found


def _require_one(request_id: str, names: Sequence[str]) -> None:
    if len(names) > 1:
        message = f"several pools have a request {request_id!r}: {listed(names)}; "
        raise typer.BadParameter(message + "say which with --pool")
