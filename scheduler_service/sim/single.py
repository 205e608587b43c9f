"""One run for the `simulate` command: what it did to whom, as tables or JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from scheduler_service.sim.core_method import CoreMethod
from scheduler_service.sim.faults import FaultyCore, seeded_plan
from scheduler_service.sim.kernel import simulate
from scheduler_service.sim.metrics import UserRow, by_user, measure
from scheduler_service.sim.specs import RunSpec, method_of, policy_of, shape_of, stream_of

if TYPE_CHECKING:
    from pathlib import Path

    from scheduler_service.sim.metrics import Measures


@dataclass
class SingleRun:
    """What a run gave.

    Attributes:
        spec: The run.
        measures: Its measures.
        users: One row a user.
        notes: Counters of faults.
    """

    spec: RunSpec
    measures: Measures
    users: list[UserRow]
    notes: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> bytes:
        """Returns everything as one JSON object."""
        record: dict[str, Any] = {
            "run": self.spec,
            "measures": self.measures,
            "users": [asdict(row) for row in self.users],
            "notes": self.notes,
        }
        return msgspec.json.encode(record)


def run_one(
    spec: RunSpec, *, faults: int | None = None, decisions: Path | None = None
) -> SingleRun:
    """Runs once.

    Args:
        spec: The run.
        faults: Seed of a fault plan; None runs without faults.  Needs a policy of the core.
        decisions: Where the core's decision log goes, one record a line; None keeps none.

    Raises:
        ValueError: Faults or decisions are asked of a baseline.
    """
    stream, shape = stream_of(spec.stream), shape_of(spec)
    if (faults is not None or decisions is not None) and not spec.method.is_core:
        msg = f"{spec.method.name} is a baseline: it has neither leases nor a decision log"
        raise ValueError(msg)
    plan = None
    keep = decisions is not None
    if faults is not None:
        plan = seeded_plan(faults, spec.engines, stream.arrival_ns[-1])
        method: Any = FaultyCore(spec.method.label, policy_of(spec.method), keep=keep)
    elif keep:
        method = CoreMethod(spec.method.label, policy_of(spec.method), keep=True)
    else:
        method = method_of(spec.method)
    log = simulate(stream, method, shape, spec.engines, plan)
    if decisions is not None:
        encoder = msgspec.json.Encoder()
        lines = b"\n".join(encoder.encode(decision) for decision in method.decisions)
        decisions.write_bytes(lines + b"\n")
    slack = method.slack if isinstance(method, CoreMethod) else None
    return SingleRun(spec, measure(stream, log, shape, slack), by_user(stream, log), log.notes)
