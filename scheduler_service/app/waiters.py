"""Long-poll callers of `NextDispatch`, and the turn in which parked ones are served.

A call that finds nothing is parked.  When something was decided that can make a request
dispatchable, the pools concerned are looked at once, at the end of the loop's turn: the caller
parked longest goes first, and the look ends as soon as a pool has nothing to give; when many were
asked for in vain it goes on in the next turn.  So one arrival wakes one worker, however many are
parked, and a call can never miss an arrival: looking and parking happen in one turn.  The calls of
a drained worker are answered at once: it gets no new work.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from scheduler_service.app.engine import Engine
from scheduler_service.app.misfits import Misfits
from scheduler_service.core import answers as a
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.errors import LimitReached, SchedulerError

_WAKES: Final = frozenset(
    {
        d.Accepted,
        d.Rejoined,
        d.LeaseEnded,
        d.Resumed,
        d.PoolConfigured,
        d.Requeued,
        d.Ended,
        d.Completed,
        d.PoolDeleted,
    }
)
"""After these a request may be dispatchable that was not, or a call has become impossible."""

_OFFERS_MAX = 100

_MISSES_PER_TURN = 64
"""Parked calls of a pool asked for in vain in one turn: of thousands that nothing fits, the rest
waits."""

_POOL_IS_DRY = {d.EmptyReason.EMPTY, d.EmptyReason.PAUSED, d.EmptyReason.HELD_BY_CAP}


@dataclass(slots=True, eq=False)
class Parked:
    """One parked call.

    Attributes:
        worker: Key of the worker that calls.
        pools: Pools it takes from.
        offer: What its worker can take.
        command: Makes the command anew, with the time and nonce of the moment.
        granted: Called with the answer, in the turn of the grant, or when nothing will be granted.
        refused: Called with the error if the call has become impossible.
        missed: Called with the answer when it was asked for and got nothing, and stays parked.
    """

    worker: str
    pools: tuple[str, ...]
    offer: d.Offer
    command: Callable[[], c.NextDispatch]
    granted: Callable[[a.Dispatches], None]
    refused: Callable[[SchedulerError], None]
    missed: Callable[[a.Dispatches], None] | None = None


class Waiters:
    """The parked calls of all pools.

    Args:
        engine: Applies the calls.
        limit: Calls that may be parked at once.
        misfits: Told of every answer to a parked call; tells when something has left the way.
    """

    def __init__(self, engine: Engine, limit: int, misfits: Misfits) -> None:
        self._engine = engine
        self._limit = limit
        self._misfits = misfits
        self._by_pool: dict[str, OrderedDict[Parked, None]] = {}
        self._count = 0
        self._dirty: set[str] = set()
        self._under_way: dict[str, deque[Parked]] = {}
        self._drained: set[str] = set()
        self._look_due = False
        self._loop = asyncio.get_running_loop()
        self._recheck: asyncio.TimerHandle | None = None
        engine.listeners.append(self._decided)
        engine.on((d.WorkerDrained,), self._worker_drained)
        misfits.cleared.append(self._cleared)

    @property
    def count(self) -> int:
        """Calls parked."""
        return self._count

    def offers(self, pool: str) -> list[d.Offer]:
        """Returns what the workers whose calls wait for `pool` could take, some of them at most."""
        return [call.offer for call in islice(self._by_pool.get(pool, ()), _OFFERS_MAX)]

    def park(self, parked: Parked) -> None:
        """Parks a call that has just found nothing; to be called in the same turn.

        Raises:
            LimitReached: CALLS_PARKED_FULL.
        """
        if self._count >= self._limit:
            raise LimitReached(
                "CALLS_PARKED_FULL",
                f"As many calls as may be are parked already: {self._count:,}.",
                limitCalls=self._limit,
            )
        for pool in parked.pools:
            self._by_pool.setdefault(pool, OrderedDict())[parked] = None
        self._count += 1
        if self._recheck is None:
            self._recheck = self._loop.call_later(1.0, self._look_at_all)

    def unpark(self, parked: Parked) -> None:
        """Takes a call out, if it is still parked."""
        found = False
        for pool in parked.pools:
            calls = self._by_pool.get(pool)
            if calls is not None and parked in calls:
                del calls[parked]
                found = True
                if not calls:
                    del self._by_pool[pool]
        self._count -= found

    def drain(self) -> list[Parked]:
        """Takes every call out and returns them, parked longest first."""
        calls = list(dict.fromkeys(call for pool in self._by_pool.values() for call in pool))
        for call in calls:
            self.unpark(call)
        return calls

    def _decided(self, _before: int, decisions: list[d.Decision]) -> None:
        if not self._by_pool:
            return
        if not decisions:
            self._dirty.update(self._by_pool)
        decision: Any
        for decision in decisions:  # by type: `isinstance` takes long for records
            if type(decision) in _WAKES and decision.pool in self._by_pool:
                self._dirty.add(decision.pool)
        if self._dirty:
            self._look_soon()

    def _cleared(self, pool: str) -> None:
        """Looks at a pool again at the end of the turn: what stood in the way has gone."""
        if pool in self._by_pool:
            self._dirty.add(pool)
            self._look_soon()

    def _worker_drained(self, decision: d.WorkerDrained) -> None:
        if self._by_pool:
            self._drained.add(decision.worker)
            self._look_soon()

    def _look_soon(self) -> None:
        if not self._look_due:
            self._look_due = True
            self._loop.call_soon(self._look)

    def _look_at_all(self) -> None:
        """Looks again once a second: what a worker may take can depend on time alone."""
        self._recheck = None
        if self._by_pool and self._engine.failed is None:
            self._decided(0, [])
            self._recheck = self._loop.call_later(1.0, self._look_at_all)

    def _look(self) -> None:
        self._look_due = False
        drained, self._drained = self._drained, set()
        if drained:
            self._dismiss(drained)
        for pool in self._dirty - self._under_way.keys():
            self._dirty.discard(pool)
            self._under_way[pool] = deque(self._by_pool.get(pool, ()))
        for pool, calls in list(self._under_way.items()):
            if self._serve(pool, calls):
                del self._under_way[pool]
        if self._under_way or self._dirty:
            self._look_soon()

    def _dismiss(self, workers: set[str]) -> None:
        """Answers the calls of workers that get no new work."""
        calls = dict.fromkeys(call for pool in self._by_pool.values() for call in pool)
        for call in calls:
            if call.worker in workers and self._engine.failed is None:
                answer = self._ask(call)
                if answer is not None:
                    self.unpark(call)
                    call.granted(answer)

    def _serve(self, name: str, calls: deque[Parked]) -> bool:
        """Offers what `name` has to parked calls, longest first, until too many got nothing.

        Args:
            name: The pool.
            calls: Those that were not asked for yet.

        Returns:
            Whether there is no more to do; else the rest is asked for in the next turn.
        """
        misses = 0
        while calls:
            pool = self._engine.state.pools.get(name)
            if self._engine.failed is not None:
                return True
            if pool is not None and not pool.backlog.selectable and not pool.redelivery:
                return True
            if misses == _MISSES_PER_TURN:
                return False
            call = calls.popleft()
            if call not in self._by_pool.get(name, ()):
                continue
            answer = self._ask(call)
            if answer is None:
                misses += 1
                continue
            if answer.granted:
                self.unpark(call)
                call.granted(answer)
                continue
            misses += 1
            if call.missed is not None:
                call.missed(answer)
            if len(call.pools) == 1 and answer.empty_reason in _POOL_IS_DRY:
                return True
        return True

    def _ask(self, call: Parked) -> a.Dispatches | None:
        """Asks for a parked call; takes it out and returns nothing if it has become impossible."""
        try:
            answer: a.Dispatches = self._engine.apply(call.command())
        except SchedulerError as error:
            self.unpark(call)
            call.refused(error)
            return None
        self._misfits.asked(call.worker, call.pools, answer)
        return answer
