"""`WorkerSession`: register, take, renew and complete over one stream.

The first message opens a session or resumes one.  Whatever comes later, in one message:
completions, renewals, what the worker can take, credits; then the core is asked for as much as
there are credits.  With credits left the stream waits like a parked `NextDispatch`.

Any message confirms what was given out before it.  When the stream ends, what was not confirmed
goes back at once; the session and its other leases live on and can be resumed.  The first message
of a resumed session names in `renewals` every lease the worker holds: a lease of the session that
it does not know of was lost on the way, and goes back too.
"""

from collections.abc import Iterable

from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.application import Application
from scheduler_service.app.limits import BATCH_MAX
from scheduler_service.app.waiters import Parked
from scheduler_service.app.workers import give_back, lost_leases
from scheduler_service.core import answers as a
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.errors import SchedulerError, Superseded
from scheduler_service.rpc.calls import Context, Runtime
from scheduler_service.rpc.convert import number
from scheduler_service.rpc.delivery import DISPATCH_BYTES, Delivery, split
from scheduler_service.rpc.finishing import Completions, Finishing
from scheduler_service.rpc.fleet import Fleet
from scheduler_service.rpc.identity import Identity
from scheduler_service.rpc.offers import RunningOffer
from scheduler_service.rpc.pulling import require_pull, stalled_by
from scheduler_service.rpc.renewing import Renewing
from scheduler_service.rpc.streams import Stream, serve
from scheduler_service.rpc.validate import nanoseconds
from scheduler_service.rpc.worker_message import check_message, is_usual
from scheduler_service.rpc.worker_turn import Turn

_NONE, _DRAINING = d.EmptyReason.NONE, d.EmptyReason.DRAINING


class _News:
    """What there is to say to a worker."""

    __slots__ = ("any", "deliveries", "reply")

    def __init__(self) -> None:
        self.reply = pb.WorkerSessionResponse()
        self.deliveries: list[Delivery] = []
        self.any = False


class WorkerSessions:
    """Serves `WorkerSession`."""

    def __init__(
        self,
        app: Application,
        runtime: Runtime,
        finishing: Finishing,
        renewing: Renewing,
        fleet: Fleet,
    ) -> None:
        self.open: dict[str, WorkerStream] = {}
        self.turn = Turn(finishing)
        self.app = app
        self.runtime = runtime
        self.finishing = finishing
        self.renewing = renewing
        self.fleet = fleet

    async def serve(self, context: Context, caller: Identity) -> None:
        """Serves one stream until it ends."""
        await serve(WorkerStream(self, context, caller), self.runtime, context)


