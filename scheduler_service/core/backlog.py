"""Who is selectable, in which order: the `(meter, user)` index and the class heads.

Selectable users stand in one sorted index by `(S, tie, user_id)`.  With a slack configured as 0
the tie is 0, so the order is the article's `(S, user_id)`; else it is the user's oldest waiting
request, so that the first entry is "the smallest S, ties: older request".

With a finite slack the users are split at the edge `smallest S + D`: those within it are ELIGIBLE
and have their class heads in age-ordered heaps; those past it are BEYOND, where the index finds
them.  The edge mostly rises, and users come in as it passes them.  When it falls (D fell, or a user
joined at `v`), users past it are moved out when they are met; these stand in a set of their own
until the edge comes to them again, so that nobody else is looked at twice.  Who joins within the
last edge, or is the first to join, is taken in at once: however many come while nobody is served,
the next selection finds them in.  Heads are validated when they come to the top, so whatever made
them void needs no search.

Nothing here states anything that `State` does not: it can be rebuilt from the flows at any time.

Invariants:
    A flow's key is in the index exactly while its place is not OUT and meters are charged.
    Every selectable user with S at or below the last edge is ELIGIBLE after `advance`.
    A user that is BEYOND has an S of at least `_reached` and `_nearest`, or stands in `_moved`.

Source:
    SFQ §7.1 (ordered set keyed by meter and user id).
"""

from typing import TYPE_CHECKING, Final

from sortedcontainers import SortedList, SortedSet

from scheduler_service.core import meters
from scheduler_service.core.heads import Heads
from scheduler_service.core.policy import PoolPolicy, PredictedClass, WithinUser

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scheduler_service.core.request import Request
    from scheduler_service.core.search import Key
    from scheduler_service.core.state import Flow

OUT: Final = 0
ELIGIBLE: Final = 1
BEYOND: Final = 2

_NO_EDGE: Final = 1 << 63

_SHORT: Final = PredictedClass.SHORT


