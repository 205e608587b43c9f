"""Checks of fields, at and past every limit."""

import pytest
from google.protobuf.duration_pb2 import Duration

from scheduler_service.core.errors import InvalidCommand
from scheduler_service.rpc.validate import Checks, is_id


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("a", True),
        ("x" * 256, True),
        ("x" * 257, False),
        ("ä" * 128, True),
        ("ä" * 128 + "x", False),
        ("🙂" * 64, True),
        ("", False),
        (" ", True),
        ("a\tb", False),
        ("a\x1fb", False),
        ("a\x7fb", False),
        ("ä\x80b", False),
        ("ä\x9fb", False),
        ("ä\xa0b", True),
    ],
)
def test_ids(text, good):
    """1 to 256 bytes of UTF-8 without control characters, in ASCII and beyond."""
    assert is_id(text) is good


@pytest.mark.parametrize(
    ("seconds", "nanos", "value"),
    [(1, 0, 10**9), (0, 1_000_000, 10**6), (5, 0, 5 * 10**9), (4, 999_999_999, 4_999_999_999)],
)
def test_durations_in_range(seconds, nanos, value):
    """Both ends of the range are good, and nanoseconds are exact."""
    checks = Checks()
    duration = Duration(seconds=seconds, nanos=nanos)

    assert checks.duration("d", duration, 10**6, 5 * 10**9) == value
    checks.done()


@pytest.mark.parametrize(
    ("seconds", "nanos"),
    [(0, 999_999), (5, 1), (-1, 0), (1, -1), (-1, 1), (0, 1_000_000_000), (2**40, 0)],
)
def test_durations_out_of_range(seconds, nanos):
    """One nanosecond past the range, or not a duration at all."""
    checks = Checks()
    checks.duration("d", Duration(seconds=seconds, nanos=nanos), 10**6, 5 * 10**9)

    assert [field for field, _ in checks.violations] == ["d"]


def test_all_violations_are_raised_together():
    """The error lists every field, with its path."""
    checks = Checks("request.")
    checks.id("pool", "")
    checks.number("cost", 0, 1, 5)
    checks.ids("labels", ["a", "", "b\n"], 16)
    checks.enum("class", 7, {1, 2})
    checks.enum("outcome", 0, {1, 2}, required=True)
    checks.reason("reason", "lower", 64)
    checks.text("error", "x" * 257, 256)
    with pytest.raises(InvalidCommand) as error:
        checks.done()

    fields = [field for field, _ in error.value.violations]
    assert fields == [
        "request.pool",
        "request.cost",
        "request.labels[1]",
        "request.labels[2]",
        "request.class",
        "request.outcome",
        "request.reason",
        "request.error",
    ]


@pytest.mark.parametrize(("value", "found"), [(0, 7), (1, 1), (10, 10)])
def test_counts(value, found):
    """Zero is the default."""
    assert Checks().count("n", value, 10, 7) == found
