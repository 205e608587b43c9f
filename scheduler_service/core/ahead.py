"""How many waiting requests go before one of them, as things stand: an estimate in bounded time.

This is what `requests_ahead` means wherever it stands: how many of the requests that wait, those
due for redelivery included, are expected to be dispatched before it if nothing else arrives.
`ahead_of` counts; `core.profile` looks the same count up for a request that was accepted just now,
where counting for every one would cost too much.

Nothing is simulated.  With a finite slack every waiting request has a start tag: its user's meter
plus the charges of the user's requests before it (SFQ §2.1).  What has a smaller tag goes first;
the class order shifts that by up to the slack, shorts forwards and longs backwards.  With unbounded
slack what counts is age, class by class.  Arrivals still to come are left out.

About `BUDGET` requests are looked at, by age the newest first and what runs among them, too; what
lies behind them is scaled up.  Where that reaches, the count at slack 0, and of FCFS and PSF with
unbounded slack, is what happens if nothing else arrives; elsewhere promotions and the window make
it off by some per cent of the backlog (AA: a fifth).
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from sortedcontainers import SortedList

from scheduler_service.core.charge import charge_for, slack_for
from scheduler_service.core.decisions import RequestState
from scheduler_service.core.policy import ClassOrder, PredictedClass
from scheduler_service.core.request import Request
from scheduler_service.core.search import Key
from scheduler_service.core.state import Flow, Pool

BUDGET: Final = 2000
"""Requests looked at for one answer: up to a millisecond."""

STEPS_MIN: Final = 8
"""Requests of one other user looked at, at least."""

_NEVER: Final = 1 << 62

_AA: Final = ClassOrder.AA
_FCFS: Final = ClassOrder.FCFS
_QBA: Final = ClassOrder.QBA
_SHORT: Final = PredictedClass.SHORT


class Ahead(NamedTuple):
    """What goes before a waiting request: requests, and the users they belong to."""

    requests: int
    users: int


def ahead_of(pool: Pool, request: Request) -> Ahead:
    """Returns what is expected to be dispatched before `request`, a waiting request of `pool`."""
    due = len(pool.redelivery)
    if request.state is RequestState.REDELIVERY:
        older = bisect_left(pool.redelivery, (request.sequence, ""))
        return Ahead(older, min(older, len(pool.flows)))
    if pool.backlog.charged:
        found = _by_tags(pool, request)
        return Ahead(found.requests + due, found.users)
    requests = _by_age(pool, request)
    return Ahead(requests + due, min(_users_by_age(pool, request), requests))


def requests_ahead(pool: Pool, request: Request) -> int:
    """Returns `ahead_of(pool, request).requests`.

    Complexity:
        With unbounded slack O(1) for the newest request of the pool.
    """
    if pool.backlog.charged or request.state is RequestState.REDELIVERY:
        return ahead_of(pool, request).requests
    return _by_age(pool, request) + len(pool.redelivery)


# -- finite slack: start tags -----------------------------------------------------------------


def _by_tags(pool: Pool, request: Request) -> Ahead:
    flow = pool.flows[request.user_id]
    own, tag = own_before(pool, flow, request)
    short_limit, long_limit = limits_of(pool, request, tag)
    reach = max(short_limit, long_limit)
    index = pool.backlog.index
    in_reach: int = index.bisect_left((reach + 1, -1, ""))
    stride, steps = looks(pool, in_reach)
    users = requests = visited = 0
    for _, _, user_id in one_in(stride, index, in_reach):
        visited += 1
        if user_id != flow.user_id:
            other = pool.flows[user_id]
            found = _before(pool, other, request, short_limit, long_limit, steps)
            requests += found
            users += found > 0
    if visited < in_reach:
        requests = requests * in_reach // visited
        users = users * in_reach // visited
    return Ahead(own + requests, users + (own > 0))


def one_in(stride: int, index: SortedList[Key], count: int) -> Iterator[Key]:
    """Yields one in `stride` of the first `count` entries, without a walk past the others."""
    if stride == 1:
        return islice(index, count)
    return (index[place] for place in range(0, count, stride))


def looks(pool: Pool, users: int) -> tuple[int, int]:
    """Returns which users to look at, one in so many, and how many requests of each at most."""
    if pool.waiting <= BUDGET:
        return 1, BUDGET
    return users * STEPS_MIN // BUDGET + 1, max(BUDGET // max(users, 1), STEPS_MIN)


def limits_of(pool: Pool, request: Request, tag: int) -> tuple[int, int]:
    """Returns the start tags below which others' shorts and longs go first."""
    slack = 0
    if not pool.backlog.user_by_user:
        slack = slack_for(pool.rules, pool.recent_costs.largest)
    if pool.rules.class_order is _FCFS:
        return tag, tag
    if request.predicted_class is _SHORT:
        return tag, tag - slack
    return tag + slack, tag


def own_before(pool: Pool, flow: Flow, request: Request, budget: int = BUDGET) -> tuple[int, int]:
    """Returns how many of the user's own requests go first, and the request's start tag."""
    tag = start = max(flow.meter, pool.virtual_time)
    count = 0
    if flow.waiting == 1:  # it is the only one
        return count, tag
    for other in in_order(pool, flow):
        if other is request:
            break
        if count == budget:
            rest = max(_place_by_age(flow, request) - count, 0)
            return count + rest, tag + (tag - start) // count * rest
        count += 1
        tag += charge_for(other.cost, flow.weight_milli)
    return count, tag


