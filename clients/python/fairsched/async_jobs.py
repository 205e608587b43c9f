"""The requests that an asynchronous worker runs, however it gets them.

A job is a task.  It ends in a completion, which whoever reports takes from `completions`; a lease
that was lost ends in none.  Leases are renewed in the background.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterable

from fairsched import errors, jobs
from fairsched.async_leases import AsyncLeaseKeeper
from fairsched.requests import seconds
from fairsched.v1 import scheduler_service_pb2 as pb
from fairsched.v1 import scheduler_service_pb2_grpc as pb_grpc

COMPLETIONS_MAX = 1000
"""Most completions in one call or message."""

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

    async def prefill_complete(self) -> None:
        """Reports that output begins; some pools count a short admission only then."""
        assert self._stub is not None
        renewal = pb.LeaseRenewal(
            lease_id=self.dispatch.lease_id, progress=pb.PROGRESS_PREFILL_COMPLETE
        )
        request = pb.RenewLeaseRequest(session_id=self._session_id, renewals=[renewal])
        (result,) = (await self._stub.RenewLease(request)).results
        if result.HasField("error"):
            raise errors.from_item(result.error)


Handler = Callable[[Job], Awaitable[pb.Usage | None]]
"""Runs one request; returns what it used, raises what went wrong, or `jobs.GiveBack`."""


class AsyncJobs:
    """Runs jobs and collects their completions.

    Attributes:
        completions: What is to be reported, oldest first.
        done_count: Jobs that ended, in whatever way.
    """

    def __init__(
        self,
        stub: "pb_grpc.SchedulerServiceAsyncStub",
        settings: jobs.WorkerSettings,
        handler: Handler,
        on_done: Callable[[], None],
    ) -> None:
        """Prepares to run jobs.

        Args:
            stub: Renews leases.
            settings: How the worker works.
            handler: Runs one request.
            on_done: Called when a job has ended.
        """
        self.completions: list[pb.CompleteRequest] = []
        self.done_count = 0
        self._stub = stub
        self._settings = settings
        self._handler = handler
        self._on_done = on_done
        self._session_id = ""
        self._running: dict[str, tuple[Job, asyncio.Task[None]]] = {}
        self._leases = AsyncLeaseKeeper(stub, settings.lease_duration)

    @property
    def free(self) -> int:
        """Further jobs that there is room for."""
        return self._settings.concurrency - len(self._running)

    @property
    def lease_ids(self) -> list[str]:
        """Leases of running jobs."""
        return list(self._running)

    @property
    def session_id(self) -> str:
        """Session that holds the leases; empty before there is one."""
        return self._session_id

    @session_id.setter
    def session_id(self, session_id: str) -> None:
        self._session_id = self._leases.session_id = session_id

    def start(self, dispatch: pb.Dispatch) -> None:
        """Starts a job, unless it runs already."""
        lease_id = dispatch.lease_id
        if lease_id in self._running:
            return
        job = Job(dispatch, _stub=self._stub, _session_id=self._session_id)
        self._leases.keep(
            lease_id,
            seconds(dispatch.lease_duration),
            on_lost=lambda error: self._lose(lease_id, error),
            on_cancel=lambda: self.cancel(lease_id),
        )
        task = asyncio.create_task(self._run(job), name=f"fairsched job {dispatch.request_id}")
        self._running[lease_id] = job, task

    def cancel(self, lease_id: str) -> None:
        """Stops the job of a request that was cancelled."""
        job, task = self._running.get(lease_id, (None, None))
        if job is not None and task is not None and not job.cancel_requested:
            job.cancel_requested = True
            task.cancel()

    def take(self) -> list[pb.CompleteRequest]:
        """Takes completions to report, as many as one call may have."""
        taken = self.completions[:COMPLETIONS_MAX]
        del self.completions[: len(taken)]
        return taken

    def put_back(self, completions: Iterable[pb.CompleteRequest]) -> None:
        """Puts back what could not be reported, to be reported first."""
        self.completions[:0] = completions

    def note(
        self, sent: Iterable[pb.CompleteRequest], results: Iterable[pb.CompleteResult]
    ) -> None:
        """Notes what became of completions."""
        for completion, result in zip(sent, results, strict=True):
            if result.HasField("error"):
                error = errors.from_item(result.error)
                log.warning("lease %s was not ended: %s", completion.lease_id, error)

    async def finish(self, grace: float) -> None:
        """Lets jobs run for `grace` seconds, cancels the rest, and stops renewing."""
        running = [task for _, task in self._running.values()]
        if running:
            _, late = await asyncio.wait(running, timeout=grace)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        await self._leases.close()

    def _lose(self, lease_id: str, error: errors.CallError) -> None:
        job, task = self._running.get(lease_id, (None, None))
        if job is not None and task is not None:
            log.warning("lost the lease of %s: %s", job.dispatch.request_id, error)
            job.lost = True
            task.cancel()

    async def _run(self, job: Job) -> None:
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
            self._running.pop(lease_id, None)
            if completion is not None:
                self.completions.append(completion)
            self.done_count += 1
            self._on_done()
