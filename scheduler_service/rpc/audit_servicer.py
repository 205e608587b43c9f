"""`AuditService`: the decision log as pages, as a stream, and explained.

Only durable decisions are read.  A caller that is confined sees its part of them: to its pools and
users, without the names of others, and without stored records, which hold such names.
"""

import asyncio
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from fairsched.v1 import audit_service_pb2 as pb
from fairsched.v1 import audit_service_pb2_grpc as pb_grpc
from fairsched.v1 import decision_pb2
from scheduler_service.app import clock, codec
from scheduler_service.app.audit import Cursor, Head, Page
from scheduler_service.app.decision_filter import DecisionFilter
from scheduler_service.app.history import first_at
from scheduler_service.app.limits import ENUMS_MAX, POOLS_PER_CALL_MAX
from scheduler_service.app.observation import Observation
from scheduler_service.app.readiness import Phase
from scheduler_service.core.errors import Denied, LimitReached, NotReady
from scheduler_service.rpc.calls import Context, Runtime, Servicer, call, peer_of
from scheduler_service.rpc.convert import timestamp
from scheduler_service.rpc.convert_decision import decision_message
from scheduler_service.rpc.explaining import Explaining
from scheduler_service.rpc.identity import Identity
from scheduler_service.rpc.paging import number_of, page_size, token_of
from scheduler_service.rpc.validate import Checks

HEARTBEAT_NS = 5_000_000_000
"""A watch says at least this often how far it has looked and where the log ends."""

WRITE_SECONDS = 30.0
"""A watcher that takes nothing for so long is cut; it resumes by sequence."""

SCAN_RECORDS = 20_000
"""Records that one `ListDecisions` looks at; then the page is short."""

REPLY_BYTES = 1 << 20
"""Stored records of one answer, roughly: messages are larger, but far below the limit."""

SHARED_MESSAGES = 256
"""Messages that watches at the end of the log keep for each other, each a kilobyte or so."""

_LISTED = "decisions"
_SEQUENCE_MAX = 2**63 - 1


_Shared = dict[tuple[bytes, bool], decision_pb2.Decision]
"""Messages by chain hash, which says which decision it is, and whether the record comes along."""


class _Wanted(NamedTuple):
    """What one call asks for, and may see.

    Attributes:
        filter: Which decisions.
        records: Whether stored records come along.
        hides: Whether others' names are blanked out.
    """

    filter: DecisionFilter
    records: bool
    hides: bool


