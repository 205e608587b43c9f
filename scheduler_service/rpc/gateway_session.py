"""`GatewaySession`: enqueue, wait for turns, renew, complete and cancel over one stream.

Results come in the order of their items.  What happens to requests that were enqueued with
`acquire` comes as events, each against one credit; of a request only the latest is told, so however
few credits there are, nothing piles up.

When the stream ends, a request whose turn it was waiting for is treated like one whose `Acquire`
was dropped: it is cancelled, unless another call waits for it too.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.application import Application
from scheduler_service.core.errors import SchedulerError
from scheduler_service.rpc import convert
from scheduler_service.rpc.acquire import Refresher
from scheduler_service.rpc.calls import Context, Runtime, peer_of
from scheduler_service.rpc.events import Event, Follower
from scheduler_service.rpc.finishing import Completions, Finishing
from scheduler_service.rpc.gateway_message import check_message, is_usual
from scheduler_service.rpc.identity import Identity
from scheduler_service.rpc.intake import Intake
from scheduler_service.rpc.renewing import Renewing
from scheduler_service.rpc.streams import Stream, serve
from scheduler_service.rpc.validate import nanoseconds

EVENTS_AT_ONCE = 1000
"""Events of one message."""

LEAVES_PER_TURN = 200
"""Requests of a stream that has ended that are left at once; leaving may cancel them."""

_Key = tuple[str, str]


@dataclass(slots=True)
class _Followed:
    """A request whose turn the gateway waits for.

    Attributes:
        follower: Says what is new about it.
        wake: Called when something is.
    """

    follower: Follower
    wake: Callable[[], None]


class _News:
    """What there is to say to a gateway."""

    __slots__ = ("any", "events", "reply")

    def __init__(self) -> None:
        self.reply = pb.GatewaySessionResponse()
        self.events: list[tuple[_Key, Event]] = []
        self.any = False


class GatewaySessions:
    """Serves `GatewaySession`."""

    def __init__(
        self,
        app: Application,
        runtime: Runtime,
        intake: Intake,
        finishing: Finishing,
        renewing: Renewing,
        refresher: Refresher,
    ) -> None:
        self.app = app
        self.runtime = runtime
        self.intake = intake
        self.finishing = finishing
        self.renewing = renewing
        self.refresher = refresher

    async def serve(self, context: Context, caller: Identity) -> None:
        """Serves one stream until it ends."""
        await serve(GatewayStream(self, context, caller), self.runtime, context)


class GatewayStream(Stream[pb.GatewaySessionRequest, _News]):
    """One open session of a gateway."""

    def __init__(self, desk: GatewaySessions, context: Context, caller: Identity) -> None:
        super().__init__(desk.app, context, caller)
        self._desk = desk
        self._peer = peer_of(context, caller)
        self._credits = 0
        self._lease_ns = 0
        self._brief = False
        self._news = _News()
        self._followed: dict[_Key, _Followed] = {}
        self._changed: dict[_Key, None] = {}

    # -- reading ------------------------------------------------------------------------------

    def take(self, message: pb.GatewaySessionRequest) -> int:
        """Decides one message of the gateway, in one turn."""
        if not is_usual(message, self._credits):
            check_message(message, self._credits, self._desk.renewing)
        reply, finishing = self._news.reply, self._desk.finishing
        self._brief = self._brief or message.brief_results
        if message.HasField("lease_duration"):
            self._lease_ns = nanoseconds(message.lease_duration)
        if message.enqueues:
            self.app.engine.gather(lambda: self._enqueue_all(message.enqueues))
        if message.completions:
            brief = reply if self._brief else None
            results = reply.completion_results
            completions = Completions(results, message.completions, self.caller, "", brief)
            finishing.complete_all([completions])
        if message.cancels:
            reply.cancel_results.extend(finishing.cancel_results(message.cancels, self.caller))
        if message.renewals:
            renewed = self._desk.renewing.renew(
                message.renewals, self.caller, worker="", lease_duration_ns=self._lease_ns
            )
            reply.renewal_results.extend(renewed)
        self._credits += message.credits
        count = (
            len(message.enqueues)
            + len(message.completions)
            + len(message.cancels)
            + len(message.renewals)
        )
        self._news.any = self._news.any or count > 0
        return count

    def _enqueue_all(self, items: Iterable[pb.SessionEnqueue]) -> None:
        results = self._news.reply.enqueue_results
        for index, item in enumerate(items):
            self._enqueue(item, results.add(), index)

    def _enqueue(self, item: pb.SessionEnqueue, result: pb.EnqueueResult, index: int) -> None:
        try:
            if item.acquire:
                self._acquire(item.request, result.response)
            else:
                self._desk.intake.accept(
                    item.request, self.caller, result.response, outlook=not self._brief
                )
        except SchedulerError as error:
            path = f"enqueues[{index}].request."
            result.error.CopyFrom(self._desk.finishing.item_error("Enqueue", error, path))

    def _acquire(self, request: pb.EnqueueRequest, response: pb.EnqueueResponse) -> None:
        key = (request.pool, request.request_id)
        known = key in self._followed
        if not known:
            self.app.slots.take_call(self._peer)
        try:
            self._desk.intake.accept(request, self.caller, response, caller_bound=True)
        except SchedulerError:
            if not known:
                self.app.slots.free_call(self._peer)
            raise
        if not known:
            self._follow(key, response)

    def _follow(self, key: _Key, accepted: pb.EnqueueResponse) -> None:
        pool, request_id = key
        follower = Follower(self.app, pool, request_id, accepted, lambda: self._lease_ns)

        def wake() -> None:
            if self._credits > 0:  # without, the latest is told when there are some again
                follower.woken()
            self._changed[key] = None
            self.wake()

        self._followed[key] = _Followed(follower, wake)
        self.app.attendance.attend(pool, request_id)
        self.app.watch.watch(pool, request_id, wake)
        self._desk.refresher.add(wake)
        # What the result of the enqueue says is not said again; what came before it is.
        if follower.primed():
            wake()

    def _leave(self, key: _Key, *, gone: bool) -> None:
        """Stops waiting for a request."""
        pool, request_id = key
        followed = self._followed.pop(key)
        self._changed.pop(key, None)
        self._desk.refresher.remove(followed.wake)
        self.app.watch.unwatch(pool, request_id, followed.wake)
        lost = followed.follower.undelivered if gone else ""
        self.app.attendance.leave(pool, request_id, gone=gone, lease_id=lost)
        self.app.slots.free_call(self._peer)

    # -- writing ------------------------------------------------------------------------------

    def has_news(self) -> bool:
        """Whether there is something to say."""
        return self._news.any or (self._credits > 0 and bool(self._changed))

    def collect(self) -> _News:
        """Returns what there is to say, with as many events as there are credits for."""
        news, self._news = self._news, _News()
        while self._changed and self._credits > 0 and len(news.events) < EVENTS_AT_ONCE:
            key = next(iter(self._changed))
            del self._changed[key]
            event = self._followed[key].follower.news()
            if event is not None:
                news.events.append((key, event))
                self._credits -= 1
                if event.granted is not None and not event.last:
                    self._changed[key] = None  # there may be more
        return news

    def messages(self, news: _News) -> tuple[pb.GatewaySessionResponse, ...]:
        """Returns the message that says it, if there is anything in it."""
        now_ns = self.app.engine.now_ns()
        for (pool, request_id), event in news.events:
            if event.granted is not None:
                event.granted.lease_duration.CopyFrom(convert.time_left(event.expire_ns, now_ns))
            news.reply.events.add(
                pool=pool,
                request_id=request_id,
                queued=event.queued,
                granted=event.granted,
                ended=event.ended,
            )
        return (news.reply,) if news.any or news.events else ()

    def sent(self, news: _News, /) -> None:
        """Takes note of what the gateway was told; what is over is not followed any more."""
        for key, event in news.events:
            followed = self._followed.get(key)
            if followed is not None:
                followed.follower.sent(event)
                if event.last:
                    self._leave(key, gone=False)

    def close(self) -> None:
        """Leaves every request whose turn the gateway was waiting for, so many a turn."""
        for key in list(islice(self._followed, LEAVES_PER_TURN)):
            self._leave(key, gone=True)
        if self._followed:
            self.loop.call_soon(self.close)
