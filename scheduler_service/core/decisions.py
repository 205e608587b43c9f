"""Outputs of the core: what was decided, as frozen records.

The list of decisions is the journal, the audit stream and the replication stream at once: the
state of the scheduler is their fold (`scheduler_service.core.evolve`).  A record keeps every
input of its decision, so that it can be explained and decided again with nothing else.

Records are encoded as msgpack arrays whose first item is the tag below.  Tags and the order of
fields are the on-disk format: fields are only added at the end, with a default; tags are never
reused.  All meters, charges and virtual times are micro cost units, all times nanoseconds.

Every record about a request names its user, so that a reader who is interested in one user needs
no other record to find it.
"""

import enum
from typing import Final

import msgspec

from scheduler_service.core.policy import PoolPolicy, PredictedClass

ALGORITHM_VERSION: Final = 1
"""Version of the rules; a change of any decision the rules would take raises it."""


class RequestState(enum.IntEnum):
    """Where a request is in its life.  WAITING, LEASED and REDELIVERY are alive."""

    WAITING = 1
    LEASED = 2
    REDELIVERY = 3
    SUCCEEDED = 4
    FAILED = 5
    CANCELLED = 6
    EXPIRED = 7
    SHED = 8
    DEAD_LETTERED = 9
    UNPLACEABLE = 10
    LEASE_EXPIRED = 11


class Outcome(enum.IntEnum):
    """What a worker says about a lease it ends."""

    SUCCEEDED = 1
    FAILED = 2
    GIVEN_BACK = 3


class EmptyReason(enum.IntEnum):
    """Why a call got fewer requests than it asked for."""

    NONE = 0
    EMPTY = 1
    HELD_BY_CAP = 2
    STALLED_BY = 3
    PAUSED = 4
    HELD_BY_FIT = 5
    RESERVED = 6
    LEASES_FULL = 7
    DRAINING = 8
    AT_CAPACITY = 9


class Turn(enum.IntEnum):
    """How a dispatch came to its turn."""

    SELECTED = 1
    MAX_PASSES = 2
    OVERTAKE = 3
    RESERVED = 4
    REDELIVERY = 5


class Rule(enum.IntEnum):
    """Which class rule chose the request (QBA §III-A)."""

    FIRST_COME = 1
    SHORT_FIRST = 2
    PROMOTION = 3
    LONG = 4
    AGED = 5


class LeaseEndCause(enum.IntEnum):
    """Why a lease ended without its worker completing the request."""

    EXPIRED = 1
    HAND_OVER = 2
    GIVEN_BACK = 3


class RejoinCause(enum.IntEnum):
    """What had held a user with waiting requests back.

    UNPLACEABLE: no live worker could hold any of its heads, and the others could go no further
    ahead of it.  Like any held-back user it does not save the time up.
    """

    CAP = 1
    RESUMED = 2
    UNPLACEABLE = 3


class Offer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a worker can take.

    Attributes:
        free_tokens: KV tokens free now; -1 if it does not say.
        total_tokens: KV tokens it has in all; -1 if it does not say.
        accepts_short: Whether it takes predicted-short requests.
        accepts_long: Whether it takes predicted-long requests.
        labels: Labels it carries, sorted.
        max_leases: Leases it wants to hold at most; 0 is no limit of its own.
    """

    free_tokens: int = -1
    total_tokens: int = -1
    accepts_short: bool = True
    accepts_long: bool = True
    labels: tuple[str, ...] = ()
    max_leases: int = 0


class _Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all records: the time of the decision."""

    now_ns: int


class LogOpened(_Record, frozen=True, array_like=True, gc=False, tag=1):
    """The log begins, or a new version of the service goes on with it."""

    algorithm_version: int
    durability: str
    config_digest: str


class Recovered(_Record, frozen=True, array_like=True, gc=False, tag=2):
    """The service is back; every live lease was extended by `downtime_ns`."""

    downtime_ns: int


class PoolConfigured(_Record, frozen=True, array_like=True, gc=False, tag=3):
    """A pool was created or its policy changed."""

    pool: str
    policy: PoolPolicy
    policy_digest: str
    created: bool
    peer: str = ""


class PoolDeleted(_Record, frozen=True, array_like=True, gc=False, tag=4):
    """An empty pool was deleted."""

    pool: str
    peer: str = ""


class UserConfigured(_Record, frozen=True, array_like=True, gc=False, tag=5):
    """A user's weight or cap changed; its meter was rescaled about `v` (SFQ §4.4)."""

    pool: str
    user_id: str
    weight_milli: int
    max_in_flight: int
    weight_milli_before: int
    meter_before: int
    meter_after: int
    peer: str = ""


