"""Teaches the estimator from the decision log, and puts what it learned into force in the open.

A listener tallies completed requests.  From time to time, if a value has moved, the values are put
into force by a command, so that they stand in the log, survive a restart, and every later cost can
be explained.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.policy import ClassBy, CostSource, PoolPolicy, PredictedClass
from scheduler_service.core.state import Pool, State
from scheduler_service.estimator.cost import cost_of
from scheduler_service.estimator.learning import PoolLearner, Usage

_SUCCEEDED: Final = d.RequestState.SUCCEEDED
_BY_WORK: Final = ClassBy.WORK
_SHORT: Final = PredictedClass.SHORT
_TOKENS: Final = CostSource.TOKENS

_READ_AT: Final = 50
"""Completed requests that are gathered before they are tallied: few, so that they are still in the
processor's cache."""


class Taught(Protocol):
    """What a teacher needs of the one that decides: the service's engine, or a simulator's."""

    @property
    def state(self) -> State:
        """Everything; the teacher only reads it."""

    def now_ns(self) -> int:
        """Returns the time for the next command, nanoseconds."""

    def nonce(self) -> str:
        """Returns text for the ids of one command."""

    def on(self, kinds: Iterable[type[d.Decision]], handler: Callable[[Any], None]) -> None:
        """Has `handler` told of every decision of these kinds."""

    def apply(self, command: c.UpdateEstimator) -> Any:
        """Decides one command."""


class Teacher:
    """Learns for every pool.

    Args:
        engine: Whose decisions are watched, and which applies the updates.
        interval_ns: Shortest time between two updates of a pool.

    Attributes:
        learners: By pool; for metrics and statistics.
    """

    def __init__(self, engine: Taught, interval_ns: int) -> None:
        self._engine = engine
        self._interval_ns = interval_ns
        self._next_ns: dict[str, int] = {}
        self._unread: list[d.Completed] = []
        self.learners: dict[str, PoolLearner] = {}
        for pool in engine.state.pools.values():
            self._learner(pool)
        engine.on((d.Completed,), self._completed)
        engine.on((d.UserForgotten,), self._user_forgotten)
        engine.on((d.PoolDeleted,), self._pool_deleted)

    def _learner(self, pool: Pool) -> PoolLearner:
        by_work = pool.policy.class_by is _BY_WORK
        learner = self.learners.get(pool.name)
        if learner is None or learner.by_work != by_work:
            learner = self.learners[pool.name] = PoolLearner(by_work=by_work)
            for user_id, (ratio_milli, cap_tokens) in pool.ratios.items():
                learner.resume(user_id, ratio_milli, cap_tokens)
        return learner

    def _user_forgotten(self, x: d.UserForgotten) -> None:
        if x.pool in self.learners:
            self.learners[x.pool].forget(x.user_id)

    def _pool_deleted(self, x: d.PoolDeleted) -> None:
        self.learners.pop(x.pool, None)

    def _completed(self, x: d.Completed) -> None:
        if x.output_tokens >= 0 and x.state is _SUCCEEDED:
            self._unread.append(x)
            if len(self._unread) >= _READ_AT:
                self.read()

    def read(self) -> None:
        """Tallies what has been completed since it last did."""
        unread, self._unread = self._unread, []
        by_pool: dict[str, list[d.Completed]] = {}
        for x in unread:
            name = x.pool
            completed = by_pool.get(name)
            if completed is None:
                completed = by_pool[name] = []
            completed.append(x)
        for name, completed in by_pool.items():
            pool = self._engine.state.pools.get(name)
            if pool is not None:
                usages = _usages_of(completed, pool.policy)
                self._learner(pool).observe(usages, pool.short_cutoff)

    def teach(self) -> None:
        """Puts into force what has been learned; to be called every now and then."""
        self.read()
        now_ns = self._engine.now_ns()
        for name, learner in self.learners.items():
            pool = self._engine.state.pools.get(name)
            if pool is None or now_ns < self._next_ns.get(name, 0):
                continue
            self._next_ns[name] = now_ns + self._interval_ns
            cutoff = pool.short_cutoff
            proposal = learner.propose(pool.ratios, cutoff)
            if proposal is None:
                continue
            fixed = pool.policy.short_cutoff
            self._engine.apply(
                c.UpdateEstimator(
                    now_ns=self._engine.now_ns(),
                    nonce=self._engine.nonce(),
                    pool=name,
                    ratios=proposal.ratios,
                    short_cutoff=fixed or proposal.short_cutoff,
                )
            )


def _usages_of(completed: list[d.Completed], policy: PoolPolicy) -> list[Usage]:
    by_tokens = policy.cost_source is _TOKENS
    prompt_milli, output_milli = policy.prompt_cost_milli, policy.output_cost_milli
    usages = []
    for x in completed:
        prompt, output = x.prompt_tokens, x.output_tokens
        if prompt < 0:
            prompt = x.stated_prompt_tokens
        real_cost = 0
        if prompt or by_tokens:
            real_cost = cost_of(prompt, output, prompt_milli, output_milli)
        usages.append(
            Usage(
                x.user_id,
                prompt,
                output,
                x.output_cap_tokens,
                short=x.predicted_class is _SHORT,
                cost=x.cost,
                real_cost=real_cost,
            )
        )
    return usages
