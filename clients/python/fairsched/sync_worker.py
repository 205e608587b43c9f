"""A worker whose handler runs in threads.

The twin of `fairsched.async_worker`; see there.  A thread cannot be stopped from outside: a handler
that may run long looks at `Job.stop` now and then.
"""

import concurrent.futures
import contextlib
import dataclasses
import logging
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

import grpc

from fairsched import errors, jobs
from fairsched.async_jobs import COMPLETIONS_MAX
from fairsched.async_worker import LAST_REPORT_S, RETRY_MAX_S, STOP_ASKING_S
from fairsched.backoff import Backoff
from fairsched.connection import ANSWER_MARGIN_S
from fairsched.requests import seconds
from fairsched.sync_leases import LeaseKeeper
from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from fairsched.v1 import scheduler_service_pb2_grpc as pb_grpc

if TYPE_CHECKING:
    from fairsched.sync_calls import Pending, SyncUnary

log = logging.getLogger("fairsched")


@dataclasses.dataclass(slots=True, eq=False)
class Job:
    """One request to run.

    Attributes:
        dispatch: What the service said: `request_id`, `user_id`, `pool`, `lease_id`, `payload`, ….
        stop: Set when the handler should end: the request was cancelled, its lease was lost, or
            the worker's grace is over.
        lost: The lease is gone: another worker may run the request.
        cancel_requested: The request was cancelled.
    """

    dispatch: pb.Dispatch
    stop: threading.Event = dataclasses.field(default_factory=threading.Event)
    lost: bool = False
    cancel_requested: bool = False


Handler = Callable[[Job], pb.Usage | None]
"""Runs one request; returns what it used, raises what went wrong, or `jobs.GiveBack`."""


