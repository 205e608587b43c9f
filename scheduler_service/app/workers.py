"""Worker sessions beside the core: who supersedes whom, whose turn it is, what must be stopped.

All of it is derived from the state and the decisions; a restart makes it anew.

A worker is known to the core under a *key*: the session id that the service gave it, or its own id
when it has no session.  A session that registers again under the same name supersedes the one
before: that one gets no new work (it is drained, which is a decision) and cannot renew its leases.
"""

from typing import TYPE_CHECKING

from scheduler_service.app.engine import Engine
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.completion import Complete
from scheduler_service.core.errors import SchedulerError, Superseded, Unknown
from scheduler_service.core.state import State, Worker

if TYPE_CHECKING:
    from collections.abc import Callable

SESSION_PREFIX = "session-"
"""Session ids begin with this; a worker's own id must not."""


class Workers:
    """What the service keeps about workers.

    Attributes:
        on_change: Key -> called in the turn in which a lease of that worker is to be stopped, or in
            which it is drained; must not decide.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._newest: dict[str, str] = {}
        self._turns: dict[str, int] = {}
        self._cancelled: dict[str, dict[str, None]] = {}
        self._holders: dict[str, str] = {}
        self.on_change: dict[str, Callable[[], None]] = {}
        for key, worker in engine.state.workers.items():
            if worker.registered and self._is_newer(worker):
                self._newest[worker.name] = key
        for lease_id, request in engine.state.leases.items():
            if request.cancel_reason and request.lease is not None:
                self._note(lease_id, request.lease.worker)
        engine.on((d.CancelRequested,), self._note_cancel)
        engine.on((d.WorkerDrained,), self._drained)
        engine.on((d.WorkerGone,), self._gone)
        engine.on((d.Completed, d.LeaseEnded), self._lease_over)

    def _is_newer(self, worker: Worker) -> bool:
        """Whether a session is newer than the one known by its name: old ones are drained."""
        known = self._engine.state.workers.get(self._newest.get(worker.name, ""))
        if known is None:
            return True
        return (not worker.draining, worker.last_seen_ns) > (not known.draining, known.last_seen_ns)

    def register(self, command: c.RegisterWorker) -> bool:
        """Opens a session; returns whether it superseded one.

        Raises:
            Unknown: POOL_UNKNOWN.
            LimitReached: WORKERS_FULL.
        """
        self._engine.apply(command)
        before = self._newest.get(command.worker_name)
        self._newest[command.worker_name] = command.worker
        if before is None or before not in self._engine.state.workers:
            return False
        drain = c.DrainWorker(now_ns=command.now_ns, worker=before, peer=command.peer)
        self._engine.apply(drain)
        return True

    def session(self, session_id: str) -> Worker:
        """Returns a session.

        Raises:
            Unknown: WORKER_UNKNOWN.
        """
        worker = self._engine.state.workers.get(session_id)
        if worker is None or not worker.registered:
            raise Unknown(
                "WORKER_UNKNOWN", f"There is no session {session_id!r}.", sessionId=session_id
            )
        return worker

    def require_current(self, worker: Worker) -> None:
        """Checks that no other session of the same name was opened since.

        Raises:
            Superseded: SESSION_SUPERSEDED.
        """
        if self.superseded(worker):
            raise Superseded(
                "SESSION_SUPERSEDED",
                f"Worker {worker.name!r} has opened another session since.",
                workerId=worker.name,
            )

    def superseded(self, worker: Worker) -> bool:
        """Whether another session of the same name was opened since."""
        return worker.registered and self._newest.get(worker.name) != worker.worker

    def keys_of(self, name: str) -> list[str]:
        """Returns the keys of the workers that are meant by a session id or a worker's own id."""
        workers = self._engine.state.workers
        if name in workers:
            return [name]
        newest = self._newest.get(name)
        return [newest] if newest in workers else []

    def rotated(self, key: str, pools: tuple[str, ...]) -> tuple[str, ...]:
        """Returns `pools` in the order of this worker's next turn."""
        turn = self._turns.get(key, 0) % len(pools)
        self._turns[key] = turn + 1
        return pools[turn:] + pools[:turn]

    def cancelled(self, key: str) -> list[str]:
        """Returns the leases of a worker whose requests are to be stopped."""
        return list(self._cancelled.get(key, ()))

    def drain(self, keys: list[str], peer: str) -> None:
        """Stops new work for these workers."""
        for key in keys:
            now_ns = self._engine.now_ns()
            self._engine.apply(c.DrainWorker(now_ns=now_ns, worker=key, peer=peer))

    def _drained(self, decision: d.WorkerDrained) -> None:
        self._tell(decision.worker)

    def _gone(self, decision: d.WorkerGone) -> None:
        self._forget(decision.worker)

    def _lease_over(self, decision: "d.Completed | d.LeaseEnded") -> None:
        if self._holders:
            self._drop_cancel(decision.lease_id)

    def _note_cancel(self, decision: d.CancelRequested) -> None:
        pool = self._engine.state.pools.get(decision.pool)
        request = None if pool is None else pool.requests.get(decision.request_id)
        if request is not None and request.lease is not None:
            lease = request.lease
            self._note(lease.lease_id, lease.worker)
            self._tell(lease.worker)

    def _tell(self, key: str) -> None:
        changed = self.on_change.get(key)
        if changed is not None:
            changed()

    def _note(self, lease_id: str, key: str) -> None:
        self._holders[lease_id] = key
        self._cancelled.setdefault(key, {})[lease_id] = None

    def _drop_cancel(self, lease_id: str) -> None:
        key = self._holders.pop(lease_id, None)
        if key is None:
            return
        leases = self._cancelled.get(key, {})
        leases.pop(lease_id, None)
        if not leases:
            self._cancelled.pop(key, None)

    def _forget(self, key: str) -> None:
        self._turns.pop(key, None)
        for lease_id in self._cancelled.pop(key, ()):
            self._holders.pop(lease_id, None)
        for name, newest in self._newest.items():
            if newest == key:
                del self._newest[name]
                return


def lost_leases(state: State, key: str, known: set[str]) -> list[str]:
    """Returns the live leases of a worker that it does not know of.

    Complexity:
        O(known) if there are none, which is usual; else O(live leases).
    """

    def is_held(lease_id: str) -> bool:
        request = state.leases[lease_id]
        return request.lease is not None and request.lease.worker == key

    worker = state.workers.get(key)
    held = sum(lease_id in state.leases and is_held(lease_id) for lease_id in known)
    if worker is None or held == worker.leases:
        return []
    return [lease_id for lease_id in state.leases if lease_id not in known and is_held(lease_id)]


def give_back(engine: Engine, lease_ids: list[str]) -> None:
    """Ends leases that reached nobody: redelivered at once, nothing held against anybody."""
    for lease_id in lease_ids:
        now_ns, nonce = engine.now_ns(), engine.nonce()
        command = Complete(
            now_ns=now_ns,
            nonce=nonce,
            lease_id=lease_id,
            outcome=d.Outcome.GIVEN_BACK,
            undelivered=True,
        )
        try:
            engine.apply(command)
        except SchedulerError:
            if engine.failed is not None:
                return
