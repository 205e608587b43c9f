"""Power cut: a file system that loses everything it had not been told to keep.

An ext4 file system on a loop device is shut down without flushing its journal, which drops what was
not synced, and is mounted again.  Needs root and loop devices; skipped with the reason otherwise.
"""

import fcntl
import os
import shutil
import struct
import subprocess

import pytest

from scheduler_service.store.directory import DataDirectory
from tests.fault.checks import start_and_check
from tests.fault.processes import command, last_acknowledged, running

pytestmark = [pytest.mark.crash, pytest.mark.slow]

SEED = 41
EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = struct.pack("I", 2)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)


class Disk:
    """A file system that can lose its power."""

    def __init__(self, image, path) -> None:
        self.image, self.path = image, path

    def mount(self) -> str:
        """Mounts it; returns why it cannot be, if it cannot."""
        return run("mount", "-o", "loop", str(self.image), str(self.path)).stderr.strip()

    def cut_power(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH)
        finally:
            os.close(descriptor)

    def unmount(self) -> None:
        run("umount", str(self.path))


@pytest.fixture
def disk(tmp_path):
    disk = Disk(tmp_path / "image", tmp_path / "disk")
    disk.path.mkdir()
    with disk.image.open("wb") as file:
        file.truncate(48 << 20)
    search = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    program = shutil.which("mkfs.ext4", path=search)  # where a user's own path does not look
    made = run(program, "-q", str(disk.image)) if program and os.geteuid() == 0 else None
    if made is None or made.returncode:
        pytest.skip("no ext4 file system can be made here (root and e2fsprogs are needed)")
    problem = disk.mount()
    if problem:
        pytest.skip(f"no loop device can be mounted here: {problem}")
    yield disk
    disk.unmount()


def write_until_the_power_goes(disk: Disk, directory: DataDirectory, lines: int, **options) -> int:
    """Returns what was acknowledged before the power went."""
    read = []
    with running(command(directory, SEED, checkpoint_bytes=60_000, **options)) as process:
        for line in process.stdout:
            read.append(line)
            if len(read) == lines:
                break
        disk.cut_power()
        # What is still in the pipe may have been acknowledged after the cut, by a page cache that
        # had nothing behind it any more; only what had been read before counts.
    disk.unmount()
    assert not disk.mount()
    return last_acknowledged("".join(read))


def test_what_was_acknowledged_survives_a_power_cut(disk, rounds):
    """What was acknowledged survives a power cut."""
    directory = DataDirectory(disk.path / "data")
    acknowledged = 0
    for number in range(2 * rounds):
        lines = 40 + 61 * number % 300
        acknowledged = max(
            acknowledged, write_until_the_power_goes(disk, directory, lines, snapshot_groups=60)
        )
        found = start_and_check(directory, SEED, acknowledged=acknowledged)
        acknowledged = found.head


def test_without_waiting_for_the_disk_a_power_cut_still_leaves_a_prefix(disk):
    """Durability `async`: the newest may be lost, and no snapshot is ahead of what is left."""
    directory = DataDirectory(disk.path / "data")
    acknowledged = write_until_the_power_goes(
        disk, directory, 400, durability="async", snapshot_groups=60
    )
    found = start_and_check(directory, SEED, acknowledged=0)

    assert acknowledged > 0
    assert found.head >= found.recovery.from_snapshot > 0
    assert "log.ended_early" not in found.events
