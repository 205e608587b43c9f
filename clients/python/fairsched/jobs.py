"""What a worker gets and says, the same for asynchronous and threaded workers."""

import dataclasses
from collections.abc import Callable, Iterable

from fairsched.requests import duration, error_text
from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb

OfferSource = decision_pb2.Offer | Callable[[], decision_pb2.Offer] | None
"""What a worker can take: stated once, or asked for before each call."""

POLL_S = 20.0
"""How long a call waits for work before it is repeated, seconds."""

GRACE_S = 30.0
"""How long a stopped worker lets its requests run before it gives them back, seconds."""


SESSION_LOST = frozenset({"WORKER_UNKNOWN", "SESSION_UNKNOWN"})
"""Reasons after which a worker registers again: it was silent for too long."""


DRAINED = (
    "worker %s is drained: it gets no new work and ends with its leases (%d now); "
    "to undo that, start it again"
)
"""What is logged, once."""

DRAINED_ANSWERS = 2
"""So many answers in a row that say it: to a second question of a session that was superseded the
service answers with that instead."""


class GiveBack(Exception):  # noqa: N818 - no error: like StopIteration, how a handler says so
    """Raised by a handler that does not run the request: it is given to another worker."""


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker works.

    Attributes:
        worker_id: Its own, stable id; a second worker of the same id supersedes the first.
        pools: Pools it serves with one capacity, taken in rotation.
        concurrency: Requests at once, at least 1.
        offer: What it can take (free tokens, classes, labels), or a function that says.
        endpoint: Where gateways reach it; empty if they do not.
        lease_duration: Length of its leases, seconds; None takes the pool's.
        poll: How long a call waits for work, seconds.
        grace: How long `stop` lets requests run before they are given back, seconds.
    """

    worker_id: str
    pools: tuple[str, ...]
    concurrency: int = 1
    offer: OfferSource = None
    endpoint: str = ""
    lease_duration: float | None = None
    poll: float = POLL_S
    grace: float = GRACE_S

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            msg = f"concurrency must be at least 1, not {self.concurrency}"
            raise ValueError(msg)
        if not self.pools:
            msg = "a worker serves at least one pool"
            raise ValueError(msg)

    def current_offer(self) -> decision_pb2.Offer | None:
        """Returns what the worker can take now."""
        return self.offer() if callable(self.offer) else self.offer

    def registration(self) -> pb.RegisterWorkerRequest:
        """Returns the call that opens a session."""
        return pb.RegisterWorkerRequest(
            worker_id=self.worker_id,
            pools=self.pools,
            offer=self.current_offer(),
            endpoint=self.endpoint,
        )

    def next_dispatch(
        self, session_id: str, free: int, key: str, completions: Iterable[pb.CompleteRequest]
    ) -> pb.NextDispatchRequest:
        """Returns the call that asks for work and reports what is done."""
        return pb.NextDispatchRequest(
            session_id=session_id,
            offer=self.current_offer(),
            max_dispatches=free,
            wait_duration=duration(self.poll),
            lease_duration=duration(self.lease_duration),
            idempotency_key=key,
            completions=completions,
        )


def succeeded(lease_id: str, usage: pb.Usage | None) -> pb.CompleteRequest:
    """Returns the completion of a request that is done."""
    return pb.CompleteRequest(
        lease_id=lease_id, outcome=decision_pb2.OUTCOME_SUCCEEDED, usage=usage
    )


def failed(lease_id: str, error: BaseException | str) -> pb.CompleteRequest:
    """Returns the completion of a request that failed and is not tried again."""
    return pb.CompleteRequest(
        lease_id=lease_id, outcome=decision_pb2.OUTCOME_FAILED, error=error_text(error)
    )


def given_back(lease_id: str, error: BaseException | str) -> pb.CompleteRequest:
    """Returns the completion of a request that another worker should run."""
    return pb.CompleteRequest(
        lease_id=lease_id, outcome=decision_pb2.OUTCOME_GIVEN_BACK, error=error_text(error)
    )
