"""`fairsched audit`: verify or export the decision log in a data directory, beside the service.

Both only read, and hold nothing open: they may run while the service does.
"""

import json
import re
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from scheduler_service.app.decision_filter import DecisionFilter
from scheduler_service.app.ports import StoreError
from scheduler_service.audit.export import Span, decisions, write_json, write_parquet
from scheduler_service.audit.verify import Published, Verdict, Verifier
from scheduler_service.cli import output
from scheduler_service.cli.session import EXIT_REFUSED
from scheduler_service.core.errors import SchedulerError
from scheduler_service.core.phrases import count_text
from scheduler_service.store.reader import LogReader
from scheduler_service.store.snapshots import SnapshotFiles

app = typer.Typer(
    help="Verify or export a decision log.", no_args_is_help=True, add_completion=False
)

_HASH_HEX = 64
_HEAD = re.compile(r"(\d+):([0-9a-f]{64})")

_DataDir = Annotated[
    Path,
    typer.Argument(
        metavar="DATA_DIR", help="The service's data directory.", exists=True, file_okay=False
    ),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def verify(
    data_dir: _DataDir,
    head: Annotated[
        list[str] | None,
        typer.Option(help="A published head, SEQUENCE:HASH, that must be in the log; repeat."),
    ] = None,
    heads: Annotated[
        Path | None,
        typer.Option(
            help="Log lines of the service; every sequence and chain_hash in them is compared.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    redecide: Annotated[
        bool, typer.Option(help="Decide every record again with the independent oracle.")
    ] = True,
    as_json: _AsJson = False,
) -> None:
    """Verifies that a log is what was written, and what the rules decide. Exit code 1 if not."""
    published = [_head(text) for text in head or ()]
    if heads is not None:
        published += _heads_in(heads.read_text(errors="replace").splitlines())
    with closing(_reader(data_dir)) as log, Progress(console=output.err, transient=True) as bar:
        task = bar.add_task("records", total=None)
        verifier = Verifier(
            log,
            snapshots=SnapshotFiles(data_dir).load_newest_first(),
            heads=published,
            redecide=redecide,
            progress=lambda done, last: bar.update(task, completed=done, total=last),
        )
        try:
            verdict = verifier.run()
        except (SchedulerError, StoreError) as error:
            raise _failed(error) from error
    if as_json:
        output.out.out(json.dumps(_plain(verdict)))
    else:
        _show(verdict, redecide=redecide)
    if not verdict.good:
        raise typer.Exit(EXIT_REFUSED)


@app.command()
def export(
    data_dir: _DataDir,
    to: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Where to; .jsonl or .parquet says how.", dir_okay=False
        ),
    ],
    after: Annotated[int, typer.Option(min=0, help="Only behind this sequence.")] = 0,
    until: Annotated[int, typer.Option(min=0, help="Only up to this one; 0: to the end.")] = 0,
    pool: Annotated[list[str] | None, typer.Option(help="Only of this pool; repeat.")] = None,
    user: Annotated[list[str] | None, typer.Option(help="Only of this user; repeat.")] = None,
) -> None:
    """Writes decisions as JSON lines or as a Parquet table."""
    kinds = {".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
    if to.suffix.lower() not in kinds:
        message = f"{to.name!r} must end in .jsonl, .ndjson or .parquet"
        raise typer.BadParameter(message)
    wanted = DecisionFilter(pools=frozenset(pool or ()), user_ids=frozenset(user or ()))
    with closing(_reader(data_dir)) as log:
        try:
            found = decisions(log, Span(after, until, wanted))
            if kinds[to.suffix.lower()] == "json":
                count = write_json(to, found, output.plain)
            else:
                count = write_parquet(to, found)
        except (SchedulerError, StoreError, OSError) as error:
            raise _failed(error) from error
    output.err.print(f"{count_text(count, 'decision')} in {to}")


def _reader(data_dir: Path) -> LogReader:
    try:
        return LogReader.of(data_dir)
    except StoreError as error:
        raise _failed(error) from error


def _failed(error: Exception) -> typer.Exit:
    output.err.print(output.safe(f"fairsched: {error}"), style="red")
    return typer.Exit(EXIT_REFUSED)


def _head(text: str) -> Published:
    found = _HEAD.fullmatch(text.strip().lower())
    if found is None:
        message = f"{text!r} is not SEQUENCE:HASH with {_HASH_HEX} hexadecimal digits"
        raise typer.BadParameter(message)
    return Published(int(found[1]), bytes.fromhex(found[2]))


def _heads_in(lines: Iterable[str]) -> list[Published]:
    """Returns every published head in log lines; lines that hold none are passed over."""
    found = []
    for line in lines:
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if isinstance(values, dict) and {"sequence", "chain_hash"} <= values.keys():
            text = f"{values['sequence']}:{values['chain_hash']}"
            if _HEAD.fullmatch(text) is not None and int(values["sequence"]) > 0:
                found.append(_head(text))
    return found


def _plain(verdict: Verdict) -> dict[str, object]:
    return {
        "good": verdict.good,
        "begins_at": verdict.begins_at,
        "ends_at": verdict.ends_at,
        "chain_hash": verdict.chain_hash.hex(),
        "believed_snapshot": verdict.believed,
        "redecided": verdict.redecided,
        "snapshots": verdict.snapshots,
        "heads": verdict.heads,
        "damage": verdict.damage,
        "differences": [str(difference) for difference in verdict.differences],
        "problems": verdict.problems,
    }


def _show(verdict: Verdict, *, redecide: bool) -> None:
    output.facts(
        [
            ("records", f"{verdict.begins_at:,} to {verdict.ends_at:,}"),
            ("decided again", f"{verdict.redecided:,}" if redecide else "not asked for"),
            ("snapshots that are the fold", verdict.snapshots),
            ("published heads found", verdict.heads),
        ]
    )
    output.out.print(f"head {verdict.ends_at}:{verdict.chain_hash.hex()}", soft_wrap=True)
    if verdict.believed:
        output.out.print(
            f"What lies before was pruned: the snapshot at {verdict.believed:,} was believed."
        )
    for problem in (verdict.damage, *verdict.problems, *map(str, verdict.differences)):
        if problem:
            output.out.print(output.safe(problem), style="red")
    word = ("good", "green") if verdict.good else ("NOT GOOD", "red")
    output.out.print(word[0], style=f"bold {word[1]}")
