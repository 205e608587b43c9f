"""The divisions of the core, each rounded in a stated direction."""

from typing import TYPE_CHECKING, Final

from scheduler_service.core.policy import MICRO, Placement, SlackKind
from scheduler_service.core.rules import Rules

if TYPE_CHECKING:
    from mypy_extensions import i64

_ABSOLUTE: Final = SlackKind.ABSOLUTE
_OVERTAKE: Final = Placement.OVERTAKE


def charge_for(cost: int, weight_milli: int) -> int:
    """Returns what one dispatch adds to the meter, rounded up.

    Rounding up keeps every charge positive, so virtual time always moves and no user can be
    dispatched for free.

    Args:
        cost: Cost units, 1 … 10^9.
        weight_milli: Weight in thousandths, at least 1; 1000 is weight 1.

    Returns:
        Charge in micro cost units, at least 1, less than 1 above the exact value.

    Source:
        SFQ §4.4 (charge c / w); §5.1 (fixed at dispatch, never corrected).
    """
    exact: i64 = cost  # at most 10^9 units, so what follows is at most 10^18
    weight: i64 = weight_milli
    exact *= MICRO * 1000
    return -(-exact // weight)


def slack_for(rules: Rules, cost_max: int) -> int:
    """Returns the slack D of one selection, micro cost units.

    Args:
        rules: Of a policy with a finite slack.
        cost_max: Largest cost among the recent charged dispatches, 0 … 10^9 cost units.
    """
    if rules.slack_kind is _ABSOLUTE:
        return rules.slack_micros
    slack: i64 = cost_max  # at most 10^9 units and 10^6 thousandths, so at most 10^18
    slack *= rules.slack_milli
    slack *= MICRO // 1000
    return min(slack, rules.slack_max_micros)


def reach_of(rules: Rules, slack: int) -> int:
    """Returns how far past the smallest meter a dispatch may come from, micro cost units.

    That is D, and D + O where overtaking is on (O as much as D unless it is set).

    Args:
        rules: Of a policy with a finite slack.
        slack: D.
    """
    if rules.placement is not _OVERTAKE:
        return slack
    return slack + (slack if rules.overtake_slack_micros < 0 else rules.overtake_slack_micros)


def rescaled_residual(residual: int, weight_before: int, weight_after: int, limit: int) -> int:
    """Returns a user's distance above `v` after a change of weight, rounded up and clamped.

    Args:
        residual: S - v before the change, micro cost units, positive.
        weight_before: Old weight in thousandths.
        weight_after: New weight in thousandths.
        limit: D + L, micro cost units: the residual never grows past it (but never shrinks for
            being past it already).

    Source:
        SFQ §3.1, §4.4: unclamped, the band would break.
    """
    scaled = -(-residual * weight_before // weight_after)
    return min(scaled, max(residual, limit))
