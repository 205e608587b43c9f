"""A worker: asks for requests when it has room, runs them, reports back.

One call a request when busy: what is done is reported by the call that asks for more.  The leases
of running requests are renewed in the background.  An answer that was lost is asked for again under
the same key, so nothing is charged or run twice on that account.

A request may still run twice when a worker is cut off for longer than its lease: that is what
leases are for.  A handler's work should bear that, or check `Job.lost`.

Stopping (`stop`, or SIGTERM under `run`): no new work; what runs may finish for `grace` seconds;
the rest is cancelled and given back, and goes first to another worker, uncharged.
"""

import asyncio
import dataclasses
import logging
import signal
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from fairsched import errors, jobs
from fairsched.async_leases import AsyncLeaseKeeper
from fairsched.backoff import Backoff
from fairsched.connection import ANSWER_MARGIN_S
from fairsched.requests import seconds
from fairsched.v1 import scheduler_service_pb2 as pb
from fairsched.v1 import scheduler_service_pb2_grpc as pb_grpc

COMPLETIONS_MAX = 1000
"""Most completions in one call."""

LAST_REPORT_S = 5.0
"""How long a worker that ends tries to report what is done, seconds."""

STOP_ASKING_S = 2.0
"""How long a stopped worker waits for the answer to its last question, seconds."""

log = logging.getLogger("fairsched")


@dataclasses.dataclass(slots=True, eq=False)
class Job:
    """One request to run.

    Attributes:
        dispatch: What the service said: `request_id`, `user_id`, `pool`, `lease_id`, `payload`, ….
        lost: The lease is gone: another worker may run the request; its task was cancelled.
        cancel_requested: The request was cancelled; its task was cancelled.
    """

    dispatch: pb.Dispatch
    lost: bool = False
    cancel_requested: bool = False
    _stub: "pb_grpc.SchedulerServiceAsyncStub | None" = None
    _session_id: str = ""
    _task: asyncio.Task[None] | None = None

    async def prefill_complete(self) -> None:
        """Reports that output begins; some pools count a short admission only then."""
        assert self._stub is not None  # noqa: S101
        renewal = pb.LeaseRenewal(
            lease_id=self.dispatch.lease_id, progress=pb.PROGRESS_PREFILL_COMPLETE
        )
        request = pb.RenewLeaseRequest(session_id=self._session_id, renewals=[renewal])
        (result,) = (await self._stub.RenewLease(request)).results
        if result.HasField("error"):
            raise errors.from_item(result.error)


Handler = Callable[[Job], Awaitable[pb.Usage | None]]
"""Runs one request; returns what it used, raises what went wrong, or `jobs.GiveBack`."""


