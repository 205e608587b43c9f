"""How values are read from the command line."""

import pytest
import typer

from fairsched.v1 import decision_pb2, policy_pb2
from scheduler_service.cli import values


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30), ("10m", 600), ("2h", 7200), ("7d", 604_800), ("1.5", 1.5)],
)
def test_lengths_of_time(text, seconds):
    """A length of time has a unit; a bare number is seconds."""
    assert values.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1s", "1 s", "1w", "inf", "nan"])
def test_nonsense_lengths_of_time(text):
    """What is no length of time is refused."""
    with pytest.raises(typer.BadParameter, match="length of time"):
        values.seconds(text)


@pytest.mark.parametrize(("text", "milli"), [("1", 1000), ("2.5", 2500), ("0.001", 1), ("0", 0)])
def test_weights(text, milli):
    """A weight is stated as people do, and sent in thousandths."""
    assert values.weight_milli(text) == milli


@pytest.mark.parametrize("text", ["", "much", "inf", "nan", "1e400"])
def test_nonsense_weights(text):
    """What is no number is no weight."""
    with pytest.raises(typer.BadParameter, match="weight"):
        values.weight_milli(text)


def test_policy_fields_of_every_kind():
    """Numbers, durations, enums by short and full name, and texts are read by their field."""
    settings = [
        "quota_k=8",
        "max_waiting=1_000",
        "lease_duration=90s",
        "placement=stall",
        "class_order=CLASS_ORDER_PSF",
        "mode=gate",
    ]
    policy, mask = values.policy("sfq", settings)

    assert mask is None
    assert (policy.preset, policy.quota_k, policy.max_waiting) == ("sfq", 8, 1000)
    assert policy.lease_duration.seconds == 90
    assert policy.placement == policy_pb2.PLACEMENT_STALL
    assert policy.class_order == policy_pb2.CLASS_ORDER_PSF
    assert policy.mode == policy_pb2.POOL_MODE_GATE


def test_empty_value_goes_back_to_the_preset():
    """`field=` names the field in the mask, beside every field that is stated."""
    policy, mask = values.policy(None, ["quota_k=8", "max_passes="])

    assert list(mask.paths) == ["quota_k", "max_passes"]
    assert not policy.HasField("max_passes")


@pytest.mark.parametrize(
    "setting", ["quota_k", "nonsense=1", "quota_k=many", "placement=sideways", "mode=unspecified"]
)
def test_nonsense_policy(setting):
    """What is no field or no value of it is refused, and says what there is."""
    with pytest.raises(typer.BadParameter):
        values.policy(None, [setting])


@pytest.mark.parametrize("text", ["ended", "ENDED", "DECISION_KIND_ENDED"])
def test_an_enum_value_is_itself_before_it_is_the_end_of_another(text):
    """`ended` is ENDED, though LEASE_ENDED ends so too."""
    kind = decision_pb2.DecisionKind
    assert values.enum(kind.DESCRIPTOR, text) == kind.Value("DECISION_KIND_ENDED")
    assert values.enum(kind.DESCRIPTOR, "lease-ended") == kind.Value("DECISION_KIND_LEASE_ENDED")


@pytest.mark.parametrize("text", ["unspecified", "nonsense", ""])
def test_no_enum_value_is_refused_with_the_choices(text):
    """Nothing is guessed; whoever mistypes sees what there is."""
    with pytest.raises(typer.BadParameter, match="dead_lettered"):
        values.enum(decision_pb2.RequestState.DESCRIPTOR, text)
