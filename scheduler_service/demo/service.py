"""The real service in a process of its own: started, killed, started again, stopped."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from typing import TYPE_CHECKING, Final

from fairsched import AsyncFairsched, UnavailableError

if TYPE_CHECKING:
    from pathlib import Path

START_WITHIN_S: Final = 40.0
STOP_WITHIN_S: Final = 15.0


class ServiceError(RuntimeError):
    """The service did not start or stop as it should; the text holds its last words."""


def free_port() -> int:
    """Returns a port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Service:
    """One service on one data directory; the port stays over restarts."""

    def __init__(self, folder: Path) -> None:
        self.target = f"127.0.0.1:{free_port()}"
        self._folder = folder
        self._log = folder.with_suffix(".log")
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Starts it and waits until it serves.

        Raises:
            ServiceError: It does not serve in time.
        """
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "scheduler_service", "serve",
                "--listen", self.target, "--data-dir", str(self._folder), "--http-listen", "",
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        async with AsyncFairsched(self.target) as client:
            ready = asyncio.create_task(client.ready(START_WITHIN_S))
            ended = asyncio.create_task(self._process.wait())
            await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                ready.cancel()
                raise ServiceError(self._last_words())
            ended.cancel()
            try:
                await ready
            except UnavailableError as error:
                message = f"the service does not serve: {self._last_words()}"
                raise ServiceError(message) from error

    def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise ServiceError("the service was not started")
        return self._process

    async def kill(self) -> None:
        """Kills it without warning: SIGKILL."""
        process = self._started()
        process.kill()
        await process.wait()

    async def stop(self) -> None:
        """Stops it as an operator does: SIGTERM.

        Raises:
            ServiceError: It does not end with exit code 0 in time.
        """
        process = self._started()
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                code = await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
            code = -1
        if code != 0:
            message = f"the service ended with {code}: {self._last_words()}"
            raise ServiceError(message)

    async def ensure_ended(self) -> None:
        """Kills it if it still runs, whatever happened."""
        if self._process is not None and self._process.returncode is None:
            await self.kill()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:]) or "it said nothing"
