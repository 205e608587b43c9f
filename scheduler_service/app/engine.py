"""The single writer: commands in, answers out, nothing answered before it is durable.

Everything here runs on one event loop; the state has no locks.  The order of work is the contract:

    1. `apply` decides and the state in memory follows.
    2. The decisions join the group under construction.
    3. At the end of the loop's next turn, or when the commit in flight is done, the group is handed
       to the committer, which appends and syncs it on its own thread.
    4. When the group is durable its decisions are published, and everybody who waits for it is
       answered, all in one turn.

A crash after 1 or 2 loses what nobody was told.  One between 3 and 4 keeps what nobody was told:
callers repeat by request id, lease id or idempotency key and get the same answer.  A failed append
or sync leaves memory ahead of the disk, so the engine stops for good and the process must end.

Reads show the state in memory, so they wait, like everybody, for what they show (`durable`).
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar, cast

from scheduler_service.app.clock import monotonic_ns
from scheduler_service.app.commit import MAX_GROUP_BYTES, MAX_GROUP_RECORDS, Commit, GroupCommitter
from scheduler_service.app.histogram import SHORT_BOUNDS_NS, DurationHistogram
from scheduler_service.app.payload_keys import PayloadKeys
from scheduler_service.app.ports import Clock, Group, Payload, Reporter, Store
from scheduler_service.core import decisions as d
from scheduler_service.core.commands import Command, Tick
from scheduler_service.core.errors import NotReady, SchedulerError
from scheduler_service.core.policy import SECOND_NS
from scheduler_service.core.scheduler import apply
from scheduler_service.core.state import State
from scheduler_service.core.timers import next_due

_LONGEST_SLEEP_NS = 3600 * SECOND_NS
_NONCE_HEX = 24
_NONCES = 256
_ASKED = TypeVar("_ASKED")
_NOBODY: Final[list["Handler"]] = []

Listener = Callable[[int, list[d.Decision]], None]
"""Called with what one or some commands decided and the sequence before it; never waits."""

Handler = Callable[[Any], None]
"""Called in the same turn with one decision of the kinds it asked for; never waits."""

Publisher = Callable[[Group], None]
"""Called when a group is durable; never waits."""


class Engine:
    """Applies commands one at a time and answers when they are durable.

    Args:
        state: What recovery gave.
        clock: Engine time.
        store: Where the log goes; its head is the state's position.
        report: Receives rare events.

    Attributes:
        state: The state in memory; ahead of the disk by the groups that are not durable yet.
        failed: Why the engine stopped for good, or None.
        stopped: Set when it has stopped for good.
        listeners: Told of decisions as they are taken.
        publishers: Told of groups as they become durable.
        last_tick_ns: When timers were last looked at; for health.
        log: The committer; for metrics.
        decide_latency: How long commands took to decide, without their commit.
    """

    def __init__(self, state: State, clock: Clock, store: Store, report: Reporter) -> None:
        assert state.sequence == store.head().sequence
        self.state = state
        self.clock = clock
        self.failed: BaseException | None = None
        self.stopped = asyncio.Event()
        self.listeners: list[Listener] = []
        self.publishers: list[Publisher] = []
        self._handlers: dict[type[d.Decision], list[Handler]] = {}
        self.last_tick_ns = clock.now_ns()
        self.log = GroupCommitter(store, on_durable=self._durable, on_failure=self._stop)
        self.decide_latency = DurationHistogram(SHORT_BOUNDS_NS)
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._payloads = PayloadKeys(self.log, store.payload_keys())
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._fetches: dict[int, list[asyncio.Future[Payload | None]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._gathered: list[d.Decision] | None = None
        self._nonces, self._nonces_left, self._timer_ns = "", 0, 0

    def start(self) -> None:
        """Begins to commit, and to fire timers."""
        self.log.start()
        self._follow_timers()

    async def close(self) -> None:
        """Commits what is decided and ends the commit thread; decides nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        await self.log.close()

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

    def gate_nonce(self) -> str:
        """Returns `nonce()` for a command that grants nothing, unless a gate does."""
        return self.nonce() if self.state.gates else ""

    def on(self, kinds: Iterable[type[d.Decision]], handler: Handler) -> None:
        """Has `handler` told of every decision of these kinds, as they are taken."""
        for kind in kinds:
            self._handlers.setdefault(kind, []).append(handler)

    def apply_all(self, commands: Iterable[Command]) -> list[Any]:
        """Decides commands one after the other, in one go.

        Returns:
            For each the core's answer, or the `SchedulerError` that refused it.

        Raises:
            NotReady: LOG_STALLED, after a failed commit.
        """
        return cast("list[Any]", self._decide(_apply_each, commands, None))

    def gather(self, work: Callable[[], None]) -> None:
        """Runs `work`, and takes what is decided in it in one go at its end.

        For many acceptances of one message.  Meanwhile the state is up to date as ever; the log,
        handlers and listeners are told at the end, or when payloads fill a group.
        """
        assert self._gathered is None
        self._gathered = log = list[d.Decision]()
        try:
            work()
        finally:
            self._gathered = None
            try:
                self._take(log)
            except BaseException as error:
                self._stop(error)
                raise

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
        return self._decide(apply, command, payload)

    def _decide(
        self,
        decide: Callable[[State, _ASKED, list[d.Decision]], Any],
        asked: _ASKED,
        payload: Payload | None,
    ) -> Any:
        """Decides, and takes what was decided, also if the command was refused.

        Anything else that fails leaves the state ahead of the log: the engine stops for good, and
        what was not taken yet never reaches the log.
        """
        if self.failed is not None:
            raise _stalled()
        gathered = self._gathered
        log: list[d.Decision] = [] if gathered is None else gathered
        known, before, began_ns = len(log), self.state.sequence, monotonic_ns()
        try:
            try:
                return decide(self.state, asked, log)
            except SchedulerError:
                raise
            except BaseException:
                log.clear()
                raise
            finally:
                if len(log) > known:
                    if payload is not None:
                        self._payloads.note(before, log[known:], payload)
                    if gathered is None:
                        self._take(log)
                    elif self._payloads.new_bytes >= MAX_GROUP_BYTES:
                        taken, log[:] = log[:], []
                        self._take(taken)
        except SchedulerError:
            raise
        except BaseException as error:
            self._stop(error)
            raise
        finally:
            self.decide_latency.observe(monotonic_ns() - began_ns)

    def _take(self, decisions: list[d.Decision]) -> None:
        """Tells the log, handlers and listeners of the newest decisions."""
        before = self.state.sequence - len(decisions)
        for start in range(0, len(decisions), MAX_GROUP_RECORDS):
            part = decisions[start : start + MAX_GROUP_RECORDS]
            self.log.record(part)
            self._payloads.follow(before + start, part)
        handlers = self._handlers
        for decision in decisions:
            for handler in handlers.get(type(decision), _NOBODY):
                handler(decision)
        for listener in self.listeners:
            listener(before, decisions)
        due = next_due(self.state)
        if due is not None and (self._timer is None or due < self._timer_ns):
            self._follow_timers()

    # -- committing -------------------------------------------------------------------------

    def _durable(self, commit: Commit) -> None:
        """Takes note that a group is durable, and answers everybody it covers."""
        for publish in self.publishers:
            publish(commit.group)
        waiters = self._waiters
        while waiters and waiters[0][0] <= commit.ticket:
            future = waiters.popleft()[1]
            if not future.done():
                future.set_result(None)
        for key in commit.group.fetches:
            for answer in self._fetches.pop(key, ()):
                if not answer.done():
                    answer.set_result(commit.payloads.get(key))

    def _stop(self, error: BaseException) -> None:
        """Stops for good: what is in memory may not be what is on the disk."""
        if self.failed is not None:
            return
        self.failed = error
        self._report("engine.stopped", error=repr(error), durable=self.log.durable.sequence)
        for _, future in self._waiters:
            if not future.done():
                future.set_exception(_stalled())
        for answers in self._fetches.values():
            for answer in answers:
                if not answer.done():
                    answer.set_exception(_stalled())
        self._waiters.clear()
        self._fetches.clear()
        if self._timer is not None:
            self._timer.cancel()
        self.stopped.set()

    def durable(self) -> "asyncio.Future[None]":
        """Returns what to wait for: everything decided so far is durable, or never will be.

        It raises `NotReady`, LOG_STALLED, and belongs to one call: who cancels it stops waiting.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        self.wake_when_durable(future)
        return future

    def wake_when_durable(self, future: "asyncio.Future[None]") -> None:
        """Settles `future`, which is pending, when `durable()` would return or raise.

        It may be cancelled meanwhile.
        """
        if self.failed is not None:
            future.set_exception(_stalled())
            return
        ticket = self.log.ticket()
        if ticket <= self.log.done_ticket:
            future.set_result(None)
        else:
            self._waiters.append((ticket, future))

    def has_payload(self, key: int) -> bool:
        """Whether the request with this accept sequence carries a payload or metadata."""
        return key in self._payloads

    def fetch(self, key: int) -> "asyncio.Future[Payload | None]":
        """Returns a future of the payload of the request with this accept sequence.

        It is read in the commit that makes durable what was decided so far, before any payload
        that the same commit deletes.
        """
        future: asyncio.Future[Payload | None] = self._loop.create_future()
        self.log.fetch_payload(key)
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
        self._timer = self._loop.call_later(delay_ns / SECOND_NS, self._on_timer)

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


def _apply_each(state: State, commands: Iterable[Command], log: list[d.Decision]) -> list[Any]:
    answers: list[Any] = []
    for command in commands:
        try:
            answers.append(apply(state, command, log))
        except SchedulerError as error:
            answers.append(error)
    return answers


def _stalled() -> NotReady:
    return NotReady("LOG_STALLED", "The decision log has failed; the service is stopping.")
