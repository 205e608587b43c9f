"""What output caps do to estimated cost, and estimated cost to fairness of real cost.

Traces have no output caps, so three models of them stand side by side (`output_caps`).  Under each
the service's own estimator and core run over the same stream four times: with the prior alone,
with the pool's learned ratio, with the users' too, and with every output known beforehand, which is
what charging the real cost would give.

The trace keeps its own timeline, since learning takes time; the engine is made as slow as it takes
for the load.

Source:
    SFQ §7.4 (estimates), §5.1 (what was charged is never corrected).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from scheduler_service.core.phrases import count_text
from scheduler_service.sim import cap_report
from scheduler_service.sim.cap_measures import TIME_PREFIX
from scheduler_service.sim.capacity import capacity_rate
from scheduler_service.sim.data import AZURE_SAMPLE, MULTI_TENANT_SAMPLE
from scheduler_service.sim.estimating import LEARNING
from scheduler_service.sim.metrics import split_by_user
from scheduler_service.sim.model import NS_PER_SECOND, EngineShape
from scheduler_service.sim.output_caps import CAP_MODELS
from scheduler_service.sim.pool import Results, run_all
from scheduler_service.sim.specs import EstimateSpec, MethodSpec, RunSpec, StreamSpec, stream_of
from scheduler_service.sim.tables import write_table

if TYPE_CHECKING:
    from pathlib import Path

    from scheduler_service.sim.metrics import Measures
    from scheduler_service.sim.output_caps import CapModel

POLICIES: Final = ("sfq", "fair_qba")
"""`sfq` looks at cost alone; `fair_qba`, the default, also at the estimated class."""

_QUICK_COUNT: Final = 800
_QUICK_INTERVAL_S: Final = 10.0


@dataclass(frozen=True)
class Plan:
    """What is studied.

    Attributes:
        folder: Output folder.
        traces: Traces by stream name; without any the samples shipped are used.
        caps: Cap models.
        load: Offered over possible.
        count: Requests of a run; 0 is all of a trace.
        interval_s: Shortest time between two updates of learned values.
        jobs, quiet: See `pool.run_all`.
    """

    folder: Path
    traces: tuple[tuple[str, tuple[str, ...]], ...] = ()
    caps: tuple[CapModel, ...] = CAP_MODELS
    load: float = 1.2
    count: int = 0
    interval_s: float = 60.0
    jobs: int = 0
    quiet: bool = False

    @property
    def streams(self) -> dict[str, StreamSpec]:
        """The streams by name, on their own timeline."""
        samples = (("multi_tenant", MULTI_TENANT_SAMPLE), ("azure", AZURE_SAMPLE))
        return {
            name: StreamSpec("trace", rate=0.0, count=self.count, by="work", paths=paths)
            for name, paths in self.traces or samples
        }


def quick(plan: Plan) -> Plan:
    """Returns the same plan over the first requests, learning more often."""
    count = min(plan.count or _QUICK_COUNT, _QUICK_COUNT)
    return dataclasses.replace(plan, count=count, interval_s=_QUICK_INTERVAL_S)


def slowdown(stream: StreamSpec, load: float) -> float:
    """Returns how much slower an engine is for which the stream is `load` times what it can do."""
    workload = stream_of(stream)
    span_s = max(workload.arrival_ns[-1], 1) / NS_PER_SECOND
    own_rate = (len(workload) - 1) / span_s
    return round(load * capacity_rate(workload, EngineShape()) / own_rate, 6)


def run(plan: Plan) -> Path:
    """Runs the study and writes tables, pictures and the report.

    Returns:
        Path of the report.
    """
    results = Results(plan.folder)
    specs: dict[tuple[str, cap_report.Setting], RunSpec] = {}
    for name, stream in plan.streams.items():
        factor = slowdown(stream, plan.load)
        for policy in POLICIES:
            for caps in plan.caps:
                for learning in LEARNING:
                    estimates = EstimateSpec(caps, learning, plan.interval_s, factor)
                    setting = cap_report.Setting(policy, caps, learning)
                    method = MethodSpec(policy)
                    specs[name, setting] = RunSpec(stream, method, "safe", estimates=estimates)
    run_all(specs.values(), results, title="output caps", jobs=plan.jobs, quiet=plan.quiet)
    found: dict[str, dict[cap_report.Setting, Measures]] = {}
    for (name, setting), spec in specs.items():
        found.setdefault(name, {})[setting] = results[spec]
    _write_tables(plan, found)
    return cap_report.write(plan.folder, _head(plan), found)


def _write_tables(plan: Plan, found: dict[str, dict[cap_report.Setting, Measures]]) -> None:
    rows: list[dict[str, Any]] = []
    users: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    for stream, runs in found.items():
        for setting, measures in runs.items():
            where = {"stream": stream, **setting._asdict()}
            whole, by_user = split_by_user(measures)
            rows.append(where | {k: v for k, v in whole.items() if not k.startswith(TIME_PREFIX)})
            users += [where | {"user": user} | values for user, values in by_user.items()]
            steps += [
                where | {"time_s": at_s, "est_total": ratio}
                for at_s, ratio in cap_report.over_time(whole)
            ]
    write_table(plan.folder, "caps", rows)
    write_table(plan.folder, "caps_users", users)
    write_table(plan.folder, "caps_over_time", steps)


def _head(plan: Plan) -> str:
    lengths = f"the first {count_text(plan.count, 'request')}" if plan.count else "all requests"
    names = "; ".join(
        f"{name}: {', '.join(path.rpartition('/')[2] for path in stream.paths)}"
        for name, stream in plan.streams.items()
    )
    return (
        f"# Output caps, estimated cost and real cost\n\n"
        f"Streams, on their own timeline, {lengths}: {names}. No seeds: nothing is random. One "
        f"engine with the safe KV rule, as slow as it takes for a load of {plan.load:g}. Caps: "
        "1024 and 4096 tokens for everybody, or each user's own P99 of output rounded up to a "
        "power of two; a longer response ends at its cap. The cost of a request is the prompt "
        "and a learned part of the cap; learned values come into force at most every "
        f"{plan.interval_s:g} s. `none`: the prior alone (half of the cap); `pool`: with the "
        "pool's learned ratio; `user`: with each user's too, as the service does; `known`: every "
        "output is predicted exactly, so that the charge is the real cost. sfq and fair_qba are "
        "the service's core, its estimator and its class labels included."
    )
