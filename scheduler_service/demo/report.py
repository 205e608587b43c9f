"""The table of the demo: every user under both policies, light and heavy apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from scheduler_service.core.phrases import count_text
from scheduler_service.demo.ledger import MICRO, Ledger, mean, p99

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler_service.demo.arrivals import Replay
    from scheduler_service.demo.runs import Outcome

LESS = 0.95
MORE = 1.05
SHORT_S = 0.5
"""Changes of the mean wait by less than this are not called better or worse, seconds."""


def table(replay: Replay, before: Ledger, after: Ledger) -> Table:
    """Returns the table: one row a user, and the light and the heavy ones together."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    made.add_column("user", no_wrap=True)
    for name in ("reqs", "cost k", "share %", "mean wait", "P99 wait"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("")
    heaviest = sorted(after.users, key=lambda user: (-after.users[user].cost, user))
    heavy = [user for user in heaviest if user in replay.heavy]
    light = [user for user in heaviest if user not in replay.heavy]
    for name, group in (("heavy", heavy), ("light", light)):
        if not group:
            continue
        _row(
            made, replay, count_text(len(group), f"{name} user"), group, before, after, style="bold"
        )
        for user in group:
            _row(made, replay, f"  {user}", [user], before, after)
    _row(made, replay, "all", heaviest, before, after, style="bold")
    return made


def worse(before: Ledger, after: Ledger) -> list[str]:
    """Returns the users whose mean wait is longer after than before, the worst first."""
    changes = {
        user: mean(after.users[user].waits_s) - mean(before.users[user].waits_s)
        for user in after.users
        if user in before.users and verdict([user], before, after) == "worse"
    }
    return sorted(changes, key=lambda user: -changes[user])


def verdict(users: Sequence[str], before: Ledger, after: Ledger) -> str:
    """Returns whether these users wait `better`, `worse` or about as long as before."""
    old, new = mean(before.waits(users)), mean(after.waits(users))
    if abs(new - old) < SHORT_S or LESS * old <= new <= MORE * old:
        return ""
    return "better" if new < old else "worse"


def sentences(replay: Replay, before: Outcome, after: Outcome) -> list[Text]:
    """Returns what the runs showed, one sentence each."""
    light = [user for user in after.ledger.users if user not in replay.heavy]
    old, new = before.ledger.waits(light), after.ledger.waits(light)
    gap = after.ledger.gap
    waits = (
        f"Light users wait {mean(new):.1f} s instead of {mean(old):.1f} s on average "
        f"(P99 {p99(new):.1f} s instead of {p99(old):.1f} s)."
    )
    live = (
        f"Live fairness gap: at most {after.gap_micros / MICRO:,.0f} cost units when looked at, "
        f"bound {after.bound_micros / MICRO:,.0f}; the service checked every dispatch and found "
        f"{count_text(after.violations, 'violation')}."
    )
    logged = (
        f"From the log: two users that both waited were never more than "
        f"{gap.gap_micros / MICRO:,.0f} cost units apart (bound {gap.bound_micros / MICRO:,.0f}, "
        f"{count_text(gap.violations, 'violation')}); under FCFS "
        f"{before.ledger.gap.gap_micros / MICRO:,.0f}."
    )
    worst = _worse_sentence(replay, before.ledger, after.ledger)
    return [Text(sentence) for sentence in (waits, worst, live, logged)]


def survived(outcome: Outcome) -> Text:
    """Returns what became of the kill: from the clients' own record against the log."""
    lost = outcome.lost()
    twice = sum(1 for count in outcome.runs.values() if count > 1)
    ledger = outcome.ledger
    text = (
        f"{ledger.policy}: killed with SIGKILL, all clients back after {ledger.held_s:.1f} s. "
        f"{len(outcome.acknowledged):,} requests were acknowledged, "
        f"{len(outcome.acknowledged) - len(lost):,} ended exactly once, {len(lost)} were lost. "
        f"Redelivered: {ledger.redelivered}, run twice: {twice}, "
        f"calls repeated by gateways: {outcome.repeated}."
    )
    return Text(text, style="red bold" if lost else "green")


def _worse_sentence(replay: Replay, before: Ledger, after: Ledger) -> str:
    users = worse(before, after)
    if not users:
        return "No user waits longer."
    listed = ", ".join(
        f"{user} ({'heavy' if user in replay.heavy else 'light'}: "
        f"{mean(before.users[user].waits_s):.1f} s -> {mean(after.users[user].waits_s):.1f} s)"
        for user in users
    )
    return f"Made worse: {listed}."


def _share(users: Sequence[str], ledger: Ledger, end_s: float) -> float:
    """Returns the part of the cost dispatched while requests kept arriving."""
    total = sum(user.dispatched_by(end_s) for user in ledger.users.values())
    return sum(ledger.users[user].dispatched_by(end_s) for user in users) / total if total else 0


def _change(old: float, new: float) -> str:
    return f"{_number(old)} → {_number(new):>4}"


def _number(value: float) -> str:
    least = 100
    return f"{value:.0f}" if value >= least else f"{value:.1f}"


def _row(
    made: Table,
    replay: Replay,
    name: str,
    users: Sequence[str],
    before: Ledger,
    after: Ledger,
    style: str = "",
) -> None:
    old, new = before.waits(users), after.waits(users)
    said = verdict(users, before, after)
    made.add_row(
        Text(name),
        f"{sum(after.users[user].requests for user in users):,}",
        f"{sum(after.users[user].cost for user in users) / 1000:,.0f}",
        _change(
            100 * _share(users, before, replay.length_s),
            100 * _share(users, after, replay.length_s),
        ),
        _change(mean(old), mean(new)),
        _change(p99(old), p99(new)),
        Text(said, style={"better": "green", "worse": "red"}.get(said, "")),
        style=style,
    )
