"""How many go before a request that was accepted just now, looked up: `core.ahead` made cheap.

With a finite slack counting takes up to a millisecond, too much for every `Enqueue` while thousands
wait.  A profile is the same walk, done once: the start tags of what waits, shorts and longs apart,
sorted.  A newcomer's count is then two bisections.  A dispatch names its start tag (the meter
before it) and takes it out; a newcomer puts its own in.

A profile does not see requests that end unserved, users that are held back or let go, new weights,
and how promotions shift.  So it is made anew after some changes or a second, but not before an age
in proportion to what making it costs: about one per cent of a core, however much waits and changes.

Made anew, it agrees with `core.ahead` to the request, while no more wait than that counts
(`ahead.BUDGET`); beyond, each scales up from its own part of the backlog, and they differ by a
tenth of it on average.  Until it is made anew it is off by less than one per cent of what waits on
average; at most by a tenth where nothing is promoted, by more than half where a user's longs jump
the queue of its shorts, and by all that is held back just after a pause.

A profile is no part of the state: what it answers depends on when it was made.
"""

from itertools import accumulate
from typing import Final, final

from scheduler_service.core.ahead import (
    BUDGET,
    STEPS_MIN,
    first_in_first_out,
    in_order,
    limits_of,
    looks,
    one_in,
    own_before,
    quota_of,
)
from scheduler_service.core.backlog import OUT
from scheduler_service.core.charge import charge_for
from scheduler_service.core.decisions import Dispatched
from scheduler_service.core.policy import SECOND_NS, PredictedClass
from scheduler_service.core.request import Request
from scheduler_service.core.search import place, place_of_pair
from scheduler_service.core.state import Flow, Pool

AGE_MAX_NS: Final = SECOND_NS
"""Age at which a profile is made anew."""

AGE_MIN_NS: Final = SECOND_NS // 5
"""Age below which one of `BUDGET` requests or more is not, whatever has changed: making it takes
1 to 2 milliseconds.  For one of fewer both are less in proportion."""

CHANGES_SHARE: Final = 16
"""A profile is made anew after changes of one part in so many of what waited."""

_OWN_MAX: Final = 16
"""Requests of its user up to which a newcomer's start tag is counted and not looked up."""

_PARTS: Final = 8
"""Entries that stand for what a user has waiting beyond what was looked at."""

_SHORT: Final = PredictedClass.SHORT
_LONG: Final = PredictedClass.LONG

_Weighted = tuple[int, str, float]


@final
class _Sorted:
    """Start tags, sorted; where users break ties each with its user, in a list beside them."""

    __slots__ = ("_tags", "_users")

    def __init__(self, tags: list[int], users: list[str] | None) -> None:
        self._tags = tags
        self._users = users

    def below(self, tag: int, user_id: str) -> int:
        users = self._users
        if users is None:
            return place(self._tags, tag)
        return place_of_pair(self._tags, users, tag, user_id)

    def add(self, tag: int, user_id: str) -> None:
        at = self.below(tag, user_id)
        self._tags.insert(at, tag)
        if self._users is not None:
            self._users.insert(at, user_id)


@final
class _Tags:
    """Start tags of one class, each with how many requests it stands for.

    Args:
        entries: What waits.
        by_user: Whether users break ties.
    """

    __slots__ = ("_at_first", "_sums", "came", "gone")

    def __init__(self, entries: list[_Weighted], *, by_user: bool) -> None:
        entries.sort()
        users = [user_id for _, user_id, _ in entries] if by_user else None
        self._at_first = _Sorted([tag for tag, _, _ in entries], users)
        self._sums = [0.0, *accumulate(weight for _, _, weight in entries)]
        self.came = _Sorted([], [] if by_user else None)
        self.gone = _Sorted([], [] if by_user else None)

    def below(self, tag: int, user_id: str) -> float:
        known = self._sums[self._at_first.below(tag, user_id)]
        return known + self.came.below(tag, user_id) - self.gone.below(tag, user_id)


