"""Who is heavy and who is light: the one definition of the simulator and the demo.

A user is **heavy** when it asks for more than its max-min fair share of the capacity, by weight;
all others are light.  The capacity is what the stream asks for over `NOMINAL_LOAD`, so that the
answer follows from the stream alone, whatever the load of a run.

A single user is neither: there is nobody to share with.  Users that all ask for about the same are
all heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

NOMINAL_LOAD: Final = 1.2
"""Offered cost over the capacity that is divided; above 1, since otherwise all get what they ask.
"""


def water_level(demand: Sequence[float], weights: Sequence[float], capacity: float) -> float:
    """Returns the max-min fair share of weight 1: all get what they ask, up to this level.

    Args:
        demand: What each user asks for.
        weights: Weight of each user, above 0.
        capacity: What is divided.

    Returns:
        The level; infinite if there is enough for everybody.
    """
    left, weight_left = capacity, sum(weights)
    for cost, weight in sorted(zip(demand, weights, strict=True), key=lambda x: x[0] / x[1]):
        level = left / weight_left
        if cost > level * weight:
            return level
        left -= cost
        weight_left -= weight
    return float("inf")


def heavy_among(demand: Sequence[float], weights: Sequence[float]) -> set[int]:
    """Returns the positions of the heavy users.

    Args:
        demand: What each user asks for, over the whole stream.
        weights: Weight of each user, above 0.
    """
    if sum(cost > 0 for cost in demand) < 2:  # noqa: PLR2004 - one alone
        return set()
    level = water_level(demand, weights, sum(demand) / NOMINAL_LOAD)
    pairs = zip(demand, weights, strict=True)
    return {user for user, (cost, weight) in enumerate(pairs) if cost > level * weight}
