"""Descriptions of runs: plain data that can be sent to a process, stored, and looked up again.

A run is a request stream, a method and engines.  Its key is a digest of the description, of the
files it reads, and of the versions of algorithm and simulator: a stored result is reused only for
the very same run.
"""

from __future__ import annotations

import dataclasses
import hashlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from scheduler_service.core.decisions import ALGORITHM_VERSION
from scheduler_service.core.policy import PRESETS, PoolPolicy, violations
from scheduler_service.sim.baselines import BASELINES
from scheduler_service.sim.baselines.deficit import DeficitRoundRobin
from scheduler_service.sim.baselines.tags import FinishTags
from scheduler_service.sim.cap_measures import measure_estimates, with_real_cost
from scheduler_service.sim.core_method import CoreMethod, paper_policy
from scheduler_service.sim.estimating import EstimatingCore, Learning
from scheduler_service.sim.kernel import simulate
from scheduler_service.sim.logtrace import read_any
from scheduler_service.sim.metrics import Measures, by_user, flat_by_user, measure
from scheduler_service.sim.model import NS_PER_SECOND, PAPER_ENGINE, EngineShape, Workload
from scheduler_service.sim.output_caps import CapModel, capped
from scheduler_service.sim.traces import NO_USER, Row, from_rows, windows
from scheduler_service.sim.workload import UserMix, flip_labels, several_users, synthetic

if TYPE_CHECKING:
    from scheduler_service.sim.method import Method

SIM_VERSION: Final = 2
"""Raised when the engine, a baseline or a measure changes what a run gives."""


class StreamSpec(msgspec.Struct, frozen=True):
    """A request stream.

    Attributes:
        kind: `synthetic` (the paper's), `users` (one heavy, several light), or `trace`.
        seed: Seed of a synthetic stream, and of label errors.
        rate: Arrivals a second; 0 leaves a trace's own timeline.
        count: Requests of a synthetic stream; 0 is all of a trace.
        by: What the label looks at.
        short_to_long, long_to_short: Label error rates.
        heavy_share, light_users, burst: See `UserMix`.
        paths: Files of a trace, merged by time.
        pool: Pool of a decision log.
        scale: Factor of a trace's lengths.
        window, windows: Which of how many windows of a trace; 0 windows is the whole.
    """

    kind: Literal["synthetic", "users", "trace"] = "synthetic"
    seed: int = 0
    rate: float = 32.0
    count: int = 5000
    by: Literal["response", "work"] = "response"
    short_to_long: float = 0.0
    long_to_short: float = 0.0
    heavy_share: float = 0.6
    light_users: int = 9
    burst: int = 1
    paths: tuple[str, ...] = ()
    pool: str = ""
    scale: float = 1.0
    window: int = 0
    windows: int = 0


class MethodSpec(msgspec.Struct, frozen=True):
    """A scheduling method.

    Attributes:
        name: A preset of the core, `paper:` and a class order, or a baseline's name.
        changes: Fields of the core's policy that differ from the preset.
        quantum: With `drr`: the quantum in cost units.
        capacity: With `wfq`: cost units a second of the fluid server beside it.
    """

    name: str
    changes: tuple[tuple[str, int], ...] = ()
    quantum: int = 0
    capacity: int = 0

    @property
    def is_core(self) -> bool:
        """Whether this is the service's own core."""
        return self.name in PRESETS or self.name.startswith("paper:")

    @property
    def label(self) -> str:
        """Short text for tables."""
        parts = [f"{key}={value}" for key, value in self.changes]
        if self.quantum:
            parts.append(f"Q={self.quantum}")
        name = self.name.removeprefix("paper:")
        return f"{name} {' '.join(parts)}" if parts else name


class EstimateSpec(msgspec.Struct, frozen=True):
    """How costs are estimated in a run, instead of being known.

    Attributes:
        caps: How output caps are put on the stream.
        learning: What the estimate rests on.
        interval_s: Shortest time between two updates of learned values.
        slowdown: Factor by which the engine is slower.
    """

    caps: CapModel
    learning: Learning
    interval_s: float = 60.0
    slowdown: float = 1.0


class RunSpec(msgspec.Struct, frozen=True):
    """One run.

    Attributes:
        shape: `paper` is the engine of the experiments, `safe` the default one.
        engines: Number of engines.
        by_user: Whether to measure each user too.
        estimates: How costs are estimated; without it the stream's costs are charged.
    """

    stream: StreamSpec
    method: MethodSpec
    shape: Literal["paper", "safe"] = "paper"
    engines: int = 1
    by_user: bool = False
    estimates: EstimateSpec | None = None


def key_of(spec: RunSpec) -> str:
    """Returns the key of a run: 16 hexadecimal digits."""
    text = msgspec.json.encode([ALGORITHM_VERSION, SIM_VERSION, spec])
    digest = hashlib.sha256(text)
    for path in spec.stream.paths:
        digest.update(_file_digest(path))
    return digest.hexdigest()[:16]


