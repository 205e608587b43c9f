"""A gateway's turn: wait for it, use it, end it.

`acquire` enqueues a request and waits.  On entry of the context it is the request's turn; on exit
the turn is ended: as succeeded, as failed with the exception's text, or cancelled.

Two kinds of pools look the same from here.  With a *gate* the gateway holds the lease and this
module renews it.  With *worker pull* a worker holds it: `worker_id` and `endpoint` say where to go
with the lease id, `next_grant` asks for another worker if that one fails, and `completed` waits for
a worker that ends the request itself.  Otherwise the end of the turn is the end of the request,
whoever says it first.

A service that restarts while a request waits is called again with the same id: the request keeps
its place.  If it stays away, `on_unavailable` decides (see `fairsched.availability`).
"""

import asyncio
import contextlib
import dataclasses
import inspect
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING

from fairsched import errors
from fairsched.backoff import Backoff
from fairsched.connection import ATTEMPTS_MAX
from fairsched.requests import error_text, new_usage, seconds
from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb

if TYPE_CHECKING:
    from fairsched.async_calls import AsyncStream
    from fairsched.async_client import AsyncFairsched
    from fairsched.async_gateway_session import SessionWait

log = logging.getLogger("fairsched")

RESUME_WITHIN_S = 30.0
"""How long an accepted request is resumed while the service is away, seconds; below its grace."""

WAIT_MARGIN_S = 5.0
"""What the client waits beyond `max_wait` for the service to say that it expired, seconds."""

OnQueued = Callable[[pb.EnqueueResponse], Awaitable[None] | None]


@dataclasses.dataclass(slots=True, eq=False)
class AsyncTurn:
    """It is the request's turn.

    Attributes:
        request: The request as enqueued.
        grant: What the service granted; empty for a local turn.
        local: True if the service was away and the turn was given locally, without a lease.
        lost: Set when the turn is over before its time: its lease was lost, or it was cancelled.
        end_error: Why the turn could not be ended as wished; None if it was, or is still to be.
    """

    request: pb.EnqueueRequest
    grant: pb.AcquireGranted
    local: bool
    lost: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    end_error: errors.FairschedError | None = None
    _usage: pb.Usage | None = None
    _completed: bool = False
    _next: "asyncio.Queue[pb.AcquireGranted | errors.FairschedError] | None" = None
    _client: "AsyncFairsched | None" = None

    @property
    def lease_id(self) -> str:
        """The lease: what the gateway shows the worker; empty for a local turn."""
        return self.grant.lease_id

    @property
    def worker_id(self) -> str:
        """The worker that took the turn; empty with a gate."""
        return self.grant.worker_id

    @property
    def endpoint(self) -> str:
        """Where to reach that worker; empty with a gate."""
        return self.grant.endpoint

    @property
    def wait(self) -> float:
        """Time from acceptance to the grant, seconds."""
        return seconds(self.grant.wait)

    def used(self, *, prompt_tokens: int | None = None, output_tokens: int | None = None) -> None:
        """Notes what the request really used; reported when the turn ends."""
        self._usage = new_usage(prompt_tokens=prompt_tokens, output_tokens=output_tokens)

    async def prefill_complete(self) -> None:
        """Reports that output begins; some pools count a short admission only then."""
        if self._client is not None and not self.local:
            renewal = pb.LeaseRenewal(lease_id=self.lease_id, progress=pb.PROGRESS_PREFILL_COMPLETE)
            await self._client.scheduler.RenewLease(pb.RenewLeaseRequest(renewals=[renewal]))

    async def next_grant(self, error: BaseException | str = "") -> None:
        """Gives the lease back, if it is still held, and waits for another worker.

        Args:
            error: Why this worker would not do.

        Raises:
            NotGrantedError: The request ended instead.
            MisuseError: The turn is a gate's or local: there is no other worker.
        """
        if self._next is None or self._client is None:
            msg = "only a turn that a worker took can be given to another"
            raise errors.MisuseError(msg)
        if self._next.empty():
            completion = pb.CompleteRequest(
                lease_id=self.lease_id,
                outcome=decision_pb2.OUTCOME_GIVEN_BACK,
                error=error_text(error),
            )
            lost = (errors.NotFoundError, errors.SupersededError, errors.WrongStateError)
            with contextlib.suppress(*lost):  # then the next grant is under way
                await self._client.complete(completion)
        following = await self._next.get()
        if isinstance(following, errors.FairschedError):
            raise following
        self.grant = following
        self.lost.clear()

    async def completed(self) -> None:
        """Waits until a worker has completed the request, through redeliveries if there are any.

        For a gateway that leaves all of it to the worker.  One that streams from `endpoint` knows
        when it is done, and leaves the turn then.

        Raises:
            NotGrantedError: The request ended otherwise: it failed, was cancelled, ….
            MisuseError: The turn is a gate's or local: there is no worker.
        """
        if self._next is None:
            msg = "only a turn that a worker took is completed by one"
            raise errors.MisuseError(msg)
        while not self._completed:
            following = await self._next.get()
            if isinstance(following, pb.AcquireGranted):
                self.grant = following
                self.lost.clear()
            elif _is_success(following):
                self._completed = True
            else:
                raise following


def _is_success(error: errors.FairschedError) -> bool:
    done = decision_pb2.REQUEST_STATE_SUCCEEDED
    return isinstance(error, errors.NotGrantedError) and error.state == done


