"""An engine over a store in memory, with a few requests in it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from scheduler_service.app.clock import ManualClock
from scheduler_service.app.engine import Engine
from scheduler_service.app.memory import MemoryStore
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.completion import Complete
from scheduler_service.core.policy import PoolPolicy
from scheduler_service.core.state import State


class Rig:
    """A running engine and what it stands on.

    Attributes:
        clock: Its time.
        store: Its store.
        engine: The engine.
        events: Rare events it reported.
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []
        self.clock = ManualClock(10**18)
        self.store = MemoryStore()
        self.engine = Engine(State(), self.clock, self.store, self._report)
        self._calls = 0

    def _report(self, event: str, /, **values: object) -> None:
        self.events.append((event, values))

    def do(self, kind: type[c.Command], **fields: object) -> object:
        """Applies a command now; one nanosecond passes with each."""
        self._calls += 1
        now_ns = self.clock.advance(1)
        return self.engine.apply(kind(now_ns=now_ns, nonce=f"n{self._calls}", **fields))

    def create_pool(self, name: str = "p", policy: PoolPolicy | None = None) -> None:
        self.do(
            c.ConfigurePool,
            pool=name,
            policy=policy or PoolPolicy(),
            policy_digest="digest",
            create=True,
        )

    def enqueue(self, request_id: str, user_id: str = "u", pool: str = "p", cost: int = 10) -> None:
        self.do(c.Enqueue, pool=pool, request_id=request_id, user_id=user_id, cost=cost)

    def dispatch(self, worker: str = "w", pool: str = "p", count: int = 1) -> list[str]:
        answer = self.do(
            c.NextDispatch, pools=(pool,), worker=worker, max_dispatches=count, hand_over=False
        )
        return [request.request_id for request in answer.granted]

    def complete(self, request_id: str, pool: str = "p", **fields: object) -> None:
        lease = self.engine.state.pools[pool].requests[request_id].lease
        fields.setdefault("outcome", d.Outcome.SUCCEEDED)
        self.do(Complete, lease_id=lease.lease_id, **fields)


@asynccontextmanager
async def running() -> AsyncIterator[Rig]:
    """Runs a rig."""
    rig = Rig()
    rig.engine.start()
    try:
        yield rig
    finally:
        await rig.engine.close()
