"""How many go before a request that was accepted just now, looked up: `core.ahead` made cheap.

Counting takes up to a millisecond, too much for every `Enqueue` while thousands wait.  A profile is
the same walk, done once: the start tags of what waits, shorts and longs apart, sorted; with
unbounded slack the number of either.  A newcomer's count is then two bisections.  A dispatch names
its start tag (the meter before it) and takes it out; a newcomer puts its own in.

What a profile does not see: requests that end unserved, users that reach their cap or leave it, and
how promotions shift as shorts come and go.  So it is made anew when as many things have happened as
a quarter of what waited, or a second has passed, but not more often than twenty times a second: at
most two per cent of a core, however many wait and come.

Made anew, a profile agrees with `core.ahead` to the request, while no more wait than that counts
(`ahead.BUDGET`).  Until it is made anew it is off by less than one per cent of what waits on
average; at most by a tenth where nothing is promoted, by up to half where a user's longs jump the
queue of its shorts.  Beyond the budget both are scaled up from a part of the backlog, each from its
own, and differ by a tenth of it on average.

A profile is no part of the state: what it answers depends on when it was made.
"""

from bisect import bisect_left, insort
from itertools import accumulate
from typing import final

from scheduler_service.core.ahead import (
    BUDGET,
    STEPS_MIN,
    Seen,
    by_class,
    first_in_first_out,
    in_order,
    limits_of,
    look_by_age,
    looks,
    own_before,
    quota_of,
)
from scheduler_service.core.backlog import OUT
from scheduler_service.core.charge import charge_for
from scheduler_service.core.decisions import Dispatched
from scheduler_service.core.policy import SECOND_NS, PredictedClass
from scheduler_service.core.request import Request
from scheduler_service.core.state import Flow, Pool

AGE_MAX_NS = SECOND_NS
"""Age at which a profile is made anew."""

AGE_MIN_NS = SECOND_NS // 20
"""Age below which it is not, whatever has changed: making one takes up to a millisecond."""

CHANGES_SHARE = 4
"""A profile is made anew after changes of one part in so many of what waited."""

_OWN_MAX = 16
"""Requests of its user up to which a newcomer's start tag is counted and not looked up."""

_PARTS = 8
"""Entries that stand for what a user has waiting beyond what was looked at."""

_SHORT, _LONG = PredictedClass.SHORT, PredictedClass.LONG

_Entry = tuple[int, str]


