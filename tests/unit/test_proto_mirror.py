"""The protos say what the core says: the same records, fields, enums and numbers."""

import enum
import typing

import pytest

from fairsched.v1 import decision_pb2, policy_pb2
from scheduler_service.core import decisions, policy

HEADER = {
    "now_ns": "time",
    "pool": "pool",
    "user_id": "user_id",
    "request_id": "request_id",
    "peer": "peer",
}
"""Fields of the records that stand in the header of `Decision`."""

RENAMED = {
    "aging_threshold_ns": "aging_threshold",
    "downtime_ns": "downtime",
    "hand_over_ns": "hand_over_time",
    "labels": "required_labels",
    "lease_expire_ns": "lease_expire_time",
    "meter_after": "meter_after_micros",
    "meter_before": "meter_before_micros",
    "output_cap_tokens": "max_output_tokens",
    "retry_ns": "retry_time",
    "runner_up_meter": "runner_up_meter_micros",
    "until_ns": "until_time",
    "virtual_time": "virtual_time_micros",
    "virtual_time_after": "virtual_time_after_micros",
    "virtual_time_before": "virtual_time_before_micros",
    "wait_ns": "wait",
    "worker_name": "worker_id",
}
"""Core name -> proto name, where they differ: units and time have their own types there."""

RENAMED_IN = {
    ("Accepted", "expire_ns"): "expire_time",
    ("LeaseRenewed", "expire_ns"): "lease_expire_time",
}

RECORDS = typing.get_args(decisions.Decision)


def _enums(module) -> list[type[enum.IntEnum]]:
    return [
        value
        for value in vars(module).values()
        if isinstance(value, enum.EnumType) and value.__module__ == module.__name__
    ]


ENUMS = [
    *((decision_pb2, core) for core in _enums(decisions)),
    *((policy_pb2, core) for core in _enums(policy)),
]


def _proto_name(record: str, field: str) -> str:
    return RENAMED_IN.get((record, field), RENAMED.get(field, field))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_records(record):
    """A decision has the fields of the core's record, in the header or in its details."""
    name = record.__name__
    fields = {_proto_name(name, f) for f in record.__struct_fields__ if f not in HEADER}
    details = getattr(decision_pb2, name).DESCRIPTOR

    assert {field.name for field in details.fields} == fields


def test_kinds():
    """The kinds of `Decision` are the records of the core, by tag and by name."""
    tags = {record.__struct_config__.tag: record.__name__ for record in RECORDS}
    kinds = dict(decision_pb2.DecisionKind.items())
    oneof = decision_pb2.Decision.DESCRIPTOR.oneofs_by_name["details"].fields

    assert {v: _camel(k.removeprefix("DECISION_KIND_")) for k, v in kinds.items() if v} == tags
    assert {field.number - 19: field.message_type.name for field in oneof} == tags


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


@pytest.mark.parametrize(
    ("module", "core"), ENUMS, ids=lambda value: getattr(value, "__name__", None)
)
def test_enums(module, core):
    """An enum has the core's members under the core's numbers."""
    prefix = "".join(f"_{c}" if c.isupper() else c.upper() for c in core.__name__).lstrip("_") + "_"
    values = {k.removeprefix(prefix): v for k, v in getattr(module, core.__name__).items() if v}

    assert values == {member.name: member.value for member in core if member.value}


def test_policy():
    """`PoolPolicy` has every parameter of the core's, each with presence."""
    fields = policy_pb2.PoolPolicy.DESCRIPTOR.fields
    times = {"lease_duration_ns", "max_wait_ns", "retention_ns", "retry_backoff_ns"}
    core = policy.PoolPolicy.__struct_fields__

    assert times <= set(core)
    assert {field.name for field in fields} == {name.removesuffix("_ns") for name in core}
    assert all(field.has_presence for field in fields)
