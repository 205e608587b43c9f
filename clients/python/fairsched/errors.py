"""Errors of the client, each with the reason that the service stated.

The tree; the names on the right are the gRPC codes that lead there:

    FairschedError
    ├── CallError                   any other code
    │   ├── InvalidRequestError     INVALID_ARGUMENT     `field_violations` names every bad field
    │   ├── NotFoundError           NOT_FOUND
    │   ├── ConflictError           ALREADY_EXISTS       the id is taken by something else
    │   ├── LimitReachedError       RESOURCE_EXHAUSTED   `retry_after` says when to come back
    │   ├── WrongStateError         FAILED_PRECONDITION  it exists but is past that
    │   ├── SupersededError         ABORTED              another lease has taken over
    │   ├── TrimmedError            OUT_OF_RANGE         the log no longer goes back that far
    │   ├── DeniedError             PERMISSION_DENIED
    │   ├── UnauthenticatedError    UNAUTHENTICATED
    │   ├── UnavailableError        UNAVAILABLE          not there, or not yet; calls were retried
    │   │                           CANCELLED            the service stopped while it was called
    │   └── DeadlineError           DEADLINE_EXCEEDED    no answer in time; it may have been done
    ├── NotGrantedError             the request ended before, or without, its turn
    └── MisuseError                 a client used after a fork, from a second event loop, or closed

Reasons (`QUEUE_FULL`, `LEASE_SUPERSEDED`, …) are part of the API and listed in `proto/README.md`.
Only `UnavailableError` is worth an automatic retry; `LimitReachedError` after its `retry_after`.
"""

from collections.abc import Mapping, Sequence

import grpc
from google.protobuf import any_pb2, message
from google.rpc import error_details_pb2, status_pb2

from fairsched.v1 import decision_pb2, scheduler_service_pb2

STATUS_DETAILS_KEY = "grpc-status-details-bin"
"""Trailer in which gRPC carries a serialised `google.rpc.Status`."""


class FairschedError(Exception):
    """Base of everything that this package raises on purpose."""


class MisuseError(FairschedError, RuntimeError):
    """The client was used where it cannot work; the message says what to do instead."""


class CallError(FairschedError):
    """The service, or the way to it, refused a call.

    Attributes:
        code: gRPC status code.
        reason: Stable reason in UPPER_SNAKE_CASE; empty if the refusal did not come from Fairsched.
        message: One English sentence.
        metadata: The values in the message, as text.
        field_violations: (field path, what is wrong) of every bad field.
        retry_after: Seconds after which to try again; None if the service does not say.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        field_violations: Sequence[tuple[str, str]] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.metadata = dict(metadata or {})
        self.field_violations = list(field_violations)
        self.retry_after = retry_after

    def __str__(self) -> str:
        text = f"{self.message} [{self.reason or self.code.name}]"
        if self.field_violations:
            text += " " + "; ".join(f"{field}: {what}" for field, what in self.field_violations)
        return text


class InvalidRequestError(CallError):
    """A field of the call is bad; `field_violations` names all of them."""


class NotFoundError(CallError):
    """No such pool, request, lease, session, user or worker."""


class ConflictError(CallError):
    """The id is in use for something else (`REQUEST_ID_REUSED`, `POOL_EXISTS`)."""


class LimitReachedError(CallError):
    """Something is full (`QUEUE_FULL`, `USER_QUEUE_FULL`, …); see `retry_after`."""


class WrongStateError(CallError):
    """The thing exists but is past that (`LEASE_EXPIRED`, `NOT_DEAD_LETTERED`, …)."""


class SupersededError(CallError):
    """Another lease of the request was granted since (`LEASE_SUPERSEDED`)."""


class TrimmedError(CallError):
    """The decision log was pruned past the sequence asked for (`SEQUENCE_TRIMMED`)."""


class DeniedError(CallError):
    """The caller's token does not allow it."""


class UnauthenticatedError(CallError):
    """The token is missing or unknown."""


class UnavailableError(CallError):
    """Nobody answers, or the service is not ready; the retries of the call were used up."""


class DeadlineError(CallError):
    """No answer in time. What was asked may have been done: repeat it with the same id."""


