"""The asynchronous client: one object a process, on one event loop.

    async with AsyncFairsched("127.0.0.1:50051") as client:
        async with client.acquire(new_request(pool="llama", user_id="acme", …)) as turn:
            ...

Everything that the service can do is reachable: the methods here for gateways, `worker` for
workers, `watch` for auditors, and the three generated stubs `scheduler`, `audit` and `admin` for
the rest, with the same deadlines, retries, credentials and typed errors.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from fairsched import audit, errors
from fairsched.async_calls import AsyncCalls
from fairsched.async_gateway_session import AsyncGatewaySession, SessionWait
from fairsched.async_jobs import Handler
from fairsched.async_leases import AsyncLeaseKeeper
from fairsched.async_turn import RESUME_WITHIN_S, AsyncAcquire, OnQueued
from fairsched.async_worker import AsyncCallWorker, AsyncWorker
from fairsched.async_worker_session import AsyncSessionWorker
from fairsched.availability import Closed, LocalTurns, OnUnavailable
from fairsched.backoff import Backoff
from fairsched.connection import (
    ANSWER_MARGIN_S,
    DEFAULT_TIMEOUT_S,
    Connection,
    Options,
    Tls,
    Token,
)
from fairsched.jobs import GRACE_S, POLL_S, OfferSource, WorkerSettings
from fairsched.requests import duration
from fairsched.v1 import (
    admin_service_pb2_grpc,
    audit_service_pb2,
    audit_service_pb2_grpc,
    decision_pb2,
    scheduler_service_pb2_grpc,
)
from fairsched.v1 import scheduler_service_pb2 as pb

if TYPE_CHECKING:
    from fairsched.async_calls import AsyncStream

CLOSE_WITHIN_S = 5.0
"""How long closing waits for turns that are being ended, seconds."""

log = logging.getLogger("fairsched")


class AsyncFairsched:
    """A connection to the service.

    Attributes:
        scheduler: Stub of `SchedulerService`.
        audit: Stub of `AuditService`.
        admin: Stub of `AdminService`.
        local_turns: Counts of what went on while the service was away.
        resume_within: How long an accepted request is resumed while the service is away, seconds.
    """

    def __init__(
        self,
        target: str,
        *,
        token: Token | None = None,
        tls: Tls | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        on_unavailable: OnUnavailable | None = None,
        resume_within: float = RESUME_WITHIN_S,
        stream: bool = False,
        brief_results: bool = False,
        options: Options = (),
    ) -> None:
        """Prepares a client; it connects at the first call.

        Args:
            target: gRPC target, as in `127.0.0.1:50051`.
            token: Bearer token, or a function that returns the present one.
            tls: Files for TLS; None speaks plaintext.
            timeout: Deadline of a call for which the caller states none, seconds.
            on_unavailable: What `acquire` does while the service is away; None refuses.
            resume_within: How long to resume accepted requests while it is away, seconds.
            stream: `enqueue`, `acquire`, `cancel` and the ends of turns share one stream: less work
                for both sides when many requests are under way.
            brief_results: Over the stream, `enqueue` is not told `requests_ahead` and
                `expected_wait`, and turns that succeeded only that they did: less work for the
                service, and most for whoever enqueues much.
            options: Further gRPC channel arguments.
        """
        connection = Connection(target, token, tls, timeout, options)
        self._calls = AsyncCalls(connection)
        channel = self._calls.as_channel()
        self.scheduler = scheduler_service_pb2_grpc.SchedulerServiceStub(channel)
        self.audit = audit_service_pb2_grpc.AuditServiceStub(channel)
        self.admin = admin_service_pb2_grpc.AdminServiceStub(channel)
        self.local_turns = LocalTurns(on_unavailable or Closed())
        self.resume_within = resume_within
        self._by_stream = stream
        self._brief_results = brief_results
        self._session: AsyncGatewaySession | None = None
        self._leases: AsyncLeaseKeeper | None = None
        self._background: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends what is being ended, for 5 s at most, and closes the connection."""
        if self._background:
            await asyncio.wait(self._background, timeout=CLOSE_WITHIN_S)
        for task in list(self._background):
            task.cancel()
        if self._session is not None:
            await self._session.close()
        if self._leases is not None:
            await self._leases.close()
        await self._calls.close()

    async def ready(self, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Waits until the service can be reached.

        Raises:
            UnavailableError: It cannot be reached within `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._calls.channel().channel_ready()
        except TimeoutError:
            target = self._calls.connection.target
            raise errors.unavailable(f"nobody answers at {target}") from None

    async def enqueue(self, request: pb.EnqueueRequest) -> pb.EnqueueResponse:
        """Adds a request to its user's queue; safe to repeat with the same id."""
        session = self._open_session()
        if session is not None:
            with contextlib.suppress(errors.UnavailableError):  # the call below tries harder
                return await session.enqueue(request)
        return await self.scheduler.Enqueue(request)

    async def enqueue_many(
        self, requests: Iterable[pb.EnqueueRequest]
    ) -> list[pb.EnqueueResponse | errors.CallError]:
        """Adds many requests in one call; returns an answer or an error for each, in order."""
        batch = pb.BatchEnqueueRequest(requests=requests)
        response = await self.scheduler.BatchEnqueue(batch)
        return [
            errors.from_item(result.error) if result.HasField("error") else result.response
            for result in response.results
        ]

    def acquire(
        self,
        request: pb.EnqueueRequest,
        *,
        lease_duration: float | None = None,
        on_queued: OnQueued | None = None,
    ) -> AsyncAcquire:
        """Enqueues a request and waits for its turn: `async with client.acquire(…) as turn`.

        Args:
            request: The request; its `max_wait` limits the wait.
            lease_duration: With a gate: length of the lease, seconds; None takes the pool's.
            on_queued: Called with the outlook (requests ahead, expected wait) when it changes.
        """
        return AsyncAcquire(self, request, lease_duration, on_queued)

    async def cancel(self, pool: str, request_id: str, reason: str = "") -> pb.CancelResponse:
        """Ends a waiting request at once; asks the holder of a leased one to stop."""
        request = pb.CancelRequest(pool=pool, request_id=request_id, reason=reason)
        session = self._open_session()
        if session is not None:
            with contextlib.suppress(errors.UnavailableError):
                return await session.cancel(request)
        return await self.scheduler.Cancel(request)

    async def complete(self, completion: pb.CompleteRequest) -> pb.CompleteResponse:
        """Ends a lease; safe to repeat."""
        session = self._open_session()
        if session is not None:
            with contextlib.suppress(errors.UnavailableError):
                return await session.complete(completion)
        return await self.scheduler.Complete(completion)

    async def get_request(
        self,
        pool: str,
        request_id: str,
        *,
        wait: float = 0.0,
        known_state: decision_pb2.RequestState.ValueType = decision_pb2.REQUEST_STATE_UNSPECIFIED,
    ) -> pb.GetRequestResponse:
        """Tells where a request is, and why it still waits.

        Args:
            pool: Its pool.
            request_id: The request.
            wait: Seconds to wait for a change of state.
            known_state: The state already known; another one is answered at once.
        """
        request = pb.GetRequestRequest(
            pool=pool,
            request_id=request_id,
            wait_duration=duration(wait) if wait else None,
            known_state=known_state,
        )
        timeout = max(self._calls.connection.timeout, wait + ANSWER_MARGIN_S)
        return await self.scheduler.GetRequest(request, timeout=timeout)

    def worker(
        self,
        worker_id: str,
        pools: Iterable[str],
        handler: Handler,
        *,
        concurrency: int = 1,
        offer: OfferSource = None,
        endpoint: str = "",
        lease_duration: float | None = None,
        poll: float = POLL_S,
        grace: float = GRACE_S,
        stream: bool = False,
    ) -> AsyncWorker:
        """Returns a worker that runs `handler` for each request; `run` starts it.

        Args:
            worker_id: Its own, stable id; a second worker of the same id supersedes the first.
            pools: Pools it serves with one capacity, taken in rotation.
            handler: Runs one request; returns what it used, or None.
            concurrency: Requests at once.
            offer: What it can take (free tokens, classes, labels), or a function that says.
            endpoint: Where gateways reach it; empty if they do not.
            lease_duration: Length of its leases, seconds; None takes the pool's.
            poll: How long a call waits for work, seconds.
            grace: How long `stop` lets requests run before they are given back, seconds.
            stream: Takes work over one stream instead of call after call: less work for both sides.
        """
        settings = WorkerSettings(
            worker_id, tuple(pools), concurrency, offer, endpoint, lease_duration, poll, grace
        )
        kind = AsyncSessionWorker if stream else AsyncCallWorker
        return kind(self.scheduler, settings, handler)

    async def watch(
        self,
        after_sequence: int | None = None,
        filter: audit_service_pb2.DecisionFilter | None = None,
        **settings: Any,
    ) -> AsyncIterator[decision_pb2.Decision]:
        """Follows the decision log; resumes by itself.  See `fairsched.audit.watch`."""
        async for page in audit.watch(self.audit, after_sequence, filter, **settings):
            for decision in page.decisions:
                yield decision

    async def pages(self, call: Callable[..., Any], request: Any, field: str) -> AsyncIterator[Any]:
        """Yields the items of a paged list: `client.pages(client.admin.ListUsers, …, "users")`."""
        while True:
            response = await call(request)
            for item in getattr(response, field):
                yield item
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token

    @property
    def leases(self) -> AsyncLeaseKeeper:
        """Keeps alive the leases that this gateway holds."""
        if self._leases is None:
            self._leases = AsyncLeaseKeeper(self.scheduler)
        return self._leases

    def open_wait(
        self, request: pb.EnqueueRequest, lease_duration: float | None
    ) -> "AsyncStream[pb.AcquireRequest, pb.AcquireResponse] | SessionWait":
        """Enqueues a request and returns what happens to it; for `acquire`."""
        session = self._open_session()
        if session is not None and lease_duration is None:
            return session.wait_for_turn(request)
        call = self.scheduler.Acquire(
            pb.AcquireRequest(request=request, lease_duration=duration(lease_duration))
        )
        return cast("AsyncStream[pb.AcquireRequest, pb.AcquireResponse]", call)

    def _open_session(self) -> AsyncGatewaySession | None:
        if self._by_stream and self._session is None:
            self._session = AsyncGatewaySession(self.scheduler, brief_results=self._brief_results)
        return self._session

    def in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts work that closing waits for."""
        task = asyncio.create_task(work, name="fairsched end of turn")
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def complete_persistently(self, completion: pb.CompleteRequest, within: float) -> None:
        """Ends a lease; tries again while the service is away, as long as the lease may live."""
        loop = asyncio.get_running_loop()
        last, backoff = loop.time() + within, Backoff(longest=2.0)
        while True:
            try:
                await self.complete(completion)
            except (errors.UnavailableError, errors.DeadlineError):
                if loop.time() > last:
                    raise
                await asyncio.sleep(backoff.pause())
            else:
                return
