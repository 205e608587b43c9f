"""Synthetic request streams: the paper's, and streams of several users.

The stream of the paper: Poisson arrivals; prompts 0.7 N(100, 30^2) + 0.3 Pareto (classical,
minimum 40, shape 1.4), floored, 1 to 4096; responses lognormal(3 + 0.75 ln(1 + P), 0.3), floored,
same cap; long iff above the run's empirical 0.85 quantile.

One seed gives the same arrivals, sizes and users whatever the rate, the error rates or the label
are: each has its own random stream, so that runs of different settings are paired.

Source:
    QBA §IV-A1, §IV-A2, §IV-A6, §II-C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from scheduler_service.sim.model import NS_PER_SECOND, Workload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LabelBy = Literal["response", "work"]

TOKEN_CAP: Final = 4096
LONG_QUANTILE: Final = 0.85

_PROMPT_MEAN, _PROMPT_DEVIATION, _NORMAL_SHARE = 100.0, 30.0, 0.7
_PARETO_SHAPE, _PARETO_MINIMUM = 1.4, 40.0
_RESPONSE_BASE, _RESPONSE_SLOPE, _RESPONSE_SIGMA = 3.0, 0.75, 0.3

# Numbers of the random streams derived from a seed; never reordered, or old seeds change.
_ARRIVALS, _SIZES, _FLIPS, _USERS = range(4)


def _generator(seed: int, stream: int) -> np.random.Generator:
    import numpy as np  # noqa: PLC0415 - optional, of the extra `sim`

    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, stream])))


def label(
    prompt: list[int], response: list[int], by: LabelBy, quantile: float = LONG_QUANTILE
) -> tuple[list[bool], float]:
    """Returns who is long, and the cutoff: the empirical quantile of the label's unit.

    Args:
        prompt: Prompt tokens.
        response: Response tokens.
        by: `response` (QBA §II-C) or `work`, prompt and response together.
        quantile: Quantile level of the cutoff, 0 to 1.

    Returns:
        One flag a request, and the cutoff in tokens; a request is long when above it.
    """
    import numpy as np  # noqa: PLC0415 - optional, of the extra `sim`

    size = np.asarray(response)
    if by == "work":
        size = size + np.asarray(prompt)
    cutoff = float(np.quantile(size, quantile)) if len(size) else 0.0
    return (size > cutoff).tolist(), cutoff


def flip_labels(
    long: list[bool], seed: int, short_to_long: float = 0.0, long_to_short: float = 0.0
) -> list[bool]:
    """Returns predicted classes with independent errors of the two kinds.

    Args:
        long: True classes.
        seed: Seed of the run.
        short_to_long: Share of the short requests predicted long, 0 to 1.
        long_to_short: Share of the long requests predicted short, 0 to 1.

    Returns:
        One flag a request.  A larger rate flips a superset of what a smaller one flips.

    Source:
        QBA §IV-A6.
    """
    import numpy as np  # noqa: PLC0415 - optional, of the extra `sim`

    truth = np.asarray(long, dtype=bool)
    draw = _generator(seed, _FLIPS).random(len(truth))
    rate = np.where(truth, long_to_short, short_to_long)
    flipped: list[bool] = np.where(draw < rate, ~truth, truth).tolist()
    return flipped


def _sizes(rng: np.random.Generator, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns prompt and response tokens of the paper's stream."""
    import numpy as np  # noqa: PLC0415 - optional, of the extra `sim`

    normal = rng.normal(_PROMPT_MEAN, _PROMPT_DEVIATION, count)
    pareto = _PARETO_MINIMUM * (1.0 + rng.pareto(_PARETO_SHAPE, count))
    prompt = np.where(rng.random(count) < _NORMAL_SHARE, normal, pareto)
    prompt = np.clip(np.floor(prompt), 1, TOKEN_CAP).astype(np.int64)
    location = _RESPONSE_BASE + _RESPONSE_SLOPE * np.log1p(prompt)
    response = np.exp(location + _RESPONSE_SIGMA * rng.standard_normal(count))
    return prompt, np.clip(np.floor(response), 1, TOKEN_CAP).astype(np.int64)