class Worker:
    """Runs requests until it is stopped."""

    def __init__(
        self,
        stub: pb_grpc.SchedulerServiceStub,
        settings: jobs.WorkerSettings,
        handler: Handler,
    ) -> None:
        """Prepares a worker; `run` starts it.

        Args:
            stub: `Fairsched.scheduler`.
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
        self._changed = threading.Condition()
        self._asking = False
        self._poll: Pending[Any] | None = None
        self._ended = False
        self._drained_count = 0
        self._stopping = threading.Event()
        self._leases = LeaseKeeper(stub, settings.lease_duration)
        self._pool = concurrent.futures.ThreadPoolExecutor(settings.concurrency, "fairsched job")

    def run(self, *, handle_signals: bool = False) -> None:
        """Works until `stop` or until it is drained; returns when no lease is held any more.

        Args:
            handle_signals: Stops on SIGTERM and SIGINT; only in the main thread.

        Raises:
            CallError: The service refuses this worker; what ran was finished first.
        """
        reporter = threading.Thread(target=self._report_while_asking, name="fairsched reports")
        reporter.start()
        with _stop_on_signals(self.stop) if handle_signals else contextlib.nullcontext():
            try:
                self._register()
                while not self._stopping.is_set() and self._drained_count < jobs.DRAINED_ANSWERS:
                    with self._changed:
                        self._changed.wait_for(self._may_go_on)
                    if not self._stopping.is_set():
                        self._ask()
                self._run_out()
            finally:
                self._stopping.set()
                self._finish(reporter)

    def stop(self) -> None:
        """Stops taking work, from any thread or signal handler; `run` then finishes."""
        if not self._stopping.is_set():
            self._stopping.set()
            threading.Thread(target=self._drain, name="fairsched drain", daemon=True).start()

    def _run_out(self) -> None:
        """Lets what runs end, however long it takes; unless stopped, before or meanwhile."""
        if self._stopping.is_set():
            return
        log.warning(jobs.DRAINED, self.settings.worker_id, len(self._jobs))
        with self._changed:
            self._asking = True  # so that the reporter reports what finishes meanwhile
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stopping.is_set() or not self._jobs)
            self._asking = False
            self._changed.notify_all()

    def _may_go_on(self) -> bool:
        return self._stopping.is_set() or len(self._jobs) < self.settings.concurrency

    def _drain(self) -> None:
        """Makes a call that waits for work return at once; drops it if it does not."""
        with self._changed:
            self._changed.notify_all()
        if self._session_id:
            try:
                self._stub.DrainWorker(pb.DrainWorkerRequest(worker_id=self._session_id))
            except errors.FairschedError as error:
                log.info("the service could not be told that the worker stops: %s", error)
        with self._changed:
            self._changed.wait_for(lambda: not self._asking, STOP_ASKING_S)
            poll = self._poll
        if poll is not None:
            poll.cancel()

    def _register(self) -> None:
        self._drained_count = 0
        request = self.settings.registration()
        response = self._persistently(
            lambda: self._stub.RegisterWorker(request, wait_for_ready=True)
        )
        if response is not None:
            self._session_id = self._leases.session_id = response.session_id

    def _persistently(self, call: Callable[[], Any]) -> Any:
        """Repeats a call while the service is away or full; returns None when stopped."""
        backoff = Backoff(longest=RETRY_MAX_S)
        while not self._stopping.is_set():
            try:
                return call()
            except (errors.UnavailableError, errors.DeadlineError) as error:
                pause = backoff.pause()
                log.info("no answer from the service, again in %.1f s: %s", pause, error)
            except errors.LimitReachedError as error:
                pause = error.retry_after or backoff.pause()
                log.warning("the service is full, again in %.1f s: %s", pause, error)
            self._stopping.wait(pause)
        return None

    def _ask(self) -> None:
        """Asks for work once, and reports what is done by the way."""
        with self._changed:
            carried = self._take()
            free = self.settings.concurrency - len(self._jobs)
            self._asking = True
        key = uuid.uuid4().hex
        request = self.settings.next_dispatch(self._session_id, free, key, carried)
        timeout = self.settings.poll + ANSWER_MARGIN_S
        response = None
        try:
            response = self._persistently(lambda: self._await_dispatch(request, timeout))
        except errors.NotFoundError as error:
            if error.reason not in jobs.SESSION_LOST:
                raise
            self._register()
        except errors.CallError as error:
            if not (error.code is grpc.StatusCode.CANCELLED and self._stopping.is_set()):
                raise
        finally:
            with self._changed:
                self._asking = False
                self._changed.notify_all()
                if response is None:
                    self._completions[:0] = carried
        if response is not None:
            self._note(carried, response.completion_results)
            for lease_id in response.cancelled_lease_ids:
                self._cancel(lease_id)
            for dispatch in response.dispatches:
                self._start(dispatch)
            drained = response.empty_reason == decision_pb2.EMPTY_REASON_DRAINING
            self._drained_count = self._drained_count + 1 if drained else 0

    def _await_dispatch(self, request: pb.NextDispatchRequest, timeout: float) -> Any:
        next_dispatch = cast("SyncUnary", self._stub.NextDispatch)
        self._poll = next_dispatch.start(request, timeout=timeout, wait_for_ready=True)
        try:
            return self._poll.result()
        finally:
            self._poll = None

    def _take(self) -> list[pb.CompleteRequest]:
        taken = self._completions[:COMPLETIONS_MAX]
        del self._completions[: len(taken)]
        return taken

    def _start(self, dispatch: pb.Dispatch) -> None:
        lease_id = dispatch.lease_id
        job = Job(dispatch)
        with self._changed:
            if lease_id in self._jobs:
                return
            self._jobs[lease_id] = job
        self._leases.keep(
            lease_id,
            seconds(dispatch.lease_duration),
            on_lost=lambda error: self._lose(job, error),
            on_cancel=lambda: self._cancel(lease_id),
        )
        self._pool.submit(self._run_job, job)

    def _lose(self, job: Job, error: errors.CallError) -> None:
        log.warning("lost the lease of %s: %s", job.dispatch.request_id, error)
        job.lost = True
        job.stop.set()

    def _cancel(self, lease_id: str) -> None:
        job = self._jobs.get(lease_id)
        if job is not None:
            job.cancel_requested = True
            job.stop.set()

    def _run_job(self, job: Job) -> None:
        lease_id = job.dispatch.lease_id
        try:
            completion = jobs.succeeded(lease_id, self._handler(job))
        except jobs.GiveBack as error:
            completion = jobs.given_back(lease_id, error)
        except Exception as error:
            log.warning("request %s failed", job.dispatch.request_id, exc_info=True)
            completion = jobs.failed(lease_id, error)
        self._leases.drop(lease_id)
        with self._changed:
            del self._jobs[lease_id]
            if not job.lost:
                self._completions.append(completion)
            self.done_count += 1
            self._changed.notify_all()

    def _report_while_asking(self) -> None:
        """Reports what is done while a call waits for work and cannot carry it."""
        backoff = Backoff()
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._ended or (self._asking and bool(self._completions))
                )
                if self._ended:
                    return
            if self._report():
                backoff.reset()
            else:
                with self._changed:
                    self._changed.wait_for(lambda: self._ended, backoff.pause())

    def _report(self) -> bool:
        with self._changed:
            batch = self._take()
        if not batch:
            return True
        try:
            response = self._stub.BatchComplete(pb.BatchCompleteRequest(completions=batch))
        except errors.FairschedError as error:
            with self._changed:
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
                error = errors.from_item(result.error)
                log.warning("lease %s was not ended: %s", completion.lease_id, error)

    def _finish(self, reporter: threading.Thread) -> None:
        with self._changed:
            self._asking = True  # so that the reporter reports what finishes meanwhile
            if not self._changed.wait_for(lambda: not self._jobs, self.settings.grace):
                for job in self._jobs.values():
                    job.stop.set()
        self._pool.shutdown(wait=True)
        self._leases.close()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        reporter.join()
        last, backoff = time.monotonic() + LAST_REPORT_S, Backoff()
        while self._completions and time.monotonic() < last:
            if not self._report():
                time.sleep(backoff.pause())  # no other thread is left that could wake this one


@contextlib.contextmanager
def _stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    before = {
        number: signal.signal(number, lambda *_: stop())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
