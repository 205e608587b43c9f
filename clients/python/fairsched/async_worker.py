"""A worker: asks for requests when it has room, runs them, reports back.

One call a request when busy: what is done is reported by the call that asks for more.  An answer
that was lost is asked for again under the same key, so nothing is charged or run twice on that
account.  `fairsched.async_worker_session` does the same over one stream, with less work for both
sides.

A request may still run twice when a worker is cut off for longer than its lease: that is what
leases are for.  A handler's work should bear that, or check `Job.lost`.

Stopping (`stop`, or SIGTERM under `run`): no new work; what runs may finish for `grace` seconds;
the rest is cancelled and given back, and goes first to another worker, uncharged.

Being drained (`DrainWorker`, `fairsched workers drain`): no new work either, but what runs may take
the time it needs; `run` returns when the last lease has ended.  To undo a drain, start the worker
again: it registers anew.
"""

import asyncio
import logging
import signal
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from fairsched import errors, jobs
from fairsched.async_jobs import AsyncJobs, Handler
from fairsched.backoff import Backoff
from fairsched.connection import ANSWER_MARGIN_S
from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from fairsched.v1 import scheduler_service_pb2_grpc as pb_grpc

LAST_REPORT_S = 5.0
"""How long a worker that ends tries to report what is done, seconds."""

STOP_ASKING_S = 2.0
"""How long a stopped worker waits for the answer to its last question, seconds."""

LOOK_EVERY_S = 0.1
"""How long what is done waits to be reported while a worker ends, seconds."""

RETRY_MAX_S = 1.0
"""Longest pause between two questions while nobody answers, seconds."""

log = logging.getLogger("fairsched")


class AsyncWorker(ABC):
    """Runs requests until it is stopped."""

    def __init__(
        self,
        stub: "pb_grpc.SchedulerServiceAsyncStub",
        settings: jobs.WorkerSettings,
        handler: Handler,
    ) -> None:
        """Prepares a worker; `run` starts it.

        Args:
            stub: `AsyncFairsched.scheduler`.
            settings: How it works.
            handler: Runs one request.
        """
        self.settings = settings
        self._stub = stub
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._jobs = AsyncJobs(stub, settings, handler, self._wake.set)
        self._draining: asyncio.Task[None] | None = None

    @property
    def done_count(self) -> int:
        """Requests that ended here, in whatever way."""
        return self._jobs.done_count

    async def run(self, *, handle_signals: bool = False) -> None:
        """Works until `stop` or until it is drained; returns when no lease is held any more.

        Args:
            handle_signals: Stops on SIGTERM and SIGINT.

        Raises:
            CallError: The service refuses this worker (its token, its pools, or another worker of
                the same id took over); what ran was finished first.
        """
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT) if handle_signals else ()
        for number in signals:
            loop.add_signal_handler(number, self.stop)
        grace = self.settings.grace
        try:
            await self._work()
        except asyncio.CancelledError:
            grace = 0.0
            raise
        finally:
            self._stopping.set()
            await self._finish(grace)
            for number in signals:
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Stops taking work; `run` returns when what runs is finished or given back."""
        if not self._stopping.is_set():
            log.info("worker %s stops", self.settings.worker_id)
            self._stopping.set()
            self._wake.set()
            self._draining = asyncio.create_task(self._drain(), name="fairsched drain")

    @abstractmethod
    async def _work(self) -> None:
        """Takes work until stopped."""

    @abstractmethod
    async def _drain(self) -> None:
        """Tells the service that no more work is wanted."""

    async def _finish(self, grace: float) -> None:
        """Lets what runs finish, and reports all of it."""
        finishing = asyncio.create_task(self._jobs.finish(grace), name="fairsched finish")
        if self._draining is not None:
            await asyncio.gather(self._draining, return_exceptions=True)
        loop = asyncio.get_running_loop()
        last, backoff = loop.time() + grace + LAST_REPORT_S, Backoff()
        while self._jobs.completions or not finishing.done():
            if not self._jobs.completions:
                await asyncio.wait({finishing}, timeout=LOOK_EVERY_S)
            elif loop.time() > last:
                break
            elif not await self._report():
                await asyncio.sleep(backoff.pause())
        await finishing

    async def _report(self) -> bool:
        batch = self._jobs.take()
        try:
            response = await self._stub.BatchComplete(pb.BatchCompleteRequest(completions=batch))
        except errors.CallError as error:
            self._jobs.put_back(batch)
            log.info("completions could not be reported and will be tried again: %s", error)
            return False
        self._jobs.note(batch, response.results)
        return True

    async def _pause(self, seconds: float) -> None:
        """Waits, unless stopped meanwhile."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    async def _persistently(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Repeats a call while the service is away or full; returns None when stopped."""
        backoff = Backoff(longest=RETRY_MAX_S)
        while not self._stopping.is_set():
            try:
                return await call()
            except (errors.UnavailableError, errors.DeadlineError) as error:
                pause = backoff.pause()
                log.info("no answer from the service, again in %.1f s: %s", pause, error)
            except errors.LimitReachedError as error:
                pause = error.retry_after or backoff.pause()
                log.warning("the service is full, again in %.1f s: %s", pause, error)
            await self._pause(pause)
        return None