class WorkerStream(Stream[pb.WorkerSessionRequest, _News]):
    """One open session of a worker."""

    def __init__(self, desk: WorkerSessions, context: Context, caller: Identity) -> None:
        super().__init__(desk.app, context, caller)
        self._desk = desk
        self._key = ""
        self._pools: tuple[str, ...] = ()
        self._offer = RunningOffer()
        self._credits = 0
        self._lease_ns = 0
        self._brief = False
        self._news = _News()
        self._sending: _News | None = None
        self._parked: Parked | None = None
        self._told_reason = _NONE
        self._told_cancelled: set[str] = set()

    # -- reading ------------------------------------------------------------------------------

    def take(self, message: pb.WorkerSessionRequest) -> int:
        """Has one message of the worker decided, with those of others that come in this turn."""
        count = len(message.completions)
        self._brief = self._brief or message.brief_results
        if self._key and is_usual(message, self._credits):
            self._require_current()
            self._desk.turn.add(self, message)
            return count
        self._desk.turn.decide()  # what came before this, of whomever
        first = not self._key
        check_message(message, self._key, self._credits, self._desk.renewing)
        if first:
            self._open(message)
        self._require_current()
        completions = self.begin(message)
        if completions is not None:
            self._desk.finishing.complete_all([completions])
        self._take_unusual(message, first=first)
        self.go_on(message)
        return count + len(message.renewals)

    def begin(self, message: pb.WorkerSessionRequest) -> Completions | None:
        """Begins with a message; returns its completions."""
        completions = message.completions
        if not completions:
            return None
        self._news.any = True
        self._offer.give(completions)
        reply = self._news.reply
        brief = reply if self._brief else None
        return Completions(reply.completion_results, completions, self.caller, self._key, brief)

    def go_on(self, message: pb.WorkerSessionRequest) -> None:
        """Goes on with a message after its completions."""
        worker = self.app.workers.session(self._key)
        if message.drain and not worker.draining:
            self.app.workers.drain([self._key], self.caller.name)
        self._credits += message.credits
        self._tell_cancelled()
        if self._credits > 0:
            self._ask()
        elif worker.provisional:
            self.app.engine.apply(self._command(0))

    def _take_unusual(self, message: pb.WorkerSessionRequest, *, first: bool) -> None:
        """Takes what few messages state: a lease duration, renewals, an offer."""
        if message.HasField("lease_duration"):
            self._lease_ns = nanoseconds(message.lease_duration)
        if message.renewals:
            renewed = self._desk.renewing.renew(
                message.renewals, self.caller, worker=self._key, lease_duration_ns=self._lease_ns
            )
            self._news.reply.renewal_results.extend(renewed)
            self._news.any = True
        if message.session_id and first:
            self._reconcile(message)
        if message.HasField("offer"):
            self._offer.state(message.offer)

    def _open(self, x: pb.WorkerSessionRequest) -> None:
        """Opens or resumes the session."""
        reply = self._news.reply
        if x.HasField("register"):
            answer = self._desk.fleet.register(x.register, self.caller, path="register.")
            reply.registered.CopyFrom(answer)
            key = answer.session_id
        else:
            key = x.session_id
            worker = self.app.workers.session(key)
            self.app.workers.require_current(worker)
            for pool in worker.pools:
                self.caller.require_pool(pool)
            require_pull(self.app, worker.pools)
            reply.registered.CopyFrom(self._desk.fleet.resumed(worker))
        self._news.any = True
        worker = self.app.workers.session(key)
        self._key, self._pools, self._offer = key, worker.pools, RunningOffer(worker.offer)
        before = self._desk.open.get(key)
        if before is not None:
            sentence = "Another stream has resumed the session."
            before.end(Superseded("SESSION_SUPERSEDED", sentence))
        self._desk.open[key] = self
        self.app.presence.enter(self, self._command(0))
        self.app.workers.on_change[key] = self._changed

    def _require_current(self) -> None:
        """Checks that the session is still the newest one of its worker."""
        self.app.workers.require_current(self.app.workers.session(self._key))

    def _reconcile(self, x: pb.WorkerSessionRequest) -> None:
        """Gives back the leases of a resumed session that its worker never got."""
        known = {item.lease_id for item in x.renewals}
        give_back(self.app.engine, lost_leases(self.app.engine.state, self._key, known))

    def _changed(self) -> None:
        """Looks at what has changed about the worker, in the turn of the decision."""
        self._tell_cancelled()
        self.wake()
        self.loop.call_soon(self._ask_again)

    def _tell_cancelled(self) -> None:
        """Tells the worker which of its requests to stop, each once."""
        cancelled = self.app.workers.cancelled(self._key)
        if not cancelled and not self._told_cancelled:
            return
        fresh = [lease_id for lease_id in cancelled if lease_id not in self._told_cancelled]
        self._told_cancelled.intersection_update(cancelled)
        self._told_cancelled.update(fresh)
        if fresh:
            self._news.reply.cancelled_lease_ids.extend(fresh)
            self._news.any = True

    # -- asking -------------------------------------------------------------------------------

    def _command(self, count: int) -> c.NextDispatch:
        engine, pools = self.app.engine, self._pools
        if len(pools) > 1:
            pools = self.app.workers.rotated(self._key, pools)
        return c.NextDispatch(
            now_ns=engine.now_ns(),
            nonce=engine.nonce(),
            peer=self.caller.name,
            pools=pools,
            worker=self._key,
            offer=self._offer.now,
            max_dispatches=min(count, BATCH_MAX),
            lease_duration_ns=self._lease_ns,
        )

    def _ask(self) -> None:
        """Asks for as much as there are credits, a batch a turn; waits for the rest."""
        self._unpark()
        asked = min(self._credits, BATCH_MAX)
        answer: a.Dispatches = self.app.engine.apply(self._command(asked))
        self.app.blocked.misfits.asked(self._key, self._pools, answer)
        self._answered(answer)
        if len(answer.granted) < asked:
            self._park(answer)
        elif self._credits > 0:
            self.loop.call_soon(self._ask_again)

    def _ask_again(self) -> None:
        """Asks for what the last batch left, or since what the worker is told may have changed."""
        if self._credits == 0 or self._desk.open.get(self._key) is not self:
            return
        try:
            self._ask()
        except SchedulerError as error:
            self.end(error)
        self.wake()

    def _answered(self, answer: a.Dispatches) -> None:
        news = self._news
        if answer.granted:
            self._offer.take(answer.granted)
            delivery = Delivery(self.app.engine, answer, news.reply.dispatches)
            news.deliveries.append(delivery)
            news.any = True
            self._credits -= len(answer.granted)
        if answer.empty_reason is not self._told_reason:
            self._told_reason = answer.empty_reason
            news.reply.empty_reason = number(answer.empty_reason)
            news.reply.stalled_request_id = stalled_by(self.app, self._pools, self._key, answer)
            news.any = news.any or answer.empty_reason is not _NONE

    def _park(self, answer: a.Dispatches) -> None:
        if answer.empty_reason is _DRAINING:
            return
        self._parked = Parked(
            self._key,
            self._pools,
            self._offer.now,
            lambda: self._command(self._credits),
            self._granted,
            self.end,
            self._missed,
        )
        self.app.waiters.park(self._parked)

    def _unpark(self) -> None:
        if self._parked is not None:
            self.app.waiters.unpark(self._parked)
            self._parked = None

    def _granted(self, answer: a.Dispatches) -> None:
        """Takes what was granted while the stream waited, in the turn of the grant."""
        self._parked = None
        self._answered(answer)
        if self._credits > 0 and answer.empty_reason is _NONE:
            self.loop.call_soon(self._ask_again)
        elif self._credits > 0:
            self._park(answer)
        self.wake()

    def _missed(self, answer: a.Dispatches) -> None:
        """Takes note of why a stream that waits got nothing."""
        self._answered(answer)
        self.wake()

    # -- writing ------------------------------------------------------------------------------

    def has_news(self) -> bool:
        """Whether there is something to say."""
        return self._news.any

    def collect(self) -> _News:
        """Returns what there is to say."""
        news, self._news = self._news, _News()
        self._sending = news
        return news

    def sent(self, _news: _News, /) -> None:
        """Takes note that all of it was handed to the transport."""
        self._sending = None

    def messages(self, news: _News) -> Iterable[pb.WorkerSessionResponse]:
        """Returns the messages that say it, none of them too large."""
        for delivery in news.deliveries:
            delivery.fill()
        if any(delivery.with_payloads for delivery in news.deliveries):
            return split(news.reply, DISPATCH_BYTES)
        return (news.reply,)

    def close(self) -> None:
        """Gives back what was not confirmed; the session lives on."""
        self._unpark()
        key = self._key
        if not key:
            return
        self.app.presence.leave(self, key)
        if self._desk.open.get(key) is self:
            del self._desk.open[key]
            self.app.workers.on_change.pop(key, None)
        if self.app.engine.failed is None:
            give_back(self.app.engine, self._unreceived())

    def _unreceived(self) -> list[str]:
        """Returns leases that were not confirmed, or were never sent whatever was confirmed."""
        worker = self.app.engine.state.workers.get(self._key)
        found = {} if worker is None else dict.fromkeys(worker.provisional)
        sending = [] if self._sending is None else self._sending.deliveries
        for delivery in (*self._news.deliveries, *sending):
            delivery.abandon()
            found.update(dict.fromkeys(delivery.lease_ids))
        return list(found)
