"""The service as users run it: a process that is started, killed, started again, stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
START_WITHIN_S = 30.0
STOP_WITHIN_S = 20.0


class ServiceProcess:
    """A service on 127.0.0.1 that keeps its port and data over restarts."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self._folder = folder
        self._flags = flags
        self._listen = "127.0.0.1:0"
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / "service.log"

    @property
    def target(self) -> str:
        """Where it listens."""
        return self._listen

    @property
    def data_dir(self) -> Path:
        """Where its decision log is."""
        return self._folder / "data"

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> "ServiceProcess":
        """Starts it and waits until it listens."""
        self._folder.mkdir(parents=True, exist_ok=True)
        ports = self._folder / "ports.json"
        ports.unlink(missing_ok=True)
        command = [
            sys.executable, "-m", "scheduler_service", "serve",
            "--listen", self._listen, "--http-listen", "", "--data-dir", str(self.data_dir),
            "--port-file", str(ports), "--grace-seconds", "2", *self._flags,
        ]  # fmt: skip
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FAIRSCHED_")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        last = time.monotonic() + START_WITHIN_S
        while not ports.exists():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < last, self.log()
            time.sleep(0.02)
        self._listen = f"127.0.0.1:{json.loads(ports.read_text())['port']}"
        return self

    def kill(self) -> None:
        """Kills it: SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Stops it in order, and returns its exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOP_WITHIN_S)

    def freeze(self) -> None:
        """Stops its clock: SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def ensure_gone(self) -> None:
        """Kills it if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def log(self) -> str:
        """Returns what it wrote."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""
