"""Policies as messages and back."""

import msgspec
import pytest
from google.protobuf.duration_pb2 import Duration

from fairsched.v1 import policy_pb2 as pb
from scheduler_service.core.errors import InvalidCommand
from scheduler_service.core.policy import PRESETS, PoolPolicy, SlackKind
from scheduler_service.rpc.convert_policy import (
    created_policy,
    policy_message,
    updated_policy,
)


@pytest.mark.parametrize("preset", PRESETS)
def test_round_trip(preset):
    """A policy shown and stated again is the same policy, and every field is shown."""
    policy = PRESETS[preset]
    message = policy_message(policy)

    assert len(message.ListFields()) == len(message.DESCRIPTOR.fields)
    assert created_policy(message) == policy


def test_a_new_pool_takes_the_rest_from_its_preset():
    """What is not stated is that of the preset, by default `fair_qba`."""
    stated = created_policy(pb.PoolPolicy(preset="sfq", quota_k=9))

    assert created_policy(pb.PoolPolicy()) == PoolPolicy()
    assert stated == msgspec.structs.replace(PRESETS["sfq"], quota_k=9)


def test_a_change_touches_what_it_states():
    """Without a mask exactly the stated fields change; durations and enums included."""
    policy = msgspec.structs.replace(PRESETS["sfq"], quota_k=9, max_passes=3)
    change = pb.PoolPolicy(lease_duration=Duration(seconds=5), slack_kind=3)

    changed = updated_policy(policy, change)

    assert changed == msgspec.structs.replace(
        policy, lease_duration_ns=5_000_000_000, slack_kind=SlackKind.UNBOUNDED
    )


def test_a_mask_sets_back_what_is_left_out():
    """With a mask a named field that is not stated goes back to the preset's."""
    policy = msgspec.structs.replace(PRESETS["fair_qba"], quota_k=9, max_passes=3)

    changed = updated_policy(policy, pb.PoolPolicy(quota_k=4), ["quota_k", "max_passes"])

    assert (changed.quota_k, changed.max_passes) == (4, PRESETS["fair_qba"].max_passes)
    assert updated_policy(policy, pb.PoolPolicy(), ["*"]) == PRESETS["fair_qba"]


def test_every_bad_field_is_named():
    """Unknown enum values, presets, ranges and mask paths are all reported at once."""
    bad = pb.PoolPolicy(
        quota_k=0,
        slack_milli=-1,
        class_order=77,
        lease_duration=Duration(seconds=0),
        aging_quantile_bp=10_001,
    )

    with pytest.raises(InvalidCommand) as caught:
        created_policy(bad)
    assert {field for field, _ in caught.value.violations} == {
        "policy.quota_k",
        "policy.slack_milli",
        "policy.class_order",
        "policy.lease_duration",
        "policy.aging_quantile_bp",
    }
    with pytest.raises(InvalidCommand, match="preset"):
        created_policy(pb.PoolPolicy(preset="nonsense"))
    with pytest.raises(InvalidCommand, match=r"update_mask.paths\[1\]"):
        updated_policy(PoolPolicy(), pb.PoolPolicy(quota_k=1), ["quota_k", "nonsense"])