@lru_cache(maxsize=16)
def _file_digest(path: str) -> bytes:
    return hashlib.sha256(Path(path).read_bytes()).digest()


@lru_cache(maxsize=4)
def _rows(paths: tuple[str, ...], pool: str) -> list[Row]:
    """Reads and merges files; those without users are one user each if there are several."""
    rows = []
    for path in paths:
        own = read_any(Path(path), pool)
        if len(paths) > 1 and all(row.user == NO_USER for row in own):
            own = [row._replace(user=Path(path).stem) for row in own]
        rows += own
    return rows


@lru_cache(maxsize=16)
def stream_of(spec: StreamSpec) -> Workload:
    """Returns the stream; the same object when asked again soon."""
    if spec.kind == "synthetic":
        return synthetic(
            spec.seed,
            spec.rate,
            spec.count,
            by=spec.by,
            short_to_long=spec.short_to_long,
            long_to_short=spec.long_to_short,
        )
    if spec.kind == "users":
        mix = UserMix(spec.heavy_share, spec.light_users, spec.burst)
        stream = several_users(spec.seed, spec.rate, spec.count, mix=mix, by=spec.by)
    else:
        stream = _trace(spec)
    if spec.short_to_long or spec.long_to_short:
        flipped = flip_labels(stream.long, spec.seed, spec.short_to_long, spec.long_to_short)
        stream = stream.with_labels(flipped)
    return stream


def _trace(spec: StreamSpec) -> Workload:
    rows = _rows(spec.paths, spec.pool)
    name = "+".join(Path(path).stem for path in spec.paths)
    if spec.windows:
        rows = windows(rows, spec.windows)[spec.window]
        name = f"{name} window {spec.window}"
    if spec.count:
        rows = sorted(rows, key=lambda row: row.arrival_s)[: spec.count]
    return from_rows(name, rows, by=spec.by, scale=spec.scale, rate=spec.rate or None)


def policy_of(spec: MethodSpec) -> PoolPolicy:
    """Returns the core's policy that a method names.

    Raises:
        ValueError: A changed field is unknown or out of range.
    """
    if spec.name.startswith("paper:"):
        policy = paper_policy(spec.name.removeprefix("paper:"))
    else:
        policy = PRESETS[spec.name]
    policy = msgspec.convert(msgspec.to_builtins(policy) | dict(spec.changes), PoolPolicy)
    wrong = violations(policy)
    if wrong:
        raise ValueError("; ".join(f"{field} {text}" for field, text in wrong))
    return policy


def method_of(spec: MethodSpec) -> Method:
    """Returns a fresh method.

    Raises:
        ValueError: There is no method of that name.
    """
    if spec.is_core:
        return CoreMethod(spec.label, policy_of(spec))
    if spec.name == "drr" and spec.quantum:
        return DeficitRoundRobin(spec.quantum)
    if spec.name == "wfq" and spec.capacity:
        return FinishTags(spec.capacity)
    if spec.name not in BASELINES:
        known = ", ".join([*PRESETS, *BASELINES])
        msg = f"no method {spec.name!r}; there are {known}"
        raise ValueError(msg)
    return BASELINES[spec.name]()


def shape_of(spec: RunSpec) -> EngineShape:
    """Returns the engine of a run."""
    shape = PAPER_ENGINE if spec.shape == "paper" else EngineShape()
    if spec.estimates is None:
        return shape
    factor = spec.estimates.slowdown
    times = round(shape.launch_ns * factor), round(shape.token_ns * factor)
    return dataclasses.replace(shape, launch_ns=times[0], token_ns=times[1])


def run(spec: RunSpec) -> Measures:
    """Runs and measures."""
    if spec.estimates is not None:
        return _run_estimating(spec, spec.estimates)
    stream, method, shape = stream_of(spec.stream), method_of(spec.method), shape_of(spec)
    log = simulate(stream, method, shape, spec.engines)
    slack = method.slack if isinstance(method, CoreMethod) else None
    found = measure(stream, log, shape, slack)
    return found | flat_by_user(by_user(stream, log)) if spec.by_user else found


def _run_estimating(spec: RunSpec, estimates: EstimateSpec) -> Measures:
    """Runs with estimated costs, and measures these and what they did."""
    policy = policy_of(spec.method)
    stream, caps, cut = capped(stream_of(spec.stream), estimates.caps)
    real = with_real_cost(stream, policy)
    interval_ns = round(estimates.interval_s * NS_PER_SECOND)
    method = EstimatingCore(spec.method.label, policy, caps, estimates.learning, interval_ns)
    log = simulate(real, method, shape_of(spec), spec.engines)
    return measure_estimates(real, log, method) | {"cut_responses": float(cut)}