class Backlog:
    """The selectable users of one pool.

    Complexity:
        O(log n) a change; amortised O(log n) a selection while D does not fall.
    """

    __slots__ = (
        "_any_moved",
        "_debtors",
        "_flows",
        "_longs",
        "_moved",
        "_nearest",
        "_reached",
        "_shorts",
        "charged",
        "edge",
        "fifo",
        "index",
        "parts",
        "selectable",
        "user_by_user",
    )

    def __init__(self, policy: PoolPolicy, flows: "dict[str, Flow]") -> None:
        self._flows = flows
        self.charged = not policy.unbounded
        self.user_by_user = policy.user_by_user
        self.fifo = policy.within_user is WithinUser.FIFO
        self.index: SortedList[Key] = SortedList()
        self.parts = meters.parts_of(self.index)
        self.edge = -1 if self.charged else _NO_EDGE
        self.selectable = 0
        self._reached = 0
        self._nearest = _NO_EDGE
        self._moved: SortedSet[tuple[int, str]] = SortedSet()
        self._any_moved = False
        self._shorts = Heads()
        self._longs = Heads()
        self._debtors = Heads()

    def join(self, flow: "Flow") -> None:
        """Makes `flow`, which has a waiting request, selectable."""
        self.selectable += 1
        if not self.charged:
            flow.place = ELIGIBLE
            self._push_heads(flow)
            return
        self._enter_index(flow)
        if self.user_by_user:
            flow.place = ELIGIBLE
            return
        meter = flow.meter
        if meter > self.edge and self.selectable == 1:
            self.edge = meter
        if meter <= self.edge:
            flow.place = ELIGIBLE
            self._push_heads(flow)
        else:
            self._move_out(flow)

    def leave(self, flow: "Flow") -> None:
        """Makes `flow` not selectable."""
        self.selectable -= 1
        flow.place = OUT
        if flow.key is not None:
            meters.remove(self.index, flow.key)
            flow.key = None

    def update(self, flow: "Flow", changed: PredictedClass) -> None:
        """Follows a change of a selectable user's meter, or of its head of one class."""
        if not self.charged:
            self._push_head(flow, changed)
            return
        old = flow.key
        assert old is not None
        meter_before: int = old[0]
        tie_before: int = old[1]
        meter, tie = flow.meter, 0
        if not self.user_by_user:
            short, long = flow.oldest_short, flow.oldest_long
            if short is None or (long is not None and long.sequence < short.sequence):
                short = long
            assert short is not None
            tie = short.sequence
        if meter_before != meter or tie_before != tie:
            key: Key = (meter, tie, flow.user_id)
            flow.key = key
            meters.move(self.index, old, key)
        if self.user_by_user:
            return
        if flow.place == ELIGIBLE:
            if meter <= self.edge:
                self._push_head(flow, changed)
            else:
                self._move_out(flow)
        elif meter_before != meter:
            self._move_out(flow)

    def owe(self, flow: "Flow") -> None:
        """Follows a promotion debt that `flow` has earned or got back."""
        if flow.place == ELIGIBLE and not self.user_by_user:
            long = self.long_of(flow)
            if long is not None:
                self._add(self._debtors, flow, long)

    def advance(self, edge: int) -> None:
        """Takes in every user whose meter is at or below `edge` (micro cost units)."""
        self.edge = edge
        if self._any_moved:
            self._take_in_moved(edge)
        if edge < self._nearest:
            return
        users, above = meters.users_between(self.index, self._reached, edge)
        for user_id in users:
            self._take_in(self._flows[user_id])
        self._reached = edge + 1
        self._nearest = _NO_EDGE if above < 0 else above

    def short_of(self, flow: "Flow") -> "Request | None":
        """Returns the predicted-short candidate of `flow`."""
        if self.fifo:
            oldest = flow.oldest()
            return oldest if oldest is flow.oldest_short else None
        return flow.oldest_short

    def long_of(self, flow: "Flow") -> "Request | None":
        """Returns the predicted-long candidate of `flow`."""
        if self.fifo:
            oldest = flow.oldest()
            return oldest if oldest is flow.oldest_long else None
        return flow.oldest_long

    def oldest_short(self) -> "tuple[Flow, Request] | None":
        """Returns the oldest short candidate among the eligible users."""
        heads = self._shorts
        heap, flows = heads.heap, heads.flows
        while heap:
            sequence = heap[0]
            flow = flows[sequence]
            if flow.place == ELIGIBLE:
                head = self.short_of(flow) if self.fifo else flow.oldest_short
                if head is not None and head.sequence == sequence:
                    if flow.meter <= self.edge:
                        return flow, head
                    self._move_out(flow)
            heads.pop()
        return None

    def oldest_long(self) -> "tuple[Flow, Request] | None":
        """Returns the oldest long candidate among the eligible users."""
        return self._oldest_long(self._longs, owing=False)

    def oldest_debtor_long(self) -> "tuple[Flow, Request] | None":
        """Returns the oldest long candidate of an eligible user that may be promoted."""
        return self._oldest_long(self._debtors, owing=True) if self._debtors.heap else None

    def _oldest_long(self, heads: Heads, *, owing: bool) -> "tuple[Flow, Request] | None":
        heap, flows = heads.heap, heads.flows
        while heap:
            sequence = heap[0]
            flow = flows[sequence]
            if flow.place == ELIGIBLE:
                head = self.long_of(flow) if self.fifo else flow.oldest_long
                if (
                    head is not None
                    and head.sequence == sequence
                    and not (owing and (not flow.promotion_debt or flow.promotion_under_way))
                ):
                    if flow.meter <= self.edge:
                        return flow, head
                    self._move_out(flow)
            heads.pop()
        return None

    def aged_order(self, which: str, limit: int) -> "list[tuple[Flow, Request]]":
        """Returns up to `limit` eligible candidates by age: "shorts", "longs" or "debtors"."""
        top, heads = {
            "shorts": (self.oldest_short, self._shorts),
            "longs": (self.oldest_long, self._longs),
            "debtors": (self.oldest_debtor_long, self._debtors),
        }[which]
        found: list[tuple[Flow, Request]] = []
        while len(found) < limit and (head := top()) is not None:
            heads.pop()
            found.append(head)
        for flow, request in found:
            heads.add(request.sequence, flow)
        return found

    def past_edge(self, edge: int, reach: int) -> "Iterator[Flow]":
        """Yields users with `edge < S <= reach` by `(S, user_id)`."""
        group: list[str] = []
        meter = -1
        for key in self.index.irange((edge + 1, -1, ""), (reach + 1, -1, "")):
            if key[0] != meter:
                yield from (self._flows[user_id] for user_id in sorted(group))
                group, meter = [], key[0]
            group.append(key[2])
        yield from (self._flows[user_id] for user_id in sorted(group))

    def check(self) -> None:
        """Asserts the invariants.

        Complexity:
            O(everything); for tests, dumps and start-up.
        """
        for heads in (self._shorts, self._longs, self._debtors):
            assert len(heads.heap) == len(heads.flows), "a head stands twice in its heap"
            assert set(heads.heap) == heads.flows.keys()
        assert self._any_moved == bool(self._moved)
        if self.user_by_user:
            return
        for user_id, flow in self._flows.items():
            if flow.place == BEYOND:
                known = flow.meter >= max(self._reached, self._nearest)
                assert known or (flow.meter, user_id) in self._moved, "nobody will take a user in"
            elif flow.place == ELIGIBLE:
                short, long = self.short_of(flow), self.long_of(flow)
                assert short is None or short.sequence in self._shorts.flows, "a short is lost"
                assert long is None or long.sequence in self._longs.flows, "a long is lost"

    def _enter_index(self, flow: "Flow") -> None:
        tie = 0
        if not self.user_by_user:
            oldest = flow.oldest()
            assert oldest is not None
            tie = oldest.sequence
        key: Key = (flow.meter, tie, flow.user_id)
        flow.key = key
        meters.add(self.index, key)

    def _push_heads(self, flow: "Flow") -> None:
        if self.fifo:
            short, long = self.short_of(flow), self.long_of(flow)
        else:
            short, long = flow.oldest_short, flow.oldest_long
        if short is not None:
            self._add(self._shorts, flow, short)
        if long is not None:
            self._add(self._longs, flow, long)
            if flow.promotion_debt:
                self._add(self._debtors, flow, long)

    def _push_head(self, flow: "Flow", changed: PredictedClass) -> None:
        if self.fifo:
            self._push_heads(flow)
        elif changed is _SHORT:
            if flow.oldest_short is not None:
                self._add(self._shorts, flow, flow.oldest_short)
        elif flow.oldest_long is not None:
            self._add(self._longs, flow, flow.oldest_long)
            if flow.promotion_debt:
                self._add(self._debtors, flow, flow.oldest_long)

    def _add(self, heads: Heads, flow: "Flow", request: "Request") -> None:
        heads.add(request.sequence, flow)
        if heads.many(self.selectable):
            short = heads is self._shorts
            heads.shrink(self._is_no_short if short else self._is_no_long)

    def _is_no_short(self, sequence: int, flow: "Flow") -> bool:
        head = self.short_of(flow) if flow.place == ELIGIBLE else None
        return head is None or head.sequence != sequence

    def _is_no_long(self, sequence: int, flow: "Flow") -> bool:
        head = self.long_of(flow) if flow.place == ELIGIBLE else None
        return head is None or head.sequence != sequence

    def _take_in(self, flow: "Flow") -> None:
        if flow.place == BEYOND:
            flow.place = ELIGIBLE
            self._push_heads(flow)

    def _take_in_moved(self, edge: int) -> None:
        """Takes in those that were moved out below what had been reached."""
        moved = self._moved
        while moved and moved[0][0] <= edge:
            meter, user_id = moved.pop(0)
            flow = self._flows.get(user_id)
            if flow is not None and flow.meter == meter:
                self._take_in(flow)
        self._any_moved = bool(moved)

    def _move_out(self, flow: "Flow") -> None:
        """Leaves `flow`, which is past the edge, out until the edge has come to it."""
        flow.place = BEYOND
        if flow.meter < self._reached:
            self._moved.add((flow.meter, flow.user_id))
            self._any_moved = True
        else:
            self._nearest = min(self._nearest, flow.meter)