class NotGrantedError(FairschedError):
    """The request ended without the turn that the caller waits for.

    Attributes:
        state: How it ended: `REQUEST_STATE_EXPIRED`, `…_SHED`, `…_CANCELLED`, ….
        reason: Why, in UPPER_SNAKE_CASE; may be empty.
        error: Text that its worker gave; may be empty.
    """

    def __init__(
        self,
        state: decision_pb2.RequestState.ValueType,
        reason: str = "",
        error: str = "",
    ) -> None:
        self.state = state
        self.reason = reason
        self.error = error
        name = decision_pb2.RequestState.Name(state).removeprefix("REQUEST_STATE_")
        super().__init__(
            ": ".join(part for part in (f"request ended {name}", reason, error) if part)
        )


_BY_CODE: dict[grpc.StatusCode, type[CallError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: ConflictError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: LimitReachedError,
    grpc.StatusCode.FAILED_PRECONDITION: WrongStateError,
    grpc.StatusCode.ABORTED: SupersededError,
    grpc.StatusCode.OUT_OF_RANGE: TrimmedError,
    grpc.StatusCode.PERMISSION_DENIED: DeniedError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
}
_LOST_BELOW = ("Internal error from Core", 'Failed "execute_batch"')
"""What gRPC says for INTERNAL when a stream broke while it was being written: nobody is there."""

_CANCELLED_HERE = frozenset({"Locally cancelled by application!", "Channel closed!"})
"""What gRPC says of a call that this side cancelled.

Any other CANCELLED comes from a server that stops: gRPC drops a call that arrives just then without
asking the service, and cuts off what still runs after the grace time.
"""
_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}


def from_status(
    code: grpc.StatusCode, details: str | None, trailers: Sequence[tuple[str, str | bytes]]
) -> CallError:
    """Returns the typed error of a failed call, from its status and trailing metadata."""
    reason, metadata = "", {}
    violations: list[tuple[str, str]] = []
    retry_after: float | None = None
    for detail in _details(trailers):
        info, bad, retry = (
            error_details_pb2.ErrorInfo(),
            error_details_pb2.BadRequest(),
            error_details_pb2.RetryInfo(),
        )
        if detail.Unpack(info):
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(bad):
            violations = [(item.field, item.description) for item in bad.field_violations]
        elif detail.Unpack(retry):
            retry_after = retry.retry_delay.ToTimedelta().total_seconds()
    return _kind(code, details or "")(
        code,
        details or code.name,
        reason=reason,
        metadata=metadata,
        field_violations=violations,
        retry_after=retry_after,
    )


def _kind(code: grpc.StatusCode, details: str) -> type[CallError]:
    stopped = code is grpc.StatusCode.CANCELLED and details not in _CANCELLED_HERE
    broken = code is grpc.StatusCode.INTERNAL and details.startswith(_LOST_BELOW)
    return UnavailableError if stopped or broken else _BY_CODE.get(code, CallError)


def from_rpc_error(error: grpc.RpcError) -> CallError:
    """Returns the typed error of a failed call, synchronous or not."""
    if not isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return CallError(grpc.StatusCode.UNKNOWN, str(error))
    trailers = error.trailing_metadata() or ()
    return from_status(error.code(), error.details(), [(key, value) for key, value in trailers])


def unavailable(message: str) -> UnavailableError:
    """Returns the error for a service that is away, found out by the client itself."""
    return UnavailableError(grpc.StatusCode.UNAVAILABLE, message)


def deadline(message: str) -> DeadlineError:
    """Returns the error for an answer that did not come in time, found out by the client itself."""
    return DeadlineError(grpc.StatusCode.DEADLINE_EXCEEDED, message)


def from_item(error: scheduler_service_pb2.ItemError) -> CallError:
    """Returns the typed error of one item of a batch or session."""
    code = _BY_NUMBER.get(error.code, grpc.StatusCode.UNKNOWN)
    retry_after = None
    if error.HasField("retry_delay"):
        retry_after = error.retry_delay.ToTimedelta().total_seconds()
    return _BY_CODE.get(code, CallError)(
        code,
        error.message,
        reason=error.reason,
        metadata=error.metadata,
        field_violations=[(item.field, item.description) for item in error.field_violations],
        retry_after=retry_after,
    )


def _details(trailers: Sequence[tuple[str, str | bytes]]) -> list[any_pb2.Any]:
    for key, value in trailers:
        if key == STATUS_DETAILS_KEY and isinstance(value, bytes):
            try:
                return list(status_pb2.Status.FromString(value).details)
            except message.DecodeError:
                return []
    return []
