"""Errors of the core to what a caller sees: the only place that knows both.

Every error becomes a `google.rpc.Status` with `ErrorInfo`; a call that names bad fields adds
`BadRequest` with all of them, what is full or not ready adds `RetryInfo`, a wrong state adds
`PreconditionFailure`.  Items of batches and sessions carry the same in `ItemError`.

An `AssertionError` is not ours to tell: it stops the service.
"""

from typing import TYPE_CHECKING, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, PreconditionFailure, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.retry_hints import RetryHints
from scheduler_service.core.errors import (
    Conflict,
    Denied,
    InvalidCommand,
    LimitReached,
    NotReady,
    SchedulerError,
    Superseded,
    Trimmed,
    Unauthenticated,
    Unknown,
    WrongState,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message

DOMAIN = "fairsched"

_CODES: dict[type[SchedulerError], grpc.StatusCode] = {
    InvalidCommand: grpc.StatusCode.INVALID_ARGUMENT,
    LimitReached: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Conflict: grpc.StatusCode.ALREADY_EXISTS,
    Unknown: grpc.StatusCode.NOT_FOUND,
    WrongState: grpc.StatusCode.FAILED_PRECONDITION,
    Superseded: grpc.StatusCode.ABORTED,
    Trimmed: grpc.StatusCode.OUT_OF_RANGE,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    Denied: grpc.StatusCode.PERMISSION_DENIED,
    NotReady: grpc.StatusCode.UNAVAILABLE,
}

NOT_READY_SECONDS = 1
"""Hint for a service that starts or stops."""


def code_of(error: SchedulerError) -> grpc.StatusCode:
    """Returns the gRPC code of an error."""
    return _CODES[type(error)]


def retry_seconds(error: SchedulerError, hints: RetryHints, now_ns: int) -> int:
    """Returns after how many seconds the call is worth repeating; 0 if it is not."""
    if isinstance(error, LimitReached):
        return hints.refused(error.reason, error.metadata.get("pool", ""), now_ns)
    return NOT_READY_SECONDS if isinstance(error, NotReady) else 0


def status_of(error: SchedulerError, retry_after_seconds: int = 0) -> Status:
    """Returns the full status of an error.

    Args:
        error: What happened.
        retry_after_seconds: As `retry_seconds` gave it.
    """
    details: list[Message] = [
        ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)
    ]
    if isinstance(error, InvalidCommand):
        fields = [
            BadRequest.FieldViolation(field=field, description=description)
            for field, description in error.violations
        ]
        details.append(BadRequest(field_violations=fields))
    if isinstance(error, WrongState):
        violation = PreconditionFailure.Violation(
            type=error.reason, subject=_subject(error), description=str(error)
        )
        details.append(PreconditionFailure(violations=[violation]))
    if retry_after_seconds:
        details.append(RetryInfo(retry_delay=Duration(seconds=retry_after_seconds)))
    packed = []
    for detail in details:
        holder = AnyMessage()
        holder.Pack(detail)
        packed.append(holder)
    code: int = code_of(error).value[0]
    return Status(code=code, message=str(error), details=packed)


def _subject(error: SchedulerError) -> str:
    """Returns what a wrong state is a state of: the narrowest thing the error names."""
    for key in ("leaseId", "requestId", "userId", "worker", "pool"):
        if key in error.metadata:
            return error.metadata[key]
    return ""


def item_error(error: SchedulerError, retry_after_seconds: int = 0) -> pb.ItemError:
    """Returns an error as one item of a batch or session carries it."""
    code: int = code_of(error).value[0]
    item = pb.ItemError(code=code, reason=error.reason, message=str(error), metadata=error.metadata)
    if isinstance(error, InvalidCommand):
        item.field_violations.extend(
            pb.FieldViolation(field=field, description=description)
            for field, description in error.violations
        )
    if retry_after_seconds:
        item.retry_delay.seconds = retry_after_seconds
    return item


async def abort(
    context: "grpc.aio.ServicerContext[Message, Message]",
    error: SchedulerError,
    retry_after_seconds: int = 0,
) -> NoReturn:
    """Ends a call with an error."""
    await context.abort_with_status(rpc_status.to_status(status_of(error, retry_after_seconds)))
    raise AssertionError  # abort_with_status never returns


_LEASE_ERRORS: dict[str, tuple[type[SchedulerError], str]] = {
    "LEASE_UNKNOWN": (Unknown, "There is no such lease."),
    "LEASE_SUPERSEDED": (Superseded, "Another lease of the request was granted since."),
    "LEASE_EXPIRED": (WrongState, "The lease has ended."),
    "LEASE_OF_OTHER_WORKER": (Denied, "Another worker holds the lease."),
}


def lease_error(reason: str, lease_id: str) -> SchedulerError:
    """Returns the error that the core's reason for not renewing a lease stands for."""
    kind, message = _LEASE_ERRORS[reason]
    return kind(reason, message, leaseId=lease_id)
