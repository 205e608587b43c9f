"""The benchmark suite: `python -m tests.bench [NAME …]`.

Without names all benchmarks run but the long ones and the rivals; `--all` adds the long ones.
Prints tables and writes CSV, JSON, a Markdown report and pictures into the output folder.
`--quick` is the short mode of the continuous integration: under two minutes, it only reports.
"""

import argparse
import os
import sys
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from tests.bench import (  # noqa: F401 - importing registers them - each registers its benchmarks
    alone,
    growth,
    machine,
    memory,
    pauses,
    report,
    startup,
    streams,
    turns,
    unary,
)
from tests.bench.results import Results
from tests.bench.rivals import benchmarks  # noqa: F401
from tests.bench.suite import BENCHMARKS, Benchmark, Context, Settings

QUICK = Settings(quick=True, rounds=1, seconds=0.6, warmup=0.3, attempts=1)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("names", nargs="*", help="benchmarks to run; see --list")
    parser.add_argument("--list", action="store_true", help="list the benchmarks and stop")
    parser.add_argument("--all", action="store_true", help="run the long ones too")
    parser.add_argument("--quick", action="store_true", help="short mode, reports only")
    parser.add_argument("--rounds", type=int, help="guarded rounds (5)")
    parser.add_argument("--seconds", type=float, help="length of a slice (2)")
    parser.add_argument("--attempts", type=int, help="slices tried before a noisy one is kept (4)")
    parser.add_argument(
        "--limit",
        type=float,
        default=machine.LOST_PERCENT_MAX,
        help="percent of a core's work that a spin test may lose (20)",
    )
    parser.add_argument("--no-guard", action="store_true", help="measure whatever else runs")
    parser.add_argument("--data", type=Path, help="folder on the disk to measure")
    parser.add_argument("--out", type=Path, default=Path("out") / "bench", help="output folder")
    parser.add_argument(
        "--install", action="store_true", help="install what the rivals need (apt, npm, pip)"
    )
    return parser.parse_args(words)


def chosen(given: argparse.Namespace) -> list[Benchmark]:
    """Returns the benchmarks to run."""
    unknown = [name for name in given.names if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}")
    if given.names:
        return [BENCHMARKS[name] for name in given.names]
    return [
        found
        for found in BENCHMARKS.values()
        if (given.all or not found.long) and (found.in_quick or not given.quick)
    ]


def settings_of(given: argparse.Namespace) -> Settings:
    """Returns how thoroughly to measure."""
    settings = QUICK if given.quick else Settings()
    for name in ("rounds", "seconds", "attempts", "data"):
        if getattr(given, name) is not None:
            setattr(settings, name, getattr(given, name))
    settings.install = given.install
    return settings


def main() -> int:
    """Runs what was chosen; 1 if a benchmark could not run (never for a slow one)."""
    given = arguments()
    console = Console(width=max(120, Console().width), highlight=False)
    if given.list:
        for found in BENCHMARKS.values():
            console.print(f"{found.name:20} {found.title}{'  (long)' if found.long else ''}")
        return 0
    wanted, settings = chosen(given), settings_of(given)
    try:
        tools = machine.build()
    except machine.MissingTools as error:
        console.print(f"[red]{error}")
        return 2
    guard = machine.Guard(
        None if given.no_guard else tools.jitter, given.limit, machine.cache_folder() / "best-work"
    )
    results = Results(machine.describe(), settings.quick)
    results.machine["data"] = str(settings.data)
    results.machine["started"] = datetime.now(UTC).isoformat(timespec="seconds")
    for found in wanted:
        _run(found, settings, guard, results, console)
        results.guard["best work"] = guard.best
        results.guard["median lost percent"] = (
            sorted(guard.seen)[len(guard.seen) // 2] if guard.seen else -1.0
        )
        results.write(given.out)
    report.write(results, given.out)
    report.show(results, console)
    console.print(f"\nwritten to {given.out}{os.sep}")
    return 1 if results.failures else 0


def _run(
    found: Benchmark, settings: Settings, guard: machine.Guard, results: Results, console: Console
) -> None:
    console.print(f"[bold]{found.name}[/]: {found.title}")
    ctx = Context(found.name, settings, guard, results, console.print)
    began = time.perf_counter()
    try:
        found.run(ctx)
    except Exception as error:  # noqa: BLE001 - one that fails must not take the others with it
        results.failures[found.name] = f"{type(error).__name__}: {error}"
        console.print(f"[red]{found.name} failed[/]")
        console.print(traceback.format_exc(), markup=False)
    finally:
        ctx.close()
        results.seconds[found.name] = time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
