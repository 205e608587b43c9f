"""`SchedulerService`: one method an RPC, each of them check, decide, answer.

The answer is made in the turn of its decision and sent when that is durable.
"""

import asyncio
from functools import partial

from fairsched.v1 import scheduler_service_pb2 as pb
from fairsched.v1 import scheduler_service_pb2_grpc as pb_grpc
from scheduler_service.app.application import Application
from scheduler_service.app.limits import BATCH_MAX
from scheduler_service.core.errors import SchedulerError
from scheduler_service.rpc.acquire import Acquiring
from scheduler_service.rpc.calls import Context, Runtime, Servicer, call
from scheduler_service.rpc.finishing import Finishing
from scheduler_service.rpc.fleet import Fleet
from scheduler_service.rpc.gateway_session import GatewaySessions
from scheduler_service.rpc.identity import Identity
from scheduler_service.rpc.inquiry import Inquiry
from scheduler_service.rpc.intake import Intake
from scheduler_service.rpc.pulling import Pulling, check_lease_duration
from scheduler_service.rpc.renewing import Renewing
from scheduler_service.rpc.validate import Checks
from scheduler_service.rpc.worker_session import WorkerSessions

_ENQUEUES_PER_TURN = 100


class Desks:
    """The parts of the service that a running engine makes possible."""

    def __init__(self, app: Application, runtime: Runtime) -> None:
        self.engine = app.engine
        self.intake = Intake(app, runtime.user_ids)
        self.finishing = Finishing(app, runtime)
        self.renewing = Renewing(app, self.finishing)
        self.pulling = Pulling(app)
        self.inquiry = Inquiry(app, self.finishing)
        self.fleet = Fleet(app)
        self.acquiring = Acquiring(app, runtime, self.intake)
        self.worker_sessions = WorkerSessions(
            app, runtime, self.finishing, self.renewing, self.fleet
        )
        self.gateway_sessions = GatewaySessions(
            app, runtime, self.intake, self.finishing, self.renewing, self.acquiring.refresher
        )


