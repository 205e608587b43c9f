"""What the demo replays: a part of a trace, its users, and the fair level that divides them.

The load is 1.2 times what the workers can do: their speed is set to the trace's cost a second
divided by 1.2.  Who is heavy and who is light, `sim.heavy` says, for that capacity.  Both follow
from the trace alone and are fixed before anything runs.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scheduler_service.core.phrases import count_text
from scheduler_service.sim.data import MULTI_TENANT_SAMPLE
from scheduler_service.sim.heavy import NOMINAL_LOAD, heavy_among, water_level
from scheduler_service.sim.traces import NO_USER, Row, TraceError, read_trace

if TYPE_CHECKING:
    from collections.abc import Sequence

LOAD: Final = NOMINAL_LOAD
"""Offered cost over what the workers can do."""

SEED: Final = 7
"""Deals the rows of a trace without users to users."""

DEALT_USERS: Final = 12
"""How many users such a trace gets."""

REQUESTS_MAX: Final = 3_000
"""Requests that one run replays at most, so that it ends in time."""

SHIPPED: Final = (
    "the first two minutes of a stream of 21 clients (one sends nothing in them), generated with "
    "alibaba/ServeGen (Apache-2.0) from the profiles of real clients of a production service"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Arrival:
    """One request of the trace.

    Attributes:
        at_s: When it arrives, seconds of the trace from its start.
        user_id: Its user.
        request_id: Its id.
        prompt: Prompt length, tokens, at least 1.
        response: Response length, tokens, at least 1.
    """

    at_s: float
    user_id: str
    request_id: str
    prompt: int
    response: int

    @property
    def cost(self) -> int:
        """Cost units: prompt and response tokens."""
        return self.prompt + self.response


@dataclasses.dataclass(frozen=True, slots=True)
class Replay:
    """A part of a trace, ready to be replayed.

    Attributes:
        arrivals: In order.
        source: Where it comes from, one sentence.
        users: Whose requests these are, one sentence.
        length_s: Length, seconds of the trace.
        heavy: Users that ask for more than their fair share.
        fair_share: Cost that a heavy user is entitled to, as a part of the capacity.
    """

    arrivals: tuple[Arrival, ...]
    source: str
    users: str
    length_s: float
    heavy: frozenset[str]
    fair_share: float

    @property
    def cost(self) -> int:
        """Cost of everything that arrives, cost units."""
        return sum(arrival.cost for arrival in self.arrivals)

    @property
    def user_count(self) -> int:
        """How many users send something."""
        return len({arrival.user_id for arrival in self.arrivals})

    @property
    def capacity(self) -> float:
        """What the workers can do, cost units a second of the trace."""
        return self.cost / self.length_s / LOAD


def shipped() -> Replay:
    """Returns the part that comes with Fairsched."""
    (path,) = MULTI_TENANT_SAMPLE
    return replay(read_trace(Path(path)), SHIPPED)


def from_file(path: Path) -> Replay:
    """Returns the first part of a trace: Azure's, or any table with those columns.

    Raises:
        TraceError: The file cannot be read, or holds less than 100 requests.
    """
    return replay(read_trace(path), f"the first requests of {path.name}")


def replay(rows: Sequence[Row], source: str) -> Replay:
    """Makes a replay of the first rows, by time."""
    ordered = sorted(rows, key=lambda row: row.arrival_s)[:REQUESTS_MAX]
    least = 100
    if len(ordered) < least:
        message = (
            f"a trace needs at least {count_text(least, 'request')}, this one has {len(ordered)}"
        )
        raise TraceError(message)
    users = "users are those of the trace"
    if all(row.user == NO_USER for row in ordered):
        ordered = deal(ordered)
        users = (
            f"the trace names no users: each request was dealt to one of {DEALT_USERS}, "
            f"user k with a probability in proportion to 1/k (seed {SEED})"
        )
    first = ordered[0].arrival_s
    arrivals = tuple(
        Arrival(
            row.arrival_s - first,
            row.user,
            f"r{number:05d}",
            max(1, row.prompt),
            max(1, row.response),
        )
        for number, row in enumerate(ordered, start=1)
    )
    length = max(arrivals[-1].at_s, 1.0)
    demand = Counter[str]()
    for arrival in arrivals:
        demand[arrival.user_id] += arrival.cost
    names, costs, weights = list(demand), list(demand.values()), [1] * len(demand)
    heavy = frozenset(names[number] for number in heavy_among(costs, weights))
    share = water_level(costs, weights, sum(costs) / LOAD) * LOAD / sum(costs)
    return Replay(arrivals, source, users, length, heavy, share)


def deal(rows: Sequence[Row]) -> list[Row]:
    """Deals rows without users to users, by the stated rule."""
    dice = random.Random(SEED)
    names = [f"user-{k:02d}" for k in range(1, DEALT_USERS + 1)]
    weights = [1 / k for k in range(1, DEALT_USERS + 1)]
    return [row._replace(user=dice.choices(names, weights)[0]) for row in rows]
