"""The use cases of one running service, put together around its engine."""

from collections.abc import Callable
from dataclasses import dataclass, field

from scheduler_service.app.attendance import Attendance
from scheduler_service.app.blocked import Blocked
from scheduler_service.app.engine import Engine
from scheduler_service.app.limits import Limits
from scheduler_service.app.outlook import Forecast
from scheduler_service.app.presence import Presence
from scheduler_service.app.readiness import Readiness
from scheduler_service.app.request_watch import RequestWatch
from scheduler_service.app.retry_hints import RetryHints
from scheduler_service.app.slots import Slots
from scheduler_service.app.waiters import Waiters
from scheduler_service.app.workers import Workers
from scheduler_service.core.errors import LimitReached, NotReady


@dataclass(slots=True)
class Application:
    """What the servicers work with.

    Attributes:
        engine: The single writer.
        limits: What the operator set.
        readiness: Whether calls can be answered.
        waiters: Parked calls of `NextDispatch`.
        watch: Calls that wait for one request.
        workers: Sessions of workers.
        attendance: Callers of caller-bound requests.
        forecast: Positions and expected waits.
        blocked: For how long users and pools were held back.
        presence: Workers whose calls wait here.
        slots: How much callers hold open.
        hints: When refused callers should come back.
        space_low: Whether the disk has too little space to accept anything new.
        streams: Ends the sessions that are open, one function each.
    """

    engine: Engine
    limits: Limits
    readiness: Readiness
    waiters: Waiters
    watch: RequestWatch
    workers: Workers
    attendance: Attendance
    forecast: Forecast
    blocked: Blocked
    presence: Presence
    slots: Slots
    hints: RetryHints
    space_low: bool = False
    streams: set[Callable[[], None]] = field(default_factory=set)

    @classmethod
    def around(cls, engine: Engine, limits: Limits, readiness: Readiness) -> "Application":
        """Returns the use cases around `engine`; to be called on its loop."""
        blocked = Blocked(engine)
        # The order of listeners is the order in which they are told: a request whose caller has
        # gone is cancelled before waiting workers are served.
        return cls(
            engine=engine,
            limits=limits,
            readiness=readiness,
            watch=RequestWatch(engine),
            workers=Workers(engine),
            attendance=Attendance(engine),
            forecast=Forecast(engine),
            blocked=blocked,
            presence=Presence(engine),
            waiters=Waiters(engine, limits.parked_calls, blocked.misfits),
            slots=Slots(limits),
            hints=RetryHints(limits.retry_hint_seconds_max),
        )

    def drain(self) -> None:
        """Answers whoever waits: the service is stopping.

        Nothing is cancelled; callers come back and find their requests where they were.
        """
        self.attendance.close()
        stopping = NotReady("DRAINING", "The service is stopping.")
        for parked in self.waiters.drain():
            parked.refused(stopping)
        self.watch.wake_all()
        for stop in list(self.streams):
            stop()

    def require_space(self) -> None:
        """Checks that something new can be accepted.

        Raises:
            LimitReached: LOG_SPACE_LOW.
        """
        if self.space_low:
            raise LimitReached(
                "LOG_SPACE_LOW",
                "The disk of the decision log is nearly full; only running work goes on.",
                reserveBytes=self.limits.log_reserve_bytes,
            )
