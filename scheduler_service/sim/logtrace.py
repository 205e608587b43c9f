"""Reads the service's own decision log as a request stream.

A log is an export: JSON lines or Parquet.  A line is either a record as the log holds it (an array
that begins with its tag) or an object with the record's kind and its fields by name, at the top
or nested, in either spelling (`user_id`, `userId`): what `fairsched tail --json` prints is one.

Only `Accepted` and `Completed` are looked at: what came when, from whom, at which cost and class,
and what it really used.  A request that was not completed keeps what was predicted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scheduler_service.core.decisions import Accepted, Completed, Decision
from scheduler_service.core.policy import PredictedClass
from scheduler_service.sim.model import NS_PER_SECOND
from scheduler_service.sim.traces import Row, TraceError, read_trace, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_KIND_KEYS: Final = ("kind", "type")
_NESTED_KEYS: Final = ("decision", "fields", "body")
_CAPITAL: Final = re.compile("[A-Z]")
_records: Final[msgspec.json.Decoder[Decision]] = msgspec.json.Decoder(Decision)


def read_any(path: Path, pool: str = "") -> list[Row]:
    """Reads a trace of any known kind: a table, or a decision log.

    Args:
        path: .csv, .parquet, .jsonl or .ndjson.
        pool: With a log of several pools: which one.

    Raises:
        TraceError: The file is of no known kind or cannot be read.
    """
    suffix = path.suffix.lower()
    if suffix in {".jsonl", ".ndjson"}:
        return rows_of(_json_lines(path), path, pool)
    if suffix == ".parquet":
        import pyarrow.parquet as pq  # noqa: PLC0415 - optional, of the extra `sim`

        if set(_KIND_KEYS) & set(pq.read_schema(path).names):
            records = pq.read_table(path).to_pylist()
            return rows_of(((i, r) for i, r in enumerate(records, start=1)), path, pool)
    return read_trace(path)


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield number, msgspec.json.decode(line)
            except msgspec.DecodeError as error:
                msg = f"{path}:{number}: {error}"
                raise TraceError(msg) from error


def rows_of(records: Iterable[tuple[int, Any]], path: Path, pool: str = "") -> list[Row]:
    """Makes rows of numbered log records; see the module.

    Raises:
        TraceError: A record lacks a field, or the log has several pools and none was named.
    """
    accepted: dict[str, Row] = {}
    pools: set[str] = set()
    for number, record in records:
        kind, fields = _kind_and_fields(record)
        if kind not in {"accepted", "completed"}:
            continue
        try:
            if pool and fields["pool"] != pool:
                continue
            pools.add(fields["pool"])
            if kind == "accepted":
                accepted[fields["request_id"]] = _accepted(fields)
            else:
                _complete(accepted, fields)
        except (KeyError, TypeError, ValueError) as error:
            msg = f"{path}:{number}: {kind} record without {error}"
            raise TraceError(msg) from error
    if len(pools) > 1:
        msg = f"{path}: the log has pools {', '.join(sorted(pools))}; name one"
        raise TraceError(msg)
    return sorted(accepted.values())


def _kind_and_fields(record: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(record, list):
        decision = _records.decode(msgspec.json.encode(record))
        if isinstance(decision, Accepted | Completed):
            return type(decision).__name__.lower(), msgspec.structs.asdict(decision)
        return "", {}
    if not isinstance(record, dict):
        return "", {}
    fields = _snake(record)
    kind = next((str(fields[key]) for key in _KIND_KEYS if fields.get(key)), "")
    kind = kind.lower().removeprefix("decision_kind_")
    for key in (kind, *_NESTED_KEYS):
        if isinstance(fields.get(key), dict):
            fields |= _snake(fields[key])
    return kind, fields


def _snake(record: dict[str, Any]) -> dict[str, Any]:
    return {
        _CAPITAL.sub(lambda m: f"_{m[0].lower()}", key): value
        for key, value in record.items()
        if value is not None
    }


def _time_s(fields: dict[str, Any]) -> float:
    if "now_ns" in fields:
        return int(fields["now_ns"]) / NS_PER_SECOND
    return seconds(str(fields["time"]).replace("T", " "))


def _accepted(fields: dict[str, Any]) -> Row:
    prompt = int(fields.get("prompt_tokens", 0))
    expected = int(fields.get("expected_output_tokens", 0))
    cost = int(fields["cost"])
    return Row(
        _time_s(fields),
        str(fields["user_id"]),
        prompt or max(1, cost - expected),
        expected or max(1, cost - prompt),
        expected,
        cost,
        _is_long(fields["predicted_class"]),
        int(fields.get("weight_milli", 0)),
    )


def _complete(accepted: dict[str, Row], fields: dict[str, Any]) -> None:
    row = accepted.get(fields["request_id"])
    if row is None:  # accepted before the export begins
        return
    prompt, output = int(fields.get("prompt_tokens", -1)), int(fields.get("output_tokens", -1))
    if prompt > 0:
        row = row._replace(prompt=prompt)
    if output >= 0:
        row = row._replace(response=max(1, output))
    accepted[fields["request_id"]] = row


def _is_long(value: int | str) -> bool:
    if isinstance(value, str):
        return value.upper().endswith("LONG")
    return value == PredictedClass.LONG