@final
class _Tags:
    """Start tags of one class, each with how many requests it stands for."""

    __slots__ = ("_came", "_gone", "_sums", "_tags")

    def __init__(self, entries: list[tuple[_Entry, float]]) -> None:
        entries.sort()
        self._tags = [entry for entry, _ in entries]
        self._sums = [0.0, *accumulate(weight for _, weight in entries)]
        self._came: list[_Entry] = []
        self._gone: list[_Entry] = []

    def below(self, limit: _Entry) -> float:
        known = self._sums[bisect_left(self._tags, limit)]
        return known + bisect_left(self._came, limit) - bisect_left(self._gone, limit)

    def put(self, entry: _Entry) -> None:
        insort(self._came, entry)

    def take(self, entry: _Entry) -> None:
        insort(self._gone, entry)


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

    def excess(self, tag: int, limits: tuple[int, int], meter: int) -> int:
        """Returns by how much limits for others overcount the user's own before its start tag."""
        past = bisect_left(self.shorts, limits[0]) - bisect_left(self.shorts, tag)
        lacking = bisect_left(self.longs, tag) - bisect_left(self.longs, max(limits[1], meter))
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

    def __init__(self, pool: Pool, newest: Request, now_ns: int) -> None:
        self._made_ns = now_ns
        self._changes_left = max(pool.waiting // CHANGES_SHARE, STEPS_MIN)
        self._policy = pool.policy
        self._virtual_time = pool.virtual_time
        self._owns: dict[str, _Own] = {}
        self._seen: Seen | None = None
        if pool.backlog.charged:
            self._walk(pool, newest)
        else:
            self._seen = look_by_age(pool, newest)

    def serves(self, pool: Pool, now_ns: int) -> bool:
        """Whether it is still good enough."""
        return (
            now_ns - self._made_ns < (AGE_MAX_NS if self._changes_left > 0 else AGE_MIN_NS)
            and self._policy is pool.policy
            and self._virtual_time <= pool.virtual_time
        )

    def before_newest(self, pool: Pool, request: Request) -> int:
        """Returns how many go before `request`, accepted just now, and takes it in."""
        self._changes_left -= 1
        due, others = len(pool.redelivery), pool.waiting - 1
        seen = self._seen
        if seen is not None:
            seen.older_shorts, seen.older_longs = seen.shorts, seen.longs
            found = by_class(pool, request, seen)
            self._count(request.predicted_class, 1)
            return min(found, others) + due
        flow = pool.flows[request.user_id]
        own, before, tag = self._own_before(pool, flow, request)
        short_limit, long_limit = limits_of(pool, request, tag)
        tie = flow.user_id  # at equal tags the smaller user id goes first at slack 0, else age
        if not pool.backlog.user_by_user:
            short_limit, long_limit, tie = short_limit + 1, long_limit + 1, ""
        count = float(before)
        if own.inside:
            count = -float(own.excess(tag, (short_limit, long_limit), flow.meter))
        count += self._shorts.below((short_limit, tie)) + self._longs.below((long_limit, tie))
        if own.inside:
            self._tags(request.predicted_class).put((tag, flow.user_id))
            insort(own.shorts if request.predicted_class is _SHORT else own.longs, tag)
        return min(max(round(count), 0), others) + due

    def dispatched(self, x: Dispatched) -> None:
        """Takes a dispatch out; not for a redelivery."""
        self._changes_left -= 1
        if self._seen is not None:
            self._count(x.predicted_class, -1)
        else:
            own = self._owns.get(x.user_id)
            if own is None or own.inside:
                self._tags(x.predicted_class).take((x.meter_before, x.user_id))

    def changed(self) -> None:
        """Takes note of something that it does not follow."""
        self._changes_left -= 1

    def _count(self, predicted_class: PredictedClass, change: int) -> None:
        assert self._seen is not None
        if predicted_class is _SHORT:
            self._seen.shorts = max(self._seen.shorts + change, 0)
        else:
            self._seen.longs = max(self._seen.longs + change, 0)

    def _tags(self, predicted_class: PredictedClass) -> _Tags:
        return self._shorts if predicted_class is _SHORT else self._longs

    def _own_before(self, pool: Pool, flow: Flow, request: Request) -> tuple[_Own, int, int]:
        """Returns a newcomer's user, how many of its own go before it, and its start tag."""
        base = max(flow.meter, pool.virtual_time)
        own = self._owns.get(flow.user_id)
        if own is None:
            own = self._owns[flow.user_id] = _Own(base, inside=flow.place != OUT)
            self._walk_user(pool, flow, request, own, BUDGET, 0.0)
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

    def _walk(self, pool: Pool, newest: Request) -> None:
        """Takes the start tags of what waits, as `ahead_of` would for the last of all."""
        index = pool.backlog.index
        users = len(index)
        stride, steps = looks(pool, users)
        visited = range(0, users, stride)
        scale = users / max(len(visited), 1)
        self._entries: dict[PredictedClass, list[tuple[_Entry, float]]] = {_SHORT: [], _LONG: []}
        for place in visited:
            flow = pool.flows[index[place][2]]
            own = self._owns[flow.user_id] = _Own(flow.meter, inside=True)
            self._walk_user(pool, flow, newest, own, steps, scale)
        self._shorts, self._longs = _Tags(self._entries[_SHORT]), _Tags(self._entries[_LONG])
        self._entries.clear()

    def _walk_user(
        self, pool: Pool, flow: Flow, newest: Request, own: _Own, steps: int, scale: float
    ) -> None:
        """Takes what one user has waiting, except for `newest`; scale 0 keeps no tags."""
        counted, k = flow.short_admission_count, quota_of(pool)
        tag, count, shorts = own.base, 0, 0
        for request in in_order(pool, flow):
            if request is newest:
                continue
            if count == steps:
                break
            short = request.predicted_class is _SHORT
            if scale:
                self._entries[request.predicted_class].append(((tag, flow.user_id), scale))
                (own.shorts if short else own.longs).append(tag)
            if not short:
                own.long = None
            elif counted >= k and own.long is None:  # a promotion is owed, and there is no long
                own.long = (tag, count)
            tag, count = tag + charge_for(request.cost, flow.weight_milli), count + 1
            if short or counted >= k:  # a long that is owed goes before another short, too
                own.short = (tag, count)
                counted = counted + 1 if short else 0
            shorts += short
        own.last = (tag, count)
        left = flow.waiting - (flow.user_id == newest.user_id) - count
        if left > 0 and count:
            self._stretch(flow, own, left, shorts, scale)

    def _stretch(self, flow: Flow, own: _Own, left: int, shorts: int, scale: float) -> None:
        """Takes what was not looked at as more of the same."""
        tag, seen = own.last
        part = (tag - own.base) * left // (seen * _PARTS)
        for number in range(_PARTS if scale else 0):
            at = (tag + part * number, flow.user_id)
            for kind, count in ((_SHORT, shorts), (_LONG, seen - shorts)):
                if count:
                    weight = scale * left * count / (seen * _PARTS)
                    self._entries[kind].append((at, weight))
        own.last = own.short = (tag + part * _PARTS, seen + left)
