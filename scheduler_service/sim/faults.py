"""Runs with faults: workers that die, workers that are slow, answers that are lost.

The scheduler learns of a fault only as it would in service: a lease is not renewed and ends.
Workers confirm and renew their leases; a dead worker's requests, and one whose grant was lost on
the way, come back when their leases end, go first, and are not charged again.

A plan is data made from a seed, so a run with faults is as repeatable as one without.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.errors import SchedulerError
from scheduler_service.sim.core_method import CoreMethod, LeaseTerms
from scheduler_service.sim.engine import IDLE, NORMAL_SPEED, Engine
from scheduler_service.sim.method import STALLED
from scheduler_service.sim.model import FAR, NS_PER_SECOND, Outside, RunLog, Workload

if TYPE_CHECKING:
    from scheduler_service.core.policy import PoolPolicy
    from scheduler_service.sim.method import Method

_LEASE_NS: Final = 10 * NS_PER_SECOND
_RENEW_NS: Final = _LEASE_NS // 3


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One thing that happens to one engine.

    Attributes:
        at_ns: When.
        engine: To whom.
        kind: `die` (all work is lost), `return` (empty), `slow`, `normal`, or `lose` (the next
            grant never reaches it).
        slowdown_milli: With `slow`: batch times in thousandths of normal.
    """

    at_ns: int
    engine: int
    kind: str
    slowdown_milli: int = NORMAL_SPEED


class FaultyCore(CoreMethod):
    """The core with short leases, seen through a network that may lose a grant."""

    def __init__(self, name: str, policy: PoolPolicy, *, keep: bool = False) -> None:
        super().__init__(name, policy, LeaseTerms(_LEASE_NS, hand_over=True), keep=keep)
        self.lose: set[int] = set()  # engines whose next grant is lost

    def bind(self, workload: Workload, needs: list[int], log: RunLog) -> None:
        """Starts a run."""
        self.lost = self.late = 0
        super().bind(workload, needs, log)

    def apply(self, command: c.Command) -> object:
        """Applies one command and follows what its timers did."""
        answer = super().apply(command)
        for decision in self._new:
            if isinstance(decision, d.LeaseEnded):
                self.waiting += 1
                self._count("leases_ended")
            elif isinstance(decision, d.Ended):
                self.waiting -= 1
                self._count(f"ended_{decision.state.name.lower()}")
        return answer

    def _count(self, what: str) -> None:
        self._log.notes[what] = self._log.notes.get(what, 0) + 1

    def dispatch(self, engine: int, now_ns: int, free_tokens: int) -> int:
        """Applies `NextDispatch`; a lost grant looks to the engine like no answer."""
        request = super().dispatch(engine, now_ns, free_tokens)
        if request >= 0 and engine in self.lose:
            self.lose.discard(engine)
            self._count("grants_lost")
            return STALLED
        return request

    def complete(self, request: int, now_ns: int) -> None:
        """Applies `Complete`; a worker whose lease has ended is told so."""
        try:
            super().complete(request, now_ns)
        except SchedulerError:
            self._count("late_completions")

    def renew(self, engine: int, requests: list[int], now_ns: int) -> None:
        """Applies `RenewLease` for what an engine holds."""
        leases = tuple(self.leases[request] for request in requests)
        if leases:
            worker = self.worker(engine)
            self.apply(c.RenewLease(now_ns=now_ns, worker=worker, lease_ids=leases))

    def next_timer_ns(self) -> int:
        """Returns when the next timer of the core is due."""
        return self.state.timers[0][0] if self.state.timers else FAR

    def tick(self, now_ns: int) -> None:
        """Applies `Tick`."""
        self.apply(c.Tick(now_ns=now_ns))


@dataclass(slots=True)
class FaultPlan:
    """What goes wrong in a run, in order of time."""

    faults: list[Fault] = field(default_factory=list)

    def run(
        self, workload: Workload, method: Method, fleet: list[Engine], outside: Outside
    ) -> None:
        """Runs `workload` with the faults of this plan; see `kernel.simulate`."""
        if not isinstance(method, FaultyCore):
            msg = "runs with faults need FaultyCore: baselines have no leases"
            raise TypeError(msg)
        _FaultRun(workload, method, fleet, outside, sorted(self.faults)).run()


