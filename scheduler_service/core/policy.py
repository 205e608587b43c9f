"""The policy of one pool: every parameter of the algorithm, with its default and range.

This is the one table of defaults.  The service, the simulator and the tools all read it from here;
nothing else in the project states a default of the algorithm.

A policy is plain, frozen data.  Its digest (made by the caller, who may hash) is named in every
dispatch record, so that a reader of the log knows which policy decided.

Source:
    SFQ §2-5 (slack 0), QBA §III-A (class order, quota, aging), and their composition by slack.
"""

import enum
from typing import Final

import msgspec

MICRO: Final = 1_000_000
"""Micro cost units in one cost unit."""

SECOND_NS: Final = 1_000_000_000
"""Nanoseconds in one second."""

COST_MAX: Final = 1_000_000_000
"""Largest cost of one request, in cost units."""

WEIGHT_MILLI_MAX: Final = 1_000_000
"""Largest weight in thousandths; 1000 is weight 1."""

SLACK_MICROS_MAX: Final = 3 * 10**18
"""Largest slack in micro cost units, so that meters stay inside int64."""

REBASE_AT_MICROS: Final = 2**60
"""Virtual time at which meters are rebased (SFQ §7.2)."""

POOLS_MAX: Final = 1000
"""Pools of one service."""

WORKERS_MAX: Final = 100_000
"""Workers the service keeps in mind at once."""

RECENT_DISPATCHES: Final = 1024
"""How many charged dispatches the largest cost and charge are taken over."""


class PredictedClass(enum.IntEnum):
    """Class that the length predictor assigned to a request (QBA §II-C)."""

    SHORT = 1
    LONG = 2


class ClassOrder(enum.IntEnum):
    """Which rules order the candidates of different predicted classes."""

    FCFS = 1
    PSF = 2
    AA = 3
    QBA = 4


class WithinUser(enum.IntEnum):
    """Whether a user's own shorts may pass its own longs."""

    CLASS = 1
    FIFO = 2


class Placement(enum.IntEnum):
    """What happens when the selected request does not fit the asking worker."""

    STALL = 1
    OVERTAKE = 2


class AdmissionPoint(enum.IntEnum):
    """When a short admission counts and a promotion clears its debt."""

    DISPATCH = 1
    PREFILL_COMPLETE = 2


class ClassBy(enum.IntEnum):
    """What the estimator compares with the cutoff."""

    WORK = 1
    RESPONSE = 2


class PoolMode(enum.IntEnum):
    """Who takes the turns of a pool: asking workers, or waiting gateways as capacity frees."""

    PULL = 1
    GATE = 2


class CostSource(enum.IntEnum):
    """Who computes the cost of a request."""

    TOKENS = 1
    CALLER = 2


class SlackKind(enum.IntEnum):
    """How the slack is given: relative to the largest recent cost, absolute, or unbounded."""

    RELATIVE = 1
    ABSOLUTE = 2
    UNBOUNDED = 3


class PoolPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that decides in one pool.

    Attributes:
        preset: Name of the preset this policy started from; informational.
        slack_kind: How the slack is given.
        slack_milli: With RELATIVE: thousandths of the largest cost among the recent dispatches,
            0 … 1,000,000.
        slack_micros: With ABSOLUTE: micro cost units, 0 … 3 * 10^18.
        slack_max_micros: Upper limit of a relative slack, micro cost units, 0 … 3 * 10^18.
        class_order: Which class rules apply.
        within_user: Whether shorts may pass longs of the same user.
        placement: What happens when a request does not fit.
        quota_k: Short admissions that earn one promotion, 1 … 10^9.
        aging_quantile_bp: Quantile level of the aging threshold in basis points, 1 … 10,000.
        aging_sample_window: Started requests in the reference sample; 0 is the whole history.
        aging_min_sample: Entries below which nothing is aged, at least 1.
        admission_point: When short admissions count.
        class_by: What the predicted class is derived from.
        max_passes: Charged dispatches in a row that may pass the user with the smallest meter.
        overtake_slack_micros: How far past the window overtaking reaches; -1 is "as the slack".
        overtake_scan: Candidates examined by one selection, the selected one included.
        max_overtakes: Overtakes of one request before a worker is reserved for it.
        lease_duration_ns: Default length of a lease, 1 s … 24 h.
        hand_over_ns: How long a lease may stay unconfirmed; 0 turns hand-over off.
        max_attempts: Leases that may expire before the request is dead-lettered.
        retry_backoff_ns: How long a request is kept from the worker that gave it back.
        max_wait_ns: Default waiting limit; 0 is none.
        unplaceable_wait_ns: How long a request that no live worker can hold may wait.
        worker_ttl_ns: Silence after which a worker is no longer live.
        max_waiting: Waiting requests of the pool.
        max_waiting_per_user: Waiting requests of one user.
        max_users: Users with state in the pool.
        max_in_flight_per_user: Default cap of leased requests of one user; 0 is none.
        max_leases_per_worker: Live leases one worker may hold.
        max_dead_letters: Dead-lettered requests kept; the oldest goes first.
        default_weight_milli: Weight of a user without its own.
        mode: PULL or GATE.
        gate_max_in_flight: With GATE: leased requests at once; 0 grants nothing.
        gate_max_in_flight_cost: With GATE: cost units leased at once; 0 is no limit.
        cost_source: Whether callers may state costs.
        prompt_cost_milli: Cost units for 1000 prompt tokens (the "a" of the estimator).
        output_cost_milli: Cost units for 1000 output tokens (the "b" of the estimator).
        prior_output_ratio_milli: Expected output in thousandths of the output cap, before any
            usage was seen.
        prior_weight_tokens: Output-cap tokens that the prior counts for.
        short_cutoff: Cutoff tau below or at which a request is predicted short, in tokens;
            0 until learned or set: everything is short.
        retention_ns: How long ended ids and idempotency keys are remembered.
        retention_count: How many ended ids are remembered.
    """

    preset: str = "fair_qba"
    slack_kind: SlackKind = SlackKind.RELATIVE
    slack_milli: int = 500
    slack_micros: int = 0
    slack_max_micros: int = SLACK_MICROS_MAX
    class_order: ClassOrder = ClassOrder.QBA
    within_user: WithinUser = WithinUser.CLASS
    placement: Placement = Placement.OVERTAKE
    quota_k: int = 5
    aging_quantile_bp: int = 8000
    aging_sample_window: int = 1024
    aging_min_sample: int = 32
    admission_point: AdmissionPoint = AdmissionPoint.DISPATCH
    class_by: ClassBy = ClassBy.WORK
    max_passes: int = 8
    overtake_slack_micros: int = -1
    overtake_scan: int = 32
    max_overtakes: int = 16
    lease_duration_ns: int = 60 * SECOND_NS
    hand_over_ns: int = 5 * SECOND_NS
    max_attempts: int = 3
    retry_backoff_ns: int = 5 * SECOND_NS
    max_wait_ns: int = 0
    unplaceable_wait_ns: int = 300 * SECOND_NS
    worker_ttl_ns: int = 60 * SECOND_NS
    max_waiting: int = 1_000_000
    max_waiting_per_user: int = 10_000
    max_users: int = 1_000_000
    max_in_flight_per_user: int = 0
    max_leases_per_worker: int = 10_000
    max_dead_letters: int = 10_000
    default_weight_milli: int = 1000
    mode: PoolMode = PoolMode.PULL
    gate_max_in_flight: int = 0
    gate_max_in_flight_cost: int = 0
    cost_source: CostSource = CostSource.TOKENS
    prompt_cost_milli: int = 1000
    output_cost_milli: int = 1000
    prior_output_ratio_milli: int = 500
    prior_weight_tokens: int = 100_000
    short_cutoff: int = 0
    retention_ns: int = 600 * SECOND_NS
    retention_count: int = 1_000_000

    @property
    def unbounded(self) -> bool:
        """Whether the slack is unbounded: no meter is charged and the quota is the pool's."""
        return self.slack_kind is SlackKind.UNBOUNDED

    @property
    def user_by_user(self) -> bool:
        """Whether the slack is configured as 0: the user is chosen before the request."""
        if self.slack_kind is SlackKind.RELATIVE:
            return self.slack_milli == 0
        return self.slack_kind is SlackKind.ABSOLUTE and self.slack_micros == 0


