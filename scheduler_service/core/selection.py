"""Whose request goes next: the choice, without any change.

With a finite slack the candidates are the class heads of the users within `smallest S + D`; with
a slack configured as 0 they are those of the first user by `(S, user_id)`; with unbounded slack
those of every user.  The class order picks among them:

    QBA   1. the oldest aged long whose quota scope is in debt (a promotion)
          2. the oldest short      3. the oldest long
    PSF   2, 3          AA   the oldest long if aged, 2, 3          FCFS   the oldest

Source:
    SFQ §2.3 (smallest meter), QBA §III-A (class order, debt), and both composed by slack.
"""

from collections.abc import Iterator
from typing import Final, final

from mypy_extensions import mypyc_attr

from scheduler_service.core.charge import reach_of, slack_for
from scheduler_service.core.decisions import Offer, Rule, Turn
from scheduler_service.core.meters import lowest
from scheduler_service.core.policy import ClassOrder, PredictedClass
from scheduler_service.core.request import Request
from scheduler_service.core.state import Flow, Pool

_SELECTED: Final = Turn.SELECTED
_PROMOTION: Final = Rule.PROMOTION
_AGED: Final = Rule.AGED
_SHORT_FIRST: Final = Rule.SHORT_FIRST
_LONG_LAST: Final = Rule.LONG
_FIRST_COME: Final = Rule.FIRST_COME

_AA: Final = ClassOrder.AA
_FCFS: Final = ClassOrder.FCFS
_QBA: Final = ClassOrder.QBA
_SHORT: Final = PredictedClass.SHORT
_LONG: Final = PredictedClass.LONG


@final
@mypyc_attr(acyclic=True)
class Choice:
    """A candidate and how it came to its turn."""

    __slots__ = ("flow", "request", "rule", "turn")

    def __init__(self, flow: Flow, request: Request, rule: Rule, turn: Turn) -> None:
        self.flow = flow
        self.request = request
        self.rule = rule
        self.turn = turn


@final
@mypyc_attr(acyclic=True)
class Frame:
    """What one selection is computed from.

    Attributes:
        smallest: Smallest S over the selectable users, micro cost units; 0 when unbounded.
        smallest_user: That user; empty when unbounded.
        slack: D, micro cost units; -1 when unbounded.
        aged_before: A long enqueued before this time, ns, is aged; -1 ages nothing.
        threshold_ns: theta; -1 while the sample is too small.
    """

    __slots__ = ("aged_before", "slack", "smallest", "smallest_user", "threshold_ns")

    def __init__(
        self, smallest: int, smallest_user: str, slack: int, aged_before: int, threshold_ns: int
    ) -> None:
        self.smallest = smallest
        self.smallest_user = smallest_user
        self.slack = slack
        self.aged_before = aged_before
        self.threshold_ns = threshold_ns


def frame_of(pool: Pool, now_ns: int) -> Frame:
    """Computes slack and aging threshold, and takes the users within the window in."""
    rules, backlog = pool.rules, pool.backlog
    smallest, user, slack = 0, "", -1
    if backlog.charged:
        first = lowest(backlog.parts)
        meter: int = first[0]
        smallest, user = meter, first[2]
        slack = slack_for(rules, pool.recent_costs.largest)
        if not backlog.user_by_user:
            backlog.advance(smallest + slack)
    threshold = -1
    sample = pool.sample
    if len(sample) >= rules.aging_min_sample:
        threshold = sample.quantile(rules.aging_quantile_bp)
    aged_before = now_ns - threshold if threshold >= 0 else -1
    return Frame(smallest, user, slack, aged_before, threshold)


def select(pool: Pool, frame: Frame) -> Choice:
    """Returns the request whose turn it is; the pool must have a selectable user."""
    backlog = pool.backlog
    if backlog.charged:
        if backlog.user_by_user:
            flow = pool.flows[frame.smallest_user]
            return _within(pool, flow, frame, _SELECTED)
        if pool.passes >= pool.rules.max_passes:
            flow = pool.flows[frame.smallest_user]
            return _within(pool, flow, frame, Turn.MAX_PASSES)
    order = pool.rules.class_order
    if order is _FCFS:
        return _first_come(pool)
    if order is _QBA:
        head = None
        if backlog.charged:
            head = backlog.oldest_debtor_long()
        elif pool.promotion_debt and not pool.promotion_under_way:
            head = backlog.oldest_long()
        if head is not None and head[1].enqueue_ns < frame.aged_before:
            return Choice(head[0], head[1], _PROMOTION, _SELECTED)
    elif order is _AA:
        head = backlog.oldest_long()
        if head is not None and head[1].enqueue_ns < frame.aged_before:
            return Choice(head[0], head[1], _AGED, _SELECTED)
    head = backlog.oldest_short()
    if head is not None:
        return Choice(head[0], head[1], _SHORT_FIRST, _SELECTED)
    head = backlog.oldest_long()
    assert head is not None
    return Choice(head[0], head[1], _LONG_LAST, _SELECTED)


def _first_come(pool: Pool) -> Choice:
    short, long = pool.backlog.oldest_short(), pool.backlog.oldest_long()
    if long is None or (short is not None and short[1].sequence < long[1].sequence):
        assert short is not None
        return Choice(short[0], short[1], _FIRST_COME, _SELECTED)
    return Choice(long[0], long[1], _FIRST_COME, _SELECTED)


