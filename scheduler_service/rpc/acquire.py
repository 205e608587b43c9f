"""`Acquire`: enqueue a request and wait for its turn in one server stream.

1. The request is accepted, or found; in the same turn the call begins to attend it.
2. Whenever something happens to it, the call says so, once that is durable.
3. The outlook of waiting calls is looked at now and then, a bounded number of calls a second.
4. The call that leaves while it waits cancels its request (`app.attendance`).
"""

import asyncio

from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.application import Application
from scheduler_service.app.limits import DEADLINE_MARGIN_NS, MAX_WAIT_NS_MIN
from scheduler_service.app.readiness import Phase
from scheduler_service.app.request_watch import Wake
from scheduler_service.core.errors import NotReady
from scheduler_service.rpc import convert
from scheduler_service.rpc.calls import Context, Runtime, peer_of, remaining_ns
from scheduler_service.rpc.events import Event, Follower
from scheduler_service.rpc.identity import Identity
from scheduler_service.rpc.intake import Intake
from scheduler_service.rpc.pulling import check_lease_duration
from scheduler_service.rpc.validate import Checks

REFRESH_SECONDS = 1.0
REFRESHES_AT_ONCE = 50
"""An outlook costs up to a millisecond: so many are looked at each time, in rotation."""

HANG_UP_SECONDS = 1.0
"""How long the transport may take to say what became of a message to a caller that has left."""


class Refresher:
    """Wakes calls that wait, in rotation, so that they look at their outlook."""

    def __init__(self) -> None:
        self._waiting: dict[Wake, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, wake: Wake) -> None:
        """Calls `wake` now and then, until it is removed."""
        self._waiting[wake] = None
        if self._timer is None:
            self._arm()

    def remove(self, wake: Wake) -> None:
        """Calls `wake` no more."""
        self._waiting.pop(wake, None)

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(REFRESH_SECONDS, self._refresh)

    def _refresh(self) -> None:
        self._timer = None
        for wake in list(self._waiting)[:REFRESHES_AT_ONCE]:
            del self._waiting[wake]
            self._waiting[wake] = None
            wake()
        if self._waiting:
            self._arm()


class Acquiring:
    """Serves `Acquire`."""

    def __init__(self, app: Application, runtime: Runtime, intake: Intake) -> None:
        self._app = app
        self._runtime = runtime
        self._intake = intake
        self.refresher = Refresher()

    async def acquire(self, x: pb.AcquireRequest, context: Context, caller: Identity) -> None:
        """Accepts a request and says what happens to it until the caller has what it needs.

        Raises:
            InvalidCommand: Names every bad field.
            LimitReached: CALLS_PARKED_FULL, and as for `Enqueue`.
            NotReady: DRAINING, LOG_STALLED.
        """
        app = self._app
        checks = Checks()
        lease_ns = check_lease_duration(x, checks)
        if not x.HasField("request"):
            checks.bad("request", "is required")
        checks.done()
        left = remaining_ns(context)
        limit_ns = 0 if left is None else max(left - DEADLINE_MARGIN_NS, MAX_WAIT_NS_MIN)
        peer = peer_of(context, caller)
        app.slots.take_call(peer)
        try:
            accepted = pb.EnqueueResponse()
            self._intake.accept(
                x.request,
                caller,
                accepted,
                path="request.",
                caller_bound=True,
                wait_limit_ns=limit_ns,
            )
            pool, request_id = x.request.pool, x.request.request_id
            follower = Follower(app, pool, request_id, accepted, lambda: lease_ns)
            await self._attend(pool, request_id, follower, context)
        finally:
            app.slots.free_call(peer)

    async def _attend(
        self, pool: str, request_id: str, follower: Follower, context: Context
    ) -> None:
        app = self._app
        event = asyncio.Event()

        def woken() -> None:
            follower.woken()
            event.set()

        app.attendance.attend(pool, request_id)
        app.watch.watch(pool, request_id, woken)
        self.refresher.add(event.set)
        gone = True
        try:
            await self._tell(follower, event, context)
            gone = False
        finally:
            self.refresher.remove(event.set)
            app.watch.unwatch(pool, request_id, woken)
            app.attendance.leave(pool, request_id, gone=gone, lease_id=follower.undelivered)

    async def _tell(self, follower: Follower, event: asyncio.Event, context: Context) -> None:
        """Sends what is new until there is nothing more to wait for."""
        app = self._app
        await asyncio.sleep(0)  # a worker that waits takes it now: then it never was in a queue
        while True:
            news = follower.news()
            if news is not None:
                await app.engine.durable()
                await say(context, self._message(news), news, follower)
                if news.last:
                    return
                if news.granted is not None:
                    continue
            if app.readiness.phase is Phase.DRAINING:
                raise NotReady("DRAINING", "The service is stopping.")
            await event.wait()
            event.clear()

    def _message(self, news: Event) -> pb.AcquireResponse:
        if news.granted is not None:
            now_ns = self._app.engine.now_ns()
            news.granted.lease_duration.CopyFrom(convert.time_left(news.expire_ns, now_ns))
            return pb.AcquireResponse(granted=news.granted)
        return pb.AcquireResponse(queued=news.queued, ended=news.ended)


async def say(
    context: Context, message: pb.AcquireResponse, news: Event, follower: Follower
) -> None:
    """Sends one event, and knows whether it went out even if the caller leaves over it.

    A caller may hang up as soon as it has its turn, before the transport has told us that the
    message went out.  Its turn is not lost for that.
    """
    writing = asyncio.ensure_future(context.write(message))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        done, _ = await asyncio.wait({writing}, timeout=HANG_UP_SECONDS)
        if done and not writing.cancelled() and writing.exception() is None:
            follower.sent(news)
        writing.cancel()
        raise
    follower.sent(news)
