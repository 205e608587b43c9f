"""Requests and their leases as plain data."""

from typing import Final, final

from mypy_extensions import mypyc_attr

from scheduler_service.core.decisions import RequestState, Rule, Turn
from scheduler_service.core.policy import PredictedClass

OLD_LEASES_MAX: Final = 64
"""Ended leases that are remembered of one request: it may be given back without end."""


_DIGITS_MAX: Final = 19
_WAITING: Final = RequestState.WAITING
_FIRST_COME: Final = Rule.FIRST_COME


@final
@mypyc_attr(acyclic=True)
class Lease:
    """The live lease of a request.

    Attributes:
        lease_id: Fencing token.
        worker: Session or name of its holder; empty with a gate.
        granted_ns: When it was granted.
        expire_ns: When it ends.
        hand_over_ns: Until when it must be confirmed; 0 once it is, or if it need not be.
        dispatch_sequence: Sequence of the decision that granted it.
        turn: How the request came to its turn.
        pool: Its pool.
    """

    __slots__ = (
        "dispatch_sequence",
        "expire_ns",
        "granted_ns",
        "hand_over_ns",
        "lease_id",
        "pool",
        "turn",
        "worker",
    )

    def __init__(
        self,
        lease_id: str,
        worker: str,
        granted_ns: int,
        expire_ns: int,
        hand_over_ns: int,
        dispatch_sequence: int,
        turn: Turn,
        *,
        pool: str,
    ) -> None:
        self.lease_id = lease_id
        self.worker = worker
        self.granted_ns = granted_ns
        self.expire_ns = expire_ns
        self.hand_over_ns = hand_over_ns
        self.dispatch_sequence = dispatch_sequence
        self.turn = turn
        self.pool = pool


def sequence_of(lease_id: str) -> int:
    """Returns the dispatch sequence that a lease id ends with; -1 if it ends with none.

    Anybody can make up such an id: whoever looks something up by it compares the whole.
    """
    digits = lease_id.rpartition("-")[2]
    return int(digits) if digits.isdecimal() and len(digits) <= _DIGITS_MAX else -1


@final
@mypyc_attr(acyclic=True)
class Past:
    """Ids of a lease or a request that has ended, until they are forgotten.

    Attributes:
        pool: The pool.
        request_id: The request.
        end_ns: When the request ended; 0 before.
        lease_id: The last of its leases; empty if it had none.
        older: Those before it.
    """

    __slots__ = ("end_ns", "lease_id", "older", "pool", "request_id")

    def __init__(
        self,
        pool: str,
        request_id: str,
        end_ns: int = 0,
        lease_id: str = "",
        older: tuple[str, ...] = (),
    ) -> None:
        self.pool = pool
        self.request_id = request_id
        self.end_ns = end_ns
        self.lease_id = lease_id
        self.older = older

    def lease_ids(self) -> tuple[str, ...]:
        """Returns all its leases, the oldest first."""
        return (*self.older, self.lease_id) if self.lease_id else self.older


@final
@mypyc_attr(acyclic=True)
class Request:
    """A request that has not ended.

    Attributes:
        request_id: Unique in its pool.
        user_id: Its user.
        sequence: Accept sequence; smaller is older.
        cost: Cost units.
        predicted_class: SHORT or LONG.
        kv_tokens: Tokens a worker must hold for it.
        labels: Labels a worker must carry.
        enqueue_ns: When it was accepted.
        expire_ns: When its wait ends; 0 is never.
        content_digest: Digest of what "same content" means.
        payload_digest: Digest of its payload.
        payload_bytes: Length of its payload.
        prompt_tokens: Stated prompt length; 0 if unknown.
        output_cap_tokens: Stated output cap; 0 if unknown.
        expected_output_tokens: Output length the cost rests on; 0 if unknown.
        caller_bound: Whether it dies with the call that waits for it.
        state: WAITING, LEASED or REDELIVERY.
        lease: Its live lease.
        attempts: Leases granted so far, minus those nobody received.
        failures: Leases that expired.
        overtakes: How often it was passed over because it did not fit.
        promoted: Whether its dispatch was a promotion.
        promoted_by_pool: Whether that was on the pool's counter, not on its user's.
        counted: Whether it has moved the quota already.
        cancel_reason: Why it is to stop; empty if it is not.
        first_dispatch_ns: When it first left the queue; 0 before.
        givers: (worker, until when it is not offered the request again), of who gave it back.
        last_error: Text of its last failure.
        old_leases: Leases it has had before, the last `OLD_LEASES_MAX` of them.
        given_back: Those of them that their holder gave back.
        newer, older: Neighbours in the queue of its user and class.
    """

    __slots__ = (
        "attempts",
        "caller_bound",
        "cancel_reason",
        "content_digest",
        "cost",
        "counted",
        "enqueue_ns",
        "expected_output_tokens",
        "expire_ns",
        "failures",
        "first_dispatch_ns",
        "given_back",
        "givers",
        "kv_tokens",
        "labels",
        "last_error",
        "lease",
        "newer",
        "old_leases",
        "older",
        "output_cap_tokens",
        "overtakes",
        "payload_bytes",
        "payload_digest",
        "predicted_class",
        "promoted",
        "promoted_by_pool",
        "prompt_tokens",
        "request_id",
        "rule",
        "sequence",
        "state",
        "user_id",
    )

    def __init__(
        self,
        request_id: str,
        user_id: str,
        sequence: int,
        cost: int,
        predicted_class: PredictedClass,
        kv_tokens: int,
        labels: tuple[str, ...],
        enqueue_ns: int,
        expire_ns: int,
        content_digest: bytes,
        payload_digest: bytes,
        payload_bytes: int,
        prompt_tokens: int,
        output_cap_tokens: int,
        expected_output_tokens: int,
        *,
        caller_bound: bool,
    ) -> None:
        # In this order in memory: what a look at a queue reads stands together.
        self.sequence = sequence
        self.newer: Request | None = None
        self.older: Request | None = None
        self.predicted_class = predicted_class
        self.enqueue_ns = enqueue_ns
        self.user_id = user_id
        self.kv_tokens = kv_tokens
        self.labels = labels
        self.cost = cost
        self.request_id = request_id
        self.state: RequestState = _WAITING
        self.lease: Lease | None = None
        self.attempts: int = 0
        self.expire_ns = expire_ns
        self.first_dispatch_ns: int = 0
        self.rule: Rule = _FIRST_COME
        self.counted: bool = False
        self.promoted: bool = False
        self.promoted_by_pool: bool = False
        self.caller_bound = caller_bound
        self.overtakes: int = 0
        self.failures: int = 0
        self.cancel_reason: str = ""
        self.content_digest = content_digest
        self.prompt_tokens = prompt_tokens
        self.output_cap_tokens = output_cap_tokens
        self.expected_output_tokens = expected_output_tokens
        self.payload_digest = payload_digest
        self.payload_bytes = payload_bytes
        self.givers: tuple[tuple[str, int], ...] = ()
        self.last_error: str = ""
        self.old_leases: tuple[str, ...] = ()
        self.given_back: tuple[str, ...] = ()

    @property
    def held_lease(self) -> Lease:
        """Its live lease; there must be one."""
        assert self.lease is not None
        return self.lease
