"""The single writer: commands in, answers out, nothing answered before it is durable.

Everything here runs on one event loop; the state has no locks.  The order of work is the contract:

    1. `apply` decides and the state in memory follows.
    2. The decisions join the group under construction.
    3. At the end of the loop's turn, or when the commit in flight is done, the group is handed to
       the committer, which appends and syncs it on its own thread.
    4. When the group is durable its decisions are published, and everybody who waits for it is
       answered, all in one turn.

A crash after 1 or 2 loses what nobody was told.  A crash between 3 and 4 keeps what nobody was told:
callers repeat by request id, lease id or idempotency key and get the same answer.  A failed append
or sync leaves memory ahead of the disk, so the engine stops for good and the process must end.

Reads show the state in memory, so they wait, like everybody, for what they show (`durable`).
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from scheduler_service.app.chain import GroupBuilder
from scheduler_service.app.ports import Clock, Group, Payload, Position, Reporter
from scheduler_service.core import decisions as d
from scheduler_service.core.commands import Command, Tick
from scheduler_service.core.errors import NotReady
from scheduler_service.core.scheduler import apply
from scheduler_service.core.state import State
from scheduler_service.core.timers import next_due

_SECOND_NS = 1_000_000_000
_LONGEST_SLEEP_NS = 3600 * _SECOND_NS
_NONCE_HEX = 24
_NONCES = 256

Listener = Callable[[int, list[d.Decision]], None]
"""Called in the turn of a command with the sequence before its first decision; never waits."""

Publisher = Callable[[Group], None]
"""Called when a group is durable; never waits."""


class Committer(Protocol):
    """Makes groups durable, one at a time, on a thread of its own."""

    def submit(self, group: Group) -> None:
        """Begins the commit; `Engine.committed` or `Engine.commit_failed` follows on the loop."""


class Engine:
    """Applies commands one at a time and answers when they are durable.

    Args:
        state: What recovery gave.
        head: Position of the log's last record.
        clock: Engine time.
        payload_keys: Accept sequences of the payloads in the store.
        report: Receives rare events.

    Attributes:
        state: The state in memory; ahead of the disk by the groups that are not durable yet.
        durable_end: Position of the last durable record.
        failed: Why the engine stopped for good, or None.
        stopped: Set when it has stopped for good.
        listeners: Told of decisions as they are taken.
        publishers: Told of groups as they become durable.
        last_tick_ns: When timers were last looked at; for health.
    """

    def __init__(
        self,
        state: State,
        head: Position,
        clock: Clock,
        payload_keys: Iterable[int],
        report: Reporter,
    ) -> None:
        assert state.sequence == head.sequence
        self.state = state
        self.clock = clock
        self.durable_end = head
        self.failed: BaseException | None = None
        self.stopped = asyncio.Event()
        self.listeners: list[Listener] = []
        self.publishers: list[Publisher] = []
        self.last_tick_ns = clock.now_ns()
        self._report = report
        self._committer: Committer | None = None
        self._loop = asyncio.get_running_loop()
        self._builder = GroupBuilder(head)
        self._payload_keys = set(payload_keys)
        self._in_flight: Group | None = None
        self._flush_due = False
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._fetches: dict[int, list[asyncio.Future[Payload | None]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._nonces = ""
        self._nonces_left = 0

    def start(self, committer: Committer) -> None:
        """Begins to commit, and to fire timers."""
        self._committer = committer
        self._follow_timers()

    # -- deciding ---------------------------------------------------------------------------

    def now_ns(self) -> int:
        """Returns the time for the next command, nanoseconds."""
        return self.clock.now_ns()

    def nonce(self) -> str:
        """Returns unguessable text for the lease ids of one command (96 random bits)."""
        if self._nonces_left == 0:
            self._nonces = secrets.token_hex(_NONCE_HEX // 2 * _NONCES)
            self._nonces_left = _NONCES
        self._nonces_left -= 1
        at = self._nonces_left * _NONCE_HEX
        return self._nonces[at : at + _NONCE_HEX]

    def apply(self, command: Command, payload: Payload | None = None) -> Any:
        """Decides one command; the answer may be shown only after `durable()`.

        Args:
            command: Made with this engine's `now_ns` and `nonce`.
            payload: Kept with the request if the command accepts one.

        Returns:
            The core's answer.  It may share data with the state: read it before the next `await`.

        Raises:
            SchedulerError: The command was refused; that, too, may be told only when durable.
            NotReady: LOG_STALLED, after a failed commit.
        """
        if self.failed is not None:
            raise NotReady("LOG_STALLED", "The decision log has failed; the service is stopping.")
        log: list[d.Decision] = []
        before = self.state.sequence
        try:
            return apply(self.state, command, log)
        except AssertionError as error:
            self._stop(error)
            raise
        finally:
            if log:
                self._take(before, log, payload)

    def _take(self, before: int, log: list[d.Decision], payload: Payload | None) -> None:
        builder = self._builder
        for decision in log:
            sequence = builder.add(decision)
            kind = type(decision)
            if kind is d.Accepted:
                if payload is not None:
                    builder.put_payload(sequence, payload)
                    self._payload_keys.add(sequence)
            elif self._payload_keys and isinstance(
                decision, d.Completed | d.Ended | d.DeadLetterDropped
            ):
                self._drop_payload(decision)
        for listener in self.listeners:
            listener(before, log)
        self._want_flush()
        due = next_due(self.state)
        if due is not None and (self._timer is None or due < self._timer_ns):
            self._follow_timers()

    def _drop_payload(self, decision: d.Completed | d.Ended | d.DeadLetterDropped) -> None:
        """Deletes the payload of a request that is over; a dead letter keeps it."""
        if isinstance(decision, d.Ended) and decision.state is d.RequestState.DEAD_LETTERED:
            return
        key = decision.request_sequence
        if key in self._payload_keys:
            self._payload_keys.remove(key)
            self._builder.delete_payload(key)

    # -- committing -------------------------------------------------------------------------

    def _want_flush(self) -> None:
        if not self._flush_due and self._in_flight is None:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._in_flight is None and self._builder.count and self.failed is None:
            assert self._committer is not None
            group = self._builder.take()
            self._in_flight = group
            self._committer.submit(group)

    def committed(self, fetched: dict[int, Payload]) -> None:
        """Takes note that the group in flight is durable, and answers everybody it covers."""
        group = self._in_flight
        assert group is not None
        self._in_flight = None
        self._flush()
        self.durable_end = group.end
        for publish in self.publishers:
            publish(group)
        waiters, durable = self._waiters, group.end.sequence
        while waiters and waiters[0][0] <= durable:
            future = waiters.popleft()[1]
            if not future.done():
                future.set_result(None)
        for key in group.fetches:
            for answer in self._fetches.pop(key, ()):
                if not answer.done():
                    answer.set_result(fetched.get(key))

    def commit_failed(self, error: BaseException) -> None:
        """Stops for good: what is in memory may not be what is on the disk."""
        self._stop(error)

    def _stop(self, error: BaseException) -> None:
        if self.failed is not None:
            return
        self.failed = error
        self._report("engine.stopped", error=repr(error), durable=self.durable_end.sequence)
        failure = NotReady("LOG_STALLED", "The decision log has failed; the service is stopping.")
        for _, future in self._waiters:
            if not future.done():
                future.set_exception(failure)
        for answers in self._fetches.values():
            for answer in answers:
                if not answer.done():
                    answer.set_exception(failure)
        self._waiters.clear()
        self._fetches.clear()
        if self._timer is not None:
            self._timer.cancel()
        self.stopped.set()

    async def durable(self) -> None:
        """Waits until everything decided so far is durable.

        Each caller waits on a future of its own: one that is cancelled disturbs no other.

        Raises:
            NotReady: LOG_STALLED.
        """
        sequence = self.state.sequence
        if sequence <= self.durable_end.sequence:
            return
        if self.failed is not None:
            raise NotReady("LOG_STALLED", "The decision log has failed; the service is stopping.")
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append((sequence, future))
        await future

    def has_payload(self, key: int) -> bool:
        """Whether the request with this accept sequence carries a payload or metadata."""
        return key in self._payload_keys

    def fetch(self, key: int) -> "asyncio.Future[Payload | None]":
        """Returns a future of a payload, read in the commit of the group under construction.

        To be called in the turn of the dispatch that needs it, whose record makes the group.
        """
        future: asyncio.Future[Payload | None] = self._loop.create_future()
        if key not in self._fetches:
            self._builder.fetch_payload(key)
        self._fetches.setdefault(key, []).append(future)
        return future

    # -- time -------------------------------------------------------------------------------

    def _follow_timers(self) -> None:
        """Sets the loop's timer to the next timer of the core."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = next_due(self.state)
        if due is None or self.failed is not None:
            return
        delay_ns = min(max(due - self.clock.now_ns(), 0), _LONGEST_SLEEP_NS)
        self._timer_ns = due
        self._timer = self._loop.call_later(delay_ns / _SECOND_NS, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.tick()
        self._follow_timers()

    def tick(self) -> None:
        """Fires the timers that are due, also when no call comes in."""
        if self.failed is not None:
            return
        now_ns = self.clock.now_ns()
        self.apply(Tick(now_ns=now_ns, nonce=self.nonce()))
        self.last_tick_ns = now_ns
        for listener in self.listeners:
            listener(self.state.sequence, [])