@final
class _Own:
    """What one user has waiting, and where its next request would come in its own order.

    Attributes:
        base: Where its start tags begin: its meter, or v if that is larger.
        last: (tag, count before it) of a newcomer that goes last.
        short: The same of a short that passes the user's longs.
        long: The same of a long that a promotion already waits for; None if none does.
        inside: Whether the user's requests are among the profile's tags.
        shorts, longs: Their start tags, in order, as far as they were looked at.
    """

    __slots__ = ("base", "inside", "last", "long", "longs", "short", "shorts")

    def __init__(self, base: int, *, inside: bool) -> None:
        self.base = base
        self.last = self.short = (base, 0)
        self.long: tuple[int, int] | None = None
        self.inside = inside
        self.shorts: list[int] = []
        self.longs: list[int] = []

    def walk(self, pool: Pool, flow: Flow, newest: Request, steps: int) -> list[int]:
        """Looks at what waits but `newest`, so many requests at most.

        Returns:
            Start tags that stand for what was not looked at, taken as more of the same.
        """
        counted, k = flow.short_admission_count, quota_of(pool)
        tag, count = self.base, 0
        for request in in_order(pool, flow):
            if request is newest:
                continue
            if count == steps:
                break
            short = request.predicted_class is _SHORT
            (self.shorts if short else self.longs).append(tag)
            if not short:
                self.long = None
            elif counted >= k and self.long is None:  # a promotion is owed, and there is no long
                self.long = (tag, count)
            tag, count = tag + charge_for(request.cost, flow.weight_milli), count + 1
            if short or counted >= k:  # a long that is owed goes before another short, too
                self.short = (tag, count)
                counted = counted + 1 if short else 0
        self.last = (tag, count)
        left = flow.waiting - (flow.user_id == newest.user_id) - count
        if not left:
            return []
        part = (tag - self.base) * left // (count * _PARTS)
        self.last = self.short = (tag + part * _PARTS, count + left)
        return [tag + part * number for number in range(_PARTS)]

    def excess(self, tag: int, limits: tuple[int, int], meter: int) -> int:
        """Returns by how much limits for others overcount the user's own before its start tag."""
        past = place(self.shorts, limits[0]) - place(self.shorts, tag)
        lacking = place(self.longs, tag) - place(self.longs, max(limits[1], meter))
        return past - lacking

    def put(self, charge: int, *, short: bool, k: int) -> None:
        """Takes a newcomer in: one more of all, and of shorts; a long uses its promotion up."""
        tag, count = self.last
        self.last = (tag + charge, count + 1)
        if short:
            self.short = (self.short[0] + charge, self.short[1] + 1)
        elif self.long is not None:
            mean = (tag - self.base) // max(count, 1)
            after = (self.long[0] + charge + k * mean, self.long[1] + 1 + k)
            self.long = after if after[1] < self.last[1] else None


