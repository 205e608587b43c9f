"""Errors of the core, each with a stable reason.

The tree, with the gRPC code that `scheduler_service.rpc.status` alone maps it to:

    SchedulerError
    ├── InvalidCommand   INVALID_ARGUMENT     the caller sent nonsense; all bad fields at once
    ├── LimitReached     RESOURCE_EXHAUSTED   a queue, table or stream is full
    ├── Conflict         ALREADY_EXISTS       the id is taken by something else
    ├── Unknown          NOT_FOUND            no such pool, request, lease, user, worker
    ├── WrongState       FAILED_PRECONDITION  the thing exists but is past that
    ├── Superseded       ABORTED              another lease has taken over
    ├── Trimmed          OUT_OF_RANGE         the log no longer goes back that far
    ├── Unauthenticated  UNAUTHENTICATED      nobody knows who is calling
    ├── Denied           PERMISSION_DENIED    the caller's token does not allow it
    └── NotReady         UNAVAILABLE          replaying, draining or stalled

Reasons are API: never renamed, listed in `proto/README.md`.  Every value in a message is in
`metadata` too.
"""


class SchedulerError(Exception):
    """Base of all errors that a caller can be told.

    Attributes:
        reason: UPPER_SNAKE_CASE, stable.
        metadata: lowerCamelCase keys, values as text.
    """

    def __init__(self, reason: str, message: str, **metadata: object) -> None:
        super().__init__(message)
        self.reason = reason
        self.metadata = {key: str(value) for key, value in metadata.items()}


class InvalidCommand(SchedulerError):
    """The caller sent nonsense.

    Attributes:
        violations: (field path, description) of every bad field.
    """

    def __init__(self, violations: list[tuple[str, str]]) -> None:
        names = ", ".join(field for field, _ in violations)
        super().__init__("INVALID_FIELDS", f"Bad value in: {names}.", fields=names)
        self.violations = violations

    def below(self, path: str) -> "InvalidCommand":
        """Returns it for a message in which the fields stand below `path`, a dot at its end."""
        return InvalidCommand([(path + field, problem) for field, problem in self.violations])


class LimitReached(SchedulerError):
    """Something is full: QUEUE_FULL, USER_QUEUE_FULL, USERS_FULL, POOLS_FULL, WORKERS_FULL, …."""


class Conflict(SchedulerError):
    """REQUEST_ID_REUSED (same id, other content), POOL_EXISTS, KEY_REUSED."""


class Unknown(SchedulerError):
    """POOL_UNKNOWN, REQUEST_UNKNOWN, LEASE_UNKNOWN, USER_UNKNOWN, WORKER_UNKNOWN."""


class WrongState(SchedulerError):
    """LEASE_EXPIRED, POOL_MODE, POOL_NOT_EMPTY, POOL_HAS_WORKERS, NOT_DEAD_LETTERED."""


class Superseded(SchedulerError):
    """LEASE_SUPERSEDED: another lease of the request was granted since."""


class Trimmed(SchedulerError):
    """SEQUENCE_TRIMMED: the log was pruned past that sequence."""


class Unauthenticated(SchedulerError):
    """TOKEN_MISSING, TOKEN_UNKNOWN."""


class Denied(SchedulerError):
    """ROLE_MISSING, POOL_DENIED, USER_DENIED, LEASE_OF_OTHER_WORKER."""


class NotReady(SchedulerError):
    """REPLAYING, DRAINING, LOG_STALLED."""
