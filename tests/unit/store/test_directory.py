"""The data directory and its locks."""

import os
import stat
import subprocess
import sys

import pytest

from scheduler_service.app.ports import StoreLocked
from scheduler_service.store.directory import DataDirectory
from scheduler_service.store.sqlite import SqliteStore

SECOND = """
import sys
from scheduler_service.app.ports import StoreLocked
from scheduler_service.store.directory import DataDirectory
from scheduler_service.store.sqlite import SqliteStore
try:
    SqliteStore(DataDirectory(sys.argv[1]), report=print)
except StoreLocked as error:
    sys.exit(str(error))
"""


def test_a_second_process_is_told_who_has_the_directory(directory, open_store):
    """A second process is told who has the directory."""
    open_store()
    second = subprocess.run(
        [sys.executable, "-c", SECOND, directory.path], capture_output=True, text=True, check=False
    )

    assert second.returncode == 1
    assert second.stderr.strip() == f"{directory.path} is locked by pid {os.getpid()}"


def test_a_second_store_in_the_same_process_is_refused_too(directory, open_store):
    """A second store in the same process is refused too."""
    open_store()
    with pytest.raises(StoreLocked, match=f"locked by pid {os.getpid()}"):
        SqliteStore(directory, report=print)


def test_a_lock_ends_when_it_is_released(directory):
    """A lock ends when it is released."""
    directory.create()
    lock = directory.lock()
    lock.release()
    lock.release()
    directory.lock().release()


def test_a_lock_file_left_by_a_dead_process_means_nothing(directory, open_store):
    """A lock file left by a dead process means nothing."""
    directory.create()
    (directory.path / "lock").write_text("1\n")

    assert open_store().head().sequence == 0


HOLDER = """
import subprocess, sys
from scheduler_service.store.directory import DataDirectory
lock = DataDirectory(sys.argv[1]).lock()
child = subprocess.Popen(["cat"], stdin=0, stdout=subprocess.DEVNULL, pass_fds=[lock._descriptor])
print(child.pid, flush=True)
"""


@pytest.fixture
def orphan(directory):
    """A process that has inherited the lock of a dead one, until its input is closed."""
    directory.create()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, directory.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout.readline()
    holder.wait()
    yield holder.stdin
    holder.stdin.close()
    holder.stdout.close()


def test_a_lock_left_to_a_child_is_waited_for(directory, orphan, monkeypatch):
    """A service killed while it starts a process does not keep its successor out."""
    waits = []

    def wait(_seconds):
        waits.append(1)
        if len(waits) == 3:
            orphan.close()

    monkeypatch.setattr("time.sleep", wait)
    monkeypatch.setattr("scheduler_service.store.directory.ATTEMPTS", 10**9)
    directory.lock().release()

    assert len(waits) >= 3


def test_a_lock_that_stays_is_refused_in_the_end(directory, orphan, monkeypatch):
    """The wait for a dead holder is bounded."""
    monkeypatch.setattr("scheduler_service.store.directory.ATTEMPTS", 3)

    with pytest.raises(StoreLocked, match=r"locked by pid \d+"):
        directory.lock()


def test_the_two_locks_are_independent(directory):
    """The two locks are independent."""
    directory.create()
    first, second = directory.lock(), directory.lock_snapshots()
    with pytest.raises(StoreLocked):
        directory.lock_snapshots()
    first.release()
    second.release()


def test_missing_parents_are_made_and_existing_directories_left_as_they_are(tmp_path):
    """Missing parents are made and existing directories left as they are."""
    made = DataDirectory(tmp_path / "a" / "b")
    made.create()
    given = DataDirectory(tmp_path / "given")
    given.path.mkdir()
    given.path.chmod(0o755)
    given.create()
    given.create()

    assert not made.open_to_others()
    assert stat.S_IMODE(given.path.stat().st_mode) == 0o755
    assert given.open_to_others()
    assert stat.S_IMODE(given.log_path.stat().st_mode) == 0o600


def test_a_directory_that_cannot_be_made_is_an_os_error(tmp_path):
    """A directory that cannot be made is an error of the operating system."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        DataDirectory(tmp_path / "file" / "data").create()
