"""How much an engine can do with a stream, so that runs can be set to a stated load."""

from __future__ import annotations

import dataclasses

import msgspec

from scheduler_service.sim.kernel import simulate
from scheduler_service.sim.model import NS_PER_SECOND, EngineShape, Workload
from scheduler_service.sim.specs import (
    MethodSpec,
    RunSpec,
    StreamSpec,
    method_of,
    shape_of,
    stream_of,
)


def capacity_rate(stream: Workload, shape: EngineShape, engines: int = 1) -> float:
    """Returns requests a second that the engines finish when all have arrived at once.

    Args:
        stream: The stream; its arrival times are not looked at.
        shape: The engines' shape.
        engines: Number of engines.
    """
    if not len(stream):
        return 0.0
    at_once = dataclasses.replace(stream, arrival_ns=[0] * len(stream))
    log = simulate(at_once, method_of(MethodSpec("fcfs")), shape, engines)
    return len(stream) * NS_PER_SECOND / max(1, log.end_ns)


def at_load(spec: StreamSpec, load: float, run: RunSpec) -> StreamSpec:
    """Returns the stream with the rate at which it is `load` times what the engines can do.

    Args:
        spec: The stream.
        load: Offered over possible, above 0.
        run: Says which engines.
    """
    rate = load * capacity_rate(stream_of(spec), shape_of(run), run.engines)
    return msgspec.structs.replace(spec, rate=round(rate, 3))
