"""Runs many runs on all cores, with progress, so that a stopped evaluation goes on where it was.

Results are appended to `runs.jsonl` in the output folder as they come, one line a run under its
key; a run whose key is there is not run again.  The order of lines depends on timing, results do
not.
"""

from __future__ import annotations

import os
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Final

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from scheduler_service.sim.specs import RunSpec, key_of, run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from scheduler_service.sim.metrics import Measures

_BATCH: Final = 4  # runs sent to a process at a time: neighbours often share a stream


class StoredRun(msgspec.Struct, frozen=True):
    """One line of `runs.jsonl`."""

    key: str
    spec: RunSpec
    measures: dict[str, float]


class Results:
    """What has been run, in one folder.

    Args:
        folder: Output folder, made if missing; None keeps results in memory only.
    """

    def __init__(self, folder: Path | None) -> None:
        self._known: dict[str, Measures] = {}
        self._file: Path | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = folder / "runs.jsonl"
            self._known = dict(self._read(self._file))

    @staticmethod
    def _read(file: Path) -> Iterator[tuple[str, Measures]]:
        if not file.exists():
            return
        decoder = msgspec.json.Decoder(StoredRun)
        for line in file.read_bytes().splitlines():
            try:
                stored = decoder.decode(line)
            except msgspec.DecodeError:
                continue  # the line that was being written when the last evaluation was stopped
            yield stored.key, stored.measures

    def __getitem__(self, spec: RunSpec) -> Measures:
        """Returns the measures of a run that has been run."""
        return self._known[key_of(spec)]

    def missing(self, specs: Iterable[RunSpec]) -> list[RunSpec]:
        """Returns the runs that have not been run, each once."""
        unique = {key_of(spec): spec for spec in specs}
        return [spec for key, spec in unique.items() if key not in self._known]

    def add(self, done: list[tuple[RunSpec, Measures]]) -> None:
        """Keeps results."""
        lines = []
        for spec, measures in done:
            key = key_of(spec)
            self._known[key] = measures
            lines.append(msgspec.json.encode(StoredRun(key, spec, measures)) + b"\n")
        if self._file is not None:
            with self._file.open("ab") as file:
                file.write(b"".join(lines))


def _run_batch(specs: list[RunSpec]) -> list[tuple[RunSpec, Measures]]:
    return [(spec, run(spec)) for spec in specs]


def run_all(
    specs: Iterable[RunSpec], results: Results, *, title: str, jobs: int = 0, quiet: bool = False
) -> None:
    """Runs what is missing.

    Args:
        specs: The runs wanted.
        results: Where they go.
        title: Text beside the progress bar.
        jobs: Processes; 0 is one a core, 1 runs in this process.
        quiet: Shows no progress.
    """
    todo = results.missing(specs)
    if not todo:
        return
    jobs = jobs or len(os.sched_getaffinity(0))
    batches = [todo[i : i + _BATCH] for i in range(0, len(todo), _BATCH)]
    with _progress(quiet=quiet) as progress:
        bar = progress.add_task(title, total=len(todo))
        if jobs == 1:
            for batch in batches:
                results.add(_run_batch(batch))
                progress.advance(bar, len(batch))
            return
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as executor:
            for done in _finished(executor, batches, 2 * jobs):
                results.add(done)
                progress.advance(bar, len(done))


def _finished(
    executor: ProcessPoolExecutor, batches: list[list[RunSpec]], ahead: int
) -> Iterator[list[tuple[RunSpec, Measures]]]:
    """Yields finished batches as they come, with at most `ahead` submitted."""
    pending: set[Future[Any]] = set()
    for batch in batches:
        pending.add(executor.submit(_run_batch, batch))
        if len(pending) >= ahead:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    for future in pending:
        yield future.result()


def _progress(*, quiet: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=quiet,
    )
