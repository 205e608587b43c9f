"""Results for people: tables on the terminal, a Markdown report, pictures."""

from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from tests.bench import pictures
from tests.bench.results import Measure, Results, Table, text

_COLOURS = {"goal": "green", "accepted": "green", "missed": "red"}
_HEAD = ["measure", "value", "low to high", "accept", "try for", "verdict"]


def show(results: Results, console: Console) -> None:
    """Prints everything."""
    for table in results.tables:
        shown = RichTable(title=table.title, caption=table.note or None, title_justify="left")
        for number, column in enumerate(table.columns):
            shown.add_column(column, justify="left" if number == 0 else "right")
        for row in table.rows:
            shown.add_row(*map(text, row))
        console.print(shown)
    shown = RichTable(title="Measures (medians)", title_justify="left")
    for number, column in enumerate(_HEAD):
        shown.add_column(column, justify="left" if number == 0 else "right")
    for measure in results.measures:
        cells = _cells(measure)
        colour = _COLOURS.get(measure.verdict, "")
        cells[-1] = f"[{colour}]{cells[-1]}[/]" if colour else cells[-1]
        shown.add_row(*cells)
    console.print(shown)
    for name, failure in results.failures.items():
        console.print(f"{name} could not run: {failure}", style="red", markup=False)


def _cells(measure: Measure) -> list[str]:
    sign = "<= " if measure.at_most else ">= "
    return [
        measure.what,
        f"{text(measure.value)} {measure.unit}",
        f"{text(measure.low)} to {text(measure.high)}" if measure.rounds > 1 else "",
        sign + text(measure.accept) if measure.accept is not None else "",
        sign + text(measure.goal) if measure.goal is not None else "",
        measure.verdict,
    ]


def write(results: Results, folder: Path) -> None:
    """Writes CSV, JSON, pictures and the report."""
    results.write(folder)
    drawn = pictures.draw(results, folder)
    lines = ["# Benchmark report", ""]
    if results.quick:
        lines += [
            "Quick mode: one short round each; it shows that everything runs, not how fast.",
            "",
        ]
    lines += [f"- {key}: {value}" for key, value in results.machine.items()]
    lines += [f"- {key}: {text(value)}" for key, value in results.guard.items()]
    lines += ["", "## Measures", "", *_markdown(_HEAD, [_cells(m) for m in results.measures]), ""]
    notes = {f"{m.what}: {m.note}" for m in results.measures if m.note}
    lines += [f"- {note}" for note in sorted(notes)]
    for table in results.tables:
        lines += ["", f"## {table.title}", "", *table_lines(table)]
    if results.failures:
        lines += ["", "## Could not run", ""]
        lines += [f"- {name}: {failure}" for name, failure in results.failures.items()]
    for path in drawn:
        lines += ["", f"![{path.stem}]({path.name})"]
    (folder / "report.md").write_text("\n".join(lines) + "\n")


def table_lines(table: Table) -> list[str]:
    """Returns a table in Markdown."""
    lines = _markdown(table.columns, [[text(cell) for cell in row] for row in table.rows])
    return [*lines, "", table.note] if table.note else lines


def _markdown(columns: list[str], rows: list[list[str]]) -> list[str]:
    marks = "|".join(["---"] + ["---:"] * (len(columns) - 1))
    lines = [f"| {' | '.join(columns)} |", f"|{marks}|"]
    return lines + [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