class Paused(_Record, frozen=True, array_like=True, gc=False, tag=6):
    """A pool (`user_id` empty) or a user of it was paused; `until_ns` 0 is without end."""

    pool: str
    user_id: str
    until_ns: int
    peer: str = ""


class Resumed(_Record, frozen=True, array_like=True, gc=False, tag=7):
    """A pause ended, by a call or (`by_timer`) by itself."""

    pool: str
    user_id: str
    by_timer: bool
    peer: str = ""


class Rejoined(_Record, frozen=True, array_like=True, gc=False, tag=8):
    """A held-back user is selectable again, at `max(S, v)`: held-back time is not saved up."""

    pool: str
    user_id: str
    cause: RejoinCause
    meter_before: int
    meter_after: int


class Accepted(_Record, frozen=True, array_like=True, gc=False, tag=9):
    """A request was put at the tail of its user's queue.

    Its sequence in the log is its accept sequence: "older" means smaller.  `meter_after` is the
    user's meter after the rule for arrivals, `rejoined` whether that rule applied (SFQ §2.4).
    """

    pool: str
    request_id: str
    user_id: str
    cost: int
    predicted_class: PredictedClass
    weight_milli: int
    kv_tokens: int
    expire_ns: int
    labels: tuple[str, ...]
    content_digest: bytes
    payload_digest: bytes
    payload_bytes: int
    prompt_tokens: int
    output_cap_tokens: int
    expected_output_tokens: int
    caller_bound: bool
    rejoined: bool
    meter_before: int
    meter_after: int
    virtual_time: int
    peer: str = ""


class Dispatched(_Record, frozen=True, array_like=True, gc=False, tag=10):
    """A request was given to a worker (SFQ §2.3, QBA §III-A).

    Attributes:
        request_sequence: Accept sequence of the request.
        worker: Session or name of the worker; empty when a gate granted the turn.
        call: Nonce of the call; leases of one call do not confirm each other.
        attempt: Number of this lease, from 1.
        lease_expire_ns: End of the lease.
        hand_over_ns: Until when the lease must be confirmed; 0 if it need not.
        turn: How the request came to its turn.
        rule: Class rule that chose it.
        charge_micros: Added to the meter; 0 for a redelivery and with unbounded slack.
        wait_ns: From acceptance to this dispatch.
        aging_threshold_ns: theta; -1 while the sample is too small.
        short_admission_count_after: Counter of the scope (user, or pool with unbounded slack).
        slack_micros: D of this selection; -1 when unbounded.
        passes_after: Charged dispatches in a row that passed the smallest meter.
        users_waiting: Selectable users before the dispatch.
        runner_up: Selectable user with the next smallest meter, or empty.
        overtook: Requests that came first but did not fit.
        offer: What the worker offered when this request was chosen.
    """

    pool: str
    request_id: str
    user_id: str
    request_sequence: int
    lease_id: str
    worker: str
    call: str
    attempt: int
    lease_expire_ns: int
    hand_over_ns: int
    turn: Turn
    rule: Rule
    cost: int
    charge_micros: int
    weight_milli: int
    predicted_class: PredictedClass
    wait_ns: int
    aging_threshold_ns: int
    aged: bool
    virtual_time_before: int
    virtual_time_after: int
    meter_before: int
    meter_after: int
    short_admission_count_before: int
    short_admission_count_after: int
    promotion_debt_before: bool
    promotion_debt_after: bool
    slack_micros: int
    passes_after: int
    users_waiting: int
    runner_up: str
    runner_up_meter: int
    overtook: tuple[str, ...]
    policy_digest: str
    offer: Offer
    idempotency_key: str
    peer: str = ""


class LeasesConfirmed(_Record, frozen=True, array_like=True, gc=False, tag=11):
    """A message of the worker's session confirmed its provisional leases."""

    worker: str


class LeaseRenewed(_Record, frozen=True, array_like=True, gc=False, tag=12):
    """A lease was extended."""

    pool: str
    request_id: str
    lease_id: str
    expire_ns: int
    user_id: str = ""


class PrefillCompleted(_Record, frozen=True, array_like=True, gc=False, tag=13):
    """A prefill is complete: where that is the admission point, the quota moved (QBA §III-A6)."""

    pool: str
    request_id: str
    lease_id: str
    short_admission_count_after: int
    promotion_debt_after: bool
    user_id: str = ""


class LeaseEnded(_Record, frozen=True, array_like=True, gc=False, tag=14):
    """A lease ended unfinished; the request keeps its place in flight and goes first again.

    `failures_after` counts expiries only: a polite give-back and a lost answer are not held
    against the request.  `retry_ns` is until when `worker` is not offered it again.
    """

    pool: str
    request_id: str
    lease_id: str
    worker: str
    cause: LeaseEndCause
    failures_after: int
    retry_ns: int
    error: str = ""
    user_id: str = ""


