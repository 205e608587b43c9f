"""What operators do while the service runs: pause, resume, deal with dead letters."""

from fairsched.v1 import admin_service_pb2 as pb
from scheduler_service.app.limits import MAX_WAIT_NS_MIN
from scheduler_service.core import answers as a
from scheduler_service.core import commands as c
from scheduler_service.core.decisions import RequestState
from scheduler_service.core.errors import Unknown, WrongState
from scheduler_service.core.policy import SECOND_NS, UserSettings
from scheduler_service.core.state import Pool
from scheduler_service.rpc.admin_desk import AdminDesk, require_all_users
from scheduler_service.rpc.convert import number
from scheduler_service.rpc.convert_admin import pause_message
from scheduler_service.rpc.identity import Identity
from scheduler_service.rpc.validate import Checks

_PAUSE_NS_MAX = 365 * 86_400 * SECOND_NS
_NO_SETTINGS = UserSettings()


class AdminOperations(AdminDesk):
    """Pauses, resumes, requeues and drops."""

    # -- pauses -------------------------------------------------------------------------------

    def pause(self, x: pb.PauseRequest, caller: Identity) -> pb.PauseResponse:
        """Stops dispatching from a pool or from one user of it.

        Raises:
            InvalidCommand: Names every bad field.
            Denied: POOL_DENIED, USER_DENIED.
            Unknown: POOL_UNKNOWN.
        """
        checks = Checks()
        checks.id("user_id", x.user_id, required=False)
        duration_ns = 0
        if x.HasField("duration"):
            duration_ns = checks.duration("duration", x.duration, MAX_WAIT_NS_MIN, _PAUSE_NS_MAX)
        pool = self.known_pool(x.pool, caller, checks)
        user_id = self.user_in(pool, x.user_id, caller) if x.user_id else ""
        if not user_id:
            require_all_users(caller)
        engine = self.engine
        now_ns = engine.now_ns()
        until_ns = now_ns + duration_ns if duration_ns else 0
        if until_ns or _pause_of(pool, user_id) != (True, 0):
            command = c.Pause(
                now_ns=now_ns,
                nonce=engine.nonce(),
                peer=caller.name,
                pool=pool.name,
                user_id=user_id,
                until_ns=until_ns,
            )
            engine.apply(command)
        return pb.PauseResponse(pause=pause_message(*_pause_of(pool, user_id)))

    def resume(self, x: pb.ResumeRequest, caller: Identity) -> pb.ResumeResponse:
        """Ends a pause.

        Raises:
            InvalidCommand: Names every bad field.
            Denied: POOL_DENIED, USER_DENIED.
            Unknown: POOL_UNKNOWN.
        """
        checks = Checks()
        checks.id("user_id", x.user_id, required=False)
        pool = self.known_pool(x.pool, caller, checks)
        user_id = self.user_in(pool, x.user_id, caller) if x.user_id else ""
        if not user_id:
            require_all_users(caller)
        paused, _ = _pause_of(pool, user_id)
        engine = self.engine
        if paused:
            command = c.Resume(
                **self.stamp(caller),
                pool=pool.name,
                user_id=user_id,
            )
            engine.apply(command)
        return pb.ResumeResponse(duplicate=not paused)

    # -- dead letters -------------------------------------------------------------------------

    def requeue(
        self, x: pb.RequeueDeadLetterRequest, caller: Identity
    ) -> pb.RequeueDeadLetterResponse:
        """Puts a dead-lettered request back.

        Raises:
            InvalidCommand: Names every bad field.
            Denied: POOL_DENIED.
            Unknown: POOL_UNKNOWN, REQUEST_UNKNOWN.
            WrongState: NOT_DEAD_LETTERED.
            LimitReached: USERS_FULL.
        """
        pool = self._dead_letter(x, caller)
        engine = self.engine
        answer: a.Finished = engine.apply(
            c.Requeue(
                **self.stamp(caller),
                pool=pool.name,
                request_id=x.request_id,
            )
        )
        return pb.RequeueDeadLetterResponse(state=number(answer.state))

    def discard(
        self, x: pb.DiscardDeadLetterRequest, caller: Identity
    ) -> pb.DiscardDeadLetterResponse:
        """Drops a dead-lettered request for good.

        Raises:
            InvalidCommand: Names every bad field.
            Denied: POOL_DENIED.
            Unknown: POOL_UNKNOWN, REQUEST_UNKNOWN.
            WrongState: NOT_DEAD_LETTERED.
        """
        pool = self._dead_letter(x, caller)
        engine = self.engine
        engine.apply(
            c.Discard(
                **self.stamp(caller),
                pool=pool.name,
                request_id=x.request_id,
            )
        )
        return pb.DiscardDeadLetterResponse()

    def _dead_letter(
        self, x: pb.RequeueDeadLetterRequest | pb.DiscardDeadLetterRequest, caller: Identity
    ) -> Pool:
        """Checks that a request is dead-lettered, and returns its pool."""
        checks = Checks()
        checks.id("request_id", x.request_id)
        pool = self.known_pool(x.pool, caller, checks)
        known = pool.dead.get(x.request_id)
        other = pool.requests.get(x.request_id) or pool.gone.get(x.request_id)
        owner = known or other
        if owner is None or not self.user_ids.sees(caller, owner.user_id):
            raise Unknown(
                "REQUEST_UNKNOWN",
                f"There is no request {x.request_id!r} in pool {x.pool!r}.",
                pool=x.pool,
                requestId=x.request_id,
            )
        if known is None:
            state = RequestState(owner.state).name
            raise WrongState(
                "NOT_DEAD_LETTERED",
                f"Request {x.request_id!r} is {state}.",
                pool=x.pool,
                requestId=x.request_id,
                state=state,
            )
        return pool


def _pause_of(pool: Pool, user_id: str) -> tuple[bool, int]:
    """Returns whether a pool, or a user of it, is paused, and until when (0 is without end)."""
    if not user_id:
        return pool.paused, pool.pause_until_ns
    settings = pool.settings.get(user_id, _NO_SETTINGS)
    return settings.paused, settings.pause_until_ns
