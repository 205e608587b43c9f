"""Records as messages: every kind, every field."""

import typing

import msgspec
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from fairsched.v1 import decision_pb2 as pb
from scheduler_service.core import decisions as d
from scheduler_service.core.policy import PoolPolicy, PredictedClass
from scheduler_service.rpc.convert_decision import decision_message

KINDS = typing.get_args(d.Decision)
HASHES = (b"before", b"after")


def _value(kind: object, number: int) -> object:
    """Returns a value that differs from field to field and is never the default."""
    if isinstance(kind, type) and hasattr(kind, "__members__"):
        return list(kind)[-1]
    if kind is bool:
        return True
    if kind is int:
        return 5_000_000_007 + number * 1_000_000_000
    if kind is str:
        return f"text{number}"
    if kind is bytes:
        return f"bytes{number}".encode()
    if kind is d.Offer:
        return d.Offer(5, 9, False, True, ("gpu",), 3)
    if kind is PoolPolicy:
        return PoolPolicy(quota_k=7)
    if kind == tuple[str, ...]:
        return (f"a{number}", f"b{number}")
    return (("u", 500, 1000),)


def _record(kind: type) -> d.Decision:
    fields = msgspec.structs.fields(kind)
    return kind(**{f.name: _value(f.type, number) for number, f in enumerate(fields)})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_field_arrives(kind):
    """No field of a record is lost: each stands in the message under its value."""
    record = _record(kind)
    message = decision_message(12, record, hashes=HASHES, record=b"raw")
    details = getattr(message, message.WhichOneof("details"))

    assert message.kind == kind.__struct_config__.tag
    assert message.sequence == 12
    assert (message.previous_hash, message.hash, message.record) == (*HASHES, b"raw")
    assert len(message.ListFields()) >= 7
    assert len(details.ListFields()) == len(details.DESCRIPTOR.fields)
    shown = _shown(message) | _shown(details)
    for field in msgspec.structs.fields(kind):
        value = getattr(record, field.name)
        if isinstance(value, int | str | bytes):
            assert value in shown, field.name


def _shown(message) -> set:
    """Returns every plain value of a message, times in nanoseconds."""
    found = set()
    for _, value in message.ListFields():
        if isinstance(value, Timestamp):
            found.add(value.ToNanoseconds())
        elif isinstance(value, Duration):
            found.add(value.seconds * 10**9 + value.nanos)
        elif isinstance(value, int | str | bytes):
            found.add(value)
    return found


def test_absent_values_are_absent():
    """What a record does not know is absent, not zero."""
    dispatched = msgspec.structs.replace(
        _record(d.Dispatched), aging_threshold_ns=-1, slack_micros=-1, hand_over_ns=0
    )
    completed = msgspec.structs.replace(_record(d.Completed), prompt_tokens=-1, output_tokens=-1)
    one = decision_message(1, dispatched, hashes=HASHES).dispatched
    other = decision_message(1, completed, hashes=HASHES).completed

    for field in ("aging_threshold", "slack_micros", "hand_over_time"):
        assert not one.HasField(field)
    assert not other.HasField("prompt_tokens")
    assert not other.HasField("output_tokens")
    zero = msgspec.structs.replace(dispatched, aging_threshold_ns=0, slack_micros=0)
    shown = decision_message(1, zero, hashes=HASHES).dispatched
    assert shown.HasField("aging_threshold")
    assert shown.HasField("slack_micros")


def test_offers():
    """An offer says only what the worker said."""
    record = msgspec.structs.replace(_record(d.WorkerSeen), offer=d.Offer())
    silent = decision_message(1, record, hashes=HASHES).worker_seen.offer
    picky = decision_message(1, _record(d.WorkerSeen), hashes=HASHES).worker_seen.offer

    assert silent == pb.Offer()
    assert picky.free_tokens == 5
    assert list(picky.accepted_classes) == [PredictedClass.LONG]
