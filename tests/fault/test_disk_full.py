"""A disk that is full: the process ends, and everything acknowledged is there when space is."""

import subprocess

import pytest

from scheduler_service.store.directory import DataDirectory
from tests.fault.checks import start_and_check
from tests.fault.child import EXIT_FAILED
from tests.fault.processes import ROOT, command, last_acknowledged

pytestmark = [pytest.mark.crash, pytest.mark.slow]

SEED = 31
OPTIONS = {"payload_bytes": 3000, "checkpoint_bytes": 200_000}


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MiB; unmounted at the end."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)])
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield path
    run(["umount", str(path)])


def test_a_full_disk_ends_the_process_and_loses_nothing(small_disk):
    """A full disk ends the process and loses nothing."""
    directory = DataDirectory(small_disk / "data")
    full = run(command(directory, SEED, **OPTIONS))
    acknowledged = last_acknowledged(full.stdout)
    assert full.returncode == EXIT_FAILED
    assert "log.sqlite3: " in full.stderr
    assert acknowledged > 100
    again = run(command(directory, SEED, **OPTIONS))
    assert again.returncode in {0, EXIT_FAILED}
    acknowledged = max(acknowledged, last_acknowledged(again.stdout))
    assert run(["mount", "-o", "remount,size=16m", str(small_disk)]).returncode == 0

    found = start_and_check(directory, SEED, acknowledged=acknowledged, payload_bytes=3000)
    more = run(command(directory, SEED, groups=20, **OPTIONS))
    assert more.returncode == 0
    assert last_acknowledged(more.stdout) > found.head


def test_a_file_size_limit_ends_the_process_and_loses_nothing(tmp_path):
    """A file size limit ends the process and loses nothing."""
    directory = DataDirectory(tmp_path / "data")
    limited = ["bash", "-c", 'trap "" XFSZ; ulimit -f 1000; exec "$@"', "bash"]
    full = run([*limited, *command(directory, SEED, **OPTIONS)])
    acknowledged = last_acknowledged(full.stdout)
    assert full.returncode == EXIT_FAILED
    assert acknowledged > 100

    start_and_check(directory, SEED, acknowledged=acknowledged, payload_bytes=3000)


def test_a_snapshot_that_does_not_fit_leaves_the_old_ones_and_the_service(small_disk):
    """A snapshot that does not fit leaves the old ones and the service."""
    directory = DataDirectory(small_disk / "data")
    written = run(command(directory, SEED, groups=150, snapshot_groups=50, payload_bytes=0))
    assert written.returncode == 0
    before = sorted(path.name for path in directory.path.glob("snapshot-*"))
    assert len(before) == 2
    assert run(command(directory, SEED, groups=10, payload_bytes=0)).returncode == 0
    with (small_disk / "ballast").open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(4096))
        except OSError:
            ballast.truncate(ballast.tell() - 48 * 1024)  # room to read the log, not for more
    snapshotter = command(directory, SEED)[:2]
    made = run([*snapshotter, "scheduler_service.store.snapshotter", str(directory.path)])

    assert made.returncode == 5
    assert "No space left on device" in made.stderr
    assert sorted(path.name for path in directory.path.glob("snapshot-*")) == before
