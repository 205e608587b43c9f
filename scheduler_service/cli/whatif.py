"""`fairsched whatif`: decide a real log again under another policy, and show what would differ."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from scheduler_service.app import codec
from scheduler_service.app.ports import StoreError
from scheduler_service.cli import output
from scheduler_service.cli.session import EXIT_REFUSED
from scheduler_service.core.decisions import Decision
from scheduler_service.core.phrases import count_text
from scheduler_service.core.policy import PRESETS, PoolPolicy
from scheduler_service.sim.plots import Bar, draw_bars
from scheduler_service.sim.whatif import (
    Group,
    Logged,
    LogUnusableError,
    changed,
    groups,
    pools_of,
    read,
    replay,
)
from scheduler_service.store.reader import LogReader

app = typer.Typer(help="Decide a real log again under another policy.", add_completion=False)

_PAGE_BYTES = 4 << 20
_USERS_DRAWN = 20


@app.command()
def whatif(
    data_dir: Annotated[
        Path, typer.Argument(help="The service's data directory.", exists=True, file_okay=False)
    ],
    *,
    policy: Annotated[
        str, typer.Option(help=f"Preset to try: {', '.join(PRESETS)}. Without: the log's own.")
    ] = "",
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="A policy field to change, as quota_k=4; repeat."),
    ] = None,
    weight: Annotated[
        list[str] | None, typer.Option(help="A weight to change, as USER=2.5; repeat.")
    ] = None,
    pool: Annotated[str, typer.Option(help="Which pool; needed if the log has several.")] = "",
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("fairsched-whatif"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Shows per class and user what another policy, weight or value would have changed.

    Arrivals are those of the log; latencies are modelled: as many slots as leases were live at
    once, each request as long as it really took.
    """
    if not (policy or setting or weight):
        message = "say what to change: --policy, --set or --weight"
        raise typer.BadParameter(message)
    try:
        with closing(LogReader.of(data_dir)) as log:
            name = pool or _only_pool(log)
            logged = read(_decisions(log), name)
        other = changed(logged.policy, _preset(policy), _numbers(setting or []))
        weights = {user: round(1000 * value) for user, value in _pairs(weight or [])}
        before = replay(logged, logged.policy, {})
        after = replay(logged, other, weights)
    except (LogUnusableError, StoreError, ValueError) as error:
        output.err.print(output.safe(f"fairsched: {error}"), style="red")
        raise typer.Exit(EXIT_REFUSED) from error
    found = groups(logged, before, after)
    picture = _draw(out, found, other)
    if as_json:
        body = {"pool": name, "slots": logged.slots, "left_out": logged.left_out}
        body |= {"groups": [group._asdict() for group in found], "picture": str(picture)}
        output.out.out(json.dumps(body))
        return
    _show(name, logged, other, found, picture)


def _decisions(log: LogReader) -> Iterator[Decision]:
    after = log.base().sequence
    while page := log.read(after, max_bytes=_PAGE_BYTES):
        for group in page:
            yield from codec.decode_frame(group.frame)
        after = page[-1].end.sequence


def _only_pool(log: LogReader) -> str:
    names = pools_of(_decisions(log))
    if len(names) != 1:
        message = f"the log has the pools {', '.join(names) or 'none'}; name one with --pool"
        raise LogUnusableError(message)
    return names[0]


def _preset(name: str) -> PoolPolicy | None:
    if not name:
        return None
    if name not in PRESETS:
        message = f"there is no preset {name!r}; there are {', '.join(PRESETS)}"
        raise ValueError(message)
    return PRESETS[name]


def _pairs(texts: list[str]) -> list[tuple[str, float]]:
    found = []
    for text in texts:
        name, sign, value = text.rpartition("=")
        if not sign or not name:
            message = f"{text!r} is not NAME=VALUE"
            raise ValueError(message)
        found.append((name, float(value)))
    return found


def _numbers(texts: list[str]) -> dict[str, int]:
    found = {}
    for name, value in _pairs(texts):
        if name not in PoolPolicy.__struct_fields__:
            message = f"a policy has no field {name!r}"
            raise ValueError(message)
        found[name] = int(value)
    return found


def _draw(out: Path, found: list[Group], other: PoolPolicy) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    bars = [Bar(group.name, [group.before_mean, group.after_mean]) for group in found]
    title = f"Mean wait as logged and under {other.preset}, modelled"
    series = ("policy of the log", "what if")
    draw_bars(out, "whatif", title, "seconds", series, bars[: _USERS_DRAWN + 3])
    return out / "whatif.png"


def _show(name: str, logged: Logged, other: PoolPolicy, found: list[Group], picture: Path) -> None:
    table = output.table(
        "", "requests", "cost", "wait logged", "wait, model", "P99, model",
        title=f"Pool {name}: {logged.policy.preset} → {other.preset}",
    )  # fmt: skip
    for group in found:
        output.row(
            table,
            group.name,
            f"{group.requests:,}",
            f"{group.cost:,}",
            f"{group.logged_mean:.2f}",
            f"{group.before_mean:.2f} → {group.after_mean:.2f}",
            f"{group.before_p99:.2f} → {group.after_p99:.2f}",
        )
    output.out.print(table)
    output.out.print(
        f"Seconds. Arrivals as logged, {logged.slots} at once, durations as they were: orders are "
        f"decided by the real core, latencies are modelled. "
        f"{count_text(logged.left_out, 'request')} that never finished left out. Picture: {picture}"
    )
