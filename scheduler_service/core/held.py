"""Who holds the most places beyond its share: the victim of fair shedding.

Shares change with every arrival, but users of one weight keep their order.  So there is one sorted
list a weight, and the largest excess is among the last entries of these lists.
"""

from typing import TYPE_CHECKING

from sortedcontainers import SortedList

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scheduler_service.core.state import Flow


def share_of(places: int, weight: int, weight_sum: int) -> int:
    """Returns the places of a full pool that are a user's own, rounded down, at least 1.

    Whole places: with fractions two users just below and above theirs would displace each other
    for ever.
    """
    return max(1, places * weight // weight_sum)


class HeldIndex:
    """Waiting users by weight and places held.

    Complexity:
        O(log n) a change, O(number of different weights) to find the victim.
    """

    __slots__ = ("_by_weight", "_entries")

    def __init__(self, flows: "Iterable[Flow]") -> None:
        self._by_weight: dict[int, SortedList[tuple[int, str]]] = {}
        self._entries: dict[str, tuple[int, int]] = {}
        for flow in flows:
            self.update(flow)

    def update(self, flow: "Flow") -> None:
        """Takes over the places and weight that `flow` has now."""
        user_id = flow.user_id
        entry = self._entries.pop(user_id, None)
        if entry is not None:
            weight, held = entry
            users = self._by_weight[weight]
            users.remove((held, user_id))
            if not users:
                del self._by_weight[weight]
        if flow.waiting:
            self._entries[user_id] = (flow.weight_milli, flow.waiting)
            users = self._by_weight.setdefault(flow.weight_milli, SortedList())
            users.add((flow.waiting, user_id))

    def victim(self, places: int, weight_sum: int) -> str | None:
        """Returns the user with the largest `held - share > 0`; ties go to the greatest id.

        Args:
            places: P, places of the pool.
            weight_sum: Weights of all waiting users and the newcomer, thousandths.
        """
        best: tuple[int, str] | None = None
        for weight, users in self._by_weight.items():
            held, user_id = users[-1]
            excess = held - share_of(places, weight, weight_sum)
            if excess > 0 and (best is None or (excess, user_id) > best):
                best = (excess, user_id)
        return None if best is None else best[1]
