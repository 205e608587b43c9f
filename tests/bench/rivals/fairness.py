"""The multi-tenant trace as a load on a real queue, and what the order it was taken in was worth.

The trace is a two-minute part of a stream generated from real clients' profiles (see SOURCE.md
beside it).  Its times are compressed, and a server is busy for a fixed time a token, so that 1.2
times of what the servers can do arrives: somebody has to wait, the question is who.

Measures:
    waits       from arrival to begin, of light and heavy users apart.  Light: users whose whole
                demand lies below an equal share of the capacity (max-min).
    gap         largest difference of service, in tokens, between two users while both had something
                waiting, divided by the largest request.
    Jain        Jain's index over users of what they got while requests arrived, divided by their
                max-min share.
"""

import csv
import json
from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path

from tests.bench.rivals.common import Arrival, Record

TRACE = Path(__file__).parents[3] / "scheduler_service" / "sim" / "data" / "multi_tenant_sample.csv"
SERVERS = 8
LOAD = 1.2


@dataclass(frozen=True, slots=True)
class Play:
    """A trace made ready.

    Attributes:
        arrivals: With compressed times.
        unit_seconds: How long a server is busy for one token.
        seconds: Time of the last arrival.
    """

    arrivals: list[Arrival]
    unit_seconds: float
    seconds: float

    @property
    def capacity(self) -> float:
        """Tokens a second that all servers do together."""
        return SERVERS / self.unit_seconds


def make_play(seconds: float, part: float = 1.0) -> Play:
    """Returns the first `part` of the trace, played in `seconds`."""
    with TRACE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows = rows[: int(len(rows) * part)]
    last = float(rows[-1]["arrival_s"])
    arrivals = [
        Arrival(
            index,
            float(row["arrival_s"]) / last * seconds,
            row["user_id"],
            max(1, int(row["prompt_tokens"]) + int(row["response_tokens"])),
        )
        for index, row in enumerate(rows)
    ]
    tokens = sum(arrival.cost for arrival in arrivals)
    return Play(arrivals, LOAD * SERVERS * seconds / tokens, seconds)


def write_trace(play: Play, path: Path) -> None:
    """Writes it for the clients of the rivals."""
    path.write_text(json.dumps([list(arrival) for arrival in play.arrivals]))


def max_min(demands: dict[str, float], capacity: float) -> dict[str, float]:
    """Returns the max-min shares of a capacity."""
    shares: dict[str, float] = {}
    left = capacity
    for place, user in enumerate(sorted(demands, key=lambda user: demands[user])):
        shares[user] = min(demands[user], left / (len(demands) - place))
        left -= shares[user]
    return shares


@dataclass(frozen=True, slots=True)
class Fairness:
    """What the order was worth; waits in seconds."""

    light_mean: float
    light_p99: float
    heavy_mean: float
    heavy_p99: float
    gap: float
    jain: float
    seconds: float
    out_of_order: float


def judge(play: Play, records: list[Record]) -> Fairness:
    """Returns the measures of one run.

    Raises:
        ValueError: Not every request was served exactly once.
    """
    if sorted(int(record[0]) for record in records) != list(range(len(play.arrivals))):
        raise ValueError("not every request was served exactly once")
    began = {int(index): started for index, started, _ in records}
    demands: dict[str, float] = defaultdict(float)
    for arrival in play.arrivals:
        demands[arrival.user] += arrival.cost
    shares = max_min(dict(demands), play.capacity * play.seconds)
    light = {user for user, demand in demands.items() if shares[user] >= demand}
    waits: dict[bool, list[float]] = {True: [], False: []}
    got: dict[str, float] = defaultdict(float)
    for arrival in play.arrivals:
        waits[arrival.user in light].append(max(0.0, began[arrival.index] - arrival.at_seconds))
        if began[arrival.index] <= play.seconds:
            got[arrival.user] += arrival.cost
    parts = [got[user] / shares[user] for user in demands]
    jain = sum(parts) ** 2 / (len(parts) * sum(part**2 for part in parts))
    ends = max(ended for _, _, ended in records)
    return Fairness(
        *_mean_and_p99(waits[True]),
        *_mean_and_p99(waits[False]),
        largest_gap(play, began) / max(arrival.cost for arrival in play.arrivals),
        jain,
        ends,
        _inversions(play, began),
    )


def _mean_and_p99(values: list[float]) -> tuple[float, float]:
    if not values:
        return 0.0, 0.0
    values = sorted(values)
    return sum(values) / len(values), values[min(len(values) - 1, len(values) * 99 // 100)]


def _inversions(play: Play, began: dict[int, float]) -> float:
    """Returns the share of requests begun before an older one of the same user."""
    latest: dict[str, float] = {}
    passed = 0
    for arrival in play.arrivals:
        if began[arrival.index] < latest.get(arrival.user, 0.0) - 0.002:
            passed += 1
        latest[arrival.user] = max(latest.get(arrival.user, 0.0), began[arrival.index])
    return passed / len(play.arrivals)


def largest_gap(play: Play, began: dict[int, float]) -> float:
    """Returns the largest difference of service, in tokens, of two users while both waited."""
    events: list[tuple[float, int, str, int]] = []
    for arrival in play.arrivals:
        at = max(began[arrival.index], arrival.at_seconds)
        events.append((arrival.at_seconds, 0, arrival.user, arrival.cost))
        events.append((at, 1, arrival.user, arrival.cost))
    events.sort()
    users = sorted({arrival.user for arrival in play.arrivals})
    waiting: dict[str, deque[int]] = {user: deque() for user in users}
    served = dict.fromkeys(users, 0)
    low: dict[tuple[str, str], int] = {}
    high: dict[tuple[str, str], int] = {}
    largest = 0
    for _, kind, user, cost in events:
        if kind == 0:
            waiting[user].append(cost)
        else:
            served[user] += cost
        for pair in ((min(user, other), max(user, other)) for other in users if other != user):
            if not (waiting[pair[0]] and waiting[pair[1]]):
                low.pop(pair, None)
                high.pop(pair, None)
                continue
            difference = served[pair[0]] - served[pair[1]]
            low[pair] = min(low.get(pair, difference), difference)
            high[pair] = max(high.get(pair, difference), difference)
            largest = max(largest, high[pair] - low[pair])
        if kind == 1:
            waiting[user].popleft()
    return float(largest)