@final
class Profile:
    """The backlog of one pool at one time.

    Args:
        pool: The pool.
        newest: A request that was accepted just now; it is left out.
        now_ns: The time.
    """

    __slots__ = (
        "_age_min_ns",
        "_changes_left",
        "_longs",
        "_made_ns",
        "_owns",
        "_policy",
        "_shorts",
        "_virtual_time",
    )

    def __init__(self, pool: Pool, newest: Request, now_ns: int) -> None:
        self._made_ns = now_ns
        self._age_min_ns = min(pool.waiting, BUDGET) * AGE_MIN_NS // BUDGET
        self._changes_left = max(pool.waiting // CHANGES_SHARE, STEPS_MIN)
        self._policy = pool.policy
        self._virtual_time = pool.virtual_time
        self._owns: dict[str, _Own] = {}
        self._shorts, self._longs = self._walk(pool, newest)

    def serves(self, pool: Pool, now_ns: int) -> bool:
        """Whether it is still good enough."""
        return (
            now_ns - self._made_ns < (AGE_MAX_NS if self._changes_left > 0 else self._age_min_ns)
            and self._policy is pool.policy
            and self._virtual_time <= pool.virtual_time
        )

    def before_newest(self, pool: Pool, request: Request) -> int:
        """Returns how many go before `request`, accepted just now, and takes it in."""
        self._changes_left -= 1
        due, others = len(pool.redelivery), pool.waiting - 1
        flow = pool.flows[request.user_id]
        own, before, tag = self._own_before(pool, flow, request)
        short_limit, long_limit = limits_of(pool, request, tag)
        tie = flow.user_id  # at equal tags the smaller user id goes first at slack 0, else age
        if not pool.backlog.user_by_user:
            short_limit, long_limit, tie = short_limit + 1, long_limit + 1, ""
        count = float(before)
        if own.inside:
            count = -float(own.excess(tag, (short_limit, long_limit), flow.meter))
        count += self._shorts.below(short_limit, tie) + self._longs.below(long_limit, tie)
        if own.inside:
            self._tags(request.predicted_class).came.add(tag, flow.user_id)
            tags = own.shorts if request.predicted_class is _SHORT else own.longs
            tags.insert(place(tags, tag), tag)
        return min(max(round(count), 0), others) + due

    def dispatched(self, x: Dispatched) -> None:
        """Takes a dispatch out; not for a redelivery."""
        self._changes_left -= 1
        own = self._owns.get(x.user_id)
        if own is None or own.inside:
            self._tags(x.predicted_class).gone.add(x.meter_before, x.user_id)

    def ended(self) -> None:
        """Takes note of a request that ended unserved: it does not know which."""
        self._changes_left -= 1

    def outdate(self) -> None:
        """Has it made anew as soon as its age allows: users have changed places."""
        self._changes_left = 0

    def _tags(self, predicted_class: PredictedClass) -> _Tags:
        return self._shorts if predicted_class is _SHORT else self._longs

    def _own_before(self, pool: Pool, flow: Flow, request: Request) -> tuple[_Own, int, int]:
        """Returns a newcomer's user, how many of its own go before it, and its start tag."""
        base = max(flow.meter, pool.virtual_time)
        own = self._owns.get(flow.user_id)
        if own is None:
            own = self._owns[flow.user_id] = _Own(base, inside=flow.place != OUT)
            own.walk(pool, flow, request, looks(pool, len(pool.flows))[1])
        short = request.predicted_class is _SHORT
        if flow.waiting <= _OWN_MAX:
            count, tag = own_before(pool, flow, request)
        else:
            tag, count = own.last
            if not first_in_first_out(pool):
                tag, count = own.short if short else own.long or own.last
            if not own.inside:  # held back, it begins at v
                tag += max(base - own.base, 0)
        own.put(charge_for(request.cost, flow.weight_milli), short=short, k=quota_of(pool))
        return own, count, max(tag, base)

    def _walk(self, pool: Pool, newest: Request) -> tuple[_Tags, _Tags]:
        """Takes the start tags of what waits, as `ahead_of` would for the last of all."""
        users = len(pool.backlog.index)
        stride, steps = looks(pool, users)
        scale = users / max(len(range(0, users, stride)), 1)
        shorts: list[_Weighted] = []
        longs: list[_Weighted] = []
        for _, _, user_id in one_in(stride, pool.backlog.index, users):
            flow = pool.flows[user_id]
            own = self._owns[user_id] = _Own(flow.meter, inside=True)
            rest = own.walk(pool, flow, newest, steps)
            shorts += [(tag, user_id, scale) for tag in own.shorts]
            longs += [(tag, user_id, scale) for tag in own.longs]
            if rest:
                seen = len(own.shorts) + len(own.longs)
                weight = scale * (own.last[1] - seen) / (seen * _PARTS)
                shorts += [(tag, user_id, weight * len(own.shorts)) for tag in rest]
                longs += [(tag, user_id, weight * len(own.longs)) for tag in rest]
        by_user = pool.backlog.user_by_user
        return _Tags(shorts, by_user=by_user), _Tags(longs, by_user=by_user)