class SchedulerServicer(Servicer, pb_grpc.SchedulerServiceServicer):
    """Serves gateways and workers."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._desks: Desks | None = None

    @property
    def _at(self) -> Desks:
        """The desks.

        Raises:
            NotReady: REPLAYING, DRAINING.
        """
        desks = self._desks
        if desks is None:
            desks = self._desks = Desks(self.runtime.app, self.runtime)
        else:
            self.runtime.readiness.require()
        return desks

    # -- gateways -----------------------------------------------------------------------------

    @call
    async def Enqueue(
        self, request: pb.EnqueueRequest, _context: Context, caller: Identity
    ) -> pb.EnqueueResponse:
        """Adds one request to its user's queue."""
        desks, answer = self._at, pb.EnqueueResponse()
        desks.intake.accept(request, caller, answer)
        await desks.engine.durable()
        return answer

    @call
    async def BatchEnqueue(
        self, request: pb.BatchEnqueueRequest, _context: Context, caller: Identity
    ) -> pb.BatchEnqueueResponse:
        """Adds many, each by itself."""
        checks = Checks()
        _check_batch("requests", len(request.requests), checks)
        checks.done()
        answer, engine = pb.BatchEnqueueResponse(), self._at.engine
        for start in range(0, len(request.requests), _ENQUEUES_PER_TURN):
            if start:
                await asyncio.sleep(0)  # others get their turn
            engine.gather(partial(self._enqueue_some, request, start, caller, answer))
        await engine.durable()
        return answer

    def _enqueue_some(
        self,
        x: pb.BatchEnqueueRequest,
        start: int,
        caller: Identity,
        answer: pb.BatchEnqueueResponse,
    ) -> None:
        """Adds those from `start` on that are decided in one turn."""
        desks = self._at
        items = x.requests[start : start + _ENQUEUES_PER_TURN]
        for index, item in enumerate(items, start):
            result = answer.results.add()
            try:
                desks.intake.accept(item, caller, result.response)
            except SchedulerError as error:
                told = desks.finishing.item_error("BatchEnqueue", error, f"requests[{index}].")
                result.error.CopyFrom(told)

    @call
    async def Cancel(
        self, request: pb.CancelRequest, _context: Context, caller: Identity
    ) -> pb.CancelResponse:
        """Ends a waiting request; asks the holder of a leased one to stop."""
        desks = self._at
        answer = desks.finishing.cancel(request, caller)
        await desks.engine.durable()
        return answer

    @call
    async def GetRequest(
        self, request: pb.GetRequestRequest, context: Context, caller: Identity
    ) -> pb.GetRequestResponse:
        """Tells where a request is, and why it still waits."""
        return await self._at.inquiry.get_request(request, context, caller)

    @call
    async def Acquire(  # type: ignore[override]  # grpc.aio takes a writing coroutine too
        self, request: pb.AcquireRequest, context: Context, caller: Identity
    ) -> None:
        """Enqueues a request and waits for its turn."""
        await self._at.acquiring.acquire(request, context, caller)

    @call
    async def GatewaySession(  # type: ignore[override]  # grpc.aio takes a writing coroutine too
        self, _requests: object, context: Context, caller: Identity
    ) -> None:
        """Serves one gateway over one stream."""
        await self._at.gateway_sessions.serve(context, caller)

    # -- workers ------------------------------------------------------------------------------

    @call
    async def NextDispatch(
        self, request: pb.NextDispatchRequest, context: Context, caller: Identity
    ) -> pb.NextDispatchResponse:
        """Gives a worker the requests whose turn it is."""
        desks = self._at
        answer = pb.NextDispatchResponse()
        if request.completions:
            desks.finishing.complete_into(
                answer.completion_results,
                request.completions[:BATCH_MAX],
                caller,
                session_id=request.session_id,
            )
        await desks.pulling.next_dispatch(request, context, caller, answer)
        return answer

    @call
    async def Complete(
        self, request: pb.CompleteRequest, _context: Context, caller: Identity
    ) -> pb.CompleteResponse:
        """Ends a lease."""
        desks = self._at
        answer = desks.finishing.complete(request, caller)
        await desks.engine.durable()
        return answer

    @call
    async def BatchComplete(
        self, request: pb.BatchCompleteRequest, _context: Context, caller: Identity
    ) -> pb.BatchCompleteResponse:
        """Ends many leases, each by itself."""
        desks = self._at
        checks = Checks()
        _check_batch("completions", len(request.completions), checks)
        checks.done()
        answer = pb.BatchCompleteResponse()
        desks.finishing.complete_into(answer.results, request.completions, caller)
        await desks.engine.durable()
        return answer

    @call
    async def RenewLease(
        self, request: pb.RenewLeaseRequest, _context: Context, caller: Identity
    ) -> pb.RenewLeaseResponse:
        """Extends leases, and reports how far their requests are."""
        desks = self._at
        checks = Checks()
        checks.id("session_id", request.session_id, required=False)
        checks.id("worker_id", request.worker_id, required=False)
        if not request.renewals:
            checks.bad("renewals", "is required")
        desks.renewing.check(request.renewals, checks)
        duration_ns = check_lease_duration(request, checks)
        checks.done()
        worker = request.worker_id
        if request.session_id:
            worker = self.runtime.app.workers.session(request.session_id).worker
        results = desks.renewing.renew(
            request.renewals, caller, worker=worker, lease_duration_ns=duration_ns
        )
        await desks.engine.durable()
        return pb.RenewLeaseResponse(results=results)

    @call
    async def WorkerSession(  # type: ignore[override]  # grpc.aio takes a writing coroutine too
        self, _requests: object, context: Context, caller: Identity
    ) -> None:
        """Serves one worker over one stream."""
        await self._at.worker_sessions.serve(context, caller)

    @call
    async def RegisterWorker(
        self, request: pb.RegisterWorkerRequest, _context: Context, caller: Identity
    ) -> pb.RegisterWorkerResponse:
        """Opens a session for a worker."""
        desks = self._at
        answer = desks.fleet.register(request, caller)
        await desks.engine.durable()
        return answer

    @call
    async def DrainWorker(
        self, request: pb.DrainWorkerRequest, _context: Context, caller: Identity
    ) -> pb.DrainWorkerResponse:
        """Stops new work for a worker."""
        desks = self._at
        answer = desks.fleet.drain(request, caller)
        await desks.engine.durable()
        return answer

    @call
    async def ListWorkers(
        self, request: pb.ListWorkersRequest, _context: Context, caller: Identity
    ) -> pb.ListWorkersResponse:
        """Lists the workers the service has heard of."""
        desks = self._at
        answer = desks.fleet.list_workers(request, caller)
        await desks.engine.durable()
        return answer


def _check_batch(field: str, count: int, checks: Checks) -> None:
    if count == 0:
        checks.bad(field, "is required")
    checks.entries(field, count, BATCH_MAX)
