"""A worker over one stream: the fast path.

The service sends requests against credits, one credit a free slot; the worker's next message, which
reports what is done and gives new credits, also confirms what it got.  A lost stream is opened
again under the same session, naming every lease that is held: what was sent and never arrived goes
to another worker at once, what runs here goes on.
"""

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, cast

from fairsched import errors, jobs
from fairsched.async_jobs import Handler
from fairsched.async_worker import RETRY_MAX_S, STOP_ASKING_S, AsyncWorker
from fairsched.backoff import Backoff
from fairsched.requests import duration
from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from fairsched.v1 import scheduler_service_pb2_grpc as pb_grpc

if TYPE_CHECKING:
    from fairsched.async_calls import AsyncStream

CONFIRM_EVERY_S = 1.0
"""How long what was received may stay unconfirmed when there is nothing else to say, seconds."""

log = logging.getLogger("fairsched")


class AsyncSessionWorker(AsyncWorker):
    """Takes work over one stream."""

    def __init__(
        self,
        stub: "pb_grpc.SchedulerServiceAsyncStub",
        settings: jobs.WorkerSettings,
        handler: Handler,
    ) -> None:
        super().__init__(stub, settings, handler)
        self._reported: deque[pb.CompleteRequest] = deque()
        self._credits = 0
        self._unconfirmed = False
        self._drained = False
        self._leaving = False

    async def _work(self) -> None:
        backoff = Backoff(longest=RETRY_MAX_S)
        while not self._stopping.is_set() and not self._is_over():
            self._leaving = False
            try:
                await self._serve_stream(backoff)
            except errors.NotFoundError as error:
                if error.reason not in jobs.SESSION_LOST or not self._jobs.session_id:
                    raise
                self._jobs.session_id = ""
                self._drained = False
            except (errors.UnavailableError, errors.LimitReachedError) as error:
                pause = getattr(error, "retry_after", None) or backoff.pause()
                log.info("the stream was lost, again in %.1f s: %s", pause, error)
                await self._pause(pause)

    def _is_over(self) -> bool:
        """Whether the worker is drained, holds no lease and has reported all it did."""
        unreported = self._jobs.completions or self._reported
        return self._drained and not self._jobs.lease_ids and not unreported

    async def _serve_stream(self, backoff: Backoff) -> None:
        """Opens a stream and works until it ends or the worker is stopped."""
        call = self._stub.WorkerSession(wait_for_ready=True)
        stream = cast("AsyncStream[pb.WorkerSessionRequest, pb.WorkerSessionResponse]", call)
        self._jobs.put_back(self._reported)
        self._reported.clear()
        reader = asyncio.create_task(self._read(stream, backoff), name="fairsched session")
        try:
            await stream.write(self._hello())
            await self._write(stream, reader)
            if reader.done():
                await reader
        finally:
            reader.cancel()
            stream.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    def _hello(self) -> pb.WorkerSessionRequest:
        """Returns the first message: opens the session, or resumes it with all leases held."""
        self._credits = self._jobs.free
        message = pb.WorkerSessionRequest(
            credits=self._credits,
            lease_duration=duration(self.settings.lease_duration),
            brief_results=True,
        )
        if self._jobs.session_id:
            message.session_id = self._jobs.session_id
            held = [*self._jobs.lease_ids, *(done.lease_id for done in self._jobs.completions)]
            message.renewals.extend(pb.LeaseRenewal(lease_id=lease_id) for lease_id in held)
        else:
            message.register.CopyFrom(self.settings.registration())
        return message

    async def _write(
        self,
        stream: "AsyncStream[pb.WorkerSessionRequest, pb.WorkerSessionResponse]",
        reader: asyncio.Task[None],
    ) -> None:
        """Sends what there is to say until the stream ends or the worker is stopped."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while not (reader.done() or self._stopping.is_set() or self._is_over()):
            message = self._next_message()
            if message is None and self._unconfirmed and loop.time() - last >= CONFIRM_EVERY_S:
                message = pb.WorkerSessionRequest()
            if message is not None:
                self._unconfirmed, last = False, loop.time()
                await stream.write(message)
                continue
            self._wake.clear()
            try:
                async with asyncio.timeout(CONFIRM_EVERY_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
        if not reader.done():
            await self._say_goodbye(stream, reader)

    async def _say_goodbye(
        self,
        stream: "AsyncStream[pb.WorkerSessionRequest, pb.WorkerSessionResponse]",
        reader: asyncio.Task[None],
    ) -> None:
        """Wants no more, reports what is done, and takes what is still under way."""
        self._leaving = True
        batch = self._jobs.take()
        self._reported.extend(batch)
        await stream.write(pb.WorkerSessionRequest(drain=True, completions=batch))
        await stream.done_writing()
        await asyncio.wait({reader}, timeout=STOP_ASKING_S)

    def _next_message(self) -> pb.WorkerSessionRequest | None:
        """Returns what there is to say; None if there is nothing."""
        more = max(0, self._jobs.free - self._credits)
        if not self._jobs.completions and not more:
            return None
        batch = self._jobs.take()
        self._reported.extend(batch)
        self._credits += more
        return pb.WorkerSessionRequest(completions=batch, credits=more, offer=self._offer())

    def _offer(self) -> decision_pb2.Offer | None:
        """Returns what the worker can take, if that changes at all."""
        return self.settings.current_offer() if callable(self.settings.offer) else None

    async def _read(
        self,
        stream: "AsyncStream[pb.WorkerSessionRequest, pb.WorkerSessionResponse]",
        backoff: Backoff,
    ) -> None:
        async for response in stream:
            backoff.reset()
            if response.HasField("registered"):
                self._jobs.session_id = response.registered.session_id
            results = response.completion_results
            self._jobs.note([self._reported.popleft() for _ in results], results)
            for renewal in response.renewal_results:
                if renewal.HasField("error"):
                    log.info("lease %s: %s", renewal.lease_id, errors.from_item(renewal.error))
            for lease_id in response.cancelled_lease_ids:
                self._jobs.cancel(lease_id)
            for dispatch in response.dispatches:
                self._credits -= 1
                self._unconfirmed = True
                self._jobs.start(dispatch)
            if response.empty_reason == decision_pb2.EMPTY_REASON_DRAINING:
                self._note_drain()
            self._wake.set()
        if not self._leaving:
            raise errors.unavailable("the service closed the stream")

    def _note_drain(self) -> None:
        if not self._drained and not self._stopping.is_set():
            log.warning(jobs.DRAINED, self.settings.worker_id, len(self._jobs.lease_ids))
        self._drained = True

    async def _drain(self) -> None:
        """Nothing to do: the stream says it."""

    async def _finish(self, grace: float) -> None:
        self._jobs.put_back(self._reported)
        self._reported.clear()
        await super()._finish(grace)
