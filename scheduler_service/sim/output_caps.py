"""Output caps for traces that have none: three stated models, and what a cap does to a stream.

No public trace says how much output a caller allowed.  The service needs it: without a prediction
it expects a learned part of the cap.  So caps are put on by rule:

    `1024`, `4096`   every request has that cap: callers that leave a client's default as it is
    `user_p99`       each user's own P99 of response length, rounded up to a power of two: callers
                     that know their work (and know it beforehand, which is kind to them)

A cap ends what is longer, as an engine would; the stream says how many responses it cut.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from scheduler_service.sim.model import Workload

CapModel = Literal["1024", "4096", "user_p99"]
"""How caps are put on a stream."""

CAP_MODELS: Final[tuple[CapModel, ...]] = get_args(CapModel)

_PERCENT: Final = 99


class Capped(NamedTuple):
    """A stream under caps.

    Attributes:
        workload: The stream; no response is longer than its cap.
        caps: Output cap of each request, tokens.
        cut: Responses that were longer.
    """

    workload: Workload
    caps: list[int]
    cut: int


def capped(workload: Workload, model: CapModel) -> Capped:
    """Returns the stream with caps put on."""
    if model == "user_p99":
        by_user = _user_caps(workload)
        caps = [by_user[user] for user in workload.user]
    else:
        caps = [int(model)] * len(workload)
    pairs = list(zip(workload.response, caps, strict=True))
    response = [min(length, cap) for length, cap in pairs]
    if response == workload.response:
        return Capped(workload, caps, 0)
    cut = dataclasses.replace(workload, response=response, predicted_response=response)
    return Capped(cut, caps, sum(length > cap for length, cap in pairs))


def _user_caps(workload: Workload) -> dict[int, int]:
    """Returns each user's P99 of response length (nearest rank) as a power of two."""
    lengths: dict[int, list[int]] = {}
    for user, response in zip(workload.user, workload.response, strict=True):
        lengths.setdefault(user, []).append(response)
    return {
        user: 1 << (sorted(own)[-(-_PERCENT * len(own) // 100) - 1] - 1).bit_length()
        for user, own in lengths.items()
    }
