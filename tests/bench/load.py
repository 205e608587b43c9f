"""Runs the load generator against a server and reads what it found."""

import json
import subprocess
from dataclasses import dataclass, field
from typing import Any

from tests.bench import machine
from tests.bench.servers import POOL, Process

_GRACE_SECONDS = 60.0


class LoadFailed(Exception):  # noqa: N818 - named by what happened
    """The load generator ended with an error, or the server answered with errors only."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One run of the load generator.

    Attributes:
        series: By kind of operation: calls, items, their rates, and quantiles in microseconds.
        counts: Things counted.
        errors: Answers that were errors.
        server_cpu: Cores the server used.
        client_cpu: Cores the load generator used.
        lost_percent: What the spin tests beside it lost; negative if there were none.
    """

    series: dict[str, dict[str, float]]
    counts: dict[str, int]
    errors: dict[str, int]
    server_cpu: float
    client_cpu: float
    server_rss_mb: float
    lost_percent: float = -1.0
    options: dict[str, Any] = field(default_factory=dict)

    def rate(self, series: str = "rpc", what: str = "calls_per_s") -> float:
        """Returns calls (or items) a second of one series; 0 if there were none."""
        return self.series.get(series, {}).get(what, 0.0)

    def cpu_us(self, series: str = "rpc", what: str = "calls_per_s") -> float:
        """Returns the server's CPU microseconds for each call (or item) of one series."""
        rate = self.rate(series, what)
        return self.server_cpu / rate * 1e6 if rate else 0.0

    def quantile_us(self, series: str, level: str) -> float:
        """Returns a latency quantile (`p50`, `p99` …) in microseconds."""
        return self.series.get(series, {}).get(f"{level}_us", 0.0)


def command(tools: machine.Tools, server: Process, mode: str, **options: Any) -> list[str]:
    """Returns the command line of one run."""
    stated = {"mode": mode, "target": server.target, "server_pid": server.pid, **options}
    words = [str(tools.loadgen)]
    for name, value in stated.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def run(tools: machine.Tools, server: Process, mode: str, **options: Any) -> Slice:
    """Runs one slice.

    Raises:
        LoadFailed: Nothing was measured.
    """
    options = {"pool": POOL, **options}
    limit = options.get("seconds", 2) + options.get("warmup", 0.5) + _GRACE_SECONDS
    if mode in {"fill", "take"}:
        limit += options.get("count", 0) / 500
    try:
        done = subprocess.run(
            command(tools, server, mode, **options),
            check=False,
            capture_output=True,
            text=True,
            timeout=limit,
        )
    except subprocess.TimeoutExpired as error:
        raise LoadFailed(f"{mode} {options}: still running after {limit:.0f} s") from error
    if done.returncode != 0:
        raise LoadFailed(f"{mode} {options}: {done.stderr[-500:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    slice_ = Slice(
        found["series"],
        found["counts"],
        found["errors"],
        found["server_cpu"],
        found["client_cpu"],
        found["server_rss_mb"],
        options={"mode": mode, **options},
    )
    if slice_.errors and not any(kind["calls"] for kind in slice_.series.values()):
        raise LoadFailed(f"{mode} {options}: only errors: {slice_.errors}")
    return slice_


def fill(tools: machine.Tools, server: Process, count: int, *, users: int = 1000) -> None:
    """Adds `count` requests.

    Raises:
        LoadFailed: Not all of them were accepted.
    """
    if count <= 0:
        return
    done = run(tools, server, "fill", count=count, users=users)
    if done.counts.get("added", 0) != count:
        raise LoadFailed(f"only {done.counts.get('added', 0)} of {count} added: {done.errors}")