class AuditServicer(Servicer, pb_grpc.AuditServiceServicer):
    """Serves auditors."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._explaining: Explaining | None = None
        self._shared: _Shared = {}
        runtime.readiness.listeners.append(self._phase_changed)

    def _phase_changed(self) -> None:
        """Lets watches see at once that the service stops."""
        seen = self.runtime.observation
        if seen is not None and self.runtime.readiness.phase is Phase.DRAINING:
            seen.log.wake()

    @call
    async def ListDecisions(
        self, request: pb.ListDecisionsRequest, _context: Context, caller: Identity
    ) -> pb.ListDecisionsResponse:
        """Lists decisions, page by page."""
        seen = self.runtime.seen
        checks = Checks()
        size = page_size(request.page_size, checks)
        after = number_of(request.page_token, _LISTED, checks)
        checks.number("after_sequence", request.after_sequence, 0, _SEQUENCE_MAX)
        wanted = self._wanted(request.filter, caller, checks, records=request.include_records)
        after = after or request.after_sequence
        seen.log.require(after)
        if wanted.filter.start_ns and not request.page_token:
            after = max(after, await first_at(seen.log, wanted.filter.start_ns))
        return await _list(seen, Cursor(after), wanted, size)

    @call
    async def WatchDecisions(  # type: ignore[override]  # grpc.aio takes a writing coroutine too
        self, request: pb.WatchDecisionsRequest, context: Context, caller: Identity
    ) -> None:
        """Streams decisions as they become durable."""
        seen, app = self.runtime.seen, self.runtime.app
        checks = Checks()
        after = seen.log.head().newest.sequence
        if request.HasField("after_sequence"):
            after = checks.number("after_sequence", request.after_sequence, 0, _SEQUENCE_MAX)
        wanted = self._wanted(request.filter, caller, checks, records=request.include_records)
        seen.log.require(after)
        peer = peer_of(context, caller)
        seen.take_watch()
        try:
            app.slots.take_stream(peer)
            try:
                await self._watch(seen, context, Cursor(after), wanted)
            finally:
                app.slots.free_stream(peer)
        finally:
            seen.free_watch()

    @call
    async def ExplainDecision(
        self, request: pb.ExplainDecisionRequest, _context: Context, caller: Identity
    ) -> pb.ExplainDecisionResponse:
        """Says why a request went when it did, or why it still waits."""
        seen, app = self.runtime.seen, self.runtime.app
        if self._explaining is None:
            self._explaining = Explaining(app, seen, self.runtime.user_ids)
        return await self._explaining.explain(request, caller)

    # -- inside -------------------------------------------------------------------------------

    def _wanted(
        self, x: pb.DecisionFilter, caller: Identity, checks: Checks, *, records: bool
    ) -> _Wanted:
        """Checks a filter, ends the checks, and confines the filter to what the caller may see.

        Raises:
            InvalidCommand: Names every bad field.
            Denied: POOL_DENIED, USER_DENIED, RECORDS_DENIED.
        """
        pools = checks.ids("filter.pools", x.pools, POOLS_PER_CALL_MAX)
        users = checks.ids("filter.user_ids", x.user_ids, POOLS_PER_CALL_MAX)
        requests = checks.ids("filter.request_ids", x.request_ids, POOLS_PER_CALL_MAX)
        known = decision_pb2.DecisionKind.values()
        checks.enums("filter.kinds", x.kinds, known, ENUMS_MAX)
        span = [
            checks.timestamp(f"filter.{name}", getattr(x, name)) if x.HasField(name) else 0
            for name in ("start_time", "end_time")
        ]
        checks.done()
        for pool in pools:
            caller.require_pool(pool)
        for user_id in users:
            caller.require_user(user_id)
        hides = bool(caller.pools or caller.user_prefixes)
        if records and hides:
            raise Denied(
                "RECORDS_DENIED", "Stored records are only for callers that may see everything."
            )
        ids = self.runtime.user_ids
        return _Wanted(
            DecisionFilter(
                frozenset(pools) or caller.pools,
                frozenset({inside for user in users for inside in (ids.inside(user), user)}),
                ids.prefixes_of(caller),
                frozenset(requests),
                frozenset(int(kind) for kind in x.kinds),
                span[0],
                span[1],
            ),
            records,
            hides,
        )

    async def _watch(
        self, seen: Observation, context: Context, cursor: Cursor, wanted: _Wanted
    ) -> None:
        """Sends what becomes durable until the caller or the service goes.

        Raises:
            NotReady: DRAINING, LOG_STALLED.
            Trimmed: SEQUENCE_TRIMMED.
            LimitReached: WATCHER_TOO_SLOW.
        """
        told_ns = clock.monotonic_ns()
        while self.runtime.readiness.phase is not Phase.DRAINING:
            began_ns = clock.monotonic_ns()
            page = await seen.log.next_page(cursor)
            reply = pb.WatchDecisionsResponse(scanned_sequence=cursor.sequence)
            if page is not None:
                shared = None if cursor.behind else self._shared
                reply.decisions.extend(_matching(page, wanted, shared))
            if reply.decisions or began_ns - told_ns >= HEARTBEAT_NS:
                reply.head.CopyFrom(head_message(seen.log.head()))
                await _send(context, reply)
                told_ns = clock.monotonic_ns()
            if page is not None and _is_past(page, wanted.filter):
                return
            if page is None:
                left_ns = told_ns + HEARTBEAT_NS - clock.monotonic_ns()
                await seen.log.wait(cursor.sequence, max(left_ns, 0) / 1e9)
            elif cursor.behind:
                await seen.catch_up.rest(clock.monotonic_ns() - began_ns)
            else:
                await asyncio.sleep(0)
        raise NotReady("DRAINING", "The service is stopping.")


async def _list(
    seen: Observation, cursor: Cursor, wanted: _Wanted, size: int
) -> pb.ListDecisionsResponse:
    reply = pb.ListDecisionsResponse()
    first = after = cursor.sequence
    reply_bytes, over = 0, False
    while len(reply.decisions) < size and reply_bytes < REPLY_BYTES:
        began_ns = clock.monotonic_ns()
        page = await seen.log.next_page(cursor)
        over = page is None or _is_past(page, wanted.filter)
        if page is not None:
            found = list(islice(_matching(page, wanted), size - len(reply.decisions)))
            reply.decisions.extend(found)
            full = len(reply.decisions) == size
            after = found[-1].sequence if full else cursor.sequence
            reply_bytes += sum(map(len, page.records)) if found else 0
        if over or after - first >= SCAN_RECORDS:
            break
        if cursor.behind:
            await seen.catch_up.rest(clock.monotonic_ns() - began_ns)
        else:
            await asyncio.sleep(0)
    head = seen.log.head()
    reply.head.CopyFrom(head_message(head))
    if not over or len(reply.decisions) == size:
        reply.next_page_token = token_of(_LISTED, str(after))
    return reply


def _is_past(page: Page, wanted: DecisionFilter) -> bool:
    """Whether nothing behind this page can be wanted."""
    return wanted.end_ns > 0 and wanted.is_past(codec.decode(page.records[-1]).now_ns)


def _matching(
    page: Page, wanted: _Wanted, shared: _Shared | None = None
) -> Iterable[decision_pb2.Decision]:
    """Yields the messages of the decisions that are wanted.

    Args:
        page: The records.
        wanted: Which of them, and how.
        shared: Messages made before, and those made now; they are not changed any more.
    """
    hashes = page.hashes
    for index, record in enumerate(page.records):
        decision = wanted.filter.decoded(record)
        if decision is None:
            continue
        around = (hashes[index], hashes[index + 1])
        stored = record if wanted.records else b""
        key = (around[1], wanted.records)
        message = None if shared is None else shared.get(key)
        if message is None:
            sequence = page.first_sequence + index
            message = decision_message(sequence, decision, hashes=around, record=stored)
            if shared is not None:
                while len(shared) >= SHARED_MESSAGES:
                    del shared[next(iter(shared))]
                shared[key] = message
        if wanted.hides:
            whole, message = message, decision_pb2.Decision()
            message.CopyFrom(whole)
            hide_others(message)
        yield message


def hide_others(message: decision_pb2.Decision) -> None:
    """Blanks out the names of users and requests that a dispatch names beside its own."""
    if message.HasField("dispatched"):
        message.dispatched.runner_up = ""
        message.dispatched.ClearField("overtook")


def head_message(head: Head) -> pb.LogHead:
    """Returns where the log begins and ends as a message."""
    newest = head.newest
    message = pb.LogHead(
        oldest_sequence=head.oldest_sequence,
        newest_sequence=newest.sequence,
        newest_hash=newest.chain_hash,
    )
    if newest.now_ns:
        message.newest_time.CopyFrom(timestamp(newest.now_ns))
    return message


async def _send(context: Context, reply: pb.WatchDecisionsResponse) -> None:
    """Sends one message; a caller that takes none is cut.

    Raises:
        LimitReached: WATCHER_TOO_SLOW.
    """
    try:
        async with asyncio.timeout(WRITE_SECONDS):
            await context.write(reply)
    except TimeoutError as error:
        raise LimitReached(
            "WATCHER_TOO_SLOW",
            f"Nothing was taken for {WRITE_SECONDS:g} s; resume behind the last one received.",
            limitSeconds=int(WRITE_SECONDS),
        ) from error
