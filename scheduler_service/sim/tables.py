"""Writes result tables: CSV for people, Parquet for tools, Markdown for the report."""

from __future__ import annotations

import csv
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def write_table(folder: Path, name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Writes `name.csv` and `name.parquet`; nothing without rows.

    Args:
        folder: Output folder.
        name: File name without its end.
        rows: Records; missing fields are empty.
    """
    import pyarrow as pa  # noqa: PLC0415 - optional, of the extra `sim`
    import pyarrow.parquet as pq  # noqa: PLC0415 - optional, of the extra `sim`

    if not rows:
        return
    fields = list(dict.fromkeys(key for row in rows for key in row))
    with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        writer.writerows(rows)
    columns = {field: [row.get(field) for row in rows] for field in fields}
    pq.write_table(pa.table(columns), folder / f"{name}.parquet")


def markdown(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Returns a Markdown table; floats get three significant digits at least."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def cell(value: object) -> str:
    """Returns a value as a person reads it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if math.isnan(value) or math.isinf(value):
            return "-" if math.isnan(value) else "inf"
        if value == 0 or abs(value) >= 100:  # noqa: PLR2004 - digits to show
            return f"{value:.0f}"
        return f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"
    return str(value).replace("|", "\\|")
