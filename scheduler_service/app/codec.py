"""Decisions to bytes and back, one by one and in groups.

A record is one decision as a msgpack array whose first item is its tag.  A group is stored as one
frame, so that reading it costs one row, and decoding it one call:

    count        u32, little endian, at least 1
    lengths      count times u32
    records      back to back

The format is on disk: it is only ever extended (see `core.decisions`).
"""

import struct
from typing import Any

import msgspec

from scheduler_service.core.decisions import Decision

_COUNT = struct.Struct("<I")
_ARRAY_HEADER = struct.Struct(">BI")
_ARRAY_32 = 0xDD  # msgpack: array with a 32-bit length

_encoder = msgspec.msgpack.Encoder()
_decoder: "msgspec.msgpack.Decoder[Decision]" = msgspec.msgpack.Decoder(Decision)
_list_decoder: "msgspec.msgpack.Decoder[list[Decision]]" = msgspec.msgpack.Decoder(list[Decision])

encode = _encoder.encode
"""Returns the record of a decision.  Raises what msgspec raises if a value has no encoding."""


class FrameError(ValueError):
    """Bytes that are no frame, or a record that is no decision."""


def decode(record: bytes) -> Decision:
    """Returns the decision of a record.

    Raises:
        FrameError: The bytes are no decision of this format.
    """
    try:
        return _decoder.decode(record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FrameError(str(error)) from error


def join_frame(records: list[bytes]) -> bytes:
    """Returns the frame of these records, at least one."""
    count = len(records)
    assert count >= 1
    head = struct.pack(f"<{count + 1}I", count, *map(len, records))
    return b"".join((head, *records))


def split_frame(frame: bytes) -> list[bytes]:
    """Returns the records of a frame.

    Raises:
        FrameError: The lengths do not add up.
    """
    lengths, start = _lengths(frame)
    records = []
    for length in lengths:
        records.append(frame[start : start + length])
        start += length
    return records


def decode_frame(frame: bytes) -> list[Decision]:
    """Returns the decisions of a frame, decoded in one go.

    Raises:
        FrameError: The lengths do not add up, or a record is no decision of this format.
    """
    lengths, start = _lengths(frame)
    head = _ARRAY_HEADER.pack(_ARRAY_32, len(lengths))
    try:
        return _list_decoder.decode(head + frame[start:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FrameError(str(error)) from error


def _lengths(frame: bytes) -> tuple[tuple[int, ...], int]:
    if len(frame) < _COUNT.size:
        raise FrameError("shorter than its header")
    (count,) = _COUNT.unpack_from(frame)
    start = _COUNT.size * (count + 1)
    if count == 0 or len(frame) < start:
        raise FrameError(f"a count of {count} records does not fit {len(frame)} bytes")
    lengths: tuple[Any, ...] = struct.unpack_from(f"<{count}I", frame, _COUNT.size)
    if start + sum(lengths) != len(frame):
        raise FrameError(f"lengths add up to {start + sum(lengths)}, not {len(frame)} bytes")
    return lengths, start
