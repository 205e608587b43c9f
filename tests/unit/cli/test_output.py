"""How results are shown: plain values for scripts, safe text for people, one line a decision."""

import json

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from fairsched import errors
from fairsched.v1 import admin_service_pb2, decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.cli import describe, output, session


def test_plain_values():
    """Numbers are numbers, durations seconds, times texts, bytes hex, enums names, maps objects."""
    dispatch = pb.Dispatch(
        sequence=2**60,
        lease_duration={"seconds": 1, "nanos": 500_000_000},
        payload=b"\x00\xff",
        metadata={"a": "b"},
        rule=decision_pb2.RULE_LONG,
    )
    found = json.loads(json.dumps(output.plain(dispatch)))

    assert found["sequence"] == 2**60
    assert found["lease_duration"] == 1.5
    assert found["payload"] == "00ff"
    assert found["metadata"] == {"a": "b"}
    assert found["rule"] == "RULE_LONG"
    assert found["caller_bound"] is False


def test_plain_absence():
    """What is absent is left out; an unknown enum value is its number."""
    stats = admin_service_pb2.PoolStats(pool="p")
    assert "fairness_bound_micros" not in output.plain(stats)
    stats.fairness_bound_micros = 0
    assert output.plain(stats)["fairness_bound_micros"] == 0
    assert output.plain(decision_pb2.Decision(kind=999))["kind"] == 999


@pytest.mark.parametrize(
    ("value", "shown"),
    [("[red]x", "[red]x"), ("a\u202eb", "a\\u202eb"), ("\x1b[31m", "\\x1b[31m"), (None, "")],
)
def test_safe(value, shown):
    """Text from others cannot be markup or drive the terminal."""
    assert output.safe(value).plain == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.25, "250 ms"), (12, "12.0 s"), (90, "1.5 min"), (5400, "1.5 h"), (129_600, "1.5 d")],
)
def test_span(seconds, shown):
    """A length of time is shown in the unit that fits."""
    assert output.span(seconds) == shown


@pytest.mark.parametrize(
    ("micros", "shown"),
    [(0, "0"), (500_000, "0.5"), (7_309_000_000, "7,309"), (-20_000_000, "-20")],
)
def test_units(micros, shown):
    """Micro cost units are shown in cost units."""
    assert output.units(micros) == shown


def test_every_kind_of_decision_has_a_line():
    """Whatever the log holds, a line names it; a kind from the future too."""
    details = decision_pb2.Decision.DESCRIPTOR.oneofs_by_name["details"].fields
    assert len(details) > 20
    for number, field in enumerate(details, start=1):
        decision = decision_pb2.Decision(sequence=number, pool="p", time=Timestamp(seconds=1))
        getattr(decision, field.name).SetInParent()
        decision.kind = decision_pb2.DecisionKind.Value(f"DECISION_KIND_{field.name.upper()}")
        line = describe.line(decision).plain
        assert line.startswith(f"{number:>8} 00:00:01.000 {field.name.replace('_', ' ')}")

    assert "kind 999" in describe.line(decision_pb2.Decision(kind=999)).plain


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.InvalidRequestError, 1),
        (errors.LimitReachedError, 1),
        (errors.UnavailableError, 3),
        (errors.DeadlineError, 3),
        (errors.NotFoundError, 4),
        (errors.DeniedError, 5),
        (errors.UnauthenticatedError, 5),
    ],
)
def test_exit_codes(kind, code):
    """Each kind of error has its exit code."""
    assert session.exit_code(kind(None, "x")) == code
