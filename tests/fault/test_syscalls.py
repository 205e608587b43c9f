"""Faults at the system calls of the writing process, injected with strace.

One run is traced to count the calls; then the process is killed, or a call fails, at the n-th call
of a kind, and what is left must hold everything that was acknowledged.  The usual run takes a
sample of the calls; with FAIRSCHED_FAULT_ROUNDS set high every call is taken.
"""

import collections
import random
import re
import shutil
import subprocess

import pytest

from scheduler_service.store.directory import DataDirectory
from tests.fault.checks import start_and_check
from tests.fault.child import EXIT_FAILED
from tests.fault.processes import ROOT, command, last_acknowledged

pytestmark = [pytest.mark.crash, pytest.mark.slow]

SEED = 21
CALLS = ("pwrite64", "fdatasync", "fsync", "ftruncate", "rename", "unlink")
OPTIONS = {"groups": 40, "snapshot_groups": 15, "retention_bytes": 2000, "checkpoint_bytes": 50_000}


def why_not() -> str:
    """Why system calls cannot be traced here; empty if they can."""
    if shutil.which("strace") is None:
        return "strace is not installed (Debian: apt-get install strace)"
    tried = subprocess.run(["strace", "-qq", "true"], capture_output=True, text=True, check=False)
    return f"strace does not work here: {tried.stderr.strip()}" if tried.returncode else ""


REASON = why_not()
pytestmark.append(pytest.mark.skipif(bool(REASON), reason=REASON))


def run(directory: DataDirectory, trace: list[str], log) -> tuple[int, int, bool]:
    """Runs the writer under strace; returns exit code, last acknowledged, whether it ended."""
    done = subprocess.run(
        [
            *("strace", "-f", "--seccomp-bpf", "-qq", "-o", str(log)),
            *trace,
            *command(directory, SEED, **OPTIONS),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, last_acknowledged(done.stdout), done.stdout.endswith("done\n")


@pytest.fixture(scope="module")
def counts(tmp_path_factory):
    """How often the busiest thread makes each call in a run without faults."""
    path = tmp_path_factory.mktemp("count")
    code, acknowledged, ended = run(
        DataDirectory(path / "data"), ["-e", f"trace={','.join(CALLS)}"], path / "log"
    )
    assert (code, ended) == (0, True)
    assert acknowledged > 80
    seen = collections.Counter(
        re.findall(rf"^(\d+) +({'|'.join(CALLS)})\(", (path / "log").read_text(), re.MULTILINE)
    )
    found = {call: max(seen[key] for key in seen if key[1] == call) for call in CALLS}
    assert all(found.values())
    return found


def sample(rng: random.Random, count: int, rounds: int, share: int) -> list[int]:
    """Returns which of `count` calls to hit: a few, or all when there are rounds enough.

    How often a thread makes a call differs a little from run to run, so `count` may be cut short.
    """
    wanted = min(count, share * rounds)
    return sorted(rng.sample(range(1, count + 1), wanted))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("call", "share"), [("pwrite64", 3), ("fdatasync", 2), ("ftruncate", 1), ("rename", 1)]
)
def test_killed_at_a_system_call_nothing_acknowledged_is_lost(
    tmp_path, rounds, counts, call, share
):
    """Killed at a system call nothing acknowledged is lost."""
    for when in sample(random.Random(call), counts[call], rounds, share):
        directory = DataDirectory(tmp_path / f"data{when}")
        inject = ["-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={when}"]
        _, acknowledged, _ = run(directory, inject, tmp_path / "log")

        start_and_check(directory, SEED, acknowledged=acknowledged)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("call", "error", "for_ever"),
    [
        ("fdatasync", "EIO", False),
        ("fdatasync", "EIO", True),
        ("pwrite64", "EIO", False),
        ("pwrite64", "ENOSPC", True),
        ("ftruncate", "EIO", False),
    ],
)
def test_a_failing_system_call_ends_the_process_and_loses_nothing_acknowledged(
    tmp_path, rounds, counts, call, error, for_ever
):
    """A failing system call ends the process and loses nothing acknowledged."""
    rng = random.Random(f"{call}{error}{for_ever}")
    codes = []
    for when in sample(rng, counts[call] * 3 // 4, rounds, 1):
        directory = DataDirectory(tmp_path / f"data{when}")
        plus = "+" if for_ever else ""
        inject = ["-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={when}{plus}"]
        code, acknowledged, ended = run(directory, inject, tmp_path / "log")
        assert (code, ended) in {(EXIT_FAILED, False), (0, True)}
        codes.append(code)

        start_and_check(directory, SEED, acknowledged=acknowledged)
    if for_ever:
        assert set(codes) == {EXIT_FAILED}


def test_a_failed_sync_is_never_followed_by_an_acknowledgement(tmp_path, counts):
    """The sync of a commit fails once; the next would succeed, and would be a lie."""
    directory = DataDirectory(tmp_path / "data")
    when = counts["fdatasync"] // 2
    inject = ["-e", "trace=fdatasync", "-e", f"inject=fdatasync:error=EIO:when={when}"]
    code, acknowledged, ended = run(directory, inject, tmp_path / "log")
    failed = [line for line in (tmp_path / "log").read_text().splitlines() if "INJECTED" in line]

    assert (code, ended, len(failed)) == (EXIT_FAILED, False, 1)
    start_and_check(directory, SEED, acknowledged=acknowledged)