class AsyncAcquire:
    """Context that waits for a turn on entry and ends it on exit."""

    def __init__(
        self,
        client: "AsyncFairsched",
        request: pb.EnqueueRequest,
        lease_duration: float | None,
        on_queued: OnQueued | None,
    ) -> None:
        self._client = client
        self._request = request
        self._lease_duration = lease_duration
        self._on_queued = on_queued
        self._stream: AsyncStream[pb.AcquireRequest, pb.AcquireResponse] | SessionWait | None = None
        self._accepted = False
        self._turn: AsyncTurn | None = None
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> AsyncTurn:
        """Waits for the turn.

        Raises:
            NotGrantedError: The request expired, was shed, cancelled, ….
            UnavailableError: The service is away and `on_unavailable` says to refuse.
            CallError: The service refused the request.
        """
        try:
            grant = await self._first_grant()
        except errors.UnavailableError:
            self._drop()
            if not self._client.local_turns.take():
                raise
            log.warning("the service is away; the turn of %s is local", self._request.request_id)
            self._turn = AsyncTurn(self._request, pb.AcquireGranted(), local=True)
            return self._turn
        except BaseException:
            self._drop()
            raise
        turn = self._turn = AsyncTurn(self._request, grant, local=False, _client=self._client)
        if grant.worker_id:
            turn._next = asyncio.Queue()
            self._reader = asyncio.create_task(self._read(turn), name="fairsched grant")
        else:
            self._drop()
            self._client.leases.keep(
                grant.lease_id,
                seconds(grant.lease_duration),
                on_lost=lambda _: turn.lost.set(),
                on_cancel=turn.lost.set,
            )
        return turn

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the turn; what fails then is kept in `end_error`, not raised."""
        turn = self._turn
        assert turn is not None
        if turn.local:
            self._client.local_turns.release()
            return
        self._client.leases.drop(turn.lease_id)
        completion = pb.CompleteRequest(
            lease_id=turn.lease_id,
            outcome=decision_pb2.OUTCOME_SUCCEEDED,
            usage=turn._usage,
        )
        cancelled = isinstance(error, asyncio.CancelledError | GeneratorExit)
        if error is not None:
            completion.outcome = decision_pb2.OUTCOME_FAILED
            completion.error = "cancelled" if cancelled else error_text(error)
        key = (self._request.pool, self._request.request_id) if cancelled else None
        ending = self._client.in_background(self._end(turn, completion, key))
        if not cancelled:
            await asyncio.shield(ending)

    async def _end(
        self, turn: AsyncTurn, completion: pb.CompleteRequest, cancel: tuple[str, str] | None
    ) -> None:
        try:
            if cancel is not None:
                pool, request_id = cancel
                await self._client.cancel(pool, request_id)
            if not turn._completed:
                limit = seconds(turn.grant.lease_duration)
                await self._client.complete_persistently(completion, limit)
        except errors.FairschedError as error:
            turn.end_error = error
            log.warning("the turn of %s did not end as wished: %s", turn.request.request_id, error)
        finally:
            if self._reader is not None:
                self._reader.cancel()
                await asyncio.gather(self._reader, return_exceptions=True)
            self._drop()

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()

    async def _first_grant(self) -> pb.AcquireGranted:
        limit = None
        if self._request.HasField("max_wait"):
            limit = seconds(self._request.max_wait) + WAIT_MARGIN_S
        try:
            async with asyncio.timeout(limit):
                return await self._granted()
        except TimeoutError:
            raise errors.deadline(f"no word from the service within {limit:g} s") from None

    async def _granted(self) -> pb.AcquireGranted:
        """Returns the next grant; resumes after a restart of the service.

        One that was not accepted yet is tried as often as any other call.
        """
        loop = asyncio.get_running_loop()
        backoff, away_since, attempts = Backoff(longest=2.0), None, 0
        while True:
            try:
                return await self._listen()
            except errors.UnavailableError:
                attempts += 1
                away_since = away_since or loop.time()
                pause = backoff.pause()
                away = loop.time() + pause - away_since
                if not self._accepted and attempts >= ATTEMPTS_MAX:
                    raise
                if away > self._client.resume_within:
                    raise
            await asyncio.sleep(pause)

    async def _listen(self) -> pb.AcquireGranted:
        """Returns the next grant; opens the stream if there is none."""
        if self._stream is None:
            self._stream = self._client.open_wait(self._request, self._lease_duration)
        try:
            async for response in self._stream:
                match response.WhichOneof("event"):
                    case "queued":
                        self._accepted = True
                        await self._tell(response.queued.outlook)
                    case "granted":
                        self._accepted = True
                        return response.granted
                    case "ended":
                        ended = response.ended
                        raise errors.NotGrantedError(ended.state, ended.reason, ended.error)
                    case None:  # news that this client does not know yet
                        continue
        except errors.UnavailableError:
            self._stream = None
            raise
        self._stream = None
        raise errors.unavailable("the service closed the stream without a last word")

    async def _tell(self, outlook: pb.EnqueueResponse) -> None:
        if self._on_queued is not None:
            told = self._on_queued(outlook)
            if inspect.isawaitable(told):
                await told

    async def _read(self, turn: AsyncTurn) -> None:
        """Passes on what follows the first grant of a worker."""
        queue = turn._next
        assert queue is not None
        lease_id = turn.lease_id
        while True:
            try:
                grant = await self._granted()
            except errors.FairschedError as error:
                if not _is_success(error):
                    turn.lost.set()
                queue.put_nowait(error)
                return
            if grant.lease_id != lease_id:  # else the service restarted and says it again
                lease_id = grant.lease_id
                turn.lost.set()
                queue.put_nowait(grant)
