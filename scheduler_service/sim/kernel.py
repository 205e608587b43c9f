"""The event loop: arrivals, engines and faults on one virtual clock.

Events happen in order of (time, engine); arrivals come before an engine's batch boundary of the
same time, since the boundary "takes arrivals up to now".  A run depends on nothing but its inputs.
"""

from __future__ import annotations

from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

from scheduler_service.core.phrases import count_text
from scheduler_service.sim.engine import IDLE, Engine
from scheduler_service.sim.model import FAR, Outside, RunLog

if TYPE_CHECKING:
    from scheduler_service.sim.faults import FaultPlan
    from scheduler_service.sim.method import Method
    from scheduler_service.sim.model import EngineShape, Workload


class StuckError(RuntimeError):
    """A run without faults stopped with requests waiting: the method does not conserve work."""


def kv_needs(workload: Workload, shape: EngineShape) -> list[int]:
    """Returns the KV space each request must find free.

    Under the `live` rule the check is on the first chunk, which is at most the prompt; under
    `reserve` it is on prompt and predicted response together.
    """
    if shape.kv_rule == "live":
        return workload.prompt
    pairs = zip(workload.prompt, workload.predicted_response, strict=True)
    return [min(prompt + response, shape.kv_capacity) for prompt, response in pairs]


def simulate(
    workload: Workload,
    method: Method,
    shape: EngineShape,
    engines: int = 1,
    faults: FaultPlan | None = None,
) -> RunLog:
    """Runs `workload` through `method` and `engines` engines until everything is finished.

    Args:
        workload: The request stream.
        method: A fresh scheduling method.
        shape: Size and speed of each engine.
        engines: Number of engines behind the one scheduler, at least 1.
        faults: What goes wrong, and when; needs a method that handles leases.

    Returns:
        What happened to every request.

    Raises:
        StuckError: Without faults, requests are left that the method never dispatched.
    """
    count = len(workload)
    log = RunLog([-1] * count, [-1] * count, [-1] * count)
    needs = kv_needs(workload, shape)
    method.bind(workload, needs, log)
    outside = Outside()
    fleet = [Engine(i, shape, workload, needs, method, log, outside) for i in range(engines)]
    log.engines = [engine.totals for engine in fleet]
    if faults is None:
        _run(workload, method, fleet, outside)
        unfinished = sum(at_ns < 0 for at_ns in log.finish_ns)
        if unfinished:
            msg = f"{method.name}: never finished: {unfinished} of {count_text(count, 'request')}"
            raise StuckError(msg)
    else:
        faults.run(workload, method, fleet, outside)
    log.end_ns = max((engine.working_until_ns for engine in fleet), default=0)
    return log


def _run(workload: Workload, method: Method, fleet: list[Engine], outside: Outside) -> None:
    """Runs without faults."""
    arrivals, count = workload.arrival_ns, len(workload)
    arrival = 0
    next_ns = arrivals[0] if count else FAR
    heap = [(next_ns, engine.number) for engine in fleet]
    heapify(heap)
    enqueue = method.enqueue
    while True:
        now_ns, number = heap[0]
        if now_ns >= FAR:
            return
        if now_ns >= next_ns:
            while next_ns <= now_ns:
                enqueue(arrival, next_ns)
                arrival += 1
                next_ns = arrivals[arrival] if arrival < count else FAR
        outside.horizon_ns = next_ns
        if len(heap) > 1:
            outside.others_ns = min(entry[0] for entry in heap[1:3])
        wake_ns = fleet[number].wake(now_ns)
        if wake_ns == IDLE:
            wake_ns = next_ns
            if method.waiting and len(heap) > 1:  # what another engine does may free it
                wake_ns = min(next_ns, max(outside.others_ns, now_ns + 1))
        heapreplace(heap, (wake_ns, number))