class Completed(_Record, frozen=True, array_like=True, gc=False, tag=15):
    """A worker finished a request: SUCCEEDED, FAILED, or CANCELLED if that had been asked for.

    `prompt_tokens` and `output_tokens` are the real lengths, -1 if the worker did not say; next to
    them stands what the request's cost rested on, so that the estimator can be judged, and taught,
    by this record alone.
    """

    pool: str
    request_id: str
    lease_id: str
    state: RequestState
    prompt_tokens: int
    output_tokens: int
    error: str
    peer: str = ""
    request_sequence: int = 0
    user_id: str = ""
    cost: int = 0
    predicted_class: PredictedClass = PredictedClass.SHORT
    stated_prompt_tokens: int = 0
    output_cap_tokens: int = 0
    expected_output_tokens: int = 0


class CancelRequested(_Record, frozen=True, array_like=True, gc=False, tag=16):
    """A leased request is to stop; its worker learns it at its next renewal."""

    pool: str
    request_id: str
    reason: str
    peer: str = ""
    user_id: str = ""


class Ended(_Record, frozen=True, array_like=True, gc=False, tag=17):
    """A request ended without being finished by a worker.

    `state` says how (CANCELLED, EXPIRED, SHED, DEAD_LETTERED, UNPLACEABLE, LEASE_EXPIRED),
    `reason` why.  No meter changes, whatever the state (SFQ §5.1).
    """

    pool: str
    request_id: str
    state: RequestState
    reason: str
    peer: str = ""
    request_sequence: int = 0
    user_id: str = ""


class Requeued(_Record, frozen=True, array_like=True, gc=False, tag=18):
    """A dead-lettered request was put back as a redelivery with fresh attempts."""

    pool: str
    request_id: str
    peer: str = ""
    user_id: str = ""


class BusyPeriodClosed(_Record, frozen=True, array_like=True, gc=False, tag=19):
    """Nothing waits any more: `v` rose to the largest meter (SFQ §2.5)."""

    pool: str
    virtual_time_before: int
    virtual_time_after: int


class Rebased(_Record, frozen=True, array_like=True, gc=False, tag=20):
    """`offset_micros` was taken off `v` and every meter (SFQ §7.2); no order changed."""

    pool: str
    offset_micros: int


class Reserved(_Record, frozen=True, array_like=True, gc=False, tag=21):
    """A worker gets nothing else until `request_id`, overtaken too often, fits it."""

    pool: str
    request_id: str
    worker: str
    user_id: str = ""


class WorkerSeen(_Record, frozen=True, array_like=True, gc=False, tag=22):
    """A worker registered, appeared, changed what it has in all, or shows that it is alive."""

    worker: str
    worker_name: str
    pools: tuple[str, ...]
    offer: Offer
    endpoint: str
    registered: bool


class WorkerDrained(_Record, frozen=True, array_like=True, gc=False, tag=23):
    """A worker gets no new work."""

    worker: str
    peer: str = ""


class WorkerGone(_Record, frozen=True, array_like=True, gc=False, tag=24):
    """A worker without leases has been silent for too long and is forgotten."""

    worker: str


class EstimatorUpdated(_Record, frozen=True, array_like=True, gc=False, tag=25):
    """Learned estimator values are in force: (user or "", ratio milli, cap tokens), cutoff."""

    pool: str
    ratios: tuple[tuple[str, int, int], ...]
    short_cutoff: int


class DeadLetterDropped(_Record, frozen=True, array_like=True, gc=False, tag=26):
    """A dead-lettered request was discarded, by a call or because there were too many."""

    pool: str
    request_id: str
    peer: str = ""
    request_sequence: int = 0
    user_id: str = ""


class UserForgotten(_Record, frozen=True, array_like=True, gc=False, tag=27):
    """A user's settings, and what was learned about it, were deleted."""

    pool: str
    user_id: str
    peer: str = ""


Decision = (
    LogOpened
    | Recovered
    | PoolConfigured
    | PoolDeleted
    | UserConfigured
    | Paused
    | Resumed
    | Rejoined
    | Accepted
    | Dispatched
    | LeasesConfirmed
    | LeaseRenewed
    | PrefillCompleted
    | LeaseEnded
    | Completed
    | CancelRequested
    | Ended
    | Requeued
    | BusyPeriodClosed
    | Rebased
    | Reserved
    | WorkerSeen
    | WorkerDrained
    | WorkerGone
    | EstimatorUpdated
    | DeadLetterDropped
    | UserForgotten
)
"""Any decision."""
