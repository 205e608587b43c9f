"""Methods to compare with; none of them is part of what the service can run.

Each keeps one first-in-first-out queue a user and answers the same calls as the service's core
(`scheduler_service.sim.method`).  Where a method needs a cost it is the one that the core charges.

Source:
    SFQ §4 (DRR), §6 (GPS, WFQ, stride, CFS, VTC), references [2] to [9] there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler_service.sim.baselines.deficit import DeficitLocality, DeficitRoundRobin
from scheduler_service.sim.baselines.rounds import FirstCome, RoundRobin, Stride
from scheduler_service.sim.baselines.served import ChargeAsServed, TokenCounter, TwoCounter
from scheduler_service.sim.baselines.tags import FinishTags, StartTags

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler_service.sim.method import Method

BASELINES: dict[str, Callable[[], Method]] = {
    "fifo": FirstCome,
    "round_robin": RoundRobin,
    "stride": Stride,
    "sfq_reset": lambda: StartTags("reset"),
    "sfq_no_rejoin": lambda: StartTags("none"),
    "drr": DeficitRoundRobin,
    "wfq": FinishTags,
    "cfs": ChargeAsServed,
    "vtc": TokenCounter,
    "dlpm": DeficitLocality,
    "two_counter": TwoCounter,
}
"""Every baseline with its default parameters, by name."""
