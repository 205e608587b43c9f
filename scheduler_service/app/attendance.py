"""Who is there for requests that end with the call that waits for them.

A request made by `Acquire` is *bound to its caller*.  While somebody attends it, it waits and runs
like any other.  When the last one has gone it is cancelled: at once while it waits, else its holder
is asked to stop and it is not redelivered.

After a restart nobody attends yet.  Requests then wait for `resume_grace` for their callers; those
that nobody came back for are cancelled.  A service that stops cancels nothing.
"""

import asyncio

from scheduler_service.app.engine import Engine
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.completion import Complete
from scheduler_service.core.errors import SchedulerError
from scheduler_service.core.policy import SECOND_NS, PoolMode

_CANCELS_PER_TURN = 200


class Attendance:
    """Counts the callers of each caller-bound request."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._callers: dict[tuple[str, str], int] = {}
        self._closed = False
        self._grace: asyncio.Task[None] | None = None

    def attend(self, pool: str, request_id: str) -> None:
        """Takes note that somebody waits for the request; `leave` ends it."""
        key = (pool, request_id)
        self._callers[key] = self._callers.get(key, 0) + 1

    def leave(self, pool: str, request_id: str, *, gone: bool, lease_id: str = "") -> None:
        """Takes note that somebody no longer waits for the request.

        Args:
            pool: Its pool.
            request_id: The request.
            gone: Whether the caller left before it got what it came for.
            lease_id: With a gate: the lease that was granted to the caller and did not reach it.
        """
        key = (pool, request_id)
        left = self._callers[key] - 1
        if left:
            self._callers[key] = left
            return
        del self._callers[key]
        if gone and not self._closed:
            self._cancel(pool, request_id, lease_id)

    def expect_back(self, grace_ns: int) -> None:
        """Gives the callers of the requests that are there now `grace_ns` to come back."""
        expected = [
            (name, request.request_id)
            for name, pool in self._engine.state.pools.items()
            for request in pool.requests.values()
            if request.caller_bound
        ]
        if expected:
            self._grace = asyncio.get_running_loop().create_task(
                self._cancel_after(expected, grace_ns)
            )

    def close(self) -> None:
        """Cancels nothing from now on: the service is stopping."""
        self._closed = True
        if self._grace is not None:
            self._grace.cancel()

    async def _cancel_after(self, expected: list[tuple[str, str]], grace_ns: int) -> None:
        await asyncio.sleep(grace_ns / SECOND_NS)
        for number, (pool, request_id) in enumerate(expected, 1):
            if (pool, request_id) not in self._callers:
                self._cancel(pool, request_id)
            if number % _CANCELS_PER_TURN == 0:
                await self._engine.durable()

    def _cancel(self, pool_name: str, request_id: str, lease_id: str = "") -> None:
        """Cancels a request that nobody is there for any more."""
        pool = self._engine.state.pools.get(pool_name)
        request = None if pool is None else pool.requests.get(request_id)
        if pool is None or request is None or not request.caller_bound:
            return
        leased = request.state is d.RequestState.LEASED
        if leased and pool.policy.mode is PoolMode.GATE and not lease_id:
            return
        engine = self._engine
        command = c.Cancel(
            now_ns=engine.now_ns(),
            nonce=engine.nonce(),
            pool=pool_name,
            request_id=request_id,
            reason="CALLER_GONE",
        )
        try:
            engine.apply(command)
            if lease_id:
                self._end_lease(lease_id)
        except SchedulerError:
            # It has ended meanwhile, or the log has failed: nothing is left to cancel.
            return

    def _end_lease(self, lease_id: str) -> None:
        """Frees the place of a lease that nobody holds."""
        engine = self._engine
        engine.apply(
            Complete(
                now_ns=engine.now_ns(),
                nonce=engine.nonce(),
                lease_id=lease_id,
                outcome=d.Outcome.FAILED,
            )
        )
