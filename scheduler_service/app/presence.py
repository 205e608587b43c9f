"""Workers whose calls wait here count as alive, although they say nothing meanwhile.

A call that waits in an idle pool decides nothing, so nothing in the log shows its worker; the core
would forget it after its time to live.  A few times within that time everybody present who was not
seen for half of it is shown to be there.

People want to know sooner that a worker has stopped.  So the last sign of each is kept here too:
what the log shows of it and, since the service started, the calls that decided nothing.
"""

import asyncio

from scheduler_service.app.engine import Engine
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.errors import SchedulerError
from scheduler_service.core.policy import SECOND_NS
from scheduler_service.core.state import Worker

_LOOKS_PER_TTL = 4
_SHOWN_PER_TURN = 200
_LONGEST_SECONDS = 5.0
_SHORTEST_SECONDS = 0.2

SILENT_AFTER_NS = 10 * SECOND_NS
"""A worker that waits here, holds a lease or gave a sign so lately is no silent one."""


class Presence:
    """Who is present."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._present: dict[str, dict[object, c.NextDispatch]] = {}
        self._signs: dict[str, int] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due_ns = 0
        engine.on((d.WorkerGone,), self._gone)

    def enter(self, token: object, command: c.NextDispatch) -> None:
        """Takes note that the worker of `command` is there, until `leave` with the same token."""
        self._present.setdefault(command.worker, {})[token] = command
        self._look_within(self._ttl_ns(command))

    def leave(self, token: object, key: str) -> None:
        """Takes note that the worker known under `key` is no longer there by this token."""
        tokens = self._present.get(key, {})
        tokens.pop(token, None)
        if not tokens:
            self._present.pop(key, None)
        self.sign(key)

    def sign(self, key: str) -> None:
        """Takes note that the worker known under `key` has just called."""
        if key in self._engine.state.workers:
            self._signs[key] = self._engine.now_ns()

    def last_sign_ns(self, worker: Worker) -> int:
        """Returns when a worker last showed that it is there; now, while a call of it waits."""
        if worker.worker in self._present:
            return self._engine.now_ns()
        return max(worker.last_seen_ns, self._signs.get(worker.worker, 0))

    def is_silent(self, worker: Worker) -> bool:
        """Whether nothing shows that a worker is still there."""
        silence_ns = self._engine.now_ns() - self.last_sign_ns(worker)
        return not worker.leases and silence_ns > SILENT_AFTER_NS

    def active_count(self) -> int:
        """Returns how many workers are there and get work."""
        workers = self._engine.state.workers.values()
        return sum(not worker.draining and not self.is_silent(worker) for worker in workers)

    def _gone(self, decision: d.WorkerGone) -> None:
        self._signs.pop(decision.worker, None)

    def _ttl_ns(self, command: c.NextDispatch) -> int:
        pools = self._engine.state.pools
        known = [pools[name].policy.worker_ttl_ns for name in command.pools if name in pools]
        return min(known, default=int(_LONGEST_SECONDS) * SECOND_NS)

    def _look_within(self, ttl_ns: int) -> None:
        """Looks at all that are present in time for one with this time to live."""
        now_ns = self._engine.now_ns()
        due_ns = now_ns + ttl_ns // _LOOKS_PER_TTL
        if self._timer is not None:
            if self._due_ns <= due_ns:
                return
            self._timer.cancel()
        self._due_ns = due_ns
        seconds = min(ttl_ns / _LOOKS_PER_TTL / SECOND_NS, _LONGEST_SECONDS)
        self._timer = self._loop.call_later(max(seconds, _SHORTEST_SECONDS), self._look)

    def _look(self) -> None:
        self._timer = None
        engine = self._engine
        if engine.failed is not None:
            return
        now_ns = engine.now_ns()
        shortest_ns = shown = 0
        for key, tokens in list(self._present.items()):
            command = next(iter(tokens.values()))
            ttl_ns = self._ttl_ns(command)
            shortest_ns = min(shortest_ns or ttl_ns, ttl_ns)
            worker = engine.state.workers.get(key)
            # A worker with leases is not forgotten, and its leases are for itself to confirm.
            if worker is None or worker.leases:
                continue
            if now_ns - worker.last_seen_ns >= ttl_ns // 2:
                if shown == _SHOWN_PER_TURN:
                    self._due_ns = now_ns
                    self._timer = self._loop.call_later(0, self._look)
                    return
                shown += self._show(command)
        if shortest_ns:
            self._look_within(shortest_ns)

    def _show(self, command: c.NextDispatch) -> bool:
        """Shows a worker to the core: it is there and asks for nothing; returns whether it may."""
        engine = self._engine
        shown = c.NextDispatch(
            now_ns=engine.now_ns(),
            nonce=engine.nonce(),
            peer=command.peer,
            pools=command.pools,
            worker=command.worker,
            offer=command.offer,
            max_dispatches=0,
        )
        try:
            engine.apply(shown)
        except SchedulerError:
            # A pool has gone: the call that waits will be told.
            return False
        return True
