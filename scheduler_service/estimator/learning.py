"""Learning from what requests really used: output ratio, cutoff, and how wrong the estimates were.

Everything here is a tally over completed requests.  Nothing reaches back: a request keeps the cost
it was charged (SFQ §5.1), and what was learned is put into force only when somebody decides so.

Old observations fade: when a tally is full it is halved, so it follows a workload that drifts.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final, NamedTuple, final

from mypy_extensions import mypyc_attr

FULL_TALLY_TOKENS: Final = 50_000_000
"""Cap tokens at which a tally is halved."""

USERS_MAX: Final = 10_000
"""Users with a tally of their own; the one that was silent longest goes first."""

LENGTHS_MAX: Final = 4096
"""Lengths the cutoff is taken over."""

LENGTHS_MIN: Final = 200
"""Lengths below which no cutoff is proposed."""

CUTOFF_BP: Final = 8500
"""Quantile level of the cutoff tau in basis points (QBA §II-C)."""

UPDATES_MAX: Final = 500
"""Ratios put into force at once; the rest follow with the next update."""

MIN_CHANGE_MILLI: Final = 20
"""Relative change, in thousandths, below which a value is not worth a decision."""


@final
@mypyc_attr(acyclic=True)
class Usage:
    """What one completed request had stated, was charged, and really used; lengths in tokens.

    Attributes:
        output_cap: Stated output cap; 0 if none was stated.
        short: Whether it was predicted short.
        cost: What it was charged, cost units.
        real_cost: What the formula gives for its real lengths, cost units; 0 if unknown.
    """

    __slots__ = ("cost", "output", "output_cap", "prompt", "real_cost", "short", "user_id")

    def __init__(
        self,
        user_id: str,
        prompt: int,
        output: int,
        output_cap: int,
        *,
        short: bool,
        cost: int,
        real_cost: int,
    ) -> None:
        self.user_id = user_id
        self.prompt = prompt
        self.output = output
        self.output_cap = output_cap
        self.short = short
        self.cost = cost
        self.real_cost = real_cost


@final
@mypyc_attr(acyclic=True)
class Tally:
    """Real output against output caps, tokens."""

    __slots__ = ("cap", "real")

    def __init__(self) -> None:
        self.real: int = 0
        self.cap: int = 0

    def add(self, real: int, cap: int) -> None:
        """Counts one request in."""
        self.real += real
        self.cap += cap
        if self.cap > FULL_TALLY_TOKENS:
            self.real //= 2
            self.cap //= 2

    def ratio_milli(self) -> int:
        """Returns real output in thousandths of the caps, rounded down, at least 1."""
        return max(self.real * 1000 // self.cap, 1) if self.cap else 0


@final
@mypyc_attr(acyclic=True)
class Errors:
    """How far estimates were from what was used, since the service started.

    Attributes:
        charged_cost, real_cost: Sums over requests with known usage, cost units.
        too_low_cost, too_high_cost: Sums of the amounts by which the cost was too low, too high.
        measured: Requests these rest on.
        short_as_long, long_as_short: Wrong predictions, both ways.
        shorts, longs: Requests that really were short, long.
    """

    __slots__ = (
        "charged_cost",
        "long_as_short",
        "longs",
        "measured",
        "real_cost",
        "short_as_long",
        "shorts",
        "too_high_cost",
        "too_low_cost",
    )

    def __init__(self) -> None:
        self.charged_cost: int = 0
        self.real_cost: int = 0
        self.too_low_cost: int = 0
        self.too_high_cost: int = 0
        self.measured: int = 0
        self.short_as_long: int = 0
        self.long_as_short: int = 0
        self.shorts: int = 0
        self.longs: int = 0

    def add(self, usage: Usage, length: int, cutoff: int) -> None:
        """Counts one request in: its cost if that is known, its class if there is a cutoff."""
        charged, real = usage.cost, usage.real_cost
        if real:
            self.measured += 1
            self.charged_cost += charged
            self.real_cost += real
            if charged < real:
                self.too_low_cost += real - charged
            else:
                self.too_high_cost += charged - real
        if cutoff:
            if length <= cutoff:
                self.shorts += 1
                self.short_as_long += not usage.short
            else:
                self.longs += 1
                self.long_as_short += usage.short


class Proposal(NamedTuple):
    """Learned values that differ enough from those in force.

    Attributes:
        ratios: (user or "" for the pool, ratio in thousandths, cap tokens it rests on).
        short_cutoff: tau in tokens.
    """

    ratios: tuple[tuple[str, int, int], ...]
    short_cutoff: int


@final
class PoolLearner:
    """What the completed requests of one pool showed.

    Attributes:
        by_work: Whether a length is prompt and output, or output alone.
        pool: Tally of all requests.
        users: Tallies of users, the one seen longest ago first.
        errors: Errors of all requests; `user_errors` of each user with a tally.
    """

    __slots__ = ("_cutoff", "_lengths", "by_work", "errors", "pool", "user_errors", "users")

    def __init__(self, *, by_work: bool) -> None:
        self.by_work = by_work
        self.pool = Tally()
        self.users: OrderedDict[str, Tally] = OrderedDict()
        self.errors = Errors()
        self.user_errors: dict[str, Errors] = {}
        self._lengths: deque[int] = deque(maxlen=LENGTHS_MAX)
        self._cutoff: int = -1

    def observe(self, usages: Iterable[Usage], cutoff: int) -> None:
        """Counts completed requests in, many at once for little.

        Args:
            usages: Their real output must be known (at least 0).
            cutoff: tau in force, tokens; 0 if there is none.
        """
        lengths: list[int] = []
        by_work, pool = self.by_work, self.pool
        pool_errors, all_errors = self.errors, self.user_errors
        for usage in usages:
            user_id, output, cap = usage.user_id, usage.output, usage.output_cap
            length = output + usage.prompt if by_work else output
            lengths.append(length)
            tally = self._tally_of(user_id)
            if cap:
                pool.add(output, cap)
                tally.add(output, cap)
            errors = all_errors.get(user_id)
            if errors is None:
                errors = all_errors[user_id] = Errors()
            pool_errors.add(usage, length, cutoff)
            errors.add(usage, length, cutoff)
        self._lengths.extend(lengths)
        self._cutoff = -1

    def _tally_of(self, user_id: str) -> Tally:
        tally = self.users.get(user_id)
        if tally is None:
            tally = self.users[user_id] = Tally()
            if len(self.users) > USERS_MAX:
                gone, _ = self.users.popitem(last=False)
                self.user_errors.pop(gone, None)
        else:
            self.users.move_to_end(user_id)
        return tally

    def resume(self, user_id: str, ratio_milli: int, cap_tokens: int) -> None:
        """Goes on from a value that is in force: "" is the pool."""
        tally = self.pool if not user_id else self._tally_of(user_id)
        tally.real, tally.cap = ratio_milli * cap_tokens // 1000, cap_tokens

    def forget(self, user_id: str) -> None:
        """Forgets a user."""
        self.users.pop(user_id, None)
        self.user_errors.pop(user_id, None)

    def cutoff(self) -> int:
        """Returns the cutoff the observed lengths give, tokens; 0 while there are too few.

        Complexity:
            O(LENGTHS_MAX log LENGTHS_MAX) if requests have completed since it was last asked for,
            which is once an interval; so that each of them costs nothing here.
        """
        if self._cutoff < 0:
            count = len(self._lengths)
            at = -(-CUTOFF_BP * count // 10_000) - 1
            self._cutoff = 0 if count < LENGTHS_MIN else max(sorted(self._lengths)[at], 1)
        return self._cutoff

    def propose(self, ratios: dict[str, tuple[int, int]], cutoff: int) -> Proposal | None:
        """Returns the values that have moved away from those in force; None if none has.

        Args:
            ratios: (ratio in thousandths, cap tokens) in force by user, "" is the pool.
            cutoff: tau in force, tokens.
        """
        changed = []
        for user_id, tally in (("", self.pool), *self.users.items()):
            ratio = tally.ratio_milli()
            known, rests_on = ratios.get(user_id, (0, 0))
            if ratio and (_moved(known, ratio) or tally.cap > 2 * rests_on):
                changed.append((user_id, ratio, tally.cap))
        learned = self.cutoff()
        if not changed and not (learned and _moved(cutoff, learned)):
            return None
        changed = changed[:UPDATES_MAX]
        return Proposal(tuple(changed), learned if learned and _moved(cutoff, learned) else cutoff)


def _moved(known: int, now: int) -> bool:
    return abs(now - known) * 1000 > MIN_CHANGE_MILLI * max(known, 1)