def seeded_plan(seed: int, engines: int, until_ns: int, per_engine: int = 2) -> FaultPlan:
    """Returns a plan with each kind of fault `per_engine` times on every engine.

    Args:
        seed: Any number.
        engines: Number of engines.
        until_ns: Faults begin before this time.
        per_engine: How often each kind happens to each engine.
    """
    rng = random.Random(seed)
    faults = []
    for engine in range(engines):
        for _ in range(per_engine):
            start = rng.randrange(until_ns)
            back = start + rng.randrange(NS_PER_SECOND, 20 * NS_PER_SECOND)
            faults += [Fault(start, engine, "die"), Fault(back, engine, "return")]
            start = rng.randrange(until_ns)
            back = start + rng.randrange(NS_PER_SECOND, 20 * NS_PER_SECOND)
            slowdown = rng.randrange(2000, 10_000)
            faults += [Fault(start, engine, "slow", slowdown), Fault(back, engine, "normal")]
            faults.append(Fault(rng.randrange(until_ns), engine, "lose"))
    return FaultPlan(sorted(faults))


class _FaultRun:
    """One run: the loop looks for the earliest of arrivals, faults, timers, renewals, engines."""

    def __init__(
        self,
        workload: Workload,
        method: FaultyCore,
        fleet: list[Engine],
        outside: Outside,
        faults: list[Fault],
    ) -> None:
        self._workload, self._method, self._fleet = workload, method, fleet
        self._outside, self._faults = outside, faults
        self._arrival = self._fault = 0
        self._wakes = [FAR] * len(fleet)
        self._renewal_ns = _RENEW_NS
        self._dead: set[int] = set()

    def run(self) -> None:
        """Runs until nothing waits, runs or is leased."""
        while True:
            now_ns = self._next_ns()
            if now_ns >= FAR:
                return
            self._arrive(now_ns)
            if self._method.next_timer_ns() <= now_ns:
                self._method.tick(now_ns)
            self._strike(now_ns)
            if self._renewal_ns <= now_ns:
                self._renew(now_ns)
            self._wake(now_ns)

    def _arrival_ns(self) -> int:
        arrivals = self._workload.arrival_ns
        return arrivals[self._arrival] if self._arrival < len(arrivals) else FAR

    def _fault_ns(self) -> int:
        return self._faults[self._fault].at_ns if self._fault < len(self._faults) else FAR

    def _next_ns(self) -> int:
        arrival, work = self._arrival_ns(), min(self._wakes)
        if arrival == work == FAR and not self._method.state.leases and not self._method.waiting:
            return FAR
        outside = min(arrival, self._fault_ns(), self._renewal_ns, self._method.next_timer_ns())
        self._outside.horizon_ns = outside
        return min(outside, work)

    def _arrive(self, now_ns: int) -> None:
        while (at_ns := self._arrival_ns()) <= now_ns:
            self._method.enqueue(self._arrival, max(at_ns, self._method.state.now_ns))
            self._arrival += 1

    def _strike(self, now_ns: int) -> None:
        while self._fault_ns() <= now_ns:
            fault = self._faults[self._fault]
            self._fault += 1
            engine = self._fleet[fault.engine]
            if fault.kind == "die":
                engine.clear()
                self._wakes[fault.engine] = FAR
                self._dead.add(fault.engine)
            elif fault.kind == "return":
                self._dead.discard(fault.engine)
            elif fault.kind == "lose":
                self._method.lose.add(fault.engine)
            else:
                engine.slowdown_milli = fault.slowdown_milli

    def _renew(self, now_ns: int) -> None:
        self._renewal_ns = now_ns + _RENEW_NS
        for engine in self._fleet:
            if engine.number not in self._dead:
                self._method.renew(engine.number, engine.in_flight(), now_ns)

    def _wake(self, now_ns: int) -> None:
        for engine in self._fleet:
            number = engine.number
            if number in self._dead:
                continue
            idle = self._wakes[number] == FAR and self._method.waiting > 0
            if self._wakes[number] <= now_ns or idle:
                others = [at_ns for i, at_ns in enumerate(self._wakes) if i != number]
                self._outside.others_ns = min(others, default=FAR)
                wake_ns = engine.wake(now_ns)
                self._wakes[number] = FAR if wake_ns == IDLE else wake_ns
