"""Inputs of the core: frozen data, each with the time at which it is applied.

The core reads no clock.  `now_ns` is the engine's time in nanoseconds, never smaller than that of
any earlier command.  `nonce` is the only randomness the core is given: it makes the lease ids that
a command may grant unguessable.

Answers are plain data too; they say what a caller is told, not what changed (that is a decision).
"""

import enum

import msgspec

from scheduler_service.core.decisions import (
    EmptyReason,
    Offer,
    Outcome,
    RequestState,
)
from scheduler_service.core.policy import PoolPolicy, PredictedClass
from scheduler_service.core.request import Lease, Request


class Command(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What every command carries.

    Attributes:
        now_ns: Time of the command in nanoseconds.
        nonce: Unguessable text that lease ids of this command start with; unique per command, and
            empty where none can be granted.
        peer: Authenticated identity of the caller, or empty.
    """

    now_ns: int
    nonce: str = ""
    peer: str = ""


class Enqueue(Command, frozen=True, kw_only=True, gc=False):
    """Adds a request to its user's queue; idempotent by (pool, request_id).

    Attributes:
        cost: Cost units, 1 … 10^9.
        kv_tokens: Tokens a worker must hold for it; 0 fits everywhere.
        max_wait_ns: Waiting limit; 0 takes the pool's default.
        labels: Labels a worker must carry, sorted.
        content_digest: Digest of everything that "same content" means.
        payload_digest: Digest of the payload, empty without one.
        payload_bytes: Length of the payload.
        prompt_tokens: Stated prompt length, for the estimator; 0 if unknown.
        output_cap_tokens: Stated output cap, for the estimator; 0 if unknown.
        caller_bound: Whether the request dies with the call that waits on it (`Acquire`).
    """

    pool: str
    request_id: str
    user_id: str
    cost: int
    predicted_class: PredictedClass = PredictedClass.SHORT
    kv_tokens: int = 0
    max_wait_ns: int = 0
    labels: tuple[str, ...] = ()
    content_digest: bytes = b""
    payload_digest: bytes = b""
    payload_bytes: int = 0
    prompt_tokens: int = 0
    output_cap_tokens: int = 0
    expected_output_tokens: int = 0
    caller_bound: bool = False


class NextDispatch(Command, frozen=True, kw_only=True, gc=False):
    """Asks for up to `max_dispatches` requests for one worker.

    Attributes:
        pools: Pools the worker serves, in the order of this turn.
        worker: Worker session id, or the worker's own id when it has no session.
        offer: What the worker can take.
        lease_duration_ns: Length of the leases; 0 takes each pool's default.
        idempotency_key: A repeat with the same key gets the same leases; empty for none.
        hand_over: Whether the leases are provisional until confirmed.
    """

    pools: tuple[str, ...]
    worker: str
    offer: Offer = Offer()
    max_dispatches: int = 1
    lease_duration_ns: int = 0
    idempotency_key: str = ""
    hand_over: bool = True


class Complete(Command, frozen=True, kw_only=True, gc=False):
    """Ends a lease.

    Attributes:
        worker: Session of the caller if known; checked against the lease's when both are stated.
        output_tokens: Real output length, for the estimator; -1 if unknown.
        prompt_tokens: Real prompt length; -1 if unknown.
        error: Text kept with a failure, at most 256 bytes.
        undelivered: With GIVEN_BACK: the lease never reached its worker, so nothing is held against
            either, as if it had not been confirmed in time.
    """

    lease_id: str
    outcome: Outcome
    worker: str = ""
    prompt_tokens: int = -1
    output_tokens: int = -1
    error: str = ""
    undelivered: bool = False


class RenewLease(Command, frozen=True, kw_only=True, gc=False):
    """Extends leases, and reports prefills that are complete.

    Attributes:
        lease_ids: Leases to extend.
        prefill_complete: Those of them whose prefill is complete.
        lease_duration_ns: New length from now; 0 takes the pool's default.
    """

    worker: str = ""
    lease_ids: tuple[str, ...]
    prefill_complete: tuple[str, ...] = ()
    lease_duration_ns: int = 0


class Cancel(Command, frozen=True, kw_only=True, gc=False):
    """Ends a waiting request at once; a leased one when its worker or lease lets go.

    Attributes:
        reason: Why, in UPPER_SNAKE_CASE (`CALLER`, `CALLER_GONE`, …).
    """

    pool: str
    request_id: str
    reason: str = "CALLER"


class Requeue(Command, frozen=True, kw_only=True, gc=False):
    """Puts a dead-lettered request back, as a redelivery with fresh attempts."""

    pool: str
    request_id: str


class Discard(Command, frozen=True, kw_only=True, gc=False):
    """Drops a dead-lettered request for good."""

    pool: str
    request_id: str


class ForgetUser(Command, frozen=True, kw_only=True, gc=False):
    """Deletes the settings of a user without work."""

    pool: str
    user_id: str


class Tick(Command, frozen=True, kw_only=True, gc=False):
    """Lets timers that are due fire; nothing else."""


class ConfigurePool(Command, frozen=True, kw_only=True, gc=False):
    """Creates a pool or changes its policy.

    Attributes:
        policy: The whole new policy.
        policy_digest: Its digest, made by the caller.
        create: True must create, False must change.
    """

    pool: str
    policy: PoolPolicy
    policy_digest: str
    create: bool


class DeletePool(Command, frozen=True, kw_only=True, gc=False):
    """Deletes a pool without requests and, unless it is forced, without workers."""

    pool: str
    force: bool = False


class ConfigureUser(Command, frozen=True, kw_only=True, gc=False):
    """Sets a user's weight and cap; acts at once on all that waits.

    Attributes:
        weight_milli: New weight in thousandths; 0 goes back to the pool's default.
        max_in_flight: New cap; 0 is none, -1 goes back to the pool's default.
    """

    pool: str
    user_id: str
    weight_milli: int
    max_in_flight: int


class Pause(Command, frozen=True, kw_only=True, gc=False):
    """Stops dispatching from a pool, or from one user of it.

    Attributes:
        user_id: The user, or empty for the pool.
        until_ns: When the pause ends by itself; 0 is never.
    """

    pool: str
    user_id: str = ""
    until_ns: int = 0


class Resume(Command, frozen=True, kw_only=True, gc=False):
    """Ends a pause."""

    pool: str
    user_id: str = ""


class RegisterWorker(Command, frozen=True, kw_only=True, gc=False):
    """Opens a worker session under the id given by the engine.

    Attributes:
        worker: The session id.
        worker_name: The worker's own, stable id.
        endpoint: Where gateways reach it; may be empty.
    """

    worker: str
    worker_name: str
    pools: tuple[str, ...]
    offer: Offer = Offer()
    endpoint: str = ""


class DrainWorker(Command, frozen=True, kw_only=True, gc=False):
    """Stops new work for a worker; its leases go on."""

    worker: str


class UpdateEstimator(Command, frozen=True, kw_only=True, gc=False):
    """Puts freshly learned estimator values into force.

    Attributes:
        ratios: (user_id, output ratio in thousandths, cap tokens it rests on); "" is the pool.
        short_cutoff: Learned cutoff in tokens; 0 if not learned.
    """

    pool: str
    ratios: tuple[tuple[str, int, int], ...]
    short_cutoff: int


class OpenLog(Command, frozen=True, kw_only=True, gc=False):
    """Writes down under what the log goes on, if that has changed.

    Attributes:
        durability: What an answer promises.
        config_digest: Digest of the configuration last applied.
    """

    durability: str
    config_digest: str


class Recover(Command, frozen=True, kw_only=True, gc=False):
    """The service is back: live leases are extended by the downtime.

    Attributes:
        downtime_ns: How long nothing could renew them.
    """

    downtime_ns: int


class Existing(enum.IntEnum):
    """Whether an answer is new or a repeat of an earlier one."""

    NEW = 0
    REPEATED = 1


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """Answer to `Enqueue`."""

    sequence: int
    cost: int
    predicted_class: PredictedClass
    state: RequestState
    existing: Existing


class Grant(msgspec.Struct, frozen=True, gc=False):
    """One granted request, as it stands: to be read before the next command.

    Attributes:
        sequence: Sequence of the dispatch decision.
    """

    sequence: int
    pool: str
    request: Request
    lease: Lease


class Dispatches(msgspec.Struct, frozen=True, gc=False):
    """Answer to `NextDispatch`.

    Attributes:
        granted: What was granted, in decision order.
        empty_reason: Why there are not more; NONE when all that was asked for was granted.
        stalled_by: Request that stalls the pool, or empty.
        existing: Whether these are the leases of an earlier call with the same key.
    """

    granted: tuple[Grant, ...]
    empty_reason: EmptyReason
    stalled_by: str = ""
    existing: Existing = Existing.NEW


class Finished(msgspec.Struct, frozen=True, gc=False):
    """Answer to `Complete`, `Cancel` and `Requeue`: the request's state after the call."""

    pool: str
    request_id: str
    state: RequestState
    existing: Existing


class Renewed(msgspec.Struct, frozen=True, gc=False):
    """Answer for one lease of `RenewLease`.

    Attributes:
        problem: Error reason, or empty when the lease was extended.
        expire_ns: New end of the lease.
        cancel_requested: Whether the worker should stop the request.
    """

    lease_id: str
    problem: str
    expire_ns: int = 0
    cancel_requested: bool = False
