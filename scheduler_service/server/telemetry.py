"""What operators see of one service: metrics, the HTTP port, the published head of the log."""

from scheduler_service.app.application import Application
from scheduler_service.app.clock import monotonic_ns
from scheduler_service.app.observation import Observation
from scheduler_service.app.ports import Reporter
from scheduler_service.app.readiness import Readiness
from scheduler_service.config import Settings, split_address
from scheduler_service.core.policy import SECOND_NS
from scheduler_service.obs.http import Health, HttpServer
from scheduler_service.obs.logging import Log
from scheduler_service.obs.metrics import Metrics, Sources
from scheduler_service.server.listening import AddressTakenError
from scheduler_service.server.watchdog import Watchdog

HEAD_EVERY_NS = 600 * SECOND_NS
"""How often sequence and hash of the log's end are written down, if it has grown."""


class Telemetry:
    """Shows one service to operators.

    Args:
        settings: Checked settings.
        readiness: Whether calls can be answered.
        report: Receives the published heads.
        log: Where log lines go, if it is ours.

    Attributes:
        metrics: The observer of the servicers.
    """

    def __init__(
        self,
        settings: Settings,
        readiness: Readiness,
        report: Reporter,
        log: Log | None = None,
    ) -> None:
        self._settings = settings
        self._readiness = readiness
        self._report = report
        self._log = log
        self._seen: Observation | None = None
        self._head_ns = monotonic_ns()
        self._head_sequence = -1
        self.metrics = Metrics(
            readiness,
            dropped_lines=lambda: 0 if log is None else log.dropped,
            users_max=settings.metrics_users,
            mask=str if log is None else log.mask,
        )
        self._http = HttpServer(self._health, self.metrics.page)

    async def listen(self) -> int:
        """Serves the HTTP port and returns it; 0 if there is to be none.

        Raises:
            AddressTakenError: It cannot listen there.
        """
        address = self._settings.http_listen
        if not address:
            return 0
        try:
            return await self._http.start(*split_address(address))
        except OSError as error:
            message = f"cannot listen at {address}: {error}"
            raise AddressTakenError(message) from error

    def attach(
        self, app: Application, seen: Observation, watchdog: Watchdog, violations_before: int
    ) -> None:
        """Begins to show a service whose log has been replayed.

        Args:
            app: The use cases.
            seen: What happened.
            watchdog: Knows how late the loop was.
            violations_before: Broken laws that earlier processes found.
        """
        self._seen = seen
        self.metrics.attach(Sources(app, seen, lambda: watchdog.longest_lag_ns, violations_before))

    def set_level(self, level: str) -> None:
        """Changes the least important level of log lines."""
        if self._log is not None:
            self._log.set_level(level)

    def publish_head(self) -> None:
        """Writes down where the log ends, every now and then; to be called once a second.

        Whoever keeps these lines can tell later that the log was cut off or written anew.
        """
        now_ns = monotonic_ns()
        if self._seen is None or now_ns - self._head_ns < HEAD_EVERY_NS:
            return
        self._head_ns = now_ns
        newest = self._seen.log.head().newest
        if newest.sequence != self._head_sequence:
            self._head_sequence = newest.sequence
            self._report(
                "log.head_published",
                sequence=newest.sequence,
                chain_hash=newest.chain_hash.hex(),
            )

    async def close(self) -> None:
        """Stops serving the HTTP port."""
        await self._http.close()

    def _health(self) -> Health:
        readiness = self._readiness
        if self._seen is None:
            return Health(readiness.ready, readiness.phase.value, readiness.problems, "", 0, "")
        newest = self._seen.log.head().newest
        return Health(
            readiness.ready,
            readiness.phase.value,
            readiness.problems,
            str(self._seen.store.durability),
            newest.sequence,
            newest.chain_hash.hex(),
        )
