"""Workers whose calls wait here count as alive, although they say nothing meanwhile.

A call that waits in an idle pool decides nothing, so nothing in the log shows its worker; the core
would forget it after its time to live.  Once a second everybody present who was not seen for half
of that time is shown to be there.
"""

from scheduler_service.app.engine import Engine
from scheduler_service.core import commands as c
from scheduler_service.core.errors import SchedulerError

_PART_OF_TTL = 2


class Presence:
    """Who is present."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._present: dict[str, dict[object, c.NextDispatch]] = {}

    def enter(self, token: object, command: c.NextDispatch) -> None:
        """Takes note that the worker of `command` is there, until `leave` with the same token."""
        self._present.setdefault(command.worker, {})[token] = command

    def leave(self, token: object, key: str) -> None:
        """Takes note that the worker known under `key` is no longer there by this token."""
        tokens = self._present.get(key, {})
        tokens.pop(token, None)
        if not tokens:
            self._present.pop(key, None)

    def show(self) -> None:
        """Shows who is there to the core; to be called about once a second."""
        engine = self._engine
        now_ns = engine.now_ns()
        for key, tokens in list(self._present.items()):
            command = next(iter(tokens.values()))
            worker = engine.state.workers.get(key)
            # A worker with leases is not forgotten, and its leases are for itself to confirm.
            if worker is None or worker.leases:
                continue
            pools = engine.state.pools
            ttl_ns = max(
                (pools[name].policy.worker_ttl_ns for name in command.pools if name in pools),
                default=0,
            )
            if now_ns - worker.last_seen_ns >= ttl_ns // _PART_OF_TTL:
                self._show(command)

    def _show(self, command: c.NextDispatch) -> None:
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
            return
