"""A scheduler driven by short calls, for tests that look at one situation."""

from typing import Any

import msgspec

from scheduler_service.core import answers as a
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.completion import Complete
from scheduler_service.core.policy import PRESETS, PoolPolicy, PredictedClass
from scheduler_service.core.request import Request
from scheduler_service.core.scheduler import apply
from scheduler_service.core.state import Pool, State

SHORT, LONG = PredictedClass.SHORT, PredictedClass.LONG
SECOND_NS = 1_000_000_000


class Scene:
    """One pool `p` at a time of its own.

    Attributes:
        log: Everything that was decided.
        now_ns: The time; `pass_time` moves it.
    """

    def __init__(self, preset: str = "fair_qba", **policy: Any) -> None:
        self.state = State()
        self.log: list[d.Decision] = []
        self.now_ns = 10**18
        self._calls = 0
        chosen = msgspec.structs.replace(PRESETS[preset], **policy)
        self.configure(chosen, create=True)

    @property
    def pool(self) -> Pool:
        return self.state.pools["p"]

    def do(self, kind: type[c.Command], **fields: Any) -> Any:
        """Applies a command now."""
        self._calls += 1
        command = kind(now_ns=self.now_ns, nonce=f"n{self._calls}", **fields)
        return apply(self.state, command, self.log)

    def configure(self, policy: PoolPolicy, *, create: bool = False) -> None:
        self.do(c.ConfigurePool, pool="p", policy=policy, policy_digest="digest", create=create)

    def pass_time(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND_NS)

    def enqueue(self, request_id: str, user_id: str, cost: int = 10, **fields: Any) -> Request:
        self.do(c.Enqueue, pool="p", request_id=request_id, user_id=user_id, cost=cost, **fields)
        return self.pool.requests[request_id]

    def ask(self, worker: str = "w", count: int = 1, **fields: Any) -> a.Dispatches:
        fields.setdefault("hand_over", False)
        return self.do(c.NextDispatch, pools=("p",), worker=worker, max_dispatches=count, **fields)

    def dispatched(self) -> d.Dispatched:
        """Returns the last dispatch."""
        return next(x for x in reversed(self.log) if isinstance(x, d.Dispatched))

    def finish(self, request_id: str, outcome: d.Outcome = d.Outcome.SUCCEEDED) -> None:
        lease = self.pool.requests[request_id].lease
        self.do(Complete, lease_id=lease.lease_id, outcome=outcome)

    def drain(self, step_seconds: float = 0.01) -> list[str]:
        """Dispatches and completes everything that waits; returns the order."""
        order = []
        while self.pool.waiting or self.pool.redelivery:
            self.pass_time(step_seconds)
            answer = self.ask()
            assert answer.granted, answer.empty_reason
            for request in answer.granted:
                order.append(request.request_id)
                self.finish(request.request_id)
        return order
