"""What of a pool's policy every decision reads, as plain attributes.

Compiled code reads an attribute of a policy, which stays a record of msgspec, by its name, and one
of these by its place: twenty reads a dispatch are a twentieth of what it takes.
"""

from typing import final

from mypy_extensions import mypyc_attr

from scheduler_service.core.policy import (
    AdmissionPoint,
    ClassOrder,
    Placement,
    PoolPolicy,
    SlackKind,
)


@final
@mypyc_attr(acyclic=True)
class Rules:
    """A part of a `PoolPolicy`; names, units and ranges are its own."""

    __slots__ = (
        "admission_point",
        "aging_min_sample",
        "aging_quantile_bp",
        "class_order",
        "hand_over_ns",
        "lease_duration_ns",
        "max_in_flight_per_user",
        "max_leases_per_worker",
        "max_passes",
        "overtake_slack_micros",
        "placement",
        "quota_k",
        "retention_count",
        "retention_ns",
        "slack_kind",
        "slack_max_micros",
        "slack_micros",
        "slack_milli",
        "worker_ttl_ns",
    )

    def __init__(self, policy: PoolPolicy) -> None:
        self.slack_kind: SlackKind = policy.slack_kind
        self.slack_milli: int = policy.slack_milli
        self.slack_micros: int = policy.slack_micros
        self.slack_max_micros: int = policy.slack_max_micros
        self.class_order: ClassOrder = policy.class_order
        self.placement: Placement = policy.placement
        self.quota_k: int = policy.quota_k
        self.aging_quantile_bp: int = policy.aging_quantile_bp
        self.aging_min_sample: int = policy.aging_min_sample
        self.admission_point: AdmissionPoint = policy.admission_point
        self.max_in_flight_per_user: int = policy.max_in_flight_per_user
        self.max_passes: int = policy.max_passes
        self.overtake_slack_micros: int = policy.overtake_slack_micros
        self.lease_duration_ns: int = policy.lease_duration_ns
        self.hand_over_ns: int = policy.hand_over_ns
        self.max_leases_per_worker: int = policy.max_leases_per_worker
        self.worker_ttl_ns: int = policy.worker_ttl_ns
        self.retention_ns: int = policy.retention_ns
        self.retention_count: int = policy.retention_count
