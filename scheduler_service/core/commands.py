"""Inputs of the core: frozen data, each with the time at which it is applied.

The core reads no clock.  `now_ns` is the engine's time in nanoseconds, never smaller than that of
any earlier command.  `nonce` is the only randomness the core is given: it makes the lease ids that
a command may grant unguessable.

What a caller is told stands in `answers`, what changes in `decisions`; `Complete`, for the sake of
compiled code, in `completion`.
"""

import msgspec

from scheduler_service.core.completion import Complete
from scheduler_service.core.decisions import Offer
from scheduler_service.core.policy import PoolPolicy, PredictedClass


class _Command(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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


class Enqueue(_Command, frozen=True, kw_only=True, gc=False):
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


class NextDispatch(_Command, frozen=True, kw_only=True, gc=False):
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


class RenewLease(_Command, frozen=True, kw_only=True, gc=False):
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


class Cancel(_Command, frozen=True, kw_only=True, gc=False):
    """Ends a waiting request at once; a leased one when its worker or lease lets go.

    Attributes:
        reason: Why, in UPPER_SNAKE_CASE (`CALLER`, `CALLER_GONE`, …).
    """

    pool: str
    request_id: str
    reason: str = "CALLER"


class Requeue(_Command, frozen=True, kw_only=True, gc=False):
    """Puts a dead-lettered request back, as a redelivery with fresh attempts."""

    pool: str
    request_id: str


class Discard(_Command, frozen=True, kw_only=True, gc=False):
    """Drops a dead-lettered request for good."""

    pool: str
    request_id: str


class ForgetUser(_Command, frozen=True, kw_only=True, gc=False):
    """Deletes the settings of a user without work."""

    pool: str
    user_id: str


class Tick(_Command, frozen=True, kw_only=True, gc=False):
    """Lets timers that are due fire; nothing else."""


class ConfigurePool(_Command, frozen=True, kw_only=True, gc=False):
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


class DeletePool(_Command, frozen=True, kw_only=True, gc=False):
    """Deletes a pool without requests and, unless it is forced, without workers."""

    pool: str
    force: bool = False


class ConfigureUser(_Command, frozen=True, kw_only=True, gc=False):
    """Sets a user's weight and cap; acts at once on all that waits.

    Attributes:
        weight_milli: New weight in thousandths; 0 goes back to the pool's default.
        max_in_flight: New cap; 0 is none, -1 goes back to the pool's default.
    """

    pool: str
    user_id: str
    weight_milli: int
    max_in_flight: int


class Pause(_Command, frozen=True, kw_only=True, gc=False):
    """Stops dispatching from a pool, or from one user of it.

    Attributes:
        user_id: The user, or empty for the pool.
        until_ns: When the pause ends by itself; 0 is never.
    """

    pool: str
    user_id: str = ""
    until_ns: int = 0


class Resume(_Command, frozen=True, kw_only=True, gc=False):
    """Ends a pause."""

    pool: str
    user_id: str = ""


class RegisterWorker(_Command, frozen=True, kw_only=True, gc=False):
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


class DrainWorker(_Command, frozen=True, kw_only=True, gc=False):
    """Stops new work for a worker; its leases go on."""

    worker: str


class UpdateEstimator(_Command, frozen=True, kw_only=True, gc=False):
    """Puts freshly learned estimator values into force.

    Attributes:
        ratios: (user_id, output ratio in thousandths, cap tokens it rests on); "" is the pool.
        short_cutoff: Learned cutoff in tokens; 0 if not learned.
    """

    pool: str
    ratios: tuple[tuple[str, int, int], ...]
    short_cutoff: int


class OpenLog(_Command, frozen=True, kw_only=True, gc=False):
    """Writes down under what the log goes on, if that has changed.

    Attributes:
        durability: What an answer promises.
        config_digest: Digest of the configuration last applied.
    """

    durability: str
    config_digest: str


class Recover(_Command, frozen=True, kw_only=True, gc=False):
    """The service is back: live leases are extended by the downtime.

    Attributes:
        downtime_ns: How long nothing could renew them.
    """

    downtime_ns: int


Command = _Command | Complete
"""Any of them."""
