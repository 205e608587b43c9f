"""What happened in one run, read from the decision log and nothing else.

Times are seconds of the trace.  From the kill until all clients were connected again the gateways
held the trace back; that time is cut out of the time line.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from typing import TYPE_CHECKING, Final

from fairsched.v1 import decision_pb2 as pb
from scheduler_service.sim.bound import GapMeter, GapReport

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

MICRO: Final = 1_000_000
NS: Final = 1_000_000_000


@dataclasses.dataclass(slots=True)
class UserLedger:
    """One user's part of a run.

    Attributes:
        requests: Requests accepted.
        cost: Their cost, cost units.
        arrivals_s: When they were accepted, seconds of the trace.
        waits_s: From acceptance to dispatch, one a request, seconds of the trace.
        points: (time, cost dispatched so far) after each dispatch.
    """

    requests: int = 0
    cost: int = 0
    arrivals_s: list[float] = dataclasses.field(default_factory=list)
    waits_s: list[float] = dataclasses.field(default_factory=list)
    points: list[tuple[float, int]] = dataclasses.field(default_factory=list)

    def dispatched_by(self, at_s: float) -> int:
        """Returns the cost dispatched up to a time."""
        number = bisect.bisect_right(self.points, at_s, key=lambda point: point[0])
        return self.points[number - 1][1] if number else 0

    def waiting_changes(self) -> list[tuple[float, int]]:
        """Returns (time, +1 or -1) for each change of the number of its waiting requests."""
        came = [(when, 1) for when in self.arrivals_s]
        return sorted([*came, *((when, -1) for when, _ in self.points)])


@dataclasses.dataclass(slots=True)
class Ledger:
    """One run.

    Attributes:
        policy: Preset that decided.
        users: What happened to each user.
        accepted: Requests accepted, by id.
        ended: How often each request ended.
        redelivered: Dispatches of requests whose lease had been lost.
        promoted: Sequences of promotions.
        killed_at_s: When the service was killed.
        held_s: How long the trace was held back for it, seconds of the clock on the wall.
        gap: The largest difference in service between two users that both waited throughout.
    """

    policy: str
    users: dict[str, UserLedger] = dataclasses.field(default_factory=dict)
    accepted: set[str] = dataclasses.field(default_factory=set)
    ended: dict[str, int] = dataclasses.field(default_factory=dict)
    redelivered: int = 0
    promoted: list[int] = dataclasses.field(default_factory=list)
    killed_at_s: list[float] = dataclasses.field(default_factory=list)
    held_s: float = 0.0
    gap: GapReport = dataclasses.field(default_factory=GapReport)

    def together(self, users: Collection[str]) -> tuple[float, float]:
        """Returns the longest stretch in which all these users wait throughout; (0, 0) if none."""
        changes = sorted(
            (when, user, step)
            for user in users
            for when, step in self.users[user].waiting_changes()
        )
        waiting = dict.fromkeys(users, 0)
        best, since = (0.0, 0.0), None
        for when, user, step in changes:
            waiting[user] += step
            if all(waiting.values()):
                since = when if since is None else since
            elif since is not None:
                best, since = max(best, (since, when), key=lambda s: s[1] - s[0]), None
        return best

    def waits(self, users: Iterable[str]) -> list[float]:
        """Returns all waits of these users."""
        return [wait for user in users if user in self.users for wait in self.users[user].waits_s]


class Reader:
    """Folds decisions into a ledger."""

    def __init__(
        self,
        policy: str,
        speed: float,
        users: Sequence[str],
        pauses_ns: Sequence[tuple[int, int]],
    ) -> None:
        """Begins a ledger.

        Args:
            policy: Preset that decided.
            speed: Seconds of the trace in one second.
            users: Every user there may be.
            pauses_ns: From when to when the trace was held back.
        """
        self.ledger = Ledger(policy)
        self.ledger.held_s = sum(end - start for start, end in pauses_ns) / NS
        self._pauses_ns = pauses_ns
        self._speed = speed
        self._number = {user: number for number, user in enumerate(users)}
        self._gap = GapMeter(len(users))
        self._start_ns = 0
        self._accept_ns: dict[str, int] = {}

    def take(self, decision: pb.Decision) -> None:
        """Takes the next decision."""
        now_ns = decision.time.ToNanoseconds()
        kind = decision.WhichOneof("details")
        if kind == "accepted":
            self._accept(decision, now_ns)
        elif kind == "dispatched":
            self._dispatch(decision, now_ns)
        elif kind in {"completed", "ended"}:
            request = decision.request_id
            self.ledger.ended[request] = self.ledger.ended.get(request, 0) + 1
        elif kind == "recovered":
            self.ledger.killed_at_s.append(self._trace_s(now_ns))

    def finish(self) -> Ledger:
        """Returns the ledger."""
        self.ledger.gap = self._gap.report
        return self.ledger

    def _user(self, user_id: str) -> UserLedger:
        return self.ledger.users.setdefault(user_id, UserLedger())

    def _trace_s(self, now_ns: int) -> float:
        return self._up_ns(self._start_ns, now_ns) / NS * self._speed

    def _up_ns(self, start_ns: int, end_ns: int) -> int:
        """Returns the time between two moments in which the trace went on."""
        down = sum(
            max(0, min(end, end_ns) - max(start, start_ns)) for start, end in self._pauses_ns
        )
        return end_ns - start_ns - down

    def _accept(self, decision: pb.Decision, now_ns: int) -> None:
        if not self.ledger.accepted:
            self._start_ns = now_ns
        self.ledger.accepted.add(decision.request_id)
        self._accept_ns[decision.request_id] = now_ns
        user = self._user(decision.user_id)
        user.requests += 1
        user.arrivals_s.append(self._trace_s(now_ns))
        user.cost += decision.accepted.cost
        self._gap.arrive(self._number[decision.user_id])

    def _dispatch(self, decision: pb.Decision, now_ns: int) -> None:
        dispatched = decision.dispatched
        if dispatched.turn == pb.TURN_REDELIVERY:
            self.ledger.redelivered += 1
            return
        if dispatched.rule == pb.RULE_PROMOTION:
            self.ledger.promoted.append(decision.sequence)
        user = self._user(decision.user_id)
        accepted_ns = self._accept_ns[decision.request_id]
        user.waits_s.append(self._up_ns(accepted_ns, now_ns) / NS * self._speed)
        done = user.points[-1][1] if user.points else 0
        user.points.append((self._trace_s(now_ns), done + dispatched.cost))
        reach = dispatched.slack_micros if dispatched.HasField("slack_micros") else 0
        # Overtaking reaches as far again as the slack.
        self._gap.dispatch(self._number[decision.user_id], dispatched.cost * MICRO, 2 * reach)


def mean(values: Sequence[float]) -> float:
    """Returns the mean; 0 for no values."""
    return math.fsum(values) / len(values) if values else 0.0


def p99(values: Sequence[float]) -> float:
    """Returns the 99th percentile, nearest rank; 0 for no values."""
    ordered = sorted(values)
    return ordered[math.ceil(0.99 * len(ordered)) - 1] if ordered else 0.0
