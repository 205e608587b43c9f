"""The core with the service's own estimator before it, and its teacher beside it.

A request states its prompt and its output cap.  What it is charged, and its class, come from
`app.estimate`, as in the server; completions report real lengths, and `app.learning` puts what it
learned into force every so often, by the server's own command.  Nothing is estimated here.

Only the estimate is uncertain: the engine's KV rule goes by real lengths in every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec

from scheduler_service.app.estimate import estimate
from scheduler_service.app.learning import Teacher
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.policy import PredictedClass
from scheduler_service.estimator.cost import Tokens
from scheduler_service.sim.core_method import POOL, CoreMethod
from scheduler_service.sim.model import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scheduler_service.core.policy import PoolPolicy
    from scheduler_service.core.state import State
    from scheduler_service.sim.model import RunLog, Workload

Learning = Literal["none", "pool", "user", "known"]
"""What the estimate rests on: the prior, the pool's learned ratio too, the user's too; `known`:
every caller predicts its output, and is right."""

LEARNING: Final[tuple[Learning, ...]] = get_args(Learning)

_LOOK_NS: Final = NS_PER_SECOND  # how often the teacher is asked whether it is time


class _Desk:
    """What the teacher sees of the method: the service's engine, as far as it needs one.

    Ratios that the run is not to have are taken out of its updates; the cutoff between short and
    long is learned in every run.
    """

    def __init__(self, method: EstimatingCore, learning: Learning) -> None:
        self._method = method
        self._learning = learning
        self._completed: list[Callable[[Any], None]] = []
        self.time_ns = 0
        self.updates = 0

    @property
    def state(self) -> State:
        return self._method.state

    def now_ns(self) -> int:
        return self.time_ns

    def nonce(self) -> str:
        return f"e{self.updates}"

    def on(self, kinds: Iterable[type[d.Decision]], handler: Callable[[Any], None]) -> None:
        if d.Completed in kinds:
            self._completed.append(handler)

    def tell(self, decisions: list[d.Decision]) -> None:
        for decision in decisions:
            if type(decision) is d.Completed:
                for handler in self._completed:
                    handler(decision)

    def apply(self, command: c.UpdateEstimator) -> object:
        ratios = command.ratios
        if self._learning != "user":
            ratios = tuple(r for r in ratios if self._learning == "pool" and not r[0])
        if not ratios and command.short_cutoff == self.state.pools[POOL].short_cutoff:
            return None
        self.updates += 1
        return self._method.apply(msgspec.structs.replace(command, ratios=ratios))


class EstimatingCore(CoreMethod):
    """The core with one pool whose costs are estimated from output caps.

    Args:
        name: Name for reports.
        policy: Policy of the pool.
        caps: Output cap of each request, tokens.
        learning: What estimates rest on.
        interval_ns: Shortest time between two updates of learned values.

    Attributes:
        charged: Cost of each request as estimated when it arrived, cost units.
    """

    def __init__(
        self, name: str, policy: PoolPolicy, caps: list[int], learning: Learning, interval_ns: int
    ) -> None:
        super().__init__(name, policy)
        self._caps = caps
        self._learning = learning
        self._interval_ns = interval_ns
        self.charged: list[int] = []

    def bind(self, workload: Workload, needs: list[int], log: RunLog) -> None:
        """Makes a fresh state, and a teacher that knows nothing yet."""
        super().bind(workload, needs, log)
        self.charged = [0] * len(workload)
        self._desk = _Desk(self, self._learning)
        self._teacher = Teacher(self._desk, self._interval_ns)
        self._look_ns = 0

    @property
    def updates(self) -> int:
        """Updates of learned values that were put into force."""
        return self._desk.updates

    def enqueue(self, request: int, now_ns: int) -> None:
        """Estimates, then applies `Enqueue`, as the server does."""
        if now_ns >= self._look_ns:
            self._look_ns = now_ns + _LOOK_NS
            self._desk.time_ns = now_ns
            self._teacher.teach()
        workload, user_id = self._workload, self._users[request]
        known = self._learning == "known"
        tokens = Tokens(
            workload.prompt[request],
            0 if known else self._caps[request],
            workload.response[request] if known else 0,
        )
        expected, cost, short = estimate(self.state.pools[POOL], user_id, tokens)
        self.charged[request] = cost
        self.apply(
            c.Enqueue(
                now_ns=now_ns,
                pool=POOL,
                request_id=self._ids[request],
                user_id=user_id,
                cost=cost,
                predicted_class=PredictedClass.SHORT if short else PredictedClass.LONG,
                kv_tokens=self._needs[request],
                prompt_tokens=tokens.prompt,
                output_cap_tokens=tokens.output_cap,
                expected_output_tokens=expected,
            )
        )
        self.waiting += 1

    def complete(self, request: int, now_ns: int) -> None:
        """Applies `Complete` with the real lengths, and lets the teacher see it."""
        super().complete(request, now_ns)
        self._desk.tell(self._new)
