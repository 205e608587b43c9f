"""`fairsched demo`: the real service, a real request stream, FCFS against fair_qba."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fairsched import FairschedError
from scheduler_service.core.phrases import count_text
from scheduler_service.demo import arrivals, fleet, picture, report, runs
from scheduler_service.demo.ledger import MICRO, mean, p99
from scheduler_service.demo.service import ServiceError
from scheduler_service.sim.traces import TraceError

if TYPE_CHECKING:
    from scheduler_service.demo.arrivals import Replay
    from scheduler_service.demo.runs import Outcome

app = typer.Typer(add_completion=False)
console = Console(highlight=False)

BUSY = 0.9
"""Part of their work that workers do on a machine that keeps up; below it the demo says so."""

POLICIES = ("fcfs", "fair_qba")


@app.command()
def demo(
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Replay this instead: an Azure trace, or a .csv or .parquet with columns for "
            "arrival, prompt and response tokens, and if it has one, user.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(file_okay=False, help="Folder for the pictures and the numbers.")
    ] = Path("fairsched-demo"),
    seconds: Annotated[
        float, typer.Option(min=1, max=3600, help="How long each of the two runs replays.")
    ] = runs.REPLAY_S,
) -> None:
    """Replays a request stream twice, with a kill in the middle, and shows who got what.

    Starts the real service on a temporary data directory, sends the stream through two gateways
    and four workers over gRPC, once first come first served and once fair, kills the service in
    the middle of each, and checks that nothing was lost.
    """
    started = time.monotonic()
    try:
        replay = arrivals.from_file(trace) if trace else arrivals.shipped()
    except (TraceError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    _introduce(replay, seconds)
    try:
        outcomes = asyncio.run(_both(replay, seconds))
    except* (ServiceError, TimeoutError, FairschedError) as errors:
        console.print(f"The demo failed: {errors!r}", style="red", markup=False)
        raise typer.Exit(1) from None
    _conclude(replay, outcomes, out)
    console.print(f"\nThe demo took {time.monotonic() - started:.0f} s.", style="dim")
    if any(outcome.lost() or outcome.violations for outcome in outcomes):
        raise typer.Exit(1)


def _introduce(replay: Replay, seconds: float) -> None:
    speed = replay.length_s / seconds
    console.print(
        f"[bold]{count_text(len(replay.arrivals), 'request')}[/] of "
        f"{count_text(replay.user_count, 'user')} over {replay.length_s:.0f} s, "
        f"{speed:.1f} times faster than they came: {replay.source}; {replay.users}.\n"
        f"{fleet.GATEWAYS} gateways, {fleet.WORKERS} workers with {fleet.SLOTS} slots each. "
        f"Load {arrivals.LOAD:g} x what the workers can do. Lengths are taken as known. "
        f"Heavy, asking for more than a fair share of {replay.fair_share:.0%}: "
        f"{count_text(len(replay.heavy), 'user')}.\n"
    )


async def _both(replay: Replay, seconds: float) -> list[Outcome]:
    outcomes = []
    columns = (
        TextColumn("{task.description:>8}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with (
        tempfile.TemporaryDirectory(prefix="fairsched-demo-") as folder,
        Progress(*columns, console=console) as bars,
    ):
        for policy in POLICIES:
            bar = bars.add_task(policy, total=len(replay.arrivals), note="")

            def tell(progress: runs.Progress, bar: Any = bar) -> None:
                gap = ""
                if progress.bound_micros:
                    gap = (
                        f", gap {progress.gap_micros / MICRO:,.0f}"
                        f" of {progress.bound_micros / MICRO:,.0f}"
                    )
                note = f"{progress.waiting} waiting{gap} - {progress.note}"
                bars.update(bar, completed=progress.done, note=note)

            outcomes.append(await runs.run(policy, replay, Path(folder) / policy, seconds, tell))
    return outcomes


def _conclude(replay: Replay, outcomes: list[Outcome], out: Path) -> None:
    before, after = outcomes
    console.print()
    console.print(report.table(replay, before.ledger, after.ledger))
    console.print(
        "FCFS → fair_qba. Waits are in seconds of the trace, without the time from the kill until "
        "all clients were back. Shares are of the cost dispatched while requests kept arriving.\n",
        style="dim",
    )
    for sentence in report.sentences(replay, before, after):
        console.print(sentence)
    for outcome in outcomes:
        console.print(report.survived(outcome))
    least = min(outcome.work_done for outcome in outcomes)
    if least < BUSY:
        console.print(
            f"This machine was busy with other things: the workers did only {least:.0%} of what "
            "they could. Waits are longer than they should be; run it again.",
            style="yellow",
        )
    console.print(f"Head of the decision log: {after.head}", style="dim")
    out.mkdir(parents=True, exist_ok=True)
    gap = after.ledger.gap
    caption = (
        f"{count_text(len(replay.arrivals), 'request')} of "
        f"{count_text(len(after.ledger.users), 'user')} at "
        f"{arrivals.LOAD:g} x capacity, replayed by `fairsched demo` over gRPC; "
        f"heavy: asks for more than its fair share. "
        f"Grey: bound, {gap.bound_micros / MICRO:,.0f} tokens; largest gap seen "
        f"{gap.gap_micros / MICRO:,.0f}."
    )
    ledgers = [outcome.ledger for outcome in outcomes]
    for name, theme in (("light", picture.LIGHT), ("dark", picture.DARK)):
        figure = picture.draw(replay, ledgers, gap.bound_micros, caption, theme)
        picture.save(figure, out / f"demo-{name}.svg", theme)
        if name == "light":
            picture.save(figure, out / "demo.png", theme)
    (out / "demo.json").write_text(json.dumps(_numbers(replay, outcomes), indent=1) + "\n")
    console.print(f"Pictures and numbers: {out}/demo.png, demo-light.svg, demo-dark.svg, demo.json")


def _numbers(replay: Replay, outcomes: list[Outcome]) -> dict[str, Any]:
    """Returns what was found, for scripts."""
    found: dict[str, Any] = {"requests": len(replay.arrivals), "heavy": sorted(replay.heavy)}
    for outcome in outcomes:
        ledger = outcome.ledger
        found[ledger.policy] = {
            "users": {
                user: {
                    "requests": one.requests,
                    "cost": one.cost,
                    "mean_wait_s": round(mean(one.waits_s), 3),
                    "p99_wait_s": round(p99(one.waits_s), 3),
                }
                for user, one in sorted(ledger.users.items())
            },
            "gap": dataclasses.asdict(ledger.gap),
            "live_gap_micros": outcome.gap_micros,
            "live_bound_micros": outcome.bound_micros,
            "violations": outcome.violations,
            "acknowledged": len(outcome.acknowledged),
            "lost": sorted(outcome.lost()),
            "run_twice": sorted(r for r, count in outcome.runs.items() if count > 1),
            "redelivered": ledger.redelivered,
            "work_done": round(outcome.work_done, 3),
            "held_s": round(ledger.held_s, 3),
        }
    return found
