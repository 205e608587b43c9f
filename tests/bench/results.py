"""What the suite found: measures beside what is asked of them, tables, raw slices."""

import csv
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from tests.bench.load import Slice

Better = Callable[[float, float], bool]


@dataclass(frozen=True, slots=True)
class Measure:
    """One number.

    Attributes:
        benchmark: The benchmark that measured it.
        what: What it is; unique in the benchmark.
        value: The median over the rounds.
        unit: Its unit; `x` for a ratio.
        low: Least value of a round.
        high: Largest.
        rounds: How many.
        accept: What is asked for; None if nothing is.
        goal: What is hoped for.
        at_most: Whether smaller is better.
        note: How to read it.
    """

    benchmark: str
    what: str
    value: float
    unit: str
    low: float
    high: float
    rounds: int = 1
    accept: float | None = None
    goal: float | None = None
    at_most: bool = False
    note: str = ""

    def reaches(self, limit: float | None) -> bool:
        """Whether the value is as good as `limit`."""
        if limit is None:
            return False
        return self.value <= limit if self.at_most else self.value >= limit

    @property
    def verdict(self) -> str:
        """`goal`, `accepted`, `missed`, or nothing where nothing is asked."""
        if self.accept is None and self.goal is None:
            return ""
        if self.reaches(self.goal):
            return "goal"
        return "accepted" if self.reaches(self.accept) else "missed"


@dataclass(slots=True)
class Table:
    """A table to print: the first column names its row."""

    benchmark: str
    title: str
    columns: list[str]
    rows: list[list[object]] = field(default_factory=list)
    note: str = ""


@dataclass(slots=True)
class Results:
    """Everything one run of the suite found."""

    machine: dict[str, str]
    quick: bool
    measures: list[Measure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    slices: list[dict[str, object]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    guard: dict[str, float] = field(default_factory=dict)

    def add(
        self,
        benchmark: str,
        what: str,
        values: list[float],
        unit: str,
        *,
        accept: float | None = None,
        goal: float | None = None,
        at_most: bool = False,
        note: str = "",
    ) -> Measure:
        """Adds a measure: the median of `values`."""
        measure = Measure(
            benchmark,
            what,
            median(values),
            unit,
            min(values),
            max(values),
            len(values),
            accept,
            goal,
            at_most,
            note,
        )
        self.measures.append(measure)
        return measure

    def keep(self, benchmark: str, cell: str, number: int, slice_: Slice) -> None:
        """Keeps a raw slice: one row for each of its series."""
        for series, values in slice_.series.items():
            self.slices.append(
                {
                    "benchmark": benchmark,
                    "cell": cell,
                    "round": number,
                    "series": series,
                    **values,
                    "server_cpu": slice_.server_cpu,
                    "client_cpu": slice_.client_cpu,
                    "server_rss_mb": slice_.server_rss_mb,
                    "lost_percent": slice_.lost_percent,
                    "errors": json.dumps(slice_.errors) if slice_.errors else "",
                    "counts": json.dumps(slice_.counts) if slice_.counts else "",
                }
            )

    def write(self, folder: Path) -> None:
        """Writes measures, tables and slices as CSV, and everything as JSON."""
        folder.mkdir(parents=True, exist_ok=True)
        rows = [{**asdict(measure), "verdict": measure.verdict} for measure in self.measures]
        write_csv(folder / "measures.csv", rows)
        write_csv(folder / "slices.csv", self.slices)
        for number, table in enumerate(self.tables):
            name = f"table_{number:02}_{table.benchmark}.csv"
            named = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
            write_csv(folder / name, named)
        whole = {
            "machine": self.machine,
            "quick": self.quick,
            "seconds": self.seconds,
            "guard": self.guard,
            "failures": self.failures,
            "measures": rows,
            "tables": [asdict(table) for table in self.tables],
        }
        (folder / "results.json").write_text(json.dumps(whole, indent=1, default=str) + "\n")


def write_csv(path: Path, rows: list[dict[str, object]]) -> None:
    """Writes rows that may have different columns."""
    if not rows:
        return
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def text(value: object) -> str:
    """Returns a value with as many digits as mean something."""
    if isinstance(value, bool) or not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 100 else f"{value:.2f}" if size >= 1 else f"{value:.3f}"
