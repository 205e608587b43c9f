"""Looks once a second whether work that should go on goes on, and says so if it does not.

A problem makes health NOT_SERVING; it does not refuse calls, and it ends by itself when the work
goes on again.  Nothing that callers do or leave undone is a problem: no worker, a pause, a stalled
request.
"""

import asyncio
from collections.abc import Callable

from scheduler_service.app import clock
from scheduler_service.app.application import Application
from scheduler_service.app.ports import Reporter, Store
from scheduler_service.app.space import SpaceReserve
from scheduler_service.core.policy import SECOND_NS
from scheduler_service.core.timers import next_due

PERIOD_SECONDS = 1.0


class Watchdog:
    """Watches one running service.

    Args:
        app: The use cases.
        store: For its sizes.
        stall_ns: Standstill after which there is a problem.
        report: Receives what is found.
        chores: Called once a second; what they raise is reported, and they are called again.

    Attributes:
        longest_lag_ns: Longest time that the loop was late, since the start.
    """

    def __init__(
        self,
        app: Application,
        store: Store,
        stall_ns: int,
        report: Reporter,
        chores: tuple[Callable[[], None], ...] = (),
    ) -> None:
        self.longest_lag_ns = 0
        self._app = app
        self._store = store
        self._stall_ns = stall_ns
        self._report = report
        self._space = SpaceReserve(app.limits.log_reserve_bytes, report)
        self._chores = (self._check_log, self._check_timers, self._check_space, *chores)
        self._group_count = -1
        self._group_ns = clock.monotonic_ns()
        self._lag_until_ns = 0

    async def run(self) -> None:
        """Watches until cancelled."""
        expected_ns = clock.monotonic_ns()
        while True:
            now_ns = clock.monotonic_ns()
            self._check_lag(now_ns - expected_ns, now_ns)
            for chore in self._chores:
                try:
                    chore()
                except Exception as error:  # noqa: BLE001 - a chore must not end the watch
                    if self._app.engine.failed is None:
                        self._report("chore.failed", chore=_name(chore), error=repr(error))
            expected_ns = clock.monotonic_ns() + int(PERIOD_SECONDS * SECOND_NS)
            await asyncio.sleep(PERIOD_SECONDS)

    def _problem(self, name: str, sentence: str | None) -> None:
        problems = self._app.readiness.problems
        if (sentence is None) != (name not in problems):
            event = "health.recovered" if sentence is None else "health.degraded"
            self._report(event, problem=name, detail=sentence or problems[name])
        self._app.readiness.problem(name, sentence)

    def _check_log(self) -> None:
        """The log stands still if something is to be written and no group becomes durable."""
        log = self._app.engine.log
        now_ns = clock.monotonic_ns()
        if log.group_count != self._group_count or log.pending_count == 0:
            self._group_count = log.group_count
            self._group_ns = now_ns
        stood_ns = now_ns - self._group_ns
        stalled = stood_ns > self._stall_ns
        self._problem("log", "The decision log is not being written." if stalled else None)

    def _check_timers(self) -> None:
        """Timers stand still if one is long overdue."""
        engine = self._app.engine
        due_ns = next_due(engine.state)
        late = due_ns is not None and engine.now_ns() - due_ns > self._stall_ns
        self._problem("timers", "Time limits are not being looked at." if late else None)
        if late:
            engine.tick()

    def _check_space(self) -> None:
        self._app.space_low = self._space.update(self._store.usage().free_bytes)

    def _check_lag(self, lag_ns: int, now_ns: int) -> None:
        """The loop itself stood still if this look comes late."""
        self.longest_lag_ns = max(self.longest_lag_ns, lag_ns)
        if lag_ns > self._stall_ns:
            self._report("loop.stalled", lag_ns=lag_ns)
            self._lag_until_ns = now_ns + self._stall_ns
        stalled = now_ns < self._lag_until_ns
        self._problem("loop", "The service stood still a moment ago." if stalled else None)


def _name(chore: Callable[[], None]) -> str:
    return getattr(chore, "__qualname__", repr(chore))
