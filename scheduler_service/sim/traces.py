"""Readers of real request streams: Azure, multi-tenant, generic tables, the service's own log.

Every reader gives (arrival seconds, user, prompt tokens, response tokens) rows; `from_rows` makes
a stream of them.  Nothing is ever dropped silently: a row without a usable length is an error with
its line number, except responses of 0 tokens, which count as 1.

Source:
    QBA §IV-E (windows of a trace, scaled lengths, normalised rate).
"""

from __future__ import annotations

import csv
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from scheduler_service.sim.model import NS_PER_SECOND, Workload
from scheduler_service.sim.workload import TOKEN_CAP, LabelBy, label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

NO_USER: Final = "all"  # the user of every row of a trace that names none
PAPER_SCALE: Final = 0.44
PAPER_RATE: Final = 32.0
PAPER_WINDOWS: Final = 100


class Row(NamedTuple):
    """One request of a trace; times are seconds from any origin.

    The last four are what a decision log knows on top; 0 and None are "not known".
    """

    arrival_s: float
    user: str
    prompt: int
    response: int
    predicted_response: int = 0
    cost: int = 0
    predicted_long: bool | None = None
    weight_milli: int = 0


class TraceError(ValueError):
    """A trace cannot be read; the text names the file, the line and what is wrong."""


_ALIASES: Final = {
    "arrival_s": ("arrival_s", "timestamp", "arrival_time", "arrival", "time"),
    "user": ("user_id", "user", "tenant", "client", "client_id"),
    "prompt": ("prompt_tokens", "contexttokens", "input_tokens", "request_tokens", "prompt"),
    "response": (
        "response_tokens",
        "generatedtokens",
        "output_tokens",
        "completion_tokens",
        "response",
    ),
}


def _columns(header: Sequence[str], path: Path) -> dict[str, str]:
    """Returns which column holds what; only the user may be missing."""
    by_name = {name.strip().lower().replace(" ", "_"): name for name in header}
    found = {
        meaning: next((by_name[alias] for alias in aliases if alias in by_name), "")
        for meaning, aliases in _ALIASES.items()
    }
    missing = [meaning for meaning in ("arrival_s", "prompt", "response") if not found[meaning]]
    if missing:
        msg = f"{path}: no column for {', '.join(missing)}; columns are {', '.join(header)}"
        raise TraceError(msg)
    return found


def seconds(text: str) -> float:
    """Reads a number of seconds, or a date and time (fractions beyond microseconds are kept)."""
    try:
        return float(text)
    except ValueError:
        moment, _, fraction = text.strip().rstrip("Z").partition(".")
        whole = datetime.fromisoformat(moment + "+00:00").timestamp()
        return whole + (float(f"0.{fraction}") if fraction else 0.0)


def _row(record: dict[str, str], columns: dict[str, str]) -> Row:
    return Row(
        seconds(record[columns["arrival_s"]]),
        record[columns["user"]].strip() if columns["user"] else NO_USER,
        int(float(record[columns["prompt"]])),
        int(float(record[columns["response"]])),
    )


def _checked(rows: Iterable[tuple[int, Callable[[], Row]]], path: Path) -> Iterator[Row]:
    for line, make in rows:
        try:
            row = make()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            msg = f"{path}:{line}: {error}"
            raise TraceError(msg) from error
        if row.prompt < 0 or row.response < 0:
            msg = f"{path}:{line}: token counts must not be negative"
            raise TraceError(msg)
        yield row


def read_csv(path: Path) -> list[Row]:
    """Reads a CSV file with a header: Azure's, the multi-tenant one, or any with those columns.

    Raises:
        TraceError: A column or a value is missing or not a number.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        columns = _columns(reader.fieldnames or [], path)
        numbered = ((i, lambda r=r: _row(r, columns)) for i, r in enumerate(reader, start=2))
        return list(_checked(numbered, path))


def read_parquet(path: Path) -> list[Row]:
    """Reads a Parquet file with the same columns as a CSV file.

    Raises:
        TraceError: As `read_csv`.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415 - optional, of the extra `sim`

    table = pq.read_table(path)
    columns = _columns(table.column_names, path)
    records = table.select([name for name in columns.values() if name]).to_pylist()
    numbered = (
        (i, lambda r=r: _row({key: str(value) for key, value in r.items()}, columns))
        for i, r in enumerate(records, start=1)
    )
    return list(_checked(numbered, path))


def read_trace(path: Path) -> list[Row]:
    """Reads a table by what its name ends in: .csv or .parquet.

    Raises:
        TraceError: The file is of no known kind or cannot be read.
    """
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return read_csv(path)
    if suffix == ".parquet":
        return read_parquet(path)
    msg = f"{path}: not a .csv or .parquet file"
    raise TraceError(msg)


def from_rows(
    name: str,
    rows: Sequence[Row],
    *,
    by: LabelBy = "work",
    scale: float = 1.0,
    rate: float | None = None,
) -> Workload:
    """Makes a stream of trace rows.

    Args:
        name: Name of the stream.
        rows: The rows, in any order.
        by: What the label looks at; the cutoff is this stream's own 0.85 quantile.
        scale: Factor of all lengths (QBA §IV-E uses 0.44 on Azure).
        rate: If given, the timeline is stretched so that this many requests arrive a second.

    Returns:
        The stream.  Where rows do not say otherwise, predictions are the truth, cost is prompt
        plus response tokens, and weights are 1.  A user's last weight counts.
    """
    ordered = sorted(rows, key=lambda row: row.arrival_s)
    first = ordered[0].arrival_s if ordered else 0.0
    span = ordered[-1].arrival_s - first if ordered else 0.0
    factor = 1.0
    if rate is not None and span > 0:
        factor = (len(ordered) - 1) / rate / span
    users = sorted({row.user for row in ordered})
    number = {user: i for i, user in enumerate(users)}
    weights = {row.user: row.weight_milli for row in ordered if row.weight_milli}
    prompt = [_tokens(row.prompt * scale) for row in ordered]
    response = [_tokens(row.response * scale) for row in ordered]
    long, cutoff = label(prompt, response, by)
    sizes = list(zip(ordered, prompt, response, strict=True))
    return Workload(
        name=name,
        users=users,
        weights_milli=[weights.get(user, 1000) for user in users],
        arrival_ns=[round((r.arrival_s - first) * factor * NS_PER_SECOND) for r in ordered],
        user=[number[row.user] for row in ordered],
        prompt=prompt,
        response=response,
        predicted_response=[_tokens(row.predicted_response * scale or r) for row, _, r in sizes],
        cost=[max(1, round(row.cost * scale)) if row.cost else p + r for row, p, r in sizes],
        long=long,
        predicted_long=[
            truth if row.predicted_long is None else row.predicted_long
            for row, truth in zip(ordered, long, strict=True)
        ],
        cutoff=cutoff,
    )


def _tokens(length: float) -> int:
    return min(TOKEN_CAP, max(1, int(length)))


def windows(rows: Sequence[Row], count: int = PAPER_WINDOWS) -> list[list[Row]]:
    """Cuts a trace into `count` windows of the same number of requests; the rest is left out."""
    ordered = sorted(rows, key=lambda row: row.arrival_s)
    size = len(ordered) // count
    return [ordered[i * size : (i + 1) * size] for i in range(count)] if size else []
