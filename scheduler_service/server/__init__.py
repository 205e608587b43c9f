"""The service as a process: signals, exit codes, and the loop it runs on.

Exit codes:
    0    stopped by SIGTERM or SIGINT, everything kept
    1    refused to start: configuration, data directory or address; one event says why
    70   stopped by a failure of its own; a supervisor should start it again
"""

import asyncio
import gc
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import uvloop

from scheduler_service.app.ports import Reporter, StoreError
from scheduler_service.config import ConfigRefused, Settings
from scheduler_service.core.errors import NotReady
from scheduler_service.obs.logging import Log
from scheduler_service.rpc.calls import Observer
from scheduler_service.rpc.security import CredentialsError
from scheduler_service.rpc.tls import TlsError
from scheduler_service.server.listening import AddressTakenError, Listening
from scheduler_service.server.opening import StoreOpener, open_sqlite
from scheduler_service.server.reloading import Loader, loader
from scheduler_service.server.service import Service

_GC_THRESHOLDS = (5_000, 10, 1_000)
"""A young generation is small tuples for the most part: 5,000 are walked in a few milliseconds."""

EXIT_OK = 0
EXIT_REFUSED = 1
EXIT_FAILED = 70

_REFUSALS = (
    AddressTakenError,
    ConfigRefused,
    CredentialsError,
    OSError,
    StoreError,
    TlsError,
)

Ready = Callable[[Listening], None]
"""Called once the service serves, with where it listens."""

__all__ = [
    "EXIT_FAILED",
    "EXIT_OK",
    "EXIT_REFUSED",
    "Listening",
    "Loader",
    "Ready",
    "Service",
    "loader",
    "run",
    "serve",
]


async def serve(
    settings: Settings,
    *,
    report: Reporter,
    observer: Observer | None = None,
    ready: Ready | None = None,
    read: Loader | None = None,
    open_store: StoreOpener = open_sqlite,
    log: Log | None = None,
) -> int:
    """Runs a service until a signal or a failure ends it; returns the exit code.

    Args:
        settings: Checked settings.
        report: Receives rare events.
        observer: Receives a measurement of every call.
        ready: Called once it serves.
        read: Reads the configuration again on SIGHUP; None ignores the signal.
        open_store: Opens the store.
        log: What `report` writes to, if it is one of ours.
    """
    signals = _Signals(report)
    signals.install(asyncio.get_running_loop())
    service: Service | None = None
    try:
        service = Service(settings, report, observer, open_store, log)
        where = await service.listen()
        if settings.port_file is not None:
            _write_ports(settings.port_file, where)
        await service.recover()
        _calm_collector()
        if ready is not None:
            ready(where)
        await _until_stopped(service, signals, read)
    except _REFUSALS as error:
        report("service.refused", error=str(error), kind=type(error).__name__)
        if service is not None:
            await service.stop()
        return EXIT_REFUSED
    except NotReady as error:
        report("service.failed", error=str(error))
        assert service is not None  # noqa: S101 - only a service raises it
        await service.stop()
        return EXIT_FAILED
    await service.stop()
    return EXIT_OK if service.kept else EXIT_FAILED


async def _until_stopped(service: Service, signals: "_Signals", read: Loader | None) -> None:
    """Serves until it is told to stop or has failed; reloads when told to."""
    failed = asyncio.ensure_future(service.failed())
    stop = asyncio.ensure_future(signals.stop.wait())
    try:
        while True:
            reload = asyncio.ensure_future(signals.reload.wait())
            done, _ = await asyncio.wait(
                {failed, stop, reload}, return_when=asyncio.FIRST_COMPLETED
            )
            reload.cancel()
            if failed in done or stop in done:
                return
            signals.reload.clear()
            if read is not None:
                await service.reload(read)
    finally:
        failed.cancel()
        stop.cancel()


def _calm_collector() -> None:
    """Keeps the garbage collector from walking what has just been replayed, now and later.

    The state is not tracked by it, and what is tracked dies young: looking rarely is enough.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


class _Signals:
    """What signals ask for: the first one stops in order, the second one at once.

    Attributes:
        stop: Set by SIGTERM or SIGINT.
        reload: Set by SIGHUP.
    """

    def __init__(self, report: Reporter) -> None:
        self.stop = asyncio.Event()
        self.reload = asyncio.Event()
        self._report = report

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listens to signals from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self.reload.set)

    def _stop(self, number: signal.Signals) -> None:
        if self.stop.is_set():
            self._report("service.killed", signal=number.name)
            os._exit(128 + number)
        self._report("service.stopping", signal=number.name)
        self.stop.set()


def _write_ports(path: Path, where: Listening) -> None:
    """Writes where the service listens, whole or not at all."""
    part = path.with_name(path.name + ".part")
    ports = {
        "port": where.port,
        "admin_port": where.admin_port,
        "http_port": where.http_port,
        "pid": os.getpid(),
    }
    part.write_text(json.dumps(ports) + "\n")
    part.rename(path)


def run(
    settings: Settings, *, report: Reporter, read: Loader | None = None, log: Log | None = None
) -> int:
    """Runs a service on a loop of its own; returns the exit code."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(settings, report=report, read=read, log=log))
