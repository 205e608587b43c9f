"""The processes that are measured: the service, the bare echo, and what `/proc` says about them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

POOL = "bench"
START_SECONDS = 120.0
STOP_SECONDS = 30.0

ROOMY: dict[str, object] = {
    "preset": "fair_qba",
    "max_waiting": 20_000_000,
    "max_waiting_per_user": 20_000_000,
    "max_users": 5_000_000,
    "max_leases_per_worker": 10_000_000,
}
"""The default policy with queues that no benchmark fills."""


class DidNotStart(Exception):  # noqa: N818 - named by what happened
    """A process ended, or said nothing, before it listened."""


class Process:
    """A server in a process and a folder of its own, on loopback, on a port of its choice.

    Attributes:
        name: For messages.
        folder: Its data; removed when it is closed, unless it was given.
        start_seconds: From start to listening.
    """

    def __init__(self, name: str, *, folder: Path | None = None, root: Path | None = None) -> None:
        self.name = name
        self._owned = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix=f"bench-{name}-", dir=root))
        self.start_seconds = 0.0
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._ticking = threading.Event()

    def start(self, command: list[str], *, timeout: float = START_SECONDS) -> Self:
        """Starts it and waits until its port file is there.

        Raises:
            DidNotStart: With the end of what it printed.
        """
        port_file = self.folder / "ports.json"
        port_file.unlink(missing_ok=True)
        began = time.perf_counter()
        # A setting of whoever measures is none of the service's.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FAIRSCHED_")}
        with (self.folder / "output.txt").open("wb") as output:
            self._process = subprocess.Popen(
                [*command, "--port-file", str(port_file)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        while not port_file.exists():
            if self._process.poll() is not None or time.perf_counter() - began > timeout:
                tail = self.output()[-2000:]
                self.close()
                raise DidNotStart(f"{self.name} did not start:\n{tail}")
            self._ticking.wait(0.005)
        self.port = json.loads(port_file.read_text())["port"]
        self._wait_until_serving(began + timeout)
        self.start_seconds = time.perf_counter() - began
        return self

    def _wait_until_serving(self, until: float) -> None:
        """Asks for its health until it is good; a server without health serves at once."""
        with grpc.insecure_channel(self.target) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            while time.perf_counter() < until:
                try:
                    answer = health.Check(health_pb2.HealthCheckRequest(), timeout=5)
                except grpc.RpcError as error:
                    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                        return
                else:
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return
                assert self._process is not None
                if self._process.poll() is not None:
                    break
                self._ticking.wait(0.01)
        tail = self.output()[-2000:]
        self.close()
        raise DidNotStart(f"{self.name} does not serve:\n{tail}")

    @property
    def target(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def output(self) -> str:
        """Returns what it printed."""
        return (self.folder / "output.txt").read_text(errors="replace")

    def resident_bytes(self) -> int:
        """Returns its resident memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )

    def cpu_seconds(self) -> float:
        """Returns its CPU time, threads that have ended included."""
        return time.clock_gettime(_cpu_clock(self.pid))

    def stop(self, *, kill: bool = False) -> None:
        """Ends the process; what it stored stays."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None

    def close(self) -> None:
        """Ends the process and removes its folder, if it made it."""
        self.stop(kill=self._owned)
        if self._owned:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _cpu_clock(pid: int) -> int:
    """Returns the clock id of a process's CPU time, as `clock_getcpuclockid` computes it."""
    return (~pid << 3) | 2


def echo_server() -> Process:
    """Starts the yardstick."""
    command = [sys.executable, "-m", "tests.bench.echo_server"]
    return Process("echo").start(command)


def service(
    *,
    folder: Path | None = None,
    durability: str = "sync",
    policy: Mapping[str, object] | None = None,
    pools: int = 1,
    settings: Mapping[str, object] | None = None,
    probed: bool = False,
    timeout: float = START_SECONDS,
    root: Path | None = None,
) -> Process:
    """Starts the service with one pool, `bench`, and `pools` - 1 others beside it.

    Args:
        folder: Where it keeps its log; a new, temporary one by default.
        durability: `sync`, `async` or `none`.
        policy: What differs from `ROOMY`.
        pools: Pools in all.
        settings: Further settings by name.
        probed: Runs it under `tests.bench.probed`, which measures its pauses.
        timeout: Seconds it may take to listen.
        root: Where to make the temporary folder.
    """
    process = Process("service", folder=folder, root=root)
    config = process.folder / "fairsched.toml"
    names = [POOL, *(f"beside-{number}" for number in range(1, pools))]
    config.write_text(_toml(names, {**ROOMY, **(policy or {})}))
    module = "tests.bench.probed" if probed else "scheduler_service"
    command = [sys.executable, "-m", module, "serve", "--config", str(config)]
    stated: dict[str, object] = {
        "listen": "127.0.0.1:0",
        "http_listen": "",
        "data_dir": process.folder / "data",
        "durability": durability,
        "log_level": "warning",
        **(settings or {}),
    }
    for name, value in stated.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    return process.start(command, timeout=timeout)


def _toml(pools: list[str], policy: Mapping[str, object]) -> str:
    lines = []
    for name in pools:
        lines.append(f"[pools.{name}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in policy.items()]
        lines.append("")
    return "\n".join(lines)
