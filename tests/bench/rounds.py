"""Alternating, guarded rounds: the only way numbers of a shared machine can be compared.

Everything that is compared runs in the same rounds, one slice after the other, in turning order.
A slice counts when both spin tests beside it were good; it is repeated otherwise.  Ratios are
formed inside a round, and medians over the rounds.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.bench.load import Slice
from tests.bench.machine import Guard

ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing to measure.

    Attributes:
        name: Unique in its rounds.
        measure: Runs one slice.
        before: Prepares one, unmeasured: refills a backlog, say.
    """

    name: str
    measure: Callable[[], Slice]
    before: Callable[[], None] = lambda: None


@dataclass(slots=True)
class Rounds:
    """What the rounds found.

    Attributes:
        slices: By name of the cell, one each round.
        noisy: Slices kept although no attempt was quiet.
        dropped: Attempts dropped.
    """

    slices: dict[str, list[Slice]]
    noisy: int = 0
    dropped: int = 0

    def values(self, cell: str, of: Callable[[Slice], float]) -> list[float]:
        """Returns one value a round."""
        return [of(slice_) for slice_ in self.slices[cell]]

    def median(self, cell: str, of: Callable[[Slice], float]) -> float:
        """Returns the median over the rounds."""
        return statistics.median(self.values(cell, of))

    def ratios(
        self,
        cell: str,
        of: Callable[[Slice], float],
        base: str,
        of_base: Callable[[Slice], float] | None = None,
    ) -> list[float]:
        """Returns the ratio of two cells in each round."""
        below = self.values(base, of_base or of)
        return [a / b if b else 0.0 for a, b in zip(self.values(cell, of), below, strict=True)]


def alternate(
    cells: list[Cell],
    *,
    rounds: int,
    guard: Guard,
    attempts: int = ATTEMPTS,
    told: Callable[[str, int, Slice], None] = lambda _name, _round, _slice: None,
) -> Rounds:
    """Measures every cell in every round.

    Args:
        cells: In the order of odd rounds; even ones go backwards, so that neighbours stay so.
        rounds: How many.
        guard: The spin tests.
        attempts: Slices tried before a noisy one is kept.
        told: Called with each slice kept.
    """
    found = Rounds({cell.name: [] for cell in cells})
    for number in range(rounds):
        for cell in cells if number % 2 == 0 else reversed(cells):
            slice_ = _quiet_slice(cell, guard, attempts, found)
            found.slices[cell.name].append(slice_)
            told(cell.name, number, slice_)
    return found


def _quiet_slice(cell: Cell, guard: Guard, attempts: int, found: Rounds) -> Slice:
    best: Slice | None = None
    for _ in range(attempts):
        cell.before()
        lost = guard.settled_percent()
        slice_ = cell.measure()
        lost = max(lost, guard.lost_percent())
        slice_ = replace(slice_, lost_percent=lost)
        if lost <= guard.limit:
            return slice_
        if best is None or lost < best.lost_percent:
            best = slice_
        found.dropped += 1
    assert best is not None
    found.dropped -= 1
    found.noisy += 1
    return best
