"""Records and frames on disk."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.app import codec
from scheduler_service.core import decisions as d

DECISIONS: list[d.Decision] = [
    d.LogOpened(1, 1, "sync", "digest"),
    d.Recovered(2, 5),
    d.Paused(3, "pool", "user ✓", 0),
    d.WorkerGone(4, "w"),
]


def test_a_decision_survives_encoding():
    """A decision survives encoding."""
    for decision in DECISIONS:
        assert codec.decode(codec.encode(decision)) == decision


def test_a_frame_gives_back_its_records_and_decisions():
    """A frame gives back its records and decisions."""
    records = [codec.encode(decision) for decision in DECISIONS]
    frame = codec.join_frame(records)

    assert codec.split_frame(frame) == records
    assert codec.decode_frame(frame) == DECISIONS


def test_the_bytes_on_disk_are_as_documented():
    """The bytes on disk are as documented."""
    frame = codec.join_frame([b"\x92\x02\x05", b"ab"])

    assert frame == bytes.fromhex("02000000 03000000 02000000 920205 6162")


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=20))
def test_any_records_survive_framing(records):
    """Any records survive framing."""
    assert codec.split_frame(codec.join_frame(records)) == records


@given(st.binary(max_size=80))
def test_bytes_that_are_no_frame_are_refused_and_nothing_else_happens(junk):
    """Bytes that are no frame are refused and nothing else happens."""
    try:
        records = codec.split_frame(junk)
    except codec.FrameError:
        return
    assert codec.join_frame(records) == junk


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_shortened_frame_is_refused(cut):
    """A shortened frame is refused."""
    frame = codec.join_frame([codec.encode(decision) for decision in DECISIONS])

    with pytest.raises(codec.FrameError):
        codec.split_frame(frame[:-cut])
    with pytest.raises(codec.FrameError):
        codec.decode_frame(frame[:-cut])


@pytest.mark.parametrize(
    "record", [b"", b"\xc1", b"\x90", b"\x92\xcc\xff\x01", b"\x93\x02\xa1\xff\x05"]
)
def test_a_record_that_is_no_decision_is_refused(record):
    """A record that is no decision is refused."""
    with pytest.raises(codec.FrameError):
        codec.decode(record)
    with pytest.raises(codec.FrameError):
        codec.decode_frame(codec.join_frame([record]))
