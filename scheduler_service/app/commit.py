"""Group commit: many decisions, one sync, on a thread of its own.

One commit is in flight at a time and there is no timer.  What the loop records while a commit is
under way becomes the next group, so groups grow exactly as fast as the disk is slow.

    loop   record(), put_payload() …            into the group under construction
    loop   end of the next tick: hand over      if nothing is in flight
    thread store.append(group)                  atomic and durable
    loop   on_durable(commit)                   once a group, in order; then hand over the next

What a crash leaves: before `append` returns, the group is kept whole or not at all, and nobody has
been told about it; after it, the group is kept.  A failure of `append` is final: memory is ahead of
the disk, so nothing is acknowledged any more, `on_failure` is called once, and the process has to
end and recover.

Callers wait for *tickets*: the number of the group that makes everything recorded so far durable.
A caller that only shows what is there takes a ticket too, and so never shows what a crash can
still undo.  Each waiting call needs a future of its own: a shared one would be cancelled for all of
them when one call is.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple, final

from scheduler_service.app import clock
from scheduler_service.app.chain import GroupBuilder
from scheduler_service.app.histogram import DurationHistogram
from scheduler_service.app.ports import Group, Payload, Store, StoreFailed
from scheduler_service.core.decisions import Decision

MAX_GROUP_RECORDS: Final = 4096
MAX_GROUP_BYTES: Final = 4 << 20
"""A group is closed when it reaches either: bounds one transaction and one row.  What is recorded
at once is not split, so a group can hold less than twice as many records, and their bytes with a
payload more."""


class Pace(NamedTuple):
    """When the store may do steps of its upkeep.

    Attributes:
        gap_seconds: What is due waits this long for a gap between groups, so that it delays no
            reply …
        groups: … but comes after this many groups at the latest, so that load cannot starve it.
        idle_seconds: After this long without a group there is time for longer steps.
    """

    gap_seconds: float = 0.002
    groups: int = 64
    idle_seconds: float = 0.5


class Commit(NamedTuple):
    """A group that is durable.

    Attributes:
        ticket: Its number; every ticket up to it is settled.
        group: What was committed.
        payloads: What its fetches found.
    """

    ticket: int
    group: Group
    payloads: dict[int, Payload]


class CommitterFailed(StoreFailed):
    """The committer has failed before; nothing can be recorded any more."""


@final
class GroupCommitter:
    """Commits groups of decisions one after the other.

    All methods are called on the loop, as are both callbacks.

    Args:
        store: Where groups go.  `append` and `upkeep` are called on the committer's thread.
        on_durable: Called once a group, in order.
        on_failure: Called once, with the first error; nothing is called after it.
        pace: When `upkeep` is called.

    Attributes:
        durable: Position up to which everything is durable.
        commit_latency: How long commits took, as the thread saw them.
        group_count: Groups committed.
    """

    def __init__(
        self,
        store: Store,
        *,
        on_durable: Callable[[Commit], None],
        on_failure: Callable[[Exception], None],
        pace: Pace | None = None,
    ) -> None:
        self.durable = store.head()
        self.commit_latency = DurationHistogram()
        self.group_count = 0
        self._store = store
        self._on_durable = on_durable
        self._on_failure = on_failure
        self._pace = pace or Pace()
        self._builder = GroupBuilder(self.durable)
        self._closed_groups: list[Group] = []
        self._next_ticket = 1
        self._done_ticket = 0
        self._in_flight: Group | None = None
        self._hand_over_due = False
        self._failure: Exception | None = None
        self._settled: list[tuple[int, asyncio.Future[None]]] = []
        self._inbox: SimpleQueue[Group | None] = SimpleQueue()
        self._own_thread: threading.Thread | None = None
        self._stopped: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # ----- life

    def start(self) -> None:
        """Starts the thread; to be called on the running loop, once."""
        assert self._own_thread is None
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        self._own_thread = threading.Thread(target=self._run, name="fairsched-commit", daemon=True)
        self._own_thread.start()

    async def drain(self) -> None:
        """Waits until everything recorded so far is durable.

        Raises:
            CommitterFailed: It never will be.
        """
        await self.settled(self.ticket())

    async def settled(self, ticket: int) -> None:
        """Waits until a ticket is settled.  For rare callers; calls wait through `on_durable`.

        Raises:
            CommitterFailed: It never will be.
        """
        if self._failure is not None:
            raise CommitterFailed(str(self._failure)) from self._failure
        if ticket <= self._done_ticket:
            return
        assert self._loop is not None
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._settled.append((ticket, waiter))
        await waiter

    async def close(self) -> None:
        """Commits what is recorded and ends the thread.  Does not close the store.

        Raises:
            CommitterFailed: Something could not be committed.
        """
        if self._own_thread is None or self._stopped is None:
            return
        try:
            await self.drain()
        finally:
            self._inbox.put(None)
            await self._stopped
            self._own_thread.join()
            self._own_thread = None

    # ----- what the engine records

    def record(self, decisions: Sequence[Decision]) -> None:
        """Takes decisions of one turn, 1 to `MAX_GROUP_RECORDS`, into the next group.

        Raises:
            CommitterFailed: The log has failed; the decisions are lost with this process.
        """
        if self._failure is not None:
            raise CommitterFailed(str(self._failure)) from self._failure
        builder = self._builder
        if len(builder.records) >= MAX_GROUP_RECORDS or builder.bytes >= MAX_GROUP_BYTES:
            self._close_group()
        if self._in_flight is None and not self._hand_over_due:
            self._schedule()
        builder.add(decisions)

    def put_payload(self, key: int, payload: Payload) -> None:
        """Keeps the payload of the request accepted at sequence `key`, with the current group."""
        self._builder.put_payload(key, payload)
        self._schedule()

    def delete_payload(self, key: int) -> None:
        """Drops the payload of the request accepted at sequence `key`."""
        self._builder.delete_payload(key)
        self._schedule()

    def fetch_payload(self, key: int) -> None:
        """Asks for a payload to come with the `Commit` of the current group."""
        self._builder.fetch_payload(key)
        self._schedule()

    # ----- what the engine asks

    def ticket(self) -> int:
        """Returns the number of the group that makes everything recorded so far durable."""
        return self._next_ticket if self._builder.has_work else self._next_ticket - 1

    @property
    def done_ticket(self) -> int:
        """Number of the last group that is durable."""
        return self._done_ticket

    @property
    def sequence(self) -> int:
        """Sequence of the last decision recorded, durable or not."""
        return self._builder.sequence

    @property
    def pending_count(self) -> int:
        """Decisions recorded and not durable yet."""
        return self.sequence - self.durable.sequence

    @property
    def failure(self) -> Exception | None:
        """The error that ended the log, if one has."""
        return self._failure

    # ----- on the loop

    def _schedule(self) -> None:
        if self._hand_over_due or self._in_flight is not None:
            return
        assert self._loop is not None, "not started"
        self._hand_over_due = True
        # After what this turn has put off to its end: workers that wait are served there, and an
        # acceptance and its dispatch are to share a commit.
        self._loop.call_soon(self._loop.call_soon, self._hand_over)

    def _close_group(self) -> None:
        self._closed_groups.append(self._builder.take())
        self._next_ticket += 1

    def _hand_over(self) -> None:
        """Gives the thread the oldest group that waits; at the end of a tick or of a commit."""
        self._hand_over_due = False
        if self._in_flight is not None or self._failure is not None:
            return
        if not self._closed_groups:
            if not self._builder.has_work:
                return
            self._close_group()
        self._in_flight = self._closed_groups.pop(0)
        self._inbox.put(self._in_flight)

    def _committed(self, group: Group, payloads: dict[int, Payload]) -> None:
        if self._failure is not None:
            return
        self._in_flight = None
        self._done_ticket += 1
        self.group_count += 1
        self.durable = group.end
        self._hand_over()
        try:
            self._on_durable(Commit(self._done_ticket, group, payloads))
        except Exception as error:  # noqa: BLE001 - any: who waits for this group must be told
            self._failed(error)
            return
        if self._settled:
            self._settle()

    def _settle(self) -> None:
        waiting = []
        for ticket, waiter in self._settled:
            if ticket > self._done_ticket and self._failure is None:
                waiting.append((ticket, waiter))
            elif not waiter.done():
                if self._failure is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(CommitterFailed(str(self._failure)))
        self._settled = waiting

    def _failed(self, error: Exception) -> None:
        if self._failure is not None:
            return
        self._failure = error
        self._settle()
        self._on_failure(error)

    def _thread_ended(self) -> None:
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)

    # ----- on the thread

    def _run(self) -> None:
        try:
            self._commit_until_told_to_stop()
        except Exception as error:  # noqa: BLE001 - any: the loop is told, and stops
            self._call(self._failed, error)
        self._call(self._thread_ended)

    def _commit_until_told_to_stop(self) -> None:
        store, pace = self._store, self._pace
        due, groups, last_ns = True, 0, clock.monotonic_ns()
        while True:
            if groups >= pace.groups:
                due, groups = store.upkeep(idle=False), 0
            try:
                group = self._inbox.get(timeout=pace.gap_seconds if due else pace.idle_seconds)
            except Empty:
                idle_ns = clock.monotonic_ns() - last_ns
                due, groups = store.upkeep(idle=idle_ns >= pace.idle_seconds * 1e9), 0
                continue
            if group is None:
                return
            began_ns = clock.monotonic_ns()
            payloads = store.append(group)
            last_ns = clock.monotonic_ns()
            self.commit_latency.observe(last_ns - began_ns)
            self._call(self._committed, group, payloads)
            due, groups = True, groups + 1

    def _call(self, callback: Callable[..., None], *args: object) -> None:
        """Calls back on the loop; a loop that is closed has nobody left to tell."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