def synthetic(
    seed: int,
    rate: float = 32.0,
    count: int = 5000,
    *,
    by: LabelBy = "response",
    short_to_long: float = 0.0,
    long_to_short: float = 0.0,
) -> Workload:
    """Returns the paper's stream: one anonymous user.

    Args:
        seed: Any non-negative number.
        rate: Arrivals a second (lambda).
        count: Number of requests.
        by: What the label looks at.
        short_to_long: Error rate epsilon_SL.
        long_to_short: Error rate epsilon_LS.

    Returns:
        The stream; cost is prompt plus response tokens.
    """
    import numpy as np  # noqa: PLC0415 - optional, of the extra `sim`

    gaps = _generator(seed, _ARRIVALS).standard_exponential(count)
    arrival = np.round(np.cumsum(gaps) * (NS_PER_SECOND / rate)).astype(np.int64)
    prompt, response = _sizes(_generator(seed, _SIZES), count)
    sizes = prompt.tolist(), response.tolist()
    long, cutoff = label(*sizes, by)
    return Workload(
        name=f"synthetic rate={rate:g} seed={seed}",
        users=["all"],
        weights_milli=[1000],
        arrival_ns=arrival.tolist(),
        user=[0] * count,
        prompt=sizes[0],
        response=sizes[1],
        predicted_response=sizes[1],
        cost=(prompt + response).tolist(),
        long=long,
        predicted_long=flip_labels(long, seed, short_to_long, long_to_short),
        cutoff=cutoff,
    )


@dataclass(frozen=True, slots=True)
class UserMix:
    """How a synthetic stream is divided between users.

    Attributes:
        heavy_share: Share of the requests that the one heavy user sends, 0 to 1.
        light_users: Number of light users, who share the rest evenly.
        burst: The heavy user's requests come in groups of this many, all at one time.
    """

    heavy_share: float = 0.6
    light_users: int = 9
    burst: int = 1


def several_users(
    seed: int,
    rate: float = 32.0,
    count: int = 5000,
    *,
    mix: UserMix | None = None,
    by: LabelBy = "work",
) -> Workload:
    """Returns the paper's sizes and arrivals, sent by one heavy and several light users.

    Args:
        seed: Any non-negative number.
        rate: Arrivals a second of all users together.
        count: Number of requests.
        mix: Who sends how much.
        by: What the label looks at.

    Returns:
        The stream; user 0 is the heavy one, `heavy`.
    """
    import numpy as np  # noqa: PLC0415 - optional, of the extra `sim`

    mix = mix or UserMix()
    base = synthetic(seed, rate, count, by=by)
    rng = _generator(seed, _USERS)
    light = 1 + rng.integers(0, mix.light_users, count)
    user = np.where(rng.random(count) < mix.heavy_share, 0, light)
    arrival = np.asarray(base.arrival_ns)
    heavy = np.flatnonzero(user == 0)
    if mix.burst > 1 and len(heavy):
        last = np.minimum((np.arange(len(heavy)) // mix.burst + 1) * mix.burst, len(heavy)) - 1
        arrival[heavy] = arrival[heavy[last]]
    order = np.argsort(arrival, kind="stable").tolist()
    return Workload(
        name=f"several users rate={rate:g} seed={seed}",
        users=["heavy", *(f"light-{i}" for i in range(1, mix.light_users + 1))],
        weights_milli=[1000] * (1 + mix.light_users),
        arrival_ns=[int(arrival[i]) for i in order],
        user=[int(user[i]) for i in order],
        prompt=[base.prompt[i] for i in order],
        response=[base.response[i] for i in order],
        predicted_response=[base.predicted_response[i] for i in order],
        cost=[base.cost[i] for i in order],
        long=[base.long[i] for i in order],
        predicted_long=[base.predicted_long[i] for i in order],
        cutoff=base.cutoff,
    )
