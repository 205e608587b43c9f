"""`AdminService`: one method an RPC; the work is done by its three desks."""

from fairsched.v1 import admin_service_pb2 as pb
from fairsched.v1 import admin_service_pb2_grpc as pb_grpc
from scheduler_service.rpc.admin_changes import AdminChanges
from scheduler_service.rpc.admin_lists import AdminLists
from scheduler_service.rpc.admin_operations import AdminOperations
from scheduler_service.rpc.calls import Context, Runtime, Servicer, call
from scheduler_service.rpc.identity import Identity


class _Desks:
    """The parts of the service that a running engine makes possible."""

    def __init__(self, runtime: Runtime) -> None:
        app, seen, user_ids = runtime.app, runtime.seen, runtime.user_ids
        self.changes = AdminChanges(app, seen, user_ids)
        self.operations = AdminOperations(app, seen, user_ids)
        self.lists = AdminLists(app, seen, user_ids)


class AdminServicer(Servicer, pb_grpc.AdminServiceServicer):
    """Serves operators."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._desks: _Desks | None = None

    @property
    def _at(self) -> _Desks:
        """The desks.

        Raises:
            NotReady: REPLAYING, DRAINING.
        """
        self.runtime.readiness.require()
        if self._desks is None:
            self._desks = _Desks(self.runtime)
        return self._desks

    async def _durable(self) -> None:
        """Waits until what an answer shows is durable.

        Raises:
            NotReady: LOG_STALLED.
        """
        await self.runtime.seen.engine.durable()

    # -- pools -----------------------------------------------------------------------------

    @call
    async def CreatePool(
        self, request: pb.CreatePoolRequest, _context: Context, caller: Identity
    ) -> pb.CreatePoolResponse:
        """Creates a pool."""
        answer = self._at.changes.create_pool(request, caller)
        await self._durable()
        return answer

    @call
    async def UpdatePool(
        self, request: pb.UpdatePoolRequest, _context: Context, caller: Identity
    ) -> pb.UpdatePoolResponse:
        """Changes a pool's policy."""
        answer = self._at.changes.update_pool(request, caller)
        await self._durable()
        return answer

    @call
    async def GetPool(
        self, request: pb.GetPoolRequest, _context: Context, caller: Identity
    ) -> pb.GetPoolResponse:
        """Shows a pool's policy."""
        answer = self._at.lists.get_pool(request, caller)
        await self._durable()
        return answer

    @call
    async def ListPools(
        self, request: pb.ListPoolsRequest, _context: Context, caller: Identity
    ) -> pb.ListPoolsResponse:
        """Lists the pools by name."""
        answer = self._at.lists.list_pools(request, caller)
        await self._durable()
        return answer

    @call
    async def DeletePool(
        self, request: pb.DeletePoolRequest, _context: Context, caller: Identity
    ) -> pb.DeletePoolResponse:
        """Deletes a pool that holds no request."""
        answer = self._at.changes.delete_pool(request, caller)
        await self._durable()
        return answer

    # -- users -----------------------------------------------------------------------------

    @call
    async def SetUser(
        self, request: pb.SetUserRequest, _context: Context, caller: Identity
    ) -> pb.SetUserResponse:
        """Sets a user's weight and cap."""
        answer = self._at.changes.set_user(request, caller)
        await self._durable()
        return answer

    @call
    async def GetUser(
        self, request: pb.GetUserRequest, _context: Context, caller: Identity
    ) -> pb.GetUserResponse:
        """Shows a user of a pool."""
        answer = self._at.lists.get_user(request, caller)
        await self._durable()
        return answer

    @call
    async def ListUsers(
        self, request: pb.ListUsersRequest, _context: Context, caller: Identity
    ) -> pb.ListUsersResponse:
        """Lists the users of a pool by id."""
        answer = await self._at.lists.list_users(request, caller)
        await self._durable()
        return answer

    @call
    async def ForgetUser(
        self, request: pb.ForgetUserRequest, _context: Context, caller: Identity
    ) -> pb.ForgetUserResponse:
        """Deletes the settings of a user without work."""
        answer = self._at.changes.forget_user(request, caller)
        await self._durable()
        return answer

    # -- operations ------------------------------------------------------------------------

    @call
    async def Pause(
        self, request: pb.PauseRequest, _context: Context, caller: Identity
    ) -> pb.PauseResponse:
        """Stops dispatching from a pool or from one user of it."""
        answer = self._at.operations.pause(request, caller)
        await self._durable()
        return answer

    @call
    async def Resume(
        self, request: pb.ResumeRequest, _context: Context, caller: Identity
    ) -> pb.ResumeResponse:
        """Ends a pause."""
        answer = self._at.operations.resume(request, caller)
        await self._durable()
        return answer

    @call
    async def RequeueDeadLetter(
        self, request: pb.RequeueDeadLetterRequest, _context: Context, caller: Identity
    ) -> pb.RequeueDeadLetterResponse:
        """Puts a dead-lettered request back."""
        answer = self._at.operations.requeue(request, caller)
        await self._durable()
        return answer

    @call
    async def DiscardDeadLetter(
        self, request: pb.DiscardDeadLetterRequest, _context: Context, caller: Identity
    ) -> pb.DiscardDeadLetterResponse:
        """Drops a dead-lettered request for good."""
        answer = self._at.operations.discard(request, caller)
        await self._durable()
        return answer

    # -- what there is ---------------------------------------------------------------------

    @call
    async def GetStats(
        self, request: pb.GetStatsRequest, _context: Context, caller: Identity
    ) -> pb.GetStatsResponse:
        """Shows counts and meters."""
        answer = self._at.lists.get_stats(request, caller)
        await self._durable()
        return answer

    @call
    async def DumpState(
        self, request: pb.DumpStateRequest, _context: Context, caller: Identity
    ) -> pb.DumpStateResponse:
        """Dumps the state of a pool, page by page."""
        answer = await self._at.lists.dump_state(request, caller)
        await self._durable()
        return answer

    @call
    async def ListRequests(
        self, request: pb.ListRequestsRequest, _context: Context, caller: Identity
    ) -> pb.ListRequestsResponse:
        """Lists requests by accept sequence."""
        answer = await self._at.lists.list_requests(request, caller)
        await self._durable()
        return answer

    @call
    async def ListDeadLetters(
        self, request: pb.ListDeadLettersRequest, _context: Context, caller: Identity
    ) -> pb.ListDeadLettersResponse:
        """Lists dead-lettered requests."""
        answer = await self._at.lists.list_dead_letters(request, caller)
        await self._durable()
        return answer
