"""How results are shown: tables for people, JSON for scripts.

JSON is one object a line.  Keys are the field names of the API; 64-bit numbers are numbers (not
text, as protobuf's own JSON has them), durations are seconds, times are RFC 3339, bytes are hex.
Absent fields are left out.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from google.protobuf.message import Message
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

out = Console(highlight=False)
"""Results go here."""

err = Console(stderr=True, highlight=False, soft_wrap=True)
"""Everything else goes here."""

MICRO = 1_000_000

MIN_TEXT = 8
"""Least width of a column of text, characters."""

_MINUTE_S = 60
_HOUR_S = 3600
_DAY_S = 86_400
_DURATION = "google.protobuf.Duration"
_TIMESTAMP = "google.protobuf.Timestamp"


def plain(message: Message) -> dict[str, Any]:
    """Returns a message as plain values, as the module's docstring says."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if _is_map(field):
            found[field.name] = dict(value)
        elif field.is_repeated:
            found[field.name] = [_plain_value(field, item) for item in value]
        else:
            found[field.name] = _plain_value(field, value)
    return found


def _is_map(field: Any) -> bool:
    kind = field.message_type
    return kind is not None and bool(kind.GetOptions().map_entry)


def _plain_value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        if field.message_type.full_name == _DURATION:
            return value.seconds + value.nanos / 1e9
        if field.message_type.full_name == _TIMESTAMP:
            return value.ToJsonString()
        return plain(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else value
    return value.hex() if isinstance(value, bytes) else value


def print_json(messages: Iterable[Message]) -> None:
    """Prints one JSON object a line."""
    for message in messages:
        out.out(json.dumps(plain(message), ensure_ascii=False))


def table(*columns: str, title: str | None = None) -> Table:
    """Returns an empty table.

    A column whose name begins with `>` is a number: aligned right, never broken.  One that begins
    with `=` is never broken either.
    """
    made = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0)
    )
    for name in columns:
        whole = name.startswith((">", "="))
        made.add_column(
            name.lstrip(">="),
            justify="right" if name.startswith(">") else "left",
            overflow="fold",
            no_wrap=whole,
            min_width=None if whole else MIN_TEXT,
        )
    return made


def show(made: Table, empty: str) -> None:
    """Prints a table; one without rows says what that means."""
    if made.row_count:
        out.print(made)
    else:
        out.print(empty, style="dim")


def row(made: Table, *cells: object) -> None:
    """Adds a row; text is taken as it is, never as markup."""
    made.add_row(*(cell if isinstance(cell, Text) else safe(cell) for cell in cells))


def safe(value: object) -> Text:
    """Returns a value as text that cannot drive the terminal or be read as markup.

    Ids are any text without control characters; directions and other invisible characters are
    shown as escapes.
    """
    text = "" if value is None else str(value)
    return Text("".join(c if c.isprintable() else repr(c)[1:-1] for c in text))


def facts(pairs: Sequence[tuple[str, object]]) -> None:
    """Prints names and values under each other."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(Text(name, style="dim"), safe(value))
    out.print(grid)


def units(micros: int) -> str:
    """Returns micro cost units in cost units."""
    return f"{micros / MICRO:,.0f}" if abs(micros) >= 10 * MICRO else f"{micros / MICRO:,.3g}"


def span(seconds: float | timedelta) -> str:
    """Returns a length of time for people."""
    value = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < _MINUTE_S:
        return f"{value:.1f} s"
    if value < _HOUR_S:
        return f"{value / _MINUTE_S:.1f} min"
    if value < _DAY_S:
        return f"{value / _HOUR_S:.1f} h"
    return f"{value / _DAY_S:.1f} d"


def weight(weight_milli: int) -> str:
    """Returns a weight as people state it."""
    return f"{weight_milli / 1000:g}"


def short(name: str, prefix: str) -> str:
    """Returns an enum value's name as people read it: `REQUEST_STATE_WAITING` is `waiting`."""
    return name.removeprefix(prefix).lower().replace("_", " ")