class AsyncWorker:
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
        self.done_count = 0
        self._stub = stub
        self._handler = handler
        self._session_id = ""
        self._jobs: dict[str, Job] = {}
        self._completions: list[pb.CompleteRequest] = []
        self._wake = asyncio.Event()
        self._poll: asyncio.Future[Any] | None = None
        self._stopping = asyncio.Event()
        self._draining: asyncio.Task[None] | None = None
        self._leases = AsyncLeaseKeeper(stub, self.settings.lease_duration)

    async def run(self, *, handle_signals: bool = False) -> None:
        """Works until `stop`; returns when everything is finished or given back.

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
        reporter = asyncio.create_task(self._report_while_polling(), name="fairsched reports")
        grace = self.settings.grace
        try:
            await self._register()
            while not self._stopping.is_set():
                if len(self._jobs) < self.settings.concurrency:
                    await self._ask()
                else:
                    self._wake.clear()
                    await self._wake.wait()
        except asyncio.CancelledError:
            grace = 0.0
            raise
        finally:
            self._stopping.set()
            await self._finish(grace, reporter)
            for number in signals:
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Stops taking work; `run` returns when what runs is finished or given back."""
        if not self._stopping.is_set():
            log.info("worker %s stops with %d running", self.settings.worker_id, len(self._jobs))
            self._stopping.set()
            self._wake.set()
            self._draining = asyncio.create_task(self._drain(), name="fairsched drain")

    async def _drain(self) -> None:
        """Makes a call that waits for work return at once; drops it if it does not."""
        if self._session_id:
            try:
                await self._stub.DrainWorker(pb.DrainWorkerRequest(worker_id=self._session_id))
            except errors.CallError as error:
                log.info("the service could not be told that the worker stops: %s", error)
        if self._poll is not None:
            await asyncio.wait({self._poll}, timeout=STOP_ASKING_S)
            if self._poll is not None:
                self._poll.cancel()

    async def _register(self) -> None:
        request = self.settings.registration()
        response = await self._persistently(
            lambda: self._stub.RegisterWorker(request, wait_for_ready=True)
        )
        if response is not None:
            self._session_id = self._leases.session_id = response.session_id

    async def _persistently(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Repeats a call while the service is away or full; returns None when stopped."""
        backoff = Backoff(longest=1.0)
        while True:
            try:
                return await call()
            except (errors.UnavailableError, errors.DeadlineError) as error:
                pause = backoff.pause()
                log.info("no answer from the service, again in %.1f s: %s", pause, error)
            except errors.LimitReachedError as error:
                pause = error.retry_after or backoff.pause()
                log.warning("the service is full, again in %.1f s: %s", pause, error)
            try:
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            except TimeoutError:
                continue
            return None

    async def _ask(self) -> None:
        """Asks for work once, and reports what is done by the way."""
        carried, self._completions = self._take(), self._completions[COMPLETIONS_MAX:]
        free = self.settings.concurrency - len(self._jobs)
        key = uuid.uuid4().hex
        request = self.settings.next_dispatch(self._session_id, free, key, carried)
        timeout = self.settings.poll + ANSWER_MARGIN_S
        self._poll = asyncio.ensure_future(
            self._persistently(
                lambda: self._stub.NextDispatch(request, timeout=timeout, wait_for_ready=True)
            )
        )
        try:
            response = await self._poll
        except errors.NotFoundError as error:
            self._completions[:0] = carried
            if error.reason not in jobs.SESSION_LOST:
                raise
            await self._register()
            return
        except asyncio.CancelledError:
            self._completions[:0] = carried
            if self._stopping.is_set():
                return
            raise
        except BaseException:
            self._completions[:0] = carried
            raise
        finally:
            self._poll = None
        if response is None:
            self._completions[:0] = carried
            return
        self._note(carried, response.completion_results)
        for lease_id in response.cancelled_lease_ids:
            self._cancel(lease_id)
        for dispatch in response.dispatches:
            self._start(dispatch)

    def _take(self) -> list[pb.CompleteRequest]:
        return self._completions[:COMPLETIONS_MAX]

    def _start(self, dispatch: pb.Dispatch) -> None:
        lease_id = dispatch.lease_id
        if lease_id in self._jobs:
            return
        job = Job(dispatch, _stub=self._stub, _session_id=self._session_id)
        self._jobs[lease_id] = job
        self._leases.keep(
            lease_id,
            seconds(dispatch.lease_duration),
            on_lost=lambda error: self._lose(lease_id, error),
            on_cancel=lambda: self._cancel(lease_id),
        )
        job._task = asyncio.create_task(  # noqa: SLF001 - the two classes are one
            self._run_job(job), name=f"fairsched job {dispatch.request_id}"
        )

    def _lose(self, lease_id: str, error: errors.CallError) -> None:
        job = self._jobs.get(lease_id)
        if job is not None and job._task is not None:  # noqa: SLF001
            log.warning("lost the lease of %s: %s", job.dispatch.request_id, error)
            job.lost = True
            job._task.cancel()  # noqa: SLF001

    def _cancel(self, lease_id: str) -> None:
        job = self._jobs.get(lease_id)
        if job is not None and job._task is not None and not job.cancel_requested:  # noqa: SLF001
            job.cancel_requested = True
            job._task.cancel()  # noqa: SLF001

    async def _run_job(self, job: Job) -> None:
        lease_id = job.dispatch.lease_id
        completion: pb.CompleteRequest | None = None
        try:
            completion = jobs.succeeded(lease_id, await self._handler(job))
        except jobs.GiveBack as error:
            completion = jobs.given_back(lease_id, error)
        except asyncio.CancelledError:
            if job.cancel_requested:
                completion = jobs.failed(lease_id, "cancelled")
            elif not job.lost:
                completion = jobs.given_back(lease_id, "worker stopped")
        except Exception as error:
            log.warning("request %s failed", job.dispatch.request_id, exc_info=True)
            completion = jobs.failed(lease_id, error)
        finally:
            self._leases.drop(lease_id)
            del self._jobs[lease_id]
            if completion is not None:
                self._completions.append(completion)
            self.done_count += 1
            self._wake.set()

    async def _report_while_polling(self) -> None:
        """Reports what is done while a call waits for work and cannot carry it."""
        backoff = Backoff()
        while True:
            if self._poll is None or not self._completions:
                self._wake.clear()
                await self._wake.wait()
            elif await self._report():
                backoff.reset()
            else:
                await asyncio.sleep(backoff.pause())

    async def _report(self) -> bool:
        batch = self._take()
        del self._completions[: len(batch)]
        try:
            response = await self._stub.BatchComplete(pb.BatchCompleteRequest(completions=batch))
        except errors.CallError as error:
            self._completions[:0] = batch
            log.info("completions could not be reported and will be tried again: %s", error)
            return False
        self._note(batch, response.results)
        return True

    def _note(
        self, sent: Iterable[pb.CompleteRequest], results: Iterable[pb.CompleteResult]
    ) -> None:
        for completion, result in zip(sent, results, strict=True):
            if result.HasField("error"):
                log.warning(
                    "lease %s was not ended: %s",
                    completion.lease_id,
                    errors.from_item(result.error),
                )

    async def _finish(self, grace: float, reporter: asyncio.Task[None]) -> None:
        running = [job._task for job in self._jobs.values() if job._task]  # noqa: SLF001
        if running:
            _, late = await asyncio.wait(running, timeout=grace)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        reporter.cancel()
        helpers = [task for task in (reporter, self._draining) if task is not None]
        await asyncio.gather(*helpers, return_exceptions=True)
        await self._leases.close()
        loop = asyncio.get_running_loop()
        last, backoff = loop.time() + LAST_REPORT_S, Backoff()
        while self._completions and loop.time() < last:
            if not await self._report():
                await asyncio.sleep(backoff.pause())
