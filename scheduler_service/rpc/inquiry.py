"""`GetRequest`: where a request is, why it still waits, and waiting for that to change."""

import asyncio

from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.application import Application
from scheduler_service.app.limits import DEADLINE_MARGIN_NS, WAIT_DURATION_NS_MAX
from scheduler_service.app.readiness import Phase
from scheduler_service.core.admission import pool_named
from scheduler_service.core.decisions import RequestState
from scheduler_service.core.errors import Unknown
from scheduler_service.core.flows import remembered
from scheduler_service.core.gone import Gone
from scheduler_service.core.outlook import why_waiting
from scheduler_service.core.policy import SECOND_NS
from scheduler_service.core.request import Request
from scheduler_service.core.state import Pool
from scheduler_service.rpc import convert
from scheduler_service.rpc.calls import Context, peer_of, remaining_ns
from scheduler_service.rpc.convert import number
from scheduler_service.rpc.finishing import Finishing
from scheduler_service.rpc.identity import Identity
from scheduler_service.rpc.validate import Checks

_STATES = frozenset(int(value) for value in RequestState)
_WAITS = {RequestState.WAITING, RequestState.REDELIVERY}


def find_request(app: Application, pool_name: str, request_id: str) -> Request | Gone:
    """Returns a request that is alive, dead-lettered or remembered.

    Raises:
        Unknown: POOL_UNKNOWN, REQUEST_UNKNOWN.
    """
    pool = pool_named(app.engine.state, pool_name)
    found = (
        pool.requests.get(request_id)
        or pool.dead.get(request_id)
        or remembered(pool, request_id, app.engine.now_ns())
    )
    if found is None:
        raise Unknown(
            "REQUEST_UNKNOWN",
            f"There is no request {request_id!r} in pool {pool_name!r}.",
            pool=pool_name,
            requestId=request_id,
        )
    return found


def state_of(pool: Pool, request: Request | Gone) -> RequestState:
    """Returns where a request is."""
    return RequestState.DEAD_LETTERED if request.request_id in pool.dead else request.state


class Inquiry:
    """Answers questions about one request.

    Args:
        app: The use cases.
        finishing: Knows who may see which request.
    """

    def __init__(self, app: Application, finishing: Finishing) -> None:
        self._app = app
        self._finishing = finishing

    async def get_request(
        self, x: pb.GetRequestRequest, context: Context, caller: Identity
    ) -> pb.GetRequestResponse:
        """Returns where a request is; waits for a change first, if asked to.

        Raises:
            InvalidCommand: Names every bad field.
            Denied: POOL_DENIED.
            Unknown: POOL_UNKNOWN, REQUEST_UNKNOWN.
            LimitReached: CALLS_PARKED_FULL.
        """
        checks = Checks()
        checks.id("pool", x.pool)
        checks.id("request_id", x.request_id)
        wait_ns = 0
        if x.HasField("wait_duration"):
            limit = WAIT_DURATION_NS_MAX
            wait_ns = checks.duration("wait_duration", x.wait_duration, 0, limit)
        checks.enum("known_state", x.known_state, _STATES)
        checks.done()
        caller.require_pool(x.pool)
        self._finishing.require_request(caller, x.pool, x.request_id)
        found = find_request(self._app, x.pool, x.request_id)
        if wait_ns:
            left = remaining_ns(context)
            if left is not None:
                wait_ns = min(wait_ns, left - DEADLINE_MARGIN_NS)
        if wait_ns > 0 and self._is_as_known(x, found):
            await self._changed(x, context, caller, wait_ns)
            self._finishing.require_request(caller, x.pool, x.request_id)
        reply = self._answer(x)
        await self._app.engine.durable()
        return reply

    def _is_as_known(self, x: pb.GetRequestRequest, found: Request | Gone) -> bool:
        """Whether there is nothing to tell yet; what has ended for good never changes."""
        if isinstance(found, Gone):
            return False
        pool = self._app.engine.state.pools[x.pool]
        state = state_of(pool, found)
        return not x.known_state or int(x.known_state) == int(state)

    async def _changed(
        self, x: pb.GetRequestRequest, context: Context, caller: Identity, wait_ns: int
    ) -> None:
        """Waits until the request is in another state, or the time is over."""
        app = self._app
        peer = peer_of(context, caller)
        pool = app.engine.state.pools[x.pool]
        before = state_of(pool, find_request(app, x.pool, x.request_id))
        event = asyncio.Event()
        app.slots.take_call(peer)
        app.watch.watch(x.pool, x.request_id, event.set)
        timer = asyncio.get_running_loop().call_later(wait_ns / SECOND_NS, event.set)
        deadline_ns = app.engine.now_ns() + wait_ns
        try:
            while app.readiness.phase is not Phase.DRAINING:
                await event.wait()
                event.clear()
                now = state_of(pool, find_request(app, x.pool, x.request_id))
                if now is not before or app.engine.now_ns() >= deadline_ns:
                    return
        finally:
            timer.cancel()
            app.watch.unwatch(x.pool, x.request_id, event.set)
            app.slots.free_call(peer)

    def _answer(self, x: pb.GetRequestRequest) -> pb.GetRequestResponse:
        """Makes the answer; it may be told when what it shows is durable."""
        app = self._app
        state = app.engine.state
        pool = state.pools.get(x.pool) or pool_named(state, x.pool)
        found = find_request(app, x.pool, x.request_id)
        if isinstance(found, Gone):
            return pb.GetRequestResponse(request=convert.gone_message(pool, found))
        reply = pb.GetRequestResponse(request=convert.request_message(state, pool, found))
        if found.state in _WAITS and state_of(pool, found) in _WAITS:
            reply.wait.CopyFrom(self._why(pool, found))
        return reply

    def _why(self, pool: Pool, request: Request) -> pb.WaitInfo:
        app = self._app
        now_ns = app.engine.now_ns()
        why = why_waiting(app.engine.state, pool, request, now_ns, app.waiters.offers(pool.name))
        message = pb.WaitInfo(
            cause=number(why.cause),
            requests_ahead=why.ahead.requests,
            users_ahead=why.ahead.users,
            meter_micros=why.meter,
            virtual_time_micros=why.virtual_time,
            smallest_meter_micros=why.smallest_meter,
            aged=why.aged,
            short_admission_count=why.short_admission_count,
            promotion_debt=why.promotion_debt,
            blocked_by=why.blocked_by,
            description=why.description,
        )
        wait_ns = app.forecast.expected_wait_ns(pool, why.ahead.requests, now_ns)
        if wait_ns >= 0:
            message.expected_wait.CopyFrom(convert.duration(wait_ns))
        if why.slack >= 0:
            message.slack_micros = why.slack
        if why.threshold_ns >= 0:
            message.aging_threshold.CopyFrom(convert.duration(why.threshold_ns))
        for cause, blocked_ns in app.blocked.of(pool, request, now_ns).items():
            message.blocked.add(
                cause=int(cause),
                duration=convert.duration(blocked_ns),
            )
        return message