def _unbounded(preset: str, class_order: ClassOrder) -> PoolPolicy:
    return PoolPolicy(
        preset=preset,
        slack_kind=SlackKind.UNBOUNDED,
        class_order=class_order,
        within_user=WithinUser.CLASS,
        placement=Placement.STALL,
    )


PRESETS: Final[dict[str, PoolPolicy]] = {
    "fair_qba": PoolPolicy(),
    "sfq": PoolPolicy(
        preset="sfq",
        slack_milli=0,
        class_order=ClassOrder.FCFS,
        within_user=WithinUser.FIFO,
        placement=Placement.STALL,
    ),
    "qba": _unbounded("qba", ClassOrder.QBA),
    "psf": _unbounded("psf", ClassOrder.PSF),
    "aa": _unbounded("aa", ClassOrder.AA),
    "fcfs": _unbounded("fcfs", ClassOrder.FCFS),
}
"""Named starting points; any parameter may be changed from there."""

_RANGES: Final[dict[str, tuple[int, int]]] = {
    "slack_milli": (0, 1_000_000),
    "slack_micros": (0, SLACK_MICROS_MAX),
    "slack_max_micros": (0, SLACK_MICROS_MAX),
    "quota_k": (1, 10**9),
    "aging_quantile_bp": (1, 10_000),
    "aging_sample_window": (0, 1_000_000),
    "aging_min_sample": (1, 1_000_000),
    "max_passes": (1, 10**9),
    "overtake_slack_micros": (-1, SLACK_MICROS_MAX),
    "overtake_scan": (1, 10_000),
    "max_overtakes": (1, 10**9),
    "lease_duration_ns": (SECOND_NS, 86_400 * SECOND_NS),
    "hand_over_ns": (0, 86_400 * SECOND_NS),
    "max_attempts": (1, 1000),
    "retry_backoff_ns": (0, 86_400 * SECOND_NS),
    "max_wait_ns": (0, 86_400 * SECOND_NS),
    "unplaceable_wait_ns": (SECOND_NS, 86_400 * SECOND_NS),
    "worker_ttl_ns": (SECOND_NS, 86_400 * SECOND_NS),
    "max_waiting": (1, 100_000_000),
    "max_waiting_per_user": (1, 100_000_000),
    "max_users": (1, 100_000_000),
    "max_in_flight_per_user": (0, 10**9),
    "max_leases_per_worker": (1, 10**9),
    "max_dead_letters": (1, 10**7),
    "default_weight_milli": (1, WEIGHT_MILLI_MAX),
    "gate_max_in_flight": (0, 10**9),
    "gate_max_in_flight_cost": (0, 10**18),
    "prompt_cost_milli": (0, 10**9),
    "output_cost_milli": (0, 10**9),
    "prior_output_ratio_milli": (1, 1_000_000),
    "prior_weight_tokens": (1, 10**12),
    "short_cutoff": (0, 10**12),
    "retention_ns": (SECOND_NS, 7 * 86_400 * SECOND_NS),
    "retention_count": (1, 100_000_000),
}


def violations(policy: PoolPolicy) -> list[tuple[str, str]]:
    """Returns (field, description) of everything that is out of range; empty when all is good."""
    found = [
        (name, f"must be {low} to {high}, is {getattr(policy, name)}")
        for name, (low, high) in _RANGES.items()
        if not low <= getattr(policy, name) <= high
    ]
    if policy.prompt_cost_milli == 0 and policy.output_cost_milli == 0:
        found.append(("prompt_cost_milli", "must not be 0 together with output_cost_milli"))
    return found


class UserSettings(msgspec.Struct, gc=False):
    """Configuration of a user that outlives its flow.

    Attributes:
        weight_milli: Own weight; 0 takes the pool's default.
        max_in_flight: Own cap; 0 is none, -1 takes the pool's default.
        paused: Whether the user is paused.
        pause_until_ns: When the pause ends; 0 is never.
    """

    weight_milli: int = 0
    max_in_flight: int = -1
    paused: bool = False
    pause_until_ns: int = 0
