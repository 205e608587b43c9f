"""`fairsched top`: one pool, live: users, meters against v, waiting, shares, gap against bound."""

import collections
import dataclasses
import itertools
import time
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from fairsched import errors
from fairsched.v1 import admin_service_pb2 as pb
from scheduler_service.cli import away, output
from scheduler_service.cli.session import Session, remote
from scheduler_service.cli.which import only_pool
from scheduler_service.core.phrases import count_text

SHARE_WINDOW_S = 10.0
"""Shares are those of the cost charged in the last seconds."""

PAGE = 1000
"""Users looked at; of a pool with more, only the busy ones."""

BAR = 7
"""Width of a bar, characters."""

GAP = "  "
"""Between two parts of a line."""

COLUMNS = (
    ("user", 0),
    (">weight", 70),
    (">waiting", 0),
    (">leased", 0),
    (">oldest", 45),
    ("=above v", 78),
    (">units", 50),
    ("=share", 90),
    (f">in {SHARE_WINDOW_S:.0f} s", 0),
)
"""Columns, and how wide the terminal must be for each."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """What one round of calls found.

    Attributes:
        at: When, seconds of the monotonic clock.
        service: The service.
        pool: The pool.
        users: Its users, or its busy ones.
    """

    at: float
    service: pb.ServiceStats
    pool: pb.PoolStats
    users: list[pb.User]


class Rates:
    """Shares and rates over the last seconds, from counters that only grow."""

    def __init__(self) -> None:
        self._samples: collections.deque[Sample] = collections.deque()

    def add(self, sample: Sample) -> None:
        """Takes a new sample; a restart of the service begins anew."""
        if self._samples and self._samples[-1].service.start_time != sample.service.start_time:
            self._samples.clear()
        self._samples.append(sample)
        while sample.at - self._samples[0].at > SHARE_WINDOW_S and self._samples[1] is not sample:
            self._samples.popleft()

    def users(self) -> dict[str, pb.User]:
        """Returns everybody who was busy in the window, as last seen."""
        seen = {user.user_id: user for sample in self._samples for user in sample.users}
        now = {user.user_id for user in self._samples[-1].users}
        for user_id, user in seen.items():
            if user_id not in now:
                idle = pb.User()
                idle.CopyFrom(user)
                idle.waiting_count = idle.in_flight_count = 0
                idle.ClearField("oldest_wait")
                seen[user_id] = idle
        return seen

    def charged(self) -> dict[str, int]:
        """Returns the cost charged to each of them in the window, cost units."""
        first: dict[str, int] = {}
        for sample in self._samples:
            for user in sample.users:
                first.setdefault(user.user_id, user.charged_cost)
        return {
            user_id: user.charged_cost - first[user_id] for user_id, user in self.users().items()
        }

    def dispatches_per_second(self) -> float:
        """Returns the first dispatches a second in the window."""
        first, last = self._samples[0], self._samples[-1]
        count = last.pool.counters.dispatched_count - first.pool.counters.dispatched_count
        return count / (last.at - first.at) if last.at > first.at else 0.0


@remote
def top(
    session: Session,
    pool: Annotated[
        str, typer.Argument(help="Pool; may be left out if there is only one.", show_default=False)
    ] = "",
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 1.0,
    users: Annotated[int, typer.Option(min=1, max=1000, help="Users shown at most.")] = 25,
    once: Annotated[bool, typer.Option("--once", help="Print one look and end.")] = False,
) -> None:
    """Shows a pool live; Ctrl-C ends it."""
    name = pool or only_pool(session)
    rates = Rates()
    rates.add(take(session, name))
    if session.as_json or once:
        time.sleep(interval)  # a rate is taken over this time; nothing else runs
        sample = take(session, name)
        rates.add(sample)
        if not session.json_or([sample.pool, *sample.users]):
            output.out.print(frame(sample, rates, users))
        return
    try:
        with Live(console=output.out, screen=True, auto_refresh=False) as live:
            while True:
                try:
                    sample = take(session, name)
                    rates.add(sample)
                    live.update(frame(sample, rates, users), refresh=True)
                except (errors.UnavailableError, errors.DeadlineError) as error:
                    text = f"{away.sentence(error, session.target)}\ntrying again …"
                    live.update(Text(text, style="red"), refresh=True)
                time.sleep(interval)  # the screen stands still; Ctrl-C ends it
    except KeyboardInterrupt:
        return


def take(session: Session, pool: str) -> Sample:
    """Asks the service once."""
    stats = session.client.admin.GetStats(pb.GetStatsRequest(pool=pool))
    many = stats.pools[0].user_count > PAGE
    request = pb.ListUsersRequest(pool=pool, only_busy=many, page_size=PAGE)
    found = session.client.admin.ListUsers(request).users
    return Sample(time.monotonic(), stats.service, stats.pools[0], list(found))


def frame(sample: Sample, rates: Rates, limit: int) -> RenderableType:
    """Returns one look at a pool."""
    pool = sample.pool
    charged = rates.charged()
    total = sum(charged.values())
    bound = pool.fairness_bound_micros if pool.HasField("fairness_bound_micros") else 0
    fits = [output.out.width >= least for _, least in COLUMNS]
    shown = output.table(*itertools.compress((name for name, _ in COLUMNS), fits))
    busiest = sorted(
        (
            user
            for user in rates.users().values()
            if charged[user.user_id] or user.waiting_count or user.in_flight_count
        ),
        key=lambda user: (-charged.get(user.user_id, 0), -user.waiting_count, user.user_id),
    )
    for user in busiest[:limit]:
        above = user.meter_micros - pool.virtual_time_micros
        # Who has nothing waiting falls behind v, and is raised to it when something comes.
        counts = bound and (user.waiting_count or above >= 0)
        share = charged.get(user.user_id, 0) / total if total else 0.0
        cells = (
            user.user_id,
            output.weight(user.weight_milli),
            user.waiting_count,
            user.in_flight_count,
            output.span(user.oldest_wait.ToTimedelta()) if user.HasField("oldest_wait") else "",
            _bar(above / bound, "cyan") if counts else "",
            output.units(above) if counts else "",
            _bar(share, "green"),
            f"{share:.1%}",
        )
        output.row(shown, *itertools.compress(cells, fits))
    parts: list[RenderableType] = [
        *_head(sample, rates),
        shown if busiest else Text("\nnobody is busy", "dim"),
    ]
    if len(busiest) > limit:
        parts.append(
            Text(f"… and {count_text(len(busiest) - limit, 'more busy user')}", style="dim")
        )
    return Group(*parts)


def _head(sample: Sample, rates: Rates) -> list[Text]:
    pool, service = sample.pool, sample.service
    state = "paused" if pool.HasField("pause") else "serving"
    oldest = (
        f", oldest {output.span(pool.oldest_wait.ToTimedelta())}"
        if pool.HasField("oldest_wait")
        else ""
    )
    lines = [
        _flow(
            Text.assemble(("pool ", "dim"), output.safe(pool.pool)),
            Text(state, "red" if state == "paused" else "green"),
            f"{pool.waiting_count:,} waiting{oldest}",
            f"{pool.leased_count:,} leased",
        ),
        _flow(
            count_text(service.worker_count, "active worker"),
            f"{rates.dispatches_per_second():,.0f} dispatches/s",
            f"sequence {service.log.newest_sequence:,}",
        ),
    ]
    if not pool.HasField("fairness_bound_micros"):
        return [*lines, Text("slack is unbounded: no fairness between users is promised", "dim")]
    gap, bound = pool.fairness_gap_micros, pool.fairness_bound_micros
    bar = _bar(gap / bound if bound else 0.0, "red" if gap > bound else "green")
    numbers = f" {output.units(gap)} of {output.units(bound)} cost units"
    parts = [Text.assemble(("gap ", "dim"), bar, numbers)]
    if service.invariant_violation_count:
        broken = count_text(service.invariant_violation_count, "violation")
        parts.append(Text(broken, "red bold"))
    return [*lines, _flow(*parts)]


def _flow(*parts: Text | str) -> Text:
    """Returns parts beside each other; one that no longer fits the line begins the next one."""
    text, length = Text(), 0
    for part in parts:
        if length and length + len(GAP) + len(part) > output.out.width:
            text.append("\n")
            length = 0
        elif length:
            text.append(GAP)
            length += len(GAP)
        text.append(part)
        length += len(part)
    return text


def _bar(part: float, style: str) -> Text:
    full = max(0, min(BAR, round(part * BAR)))
    return Text.assemble(("█" * full, style), ("·" * (BAR - full), "dim"))
