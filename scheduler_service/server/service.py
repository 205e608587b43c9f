"""One running service: how its parts are put together, started and stopped.

Start:
    1. The data directory is locked, the ports are bound.   Another instance is refused here.
    2. gRPC serves; health says NOT_SERVING, calls are answered UNAVAILABLE (`REPLAYING`).
    3. The log is replayed on a thread.
    4. The engine starts; live leases are extended by the downtime; configuration is applied.
    5. Health says SERVING.

Stop:
    1. Health says NOT_SERVING; waiting calls are answered; nothing new is accepted.
    2. Running calls finish, within the grace time; watches of the health are cut off.
    3. What was decided is committed; a snapshot is made if the grace time allows.
    4. The directory is given up.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from fairsched.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    audit_service_pb2,
    audit_service_pb2_grpc,
    scheduler_service_pb2,
    scheduler_service_pb2_grpc,
)
from scheduler_service.app.application import Application
from scheduler_service.app.clock import SystemClock, monotonic_ns
from scheduler_service.app.engine import Engine
from scheduler_service.app.learning import Teacher
from scheduler_service.app.observation import Observation
from scheduler_service.app.ports import Group, Reporter, Store
from scheduler_service.app.readiness import Phase, Readiness
from scheduler_service.app.recovery import Recovery, check_payloads, recover
from scheduler_service.config import Settings
from scheduler_service.core import COMPILED
from scheduler_service.core import commands as c
from scheduler_service.core.policy import SECOND_NS
from scheduler_service.obs.logging import Log
from scheduler_service.rpc.admin_servicer import AdminServicer
from scheduler_service.rpc.audit_servicer import AuditServicer
from scheduler_service.rpc.calls import Observer, Runtime
from scheduler_service.rpc.health import Health
from scheduler_service.rpc.scheduler_servicer import SchedulerServicer
from scheduler_service.rpc.security import Access
from scheduler_service.server import listening, violations
from scheduler_service.server.ending import keep, last_snapshot, left_seconds
from scheduler_service.server.listening import Listening, Server
from scheduler_service.server.opening import (
    StoreOpener,
    credentials_of,
    open_sqlite,
    user_ids_of,
)
from scheduler_service.server.reloading import Configuration, Loader
from scheduler_service.server.telemetry import Telemetry
from scheduler_service.server.watchdog import Watchdog
from scheduler_service.store.directory import DataDirectory
from scheduler_service.store.schedule import SnapshotSchedule, SnapshotTriggers
from scheduler_service.store.snapshots import SnapshotFiles

_SCHEDULER = scheduler_service_pb2.DESCRIPTOR.services_by_name["SchedulerService"].full_name
_AUDIT = audit_service_pb2.DESCRIPTOR.services_by_name["AuditService"].full_name
_ADMIN = admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name
SERVICES = (_SCHEDULER, _AUDIT, _ADMIN)
"""Full names of the services."""

_PROGRESS_NS = 5 * SECOND_NS
_COME_BACK_SECONDS = 0.1
"""Callers who waited ask again at once: so long they are told DRAINING, not cut off by gRPC."""


@dataclass(slots=True)
class Running:
    """The parts that are there once the log has been replayed.

    Attributes:
        clock: Engine time, and how long nothing was recorded before.
        engine: The single writer.
        app: The use cases.
        teacher: Learns costs from usage.
        snapshots: Makes snapshots when they are due.
        watchdog: Says when work stands still.
    """

    clock: SystemClock
    engine: Engine
    app: Application
    teacher: Teacher
    snapshots: SnapshotSchedule
    watchdog: Watchdog


class Service:
    """A service in this process, on the running loop.

    Args:
        settings: Checked settings.
        report: Receives rare events.
        observer: Receives a measurement of every call, in the place of the metrics.
        open_store: Opens the store; tests may slow it down.
        log: What `report` writes to, if it is one of ours.

    Attributes:
        runtime: What the servicers share.
        running: The parts that a replayed log makes possible; None before.
        kept: Whether everything that was decided is kept; known once it has stopped.
    """

    def __init__(
        self,
        settings: Settings,
        report: Reporter,
        observer: Observer | None = None,
        open_store: StoreOpener = open_sqlite,
        log: Log | None = None,
    ) -> None:
        self.running: Running | None = None
        self.kept = True
        self._stopping = False
        self._settings = settings
        self._report = report
        self._directory = DataDirectory(settings.data_dir)
        self._open_store = open_store
        self._store: Store | None = None
        self._servers: list[Server] = []
        self._tasks: list[asyncio.Task[Any]] = []
        user_ids = user_ids_of(settings)
        access = Access(settings.credentials_file, report, user_ids.check)
        self.runtime = Runtime(access, Readiness(), report, user_ids=user_ids)
        self._telemetry = Telemetry(settings, self.runtime.readiness, report, log)
        self.runtime.observer = observer or self._telemetry.metrics
        self._health = Health(self.runtime.readiness, SERVICES)
        self._configuration = Configuration(settings, self._directory.path, report)

    # -- start --------------------------------------------------------------------------------

    async def listen(self) -> Listening:
        """Locks the data directory and serves, not ready yet; returns where.

        Raises:
            StoreError: The data directory cannot be used.
            AddressTakenError: An address cannot be listened at.
            TlsError, OSError: The certificate cannot be used.
        """
        self._store = self._open_store(self._directory, self._settings, self._report)
        if self._directory.open_to_others():
            self._report("data.open_to_others", directory=str(self._directory.path))
        settings, report = self._settings, self._report
        credentials = credentials_of(settings, report)
        main = self._server()
        scheduler = SchedulerServicer(self.runtime)
        scheduler_service_pb2_grpc.add_SchedulerServiceServicer_to_server(scheduler, main)
        operators = self._server() if settings.admin_listen else main
        audit_service_pb2_grpc.add_AuditServiceServicer_to_server(
            AuditServicer(self.runtime), operators
        )
        admin_service_pb2_grpc.add_AdminServiceServicer_to_server(
            AdminServicer(self.runtime), operators
        )
        port = listening.bind(main, settings.listen, credentials, report)
        admin_port = port
        if operators is not main:
            admin_port = listening.bind(operators, settings.admin_listen, credentials, report)
        await self._health.start()
        for server in self._servers:
            self._health.add_to(server)
            if settings.reflection:
                listening.add_reflection(server, _services_at(server, main, operators))
            if settings.channelz:
                listening.add_channelz(server, report)
            await server.start()
        http_port = await self._telemetry.listen()
        found = Listening(port, admin_port, http_port)
        report("service.listening", port=port, admin_port=admin_port, http_port=http_port)
        return found

    def _server(self) -> Server:
        server = listening.make_server(self._settings)
        self._servers.append(server)
        return server

    async def recover(self) -> Running:
        """Replays the log and begins to serve.

        Raises:
            StoreDamaged: The log cannot be replayed.
            ConfigRefused: The configuration cannot be applied as a whole.
            NotReady: LOG_STALLED.
        """
        store = self._store
        assert store is not None  # noqa: S101 - listen() comes first
        began_ns = monotonic_ns()
        recovery = await asyncio.to_thread(self._recover, store)
        self._report(
            "log.replayed",
            sequence=recovery.position.sequence,
            chain_hash=recovery.position.chain_hash.hex(),
            from_snapshot=recovery.from_snapshot,
            replayed=recovery.replayed,
            cut_from=recovery.cut_from,
            duration_ns=monotonic_ns() - began_ns,
        )
        running = self._assemble(recovery, store)
        self.running = running
        try:
            await self._begin(running, recovery)
        finally:
            violations.keep(self._directory.path, running.engine, self._report)
        return running

    def _recover(self, store: Store) -> Recovery:
        """Replays the log, on a thread."""
        told_ns = monotonic_ns()

        def progress(reached: int, head: int) -> None:
            nonlocal told_ns
            if monotonic_ns() - told_ns >= _PROGRESS_NS:
                told_ns = monotonic_ns()
                self._report("log.replaying", sequence=reached, head=head)

        files = SnapshotFiles(self._directory.path)
        return recover(store, files, report=self._report, progress=progress)

    def _assemble(self, recovery: Recovery, store: Store) -> Running:
        settings, report = self._settings, self._report
        clock = SystemClock(recovery.position.now_ns)
        engine = Engine(recovery.state, clock, store, report)
        teacher = Teacher(engine, settings.estimator_seconds * SECOND_NS)
        observation = Observation.of(engine, store, teacher.learners)
        app = Application.around(engine, settings.limits, self.runtime.readiness)
        due = (settings.snapshot_records, settings.snapshot_bytes, settings.snapshot_growth)
        snapshots = SnapshotSchedule(self._directory, SnapshotTriggers(*due), report=report)

        def published(group: Group) -> None:
            snapshots.consider(group.end, space_low=app.space_low)

        engine.publishers.append(published)
        stall_ns = int(settings.stall_seconds * SECOND_NS)
        chores = (teacher.teach, self._telemetry.publish_head)
        watchdog = Watchdog(app, store, stall_ns, report, chores)
        known = violations.count(self._directory.path)
        self._telemetry.attach(app, observation, watchdog, known)
        self.runtime.application, self.runtime.observation = app, observation
        return Running(clock, engine, app, teacher, snapshots, watchdog)

    async def _begin(self, running: Running, recovery: Recovery) -> None:
        engine, settings = running.engine, self._settings
        engine.start()
        assert self._store is not None  # noqa: S101 - listen() comes first
        payloads = check_payloads(engine.state, self._store.payload_keys())
        for key in payloads.orphans:
            engine.log.delete_payload(key)
        if payloads.missing:
            self._report("payloads.missing", requests=len(payloads.missing))
        if recovery.position.sequence:
            downtime_ns = running.clock.downtime_ns
            now_ns, nonce = engine.now_ns(), engine.nonce()
            engine.apply(c.Recover(now_ns=now_ns, nonce=nonce, downtime_ns=downtime_ns))
        await self._configuration.apply_at_start(engine, settings.durability.value)
        running.app.attendance.expect_back(settings.limits.resume_grace_ns)
        self._keep(running.watchdog.run())
        if settings.credentials_file is not None:
            self._keep(self.runtime.access.follow())
        self.runtime.readiness.enter(Phase.SERVING)
        head = engine.log.durable
        self._report(
            "service.serving",
            sequence=head.sequence,
            chain_hash=head.chain_hash.hex(),
            core="compiled" if COMPILED else "source",
        )

    def _keep(self, work: Any) -> None:
        """Runs a task that is part of the service, and hears of it when it fails."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def _task_ended(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self._report("task.failed", task=task.get_name(), error=repr(task.exception()))

    # -- while it runs ------------------------------------------------------------------------

    async def failed(self) -> BaseException | None:
        """Waits until the engine has stopped for good; returns why."""
        assert self.running is not None  # noqa: S101 - recover() comes first
        engine = self.running.engine
        await engine.stopped.wait()
        violations.keep(self._directory.path, engine, self._report)
        return engine.failed

    async def reload(self, read: Loader) -> bool:
        """Reads the configuration again; returns whether it is in force now."""
        self.runtime.access.reload()
        if self.running is None:
            return False
        reloaded = await self._configuration.reload(self.running.engine, read)
        self._telemetry.set_level(self._configuration.settings.log_level.value)
        return reloaded

    # -- stop ---------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stops: waiting calls are answered, running ones finish, what was decided is kept.

        A second call does nothing.
        """
        if self._stopping:
            return
        self._stopping = True
        deadline_ns = monotonic_ns() + int(self._settings.grace_seconds * SECOND_NS)
        self.runtime.readiness.enter(Phase.DRAINING)
        await self._health.close()
        running = self.running
        if running is not None:
            running.app.drain()
            await asyncio.sleep(_COME_BACK_SECONDS)
        await listening.stop(
            self._servers, left_seconds(deadline_ns), lambda: self.runtime.running_count
        )
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._telemetry.close()
        if running is not None:
            self.kept = await keep(running.engine, deadline_ns, self._report)
            await running.snapshots.close()
            if self.kept:
                await last_snapshot(running.snapshots, running.engine, deadline_ns, self._report)
        if self.runtime.observation is not None:
            self.runtime.observation.close()
        if self._store is not None and self.kept:
            await asyncio.to_thread(self._store.close)
        self.runtime.readiness.enter(Phase.STOPPED)
        self._report("service.stopped")


def _services_at(server: Server, main: Server, operators: Server) -> tuple[str, ...]:
    """Returns the names of the services that one of the servers serves."""
    if main is operators:
        return SERVICES
    return (_SCHEDULER,) if server is main else (_AUDIT, _ADMIN)
