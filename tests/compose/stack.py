"""Drives a real container engine for the tests: one Compose project of its own, then removed."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
UP_WITHIN_S = 480
"""How long building and starting everything may take, seconds."""


def _compose() -> list[str]:
    """Returns the command of Compose: the program, if it is there, else Docker's plugin."""
    beside = Path(sys.executable).parent
    found = shutil.which("docker-compose", path=beside) or shutil.which("docker-compose")
    return [found] if found else ["docker", "compose"]


def free_port() -> int:
    """Returns a port that is free on this machine now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(*command: str, timeout: float = 120, **variables: str) -> str:
    """Runs a command and returns what it printed; shows its errors if it fails."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout.strip()


class Stack:
    """The services of `docker-compose.yml`, under a project name and ports of their own."""

    def __init__(self) -> None:
        self.project = f"fairsched-test-{os.getpid()}"
        self.port, self.http_port = free_port(), free_port()
        self.variables = {
            "FAIRSCHED_PORT": str(self.port),
            "FAIRSCHED_HTTP_PORT": str(self.http_port),
        }

    @property
    def target(self) -> str:
        """The published gRPC port."""
        return f"127.0.0.1:{self.port}"

    def compose(self, *arguments: str, timeout: float = 120) -> str:
        """Runs Compose on this project."""
        command = (*_compose(), "--project-name", self.project, *arguments)
        return run(*command, timeout=timeout, **self.variables)

    def up(self) -> None:
        """Builds the image and starts everything; returns when all of it is healthy."""
        self.compose("up", "--detach", "--build", "--wait", timeout=UP_WITHIN_S)

    def down(self) -> None:
        """Removes containers, network and volume."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")

    def containers(self, service: str) -> list[str]:
        """Returns the ids of a service's containers, stopped ones included."""
        return self.compose("ps", "--all", "--quiet", service).split()

    def scheduler(self) -> str:
        """Returns the id of the scheduler's container."""
        (container,) = self.containers("scheduler")
        return container

    def fairsched(self, *arguments: str) -> list[dict[str, Any]]:
        """Runs the command line inside the scheduler's container; returns its lines of JSON."""
        out = run("docker", "exec", self.scheduler(), "fairsched", *arguments, "--json")
        return [json.loads(line) for line in out.splitlines()]

    def logs(self, service: str) -> str:
        """Returns everything a service printed."""
        return self.compose("logs", "--no-color", "--no-log-prefix", service)

    @contextlib.contextmanager
    def cut_off(self, container: str) -> Iterator[None]:
        """Takes a worker's container off the network for the time of the context."""
        network = f"{self.project}_default"
        run("docker", "network", "disconnect", network, container)
        try:
            yield
        finally:
            run("docker", "network", "connect", "--alias", "worker", network, container)

    @contextlib.contextmanager
    def frozen(self, container: str) -> Iterator[None]:
        """Stops every process of a container for the time of the context; none of them notices."""
        run("docker", "pause", container)
        try:
            yield
        finally:
            run("docker", "unpause", container)

    def kill_process(self, container: str) -> None:
        """Kills a container's first process behind Docker's back, as a crash would.

        A helper in the host's process namespace sends the signal: `docker kill` would count as
        stopped on purpose, and the restart policy would not act.
        """
        code = f"import os; os.kill({inspect(container, 'State.Pid')}, 9)"
        run(
            *("docker", "run", "--rm", "--pid", "host", "--user", "0", "--network", "none"),
            *("--entrypoint", "python", "fairsched:demo", "-c", code),
        )


def inspect(container: str, path: str) -> str:
    """Returns one value of `docker inspect`."""
    return run("docker", "inspect", "--format", f"{{{{.{path}}}}}", container)


def wait_until(condition: Callable[[], bool], within: float, what: str) -> float:
    """Waits for something that only the engine knows; returns how long it took, seconds."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() < started + within, f"{what}: not within {within} s"
        time.sleep(0.2)
    return time.monotonic() - started
