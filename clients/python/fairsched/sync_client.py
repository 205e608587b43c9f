"""The synchronous client: one object a process, shared by its threads.

    with Fairsched("127.0.0.1:50051") as client:
        with client.acquire(new_request(pool="llama", user_id="acme", …)) as turn:
            ...

The twin of `fairsched.async_client`; see there.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self

import grpc

from fairsched import audit, errors
from fairsched.async_turn import RESUME_WITHIN_S
from fairsched.availability import Closed, LocalTurns, OnUnavailable
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
from fairsched.sync_calls import SyncCalls
from fairsched.sync_leases import LeaseKeeper
from fairsched.sync_turn import Acquire, OnQueued
from fairsched.sync_worker import Handler, Worker
from fairsched.v1 import (
    admin_service_pb2_grpc,
    audit_service_pb2,
    audit_service_pb2_grpc,
    decision_pb2,
    scheduler_service_pb2_grpc,
)
from fairsched.v1 import scheduler_service_pb2 as pb


class Fairsched:
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
            options: Further gRPC channel arguments.
        """
        self._calls = SyncCalls(Connection(target, token, tls, timeout, options))
        channel = self._calls.as_channel()
        self.scheduler = scheduler_service_pb2_grpc.SchedulerServiceStub(channel)
        self.audit = audit_service_pb2_grpc.AuditServiceStub(channel)
        self.admin = admin_service_pb2_grpc.AdminServiceStub(channel)
        self.local_turns = LocalTurns(on_unavailable or Closed())
        self.resume_within = resume_within
        self.leases = LeaseKeeper(self.scheduler)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self.leases.close()
        self._calls.close()

    def ready(self, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Waits until the service can be reached.

        Raises:
            UnavailableError: It cannot be reached within `timeout` seconds.
        """
        try:
            grpc.channel_ready_future(self._calls.channel()).result(timeout)
        except grpc.FutureTimeoutError:
            target = self._calls.connection.target
            raise errors.unavailable(f"nobody answers at {target}") from None

    def enqueue(self, request: pb.EnqueueRequest) -> pb.EnqueueResponse:
        """Adds a request to its user's queue; safe to repeat with the same id."""
        return self.scheduler.Enqueue(request)

    def enqueue_many(
        self, requests: Iterable[pb.EnqueueRequest]
    ) -> list[pb.EnqueueResponse | errors.CallError]:
        """Adds many requests in one call; returns an answer or an error for each, in order."""
        response = self.scheduler.BatchEnqueue(pb.BatchEnqueueRequest(requests=requests))
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
    ) -> Acquire:
        """Enqueues a request and waits for its turn: `with client.acquire(…) as turn`.

        Args:
            request: The request; its `max_wait` limits the wait.
            lease_duration: With a gate: length of the lease, seconds; None takes the pool's.
            on_queued: Called with the outlook (requests ahead, expected wait) when it changes.
        """
        return Acquire(self, request, lease_duration, on_queued)

    def cancel(self, pool: str, request_id: str, reason: str = "") -> pb.CancelResponse:
        """Ends a waiting request at once; asks the holder of a leased one to stop."""
        return self.scheduler.Cancel(
            pb.CancelRequest(pool=pool, request_id=request_id, reason=reason)
        )

    def get_request(
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
        return self.scheduler.GetRequest(request, timeout=timeout)

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
    ) -> Worker:
        """Returns a worker that runs `handler` in threads; see `AsyncFairsched.worker`."""
        settings = WorkerSettings(
            worker_id, tuple(pools), concurrency, offer, endpoint, lease_duration, poll, grace
        )
        return Worker(self.scheduler, settings, handler)

    def watch(
        self,
        after_sequence: int | None = None,
        filter: audit_service_pb2.DecisionFilter | None = None,  # noqa: A002 - as in the API and `Watch`
        *,
        stop: threading.Event | None = None,
        include_records: bool = False,
        reconnect: bool = True,
    ) -> Iterator[decision_pb2.Decision]:
        """Follows the decision log until `stop` is set.  See `fairsched.audit.watch`."""
        pages = audit.watch_in_thread(
            self.audit,
            after_sequence,
            filter,
            stop=stop,
            include_records=include_records,
            reconnect=reconnect,
        )
        for page in pages:
            yield from page.decisions

    def pages(self, call: Callable[..., Any], request: Any, field: str) -> Iterator[Any]:
        """Yields the items of a paged list: `client.pages(client.admin.ListUsers, …, "users")`."""
        while True:
            response = call(request)
            yield from getattr(response, field)
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token
