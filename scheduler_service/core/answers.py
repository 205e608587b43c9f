"""Answers of the core: what a caller is told, not what changed (that is a decision)."""

import enum
from typing import Final, final

from mypy_extensions import mypyc_attr

from scheduler_service.core.decisions import EmptyReason, RequestState
from scheduler_service.core.policy import PredictedClass
from scheduler_service.core.request import Request


class Existing(enum.IntEnum):
    """Whether an answer is new or a repeat of an earlier one."""

    NEW = 0
    REPEATED = 1


_NEW: Final = Existing.NEW


@final
@mypyc_attr(acyclic=True)
class Accepted:
    """Answer to `Enqueue`."""

    __slots__ = ("cost", "existing", "predicted_class", "sequence", "state")

    def __init__(
        self,
        sequence: int,
        cost: int,
        predicted_class: PredictedClass,
        state: RequestState,
        existing: Existing,
    ) -> None:
        self.sequence = sequence
        self.cost = cost
        self.predicted_class = predicted_class
        self.state = state
        self.existing = existing


@final
@mypyc_attr(acyclic=True)
class Dispatches:
    """Answer to `NextDispatch`.

    Attributes:
        granted: What was granted, in decision order: the requests as they stand, each with its
            lease, to be read before the next command.
        empty_reason: Why there are not more; NONE when all that was asked for was granted.
        stalled_by: Request that stalls the pool, or empty.
        existing: Whether these are the leases of an earlier call with the same key.
    """

    __slots__ = ("empty_reason", "existing", "granted", "stalled_by")

    def __init__(
        self,
        granted: tuple[Request, ...],
        empty_reason: EmptyReason,
        stalled_by: str = "",
        existing: Existing = _NEW,
    ) -> None:
        self.granted = granted
        self.empty_reason = empty_reason
        self.stalled_by = stalled_by
        self.existing = existing


@final
@mypyc_attr(acyclic=True)
class Finished:
    """Answer to `Complete`, `Cancel` and `Requeue`: the request's state after the call."""

    __slots__ = ("existing", "pool", "request_id", "state")

    def __init__(self, pool: str, request_id: str, state: RequestState, existing: Existing) -> None:
        self.pool = pool
        self.request_id = request_id
        self.state = state
        self.existing = existing


@final
@mypyc_attr(acyclic=True)
class Renewed:
    """Answer for one lease of `RenewLease`.

    Attributes:
        problem: Error reason, or empty when the lease was extended.
        expire_ns: New end of the lease, nanoseconds.
        cancel_requested: Whether the worker should stop the request.
    """

    __slots__ = ("cancel_requested", "expire_ns", "lease_id", "problem")

    def __init__(
        self, lease_id: str, problem: str, expire_ns: int = 0, *, cancel_requested: bool = False
    ) -> None:
        self.lease_id = lease_id
        self.problem = problem
        self.expire_ns = expire_ns
        self.cancel_requested = cancel_requested