def _within(pool: Pool, flow: Flow, frame: Frame, turn: Turn) -> Choice:
    return next(heads_of(pool, flow, frame, turn))


def heads_of(pool: Pool, flow: Flow, frame: Frame, turn: Turn) -> Iterator[Choice]:
    """Yields the class heads of one user in its own class order."""
    short, long = pool.backlog.short_of(flow), pool.backlog.long_of(flow)
    order = pool.rules.class_order
    if order is _FCFS:
        for request in sorted(
            (head for head in (short, long) if head is not None), key=lambda head: head.sequence
        ):
            yield Choice(flow, request, _FIRST_COME, turn)
        return
    promoted = False
    if long is not None and long.enqueue_ns < frame.aged_before:
        if order is _QBA and may_promote(pool, flow):
            promoted = True
            yield Choice(flow, long, _PROMOTION, turn)
        elif order is _AA:
            promoted = True
            yield Choice(flow, long, _AGED, turn)
    if short is not None:
        yield Choice(flow, short, _SHORT_FIRST, turn)
    if long is not None and not promoted:
        yield Choice(flow, long, _LONG_LAST, turn)


def may_promote(pool: Pool, flow: Flow) -> bool:
    """Whether the quota scope of `flow` is in debt with no promotion under way."""
    holder = flow if pool.backlog.charged else pool
    return holder.promotion_debt and not holder.promotion_under_way


def candidates(pool: Pool, frame: Frame) -> Iterator[Choice]:
    """Yields all candidates in the order in which they may overtake, the selected one first.

    The class order among the eligible users' heads, then users past the window by
    `(S, user_id)` as far as the overtake slack reaches.
    """
    backlog = pool.backlog
    first = select(pool, frame)
    yield first
    tried = {first.request.sequence}
    lead: Iterator[Choice] = iter(())
    if first.turn is Turn.MAX_PASSES or (backlog.charged and backlog.user_by_user):
        lead = heads_of(pool, first.flow, frame, Turn.OVERTAKE)
    for choice in _chain(lead, _eligible(pool, frame), _past(pool, frame)):
        if choice.request.sequence not in tried:
            tried.add(choice.request.sequence)
            yield choice


def _chain(*parts: Iterator[Choice]) -> Iterator[Choice]:
    for part in parts:
        yield from part


def _eligible(pool: Pool, frame: Frame) -> Iterator[Choice]:
    """Yields the eligible users' class heads in class order, by age inside each rule."""
    backlog, order = pool.backlog, pool.rules.class_order
    if backlog.charged and backlog.user_by_user:
        return
    limit = pool.policy.overtake_scan
    if order is _FCFS:
        both = backlog.aged_order("shorts", limit) + backlog.aged_order("longs", limit)
        for flow, request in sorted(both, key=lambda head: head[1].sequence):
            yield Choice(flow, request, _FIRST_COME, Turn.OVERTAKE)
        return
    first: list[tuple[Flow, Request]] = []
    if order is _QBA and backlog.charged:
        first = backlog.aged_order("debtors", limit)
    elif order is _AA or (order is _QBA and pool.promotion_debt and not pool.promotion_under_way):
        first = backlog.aged_order("longs", limit)
    rule = _AGED if order is _AA else _PROMOTION
    for flow, request in first:
        if request.enqueue_ns < frame.aged_before:
            yield Choice(flow, request, rule, Turn.OVERTAKE)
    for flow, request in backlog.aged_order("shorts", limit):
        yield Choice(flow, request, _SHORT_FIRST, Turn.OVERTAKE)
    for flow, request in backlog.aged_order("longs", limit):
        yield Choice(flow, request, _LONG_LAST, Turn.OVERTAKE)


def _past(pool: Pool, frame: Frame) -> Iterator[Choice]:
    """Yields class heads of users past the window, as far as the overtake slack reaches."""
    if not pool.backlog.charged:
        return
    edge = frame.smallest + frame.slack
    if pool.backlog.user_by_user:
        edge = frame.smallest - 1
    for flow in pool.backlog.past_edge(edge, farthest(pool, frame)):
        yield from heads_of(pool, flow, frame, Turn.OVERTAKE)


def farthest(pool: Pool, frame: Frame) -> int:
    """Returns the largest S that may be dispatched out of order, micro cost units.

    That is `smallest S + D`, and `+ O` where overtaking is on (O as much as D unless set).
    """
    return frame.smallest + reach_of(pool.rules, frame.slack)


def fits(request: Request, offer: Offer) -> bool:
    """Whether a worker can take the request now."""
    if 0 <= offer.free_tokens < request.kv_tokens:
        return False
    return _accepts(request, offer)


def could_hold(request: Request, offer: Offer) -> bool:
    """Whether a worker could take the request if it were idle."""
    if 0 <= offer.total_tokens < request.kv_tokens:
        return False
    return _accepts(request, offer)


def _accepts(request: Request, offer: Offer) -> bool:
    if request.predicted_class is _SHORT:
        if not offer.accepts_short:
            return False
    elif not offer.accepts_long:
        return False
    return not request.labels or set(request.labels) <= set(offer.labels)