class AsyncCallWorker(AsyncWorker):
    """Takes work with one call after the other."""

    _poll: "asyncio.Future[Any] | None" = None
    _drained_count = 0
    """Answers in a row that said so; the second comes only if no other session took over."""

    async def _work(self) -> None:
        reporter = asyncio.create_task(self._report_while_polling(), name="fairsched reports")
        try:
            await self._register()
            while not self._stopping.is_set() and self._drained_count < jobs.DRAINED_ANSWERS:
                if self._jobs.free > 0:
                    await self._ask()
                else:
                    self._wake.clear()
                    await self._wake.wait()
            if not self._stopping.is_set():
                await self._run_out()
        finally:
            reporter.cancel()
            await asyncio.gather(reporter, return_exceptions=True)

    async def _run_out(self) -> None:
        """Lets what runs end, however long it takes, and reports it; unless stopped meanwhile."""
        log.warning(jobs.DRAINED, self.settings.worker_id, len(self._jobs.lease_ids))
        backoff = Backoff(longest=RETRY_MAX_S)
        while not self._stopping.is_set() and (self._jobs.lease_ids or self._jobs.completions):
            self._wake.clear()
            if not self._jobs.completions:
                await self._wake.wait()
            elif not await self._report():
                await self._pause(backoff.pause())

    async def _register(self) -> None:
        self._drained_count = 0
        request = self.settings.registration()
        response = await self._persistently(
            lambda: self._stub.RegisterWorker(request, wait_for_ready=True)
        )
        if response is not None:
            self._jobs.session_id = response.session_id

    async def _ask(self) -> None:
        """Asks for work once, and reports what is done by the way."""
        carried = self._jobs.take()
        request = self.settings.next_dispatch(
            self._jobs.session_id, self._jobs.free, uuid.uuid4().hex, carried
        )
        timeout = self.settings.poll + ANSWER_MARGIN_S
        self._poll = asyncio.ensure_future(
            self._persistently(
                lambda: self._stub.NextDispatch(request, timeout=timeout, wait_for_ready=True)
            )
        )
        response = None
        try:
            response = await self._poll
        except errors.NotFoundError as error:
            if error.reason not in jobs.SESSION_LOST:
                raise
            await self._register()
        except asyncio.CancelledError:
            if not self._stopping.is_set():
                raise
        finally:
            self._poll = None
            if response is None:
                self._jobs.put_back(carried)
        if response is not None:
            self._jobs.note(carried, response.completion_results)
            for lease_id in response.cancelled_lease_ids:
                self._jobs.cancel(lease_id)
            for dispatch in response.dispatches:
                self._jobs.start(dispatch)
            drained = response.empty_reason == decision_pb2.EMPTY_REASON_DRAINING
            self._drained_count = self._drained_count + 1 if drained else 0

    async def _drain(self) -> None:
        """Makes a call that waits for work return at once; drops it if it does not."""
        if self._jobs.session_id:
            try:
                request = pb.DrainWorkerRequest(worker_id=self._jobs.session_id)
                await self._stub.DrainWorker(request)
            except errors.CallError as error:
                log.info("the service could not be told that the worker stops: %s", error)
        if self._poll is not None:
            await asyncio.wait({self._poll}, timeout=STOP_ASKING_S)
            if self._poll is not None:
                self._poll.cancel()

    async def _report_while_polling(self) -> None:
        """Reports what is done while a call waits for work and cannot carry it."""
        backoff = Backoff()
        while True:
            if self._poll is None or not self._jobs.completions:
                self._wake.clear()
                await self._wake.wait()
            elif await self._report():
                backoff.reset()
            else:
                await asyncio.sleep(backoff.pause())
