"""Class heads of users, the oldest first; a request is in it once at most.

A head that has gone, or whose user cannot be chosen now, is void.  It is dropped when it comes to
the top; were there many deeper down, a few would be looked at with each that is added.
"""

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import mypyc_attr

from scheduler_service.core.sweeping import sweep

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler_service.core.state import Flow

_SWEPT_ABOVE: Final = 64


@final
@mypyc_attr(acyclic=True)
class Heads:
    """A heap of requests by sequence.

    Attributes:
        heap: Their sequences, in the order of `heapq`.
        flows: For each of them its user.

    Complexity:
        O(log n) a change; O(1) to look at the first.
    """

    __slots__ = ("_place", "flows", "heap")

    def __init__(self) -> None:
        self.heap: list[int] = []
        self.flows: dict[int, Flow] = {}
        self._place = 0

    def add(self, sequence: int, flow: "Flow") -> None:
        """Adds the head `sequence` of `flow`, unless it is there."""
        flows = self.flows
        known = len(flows)
        flows.setdefault(sequence, flow)
        if len(flows) > known:
            heappush(self.heap, sequence)

    def pop(self) -> None:
        """Removes the first."""
        del self.flows[heappop(self.heap)]

    def many(self, users: int) -> bool:
        """Whether most must be void, of so many users that can be chosen."""
        return len(self.heap) > _SWEPT_ABOVE + 2 * users

    def shrink(self, is_void: "Callable[[int, Flow], bool]") -> None:
        """Looks at a few and drops those of which `is_void` says so."""
        self._place = sweep(self.heap, self._place, lambda head: self._drop(head, is_void))

    def _drop(self, sequence: int, is_void: "Callable[[int, Flow], bool]") -> bool:
        """Says whether a head is void, and if so forgets its user: `sweep` removes it then."""
        if not is_void(sequence, self.flows[sequence]):
            return False
        del self.flows[sequence]
        return True
