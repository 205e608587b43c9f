"""The machine: what it is, whether others take its cores away, how long its disk takes to sync.

A number from a shared machine is worth something only beside the number of a quiet moment, so every
slice of a benchmark stands between two *spin tests*: a process on each core works for a fifth of a
second, and what it gets done is compared with the most that has been done on the machine.  It gets
less done when others take the core, and when others share what is behind a virtual core.
"""

import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from scheduler_service.core import COMPILED

SOURCES = Path(__file__).parent / "loadgen"
PACKAGES = (
    "g++ make libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc pkg-config"
)

LOST_PERCENT_MAX = 20.0
"""A slice is dropped when a spin test beside it got so much less done than the best one."""

SPIN_SECONDS = 0.2
SPINS_AT_FIRST = 12
"""Spin tests that look for the best of a machine that is not known yet."""

WAIT_SECONDS = 20.0
"""How long a slice waits for a quiet moment."""

WAIT_SECONDS_IN_ALL = 600.0
"""How long all slices of a run wait together."""

_PAUSE_SECONDS = 0.3
_SYNCS = 200


class MissingTools(Exception):  # noqa: N818 - named by what happened
    """Something the suite builds on is not installed; the message says how to get it."""


def cache_folder() -> Path:
    """Where built and downloaded things are kept; outside the repository."""
    base = os.environ.get("FAIRSCHED_BENCH_CACHE") or Path.home() / ".cache" / "fairsched-bench"
    folder = Path(base)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass(frozen=True, slots=True)
class Tools:
    """Compiled programs of the suite."""

    loadgen: Path
    jitter: Path


def build() -> Tools:
    """Builds the load generator if its sources changed.

    Raises:
        MissingTools: A compiler or a library is missing.
    """
    missing = [
        name
        for name in ("make", "g++", "protoc", "grpc_cpp_plugin", "pkg-config")
        if shutil.which(name) is None
    ]
    if not missing:
        found = subprocess.run(["pkg-config", "--exists", "grpc++", "protobuf"], check=False)
        missing = [] if found.returncode == 0 else ["the C++ libraries of gRPC and protobuf"]
    if missing:
        raise MissingTools(
            f"The load generator cannot be built: {', '.join(missing)} not found.\n"
            f"On Debian or Ubuntu: apt-get install --no-install-recommends {PACKAGES}"
        )
    out = cache_folder() / "loadgen"
    done = subprocess.run(
        ["make", "-s", "-C", str(SOURCES), f"OUT={out}", f"-j{os.cpu_count() or 1}"],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise MissingTools(f"Building the load generator failed:\n{done.stderr[-4000:]}")
    return Tools(out / "loadgen", out / "jitter")


class Guard:
    """Tells whether the machine is quiet.

    Args:
        jitter: The spin test; without it nothing is known and everything passes.
        limit: Percent of a core's work that may be lost.
        memory: File that keeps the best work of this machine from run to run, so that one that
            begins in a slow hour knows of it.

    Attributes:
        best: Most work that the worse of all cores has done a millisecond.
        seen: Percents lost.
    """

    def __init__(
        self,
        jitter: Path | None,
        limit: float = LOST_PERCENT_MAX,
        memory: Path | None = None,
    ) -> None:
        self._jitter = jitter
        self._memory = memory
        self.limit = limit
        self.best = 0.0
        self.seen: list[float] = []
        self._waited = 0.0
        if memory is not None and memory.exists():
            self.best = float(memory.read_text())

    def lost_percent(self) -> float:
        """Returns what the worse of all cores lost just now, of the most it has done so far."""
        if self._jitter is None:
            return 0.0
        if not self.best:
            for _ in range(SPINS_AT_FIRST):
                self._note(min(self._done()))
                time.sleep(_PAUSE_SECONDS)
        done = min(self._done())
        self._note(done)
        lost = (1 - done / self.best) * 100
        self.seen.append(lost)
        return lost

    def _note(self, done: float) -> None:
        if done > self.best:
            self.best = done
            if self._memory is not None:
                self._memory.write_text(f"{done}\n")

    def settled_percent(self) -> float:
        """Waits for a quiet moment, so long and no longer; returns what was lost then."""
        lost = self.lost_percent()
        began = time.monotonic()
        while lost > self.limit:
            waited = time.monotonic() - began
            if waited > WAIT_SECONDS or self._waited + waited > WAIT_SECONDS_IN_ALL:
                break
            time.sleep(_PAUSE_SECONDS)
            lost = self.lost_percent()
        self._waited += time.monotonic() - began
        return lost

    def _done(self) -> list[float]:
        """Returns the work that each core does a millisecond."""
        cores = sorted(os.sched_getaffinity(0))
        running = [
            subprocess.Popen(
                ["taskset", "-c", str(core), str(self._jitter), str(SPIN_SECONDS)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for core in cores
        ]
        return [float(process.communicate()[0]) for process in running]


def sync_microseconds(folder: Path) -> dict[str, float]:
    """Returns p50 and p99 of writing 4 KiB into a preallocated file and syncing it."""
    path = folder / "sync-probe"
    block = os.urandom(4096)
    times = []
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, _SYNCS * len(block))
        os.fsync(descriptor)
        for number in range(_SYNCS):
            began = time.perf_counter_ns()
            os.pwrite(descriptor, block, number * len(block))
            os.fdatasync(descriptor)
            times.append((time.perf_counter_ns() - began) / 1000)
    finally:
        os.close(descriptor)
        path.unlink()
    times.sort()
    return {"p50_us": times[len(times) // 2], "p99_us": times[len(times) * 99 // 100]}


def describe() -> dict[str, str]:
    """Returns what the numbers depend on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    versions = {}
    for package in ("grpcio", "protobuf", "uvloop", "msgspec", "sortedcontainers"):
        versions[package] = metadata.version(package)
    revision = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=SOURCES,
        check=False,
        capture_output=True,
        text=True,
    )
    return {
        "cpu": f"{len(os.sched_getaffinity(0))} x {model}",
        "memory": f"{pages >> 30} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "python": sys.version.split()[0],
        **versions,
        "core": "compiled" if COMPILED else "source",
        "revision": revision.stdout.strip() or "unknown",
        "load": " ".join(f"{value:.2f}" for value in os.getloadavg()),
    }