def _place_by_age(flow: Flow, request: Request) -> int:
    """Returns about how many of the user's requests are older, by accept sequence."""
    oldest, newest = flow.oldest(), flow.newest()
    assert oldest is not None
    assert newest is not None
    span = max(newest.sequence - oldest.sequence, 1)
    return flow.waiting * (request.sequence - oldest.sequence) // span


def _before(
    pool: Pool, flow: Flow, request: Request, short_limit: int, long_limit: int, steps: int
) -> int:
    """Returns how many requests of another user go first."""
    start, reach = flow.meter, max(short_limit, long_limit)
    found = 0
    if flow.waiting == 1:  # as below, without a walk
        only = flow.oldest()
        assert only is not None
        limit = short_limit if only.predicted_class is _SHORT else long_limit
        return int(start < limit or (start == limit and _wins_tie(pool, only, request)))
    for seen, other in enumerate(in_order(pool, flow)):
        if start > reach:
            break
        if seen == steps:
            mean = max((start - flow.meter) // seen, 1)
            left = min(flow.waiting - seen, (reach - start) // mean)
            return found + left * found // seen
        limit = short_limit if other.predicted_class is _SHORT else long_limit
        if start < limit or (start == limit and _wins_tie(pool, other, request)):
            found += 1
        start += charge_for(other.cost, flow.weight_milli)
    return found


def _wins_tie(pool: Pool, other: Request, request: Request) -> bool:
    """Whether `other` goes first at equal tags: by user id at slack 0, else by age."""
    if pool.backlog.user_by_user:
        return other.user_id < request.user_id
    return other.sequence < request.sequence


def first_in_first_out(pool: Pool) -> bool:
    """Whether a user's own requests go in order of age, whatever their class."""
    order = pool.rules.class_order
    return pool.backlog.fifo or order is _FCFS or order is _AA


def quota_of(pool: Pool) -> int:
    """Returns after how many shorts of a user one of its longs is expected first."""
    rules = pool.rules
    if rules.class_order is _QBA and len(pool.sample) >= rules.aging_min_sample:
        return rules.quota_k
    return _NEVER


def in_order(pool: Pool, flow: Flow) -> Iterator[Request]:
    """Yields a user's waiting requests in the order in which its own turns will take them."""
    if first_in_first_out(pool):
        yield from _by_sequence(flow)
        return
    short, long = flow.oldest_short, flow.oldest_long
    k = quota_of(pool)
    counted = flow.short_admission_count
    while short is not None or long is not None:
        owed = counted >= k
        if long is not None and (owed or short is None):
            yield long
            long = long.newer
            counted = 0 if owed else counted
        elif short is not None:
            yield short
            short = short.newer
            counted += 1


def _by_sequence(flow: Flow) -> Iterator[Request]:
    short, long = flow.oldest_short, flow.oldest_long
    while short is not None or long is not None:
        if long is None or (short is not None and short.sequence < long.sequence):
            assert short is not None
            yield short
            short = short.newer
        else:
            yield long
            long = long.newer


# -- unbounded slack: age, class by class -----------------------------------------------------


def _by_age(pool: Pool, request: Request) -> int:
    """Returns how many of those that wait go first by the class order."""
    short = request.predicted_class is _SHORT
    shorts = pool.waiting_shorts - short
    longs = pool.waiting - 1 - shorts
    older_shorts, older_longs = _older(pool, request, shorts, longs)
    order, k = pool.rules.class_order, pool.rules.quota_k
    if order is _FCFS or order is _AA:
        return older_shorts + older_longs
    if order is ClassOrder.PSF:
        return older_shorts if short else shorts + older_longs
    counted = pool.short_admission_count
    if short:
        return older_shorts + min((older_shorts + counted) // k, longs)
    return older_longs + min(shorts, max((older_longs + 1) * k - counted, 0))


def _older(pool: Pool, request: Request, shorts: int, longs: int) -> tuple[int, int]:
    """Returns how many are older, of so many shorts and longs that wait beside the request."""
    last = request.sequence
    for looks, other in enumerate(reversed(pool.requests.values())):
        if other is request:
            return shorts, longs
        last = other.sequence
        if looks == BUDGET:
            break
        if other.state is RequestState.WAITING:
            if other.predicted_class is _SHORT:
                shorts -= 1
            else:
                longs -= 1
    backlog, sequence = pool.backlog, request.sequence
    return (
        _part_below(shorts, sequence, backlog.oldest_short(), last),
        _part_below(longs, sequence, backlog.oldest_long(), last),
    )


def _part_below(count: int, sequence: int, oldest: tuple[Flow, Request] | None, last: int) -> int:
    """Returns how many lie below an accept sequence if they lie evenly up to the last."""
    first = sequence if oldest is None else oldest[1].sequence
    return count * max(sequence - first, 0) // max(last - first, sequence - first, 1)


def _users_by_age(pool: Pool, request: Request) -> int:
    """Returns how many users have an older request that waits."""
    users = 0
    for flow in islice(pool.flows.values(), BUDGET):
        oldest = flow.oldest()
        users += oldest is not None and oldest.sequence < request.sequence
    return users * len(pool.flows) // min(len(pool.flows), BUDGET)
