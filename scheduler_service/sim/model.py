"""What a simulation is made of: a request stream, an engine's shape, and what came out.

All times are nanoseconds and all sizes are tokens, as plain `int`, so that a run is exact and
the same on every machine.  A request is a number from 0 to n - 1 in order of arrival; its fields
stand in parallel lists, since the hot loop touches one field of many requests.

Source:
    QBA §II-A (engine), §IV-A (parameters).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Final, Literal

NS_PER_SECOND: Final = 1_000_000_000
FAR: Final = 1 << 62
"""A time later than any event."""

KvRule = Literal["live", "reserve"]


@dataclass(frozen=True, slots=True)
class EngineShape:
    """Size and speed of one inference engine.

    Attributes:
        token_budget: Tokens of one batch (B), at least `decode_block`, a multiple of it.
        decode_block: Tokens a running request gets in one batch (q), at least 1.
        kv_capacity: Hard KV-cache capacity (M_max), tokens.
        kv_safe_permille: Admission limit as thousandths of the capacity (eta).
        kv_rule: `live` admits a chunk while the tokens held now, the chunks of this batch and the
            chunk stay below the limit (the paper; decode growth is not guarded and passes the
            capacity in some batches).  `reserve` admits a request while prompt and predicted
            response of all admitted ones fit the whole capacity (safe; the default).
        launch_ns: Time of a batch up to the knee (c0).
        token_ns: Time of each token beyond the knee (a).
        knee_tokens: The knee (b0).
    """

    token_budget: int = 128
    decode_block: int = 8
    kv_capacity: int = 8192
    kv_safe_permille: int = 700
    kv_rule: KvRule = "reserve"
    launch_ns: int = 3_000_000
    token_ns: int = 20_000
    knee_tokens: int = 64

    def __post_init__(self) -> None:
        """Refuses shapes that the engine's arithmetic does not cover."""
        if self.decode_block < 1 or self.token_budget < self.decode_block:
            msg = "token_budget must be at least decode_block, and that at least 1"
            raise ValueError(msg)
        if self.token_budget % self.decode_block:
            msg = "token_budget must be a multiple of decode_block"
            raise ValueError(msg)
        if not 1 <= self.kv_safe_permille <= 1000:  # noqa: PLR2004 - thousandths
            msg = "kv_safe_permille must be 1 to 1000"
            raise ValueError(msg)
        if min(self.kv_capacity, self.launch_ns) < 1 or min(self.token_ns, self.knee_tokens) < 0:
            msg = "capacity and launch time must be positive, token time and knee not negative"
            raise ValueError(msg)

    @property
    def slots(self) -> int:
        """Requests that can decode at once: the batch holds one block of each."""
        return self.token_budget // self.decode_block

    @property
    def kv_limit(self) -> int:
        """Tokens up to which the engine admits."""
        if self.kv_rule == "reserve":
            return self.kv_capacity
        return self.kv_capacity * self.kv_safe_permille // 1000

    def batch_ns(self, tokens: int) -> int:
        """Returns the service time of a batch: c0 + a max(0, b - b0)."""
        return self.launch_ns + self.token_ns * max(0, tokens - self.knee_tokens)


PAPER_ENGINE: Final = EngineShape(kv_rule="live")


@dataclass(frozen=True, slots=True)
class Workload:
    """A request stream, in order of arrival.

    Attributes:
        name: What the stream is, for reports.
        users: Names of the users.
        weights_milli: Weight of each user in thousandths, 1000 is weight 1.
        arrival_ns: Arrival times, not decreasing.
        user: Index into `users` of each request.
        prompt: Prompt tokens, at least 1.
        response: Response tokens, at least 1.
        predicted_response: What the scheduler believes the response to be, at least 1.
        cost: Cost units charged at dispatch, at least 1.
        long: True class.
        predicted_long: Class the scheduler sees.
        cutoff: The value above which a request is long, in the unit of the label.
    """

    name: str
    users: list[str]
    weights_milli: list[int]
    arrival_ns: list[int]
    user: list[int]
    prompt: list[int]
    response: list[int]
    predicted_response: list[int]
    cost: list[int]
    long: list[bool]
    predicted_long: list[bool]
    cutoff: float = 0.0

    def __len__(self) -> int:
        """Returns the number of requests."""
        return len(self.arrival_ns)

    def check(self) -> None:
        """Refuses a stream whose columns disagree or leave their range."""
        columns: list[list[int] | list[bool]] = [
            self.user,
            self.prompt,
            self.response,
            self.predicted_response,
            self.cost,
            self.long,
            self.predicted_long,
        ]
        if any(len(column) != len(self) for column in columns):
            msg = "the columns of a workload must have one length"
            raise ValueError(msg)
        if any(a > b for a, b in zip(self.arrival_ns, self.arrival_ns[1:], strict=False)):
            msg = "arrivals must not decrease"
            raise ValueError(msg)
        smallest = (min(c, default=1) for c in (self.prompt, self.response, self.cost))
        if min(smallest) < 1 or min(self.predicted_response, default=1) < 1:
            msg = "prompt, response, prediction and cost must be at least 1"
            raise ValueError(msg)

    def with_labels(self, predicted_long: list[bool]) -> Workload:
        """Returns the same stream under other predicted classes."""
        return dataclasses.replace(self, predicted_long=predicted_long)


@dataclass(slots=True)
class EngineTotals:
    """What one engine did, summed over a run.

    Attributes:
        batches: Batches run.
        tokens: Tokens processed, prompt and response.
        busy_ns: Time spent in batches.
        overflow_batches: Batches after which the live KV cache was above the hard capacity.
        peak_kv: Largest live KV cache at the end of a batch, tokens.
        kv_refusals: Candidates refused for KV space.
    """

    batches: int = 0
    tokens: int = 0
    busy_ns: int = 0
    overflow_batches: int = 0
    peak_kv: int = 0
    kv_refusals: int = 0


@dataclass(slots=True)
class RunLog:
    """What happened to every request; -1 means it did not happen.

    Attributes:
        start_ns: Start of the batch that holds the first chunk.
        first_token_ns: End of the batch that produced the first response token.
        finish_ns: End of the batch that produced the last one.
        order: Requests in order of their first dispatch.
        engines: Totals of each engine.
        promoted: Long requests dispatched ahead of shorts because they were aged.
        attempts: Dispatches of requests beyond their first (faults only).
        end_ns: Time of the last event.
        notes: Counters that only some methods or faults have.
    """

    start_ns: list[int]
    first_token_ns: list[int]
    finish_ns: list[int]
    order: list[int] = field(default_factory=list)
    engines: list[EngineTotals] = field(default_factory=list)
    promoted: set[int] = field(default_factory=set)
    attempts: dict[int, int] = field(default_factory=dict)
    end_ns: int = 0
    notes: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Outside:
    """What an engine must know of the rest of the simulation.

    Attributes:
        horizon_ns: Time of the next arrival or fault.
        others_ns: Time at which another engine acts next.
    """

    horizon_ns: int = FAR
    others_ns: int = FAR
