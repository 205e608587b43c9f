"""Exports of a decision log: one JSON object a line, or a Parquet table.

Both name things as the API does.  A line of JSON is what `fairsched tail --json` prints.  The table
has one row a decision: the header, then one column for every field of any kind of decision, empty
where a kind has no such field; what is not a plain value is JSON text.  `now_ns` is the exact time,
`time` the same to the microsecond.

Files appear whole or not at all.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from fairsched.v1 import decision_pb2 as pb
from scheduler_service.app import chain, codec
from scheduler_service.app.decision_filter import DecisionFilter
from scheduler_service.app.ports import GENESIS, Position
from scheduler_service.app.recovery import LogSource
from scheduler_service.rpc.convert_decision import decision_message

if TYPE_CHECKING:
    import pyarrow as pa

PAGE_BYTES = 4 << 20
ROWS_AT_ONCE = 20_000
_HEADER = ("sequence", "pool", "user_id", "request_id", "peer", "hash", "previous_hash")
_DURATION = "google.protobuf.Duration"
_TIMESTAMP = "google.protobuf.Timestamp"


class Span(NamedTuple):
    """Which decisions to export.

    Attributes:
        after: Only behind this sequence.
        until: Only up to this one; 0 is to the end.
        filter: Only those that match.
    """

    after: int = 0
    until: int = 0
    filter: DecisionFilter = DecisionFilter()


def decisions(log: LogSource, span: Span) -> Iterator[pb.Decision]:
    """Yields the decisions of a span as messages, in order.

    Raises:
        Trimmed: The log no longer goes back that far.
        StoreDamaged, FrameError: It cannot be read.
    """
    position = _start(log, span.after)
    while page := log.read(position.sequence, max_bytes=PAGE_BYTES):
        for group in page:
            chain_hash = position.chain_hash
            for sequence, record in enumerate(codec.split_frame(group.frame), group.first_sequence):
                before, chain_hash = chain_hash, chain.extend(chain_hash, [record])
                if span.until and sequence > span.until:
                    return
                decision = span.filter.decoded(record) if sequence > span.after else None
                if decision is not None:
                    yield decision_message(sequence, decision, hashes=(before, chain_hash))
            position = group.end


def _start(log: LogSource, after: int) -> Position:
    """Returns the position before the group that holds the record behind `after`."""
    base = log.base()
    if after <= base.sequence:
        return base if base.sequence else GENESIS
    page = log.read(after, max_bytes=1)
    if not page:
        return log.head()
    before = page[0].first_sequence - 1
    return base if before == base.sequence else log.read(before - 1, max_bytes=1)[0].end


def write_json(
    path: Path, messages: Iterable[pb.Decision], plain: Callable[[Message], dict[str, Any]]
) -> int:
    """Writes one JSON object a line and returns how many.

    Args:
        path: The file.
        messages: What to write.
        plain: Turns a message into plain values.
    """
    count = 0
    with _whole(path) as file:
        for message in messages:
            file.write(json.dumps(plain(message), ensure_ascii=False).encode() + b"\n")
            count += 1
    return count


def write_parquet(path: Path, messages: Iterable[pb.Decision]) -> int:
    """Writes a Parquet table and returns how many rows it has; needs the extra `sim`."""
    import pyarrow as pa  # noqa: PLC0415 - optional, of the extra `sim`
    import pyarrow.parquet as pq  # noqa: PLC0415 - optional, of the extra `sim`

    schema, count = _schema(pa), 0
    with _whole(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in _batches(messages):
            writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=schema))
            count += len(batch)
    return count


def _batches(messages: Iterable[pb.Decision]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    for message in messages:
        batch.append(row_of(message))
        if len(batch) == ROWS_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


def row_of(message: pb.Decision) -> dict[str, Any]:
    """Returns a decision as one flat row."""
    row: dict[str, Any] = {name: getattr(message, name) for name in _HEADER}
    row["now_ns"] = message.time.ToNanoseconds()
    row["time"] = row["now_ns"] // 1000
    row["kind"] = pb.DecisionKind.Name(message.kind).removeprefix("DECISION_KIND_").lower()
    details = getattr(message, message.WhichOneof("details") or "log_opened")
    for field in details.DESCRIPTOR.fields:
        if field.has_presence and not details.HasField(field.name):
            continue
        row[_column(field)] = _value(field, getattr(details, field.name))
    return row


def _column(field: FieldDescriptor) -> str:
    """Returns the column of a field: times and durations are whole nanoseconds."""
    kind = field.message_type
    exact = kind is not None and kind.full_name in {_DURATION, _TIMESTAMP}
    return f"{field.name}_ns" if exact else field.name


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        if field.message_type.full_name in {_DURATION, _TIMESTAMP}:
            return value.seconds * 1_000_000_000 + value.nanos
        if field.is_repeated:
            return json.dumps([_as_dict(item) for item in value])
        return json.dumps(_as_dict(value))
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else str(value)
    return list(value) if field.is_repeated else value


def _as_dict(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return found


def _schema(pa: Any) -> "pa.Schema":
    """Returns the columns: the header, then every field of any kind of decision, once."""
    types: dict[str, Any] = {
        "sequence": pa.int64(),
        "now_ns": pa.int64(),
        "time": pa.timestamp("us", tz="UTC"),
        "kind": pa.string(),
        "pool": pa.string(),
        "user_id": pa.string(),
        "request_id": pa.string(),
        "peer": pa.string(),
        "hash": pa.binary(),
        "previous_hash": pa.binary(),
    }
    for detail in pb.Decision.DESCRIPTOR.oneofs_by_name["details"].fields:
        for field in () if detail.message_type is None else detail.message_type.fields:
            kind = _arrow_type(pa, field)
            if types.setdefault(_column(field), kind) != kind:
                message = f"two kinds of decisions disagree about {field.name}"
                raise TypeError(message)
    return pa.schema(list(types.items()))


def _arrow_type(pa: Any, field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        exact = field.message_type.full_name in {_DURATION, _TIMESTAMP}
        return pa.int64() if exact else pa.string()
    if field.enum_type is not None:
        return pa.string()
    plain = {
        FieldDescriptor.TYPE_INT64: pa.int64(),
        FieldDescriptor.TYPE_BOOL: pa.bool_(),
        FieldDescriptor.TYPE_STRING: pa.string(),
        FieldDescriptor.TYPE_BYTES: pa.binary(),
    }[field.type]
    return pa.list_(plain) if field.is_repeated else plain


@contextmanager
def _whole(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file that gets its name once it is complete."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            yield file
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
