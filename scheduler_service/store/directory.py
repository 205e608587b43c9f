"""The data directory: names, permissions, the lock, free space.

    lock                     held with flock while the service runs; holds its process id
    log.sqlite3 (-wal, -shm) the decision log and the payloads of live requests
    snapshot-<sequence>      states, named by the last record folded in
    snapshot.lock            held with flock by whoever makes a snapshot
    applied-<digest>.json    the configuration that was applied last (`config.applied`)
    violations.jsonl         laws that were found broken (`server.violations`)

A lock ends with its process, however that ends; the files stay and mean nothing by themselves.
"""

import contextlib
import fcntl
import os
import time
from pathlib import Path

from scheduler_service.app.ports import StoreLocked

LOG_NAME = "log.sqlite3"
JOURNAL_NAME = "log.sqlite3-wal"
SNAPSHOT_PREFIX = "snapshot-"
_LOCK_NAME = "lock"
_SNAPSHOT_LOCK_NAME = "snapshot.lock"
_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600
_HOLDER_BYTES = 20

ATTEMPTS = 250
ATTEMPT_SECONDS = 0.02
"""A dead holder is waited for this long, 5 s in all.  A process that is killed while it starts a
child leaves its lock to the child, until the child runs its own program a moment later."""


class FileLock:
    """An exclusive lock on a file, held until it is released or the process ends.

    Raises:
        StoreLocked: Another live process holds it; says which.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        for attempt in range(ATTEMPTS):
            if self._take():
                break
            holder = self._holder()
            if attempt == ATTEMPTS - 1 or _is_alive(holder):
                os.close(self._descriptor)
                raise StoreLocked(f"{path.parent} is locked by pid {holder or 'unknown'}")
            time.sleep(ATTEMPT_SECONDS)
        # The lock is held whether or not the disk takes the id; in place, it needs no new block.
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, f"{os.getpid():<{_HOLDER_BYTES - 1}}\n".encode(), 0)

    def _take(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _holder(self) -> int:
        """Returns the process id in the file; 0 if there is none yet."""
        text = os.pread(self._descriptor, _HOLDER_BYTES, 0).decode("ascii", "replace").strip()
        return int(text) if text.isdecimal() else 0

    def release(self) -> None:
        """Gives the lock up; again does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _is_alive(pid: int) -> bool:
    """Whether a process of this machine has this id; not to be told is taken for a yes."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0


class DataDirectory:
    """One data directory, not locked yet.

    A directory that is missing is created for its owner alone; one that exists is left as it is.
    Files in it are for the owner alone in any case.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()

    def create(self) -> None:
        """Makes the directory and an empty log file, both durable, if they do not exist.

        The log file is made here rather than by the database, which would take the permissions
        from the umask, and which gives its other files those of this one.
        """
        if not self.path.is_dir():
            self.path.mkdir(mode=_DIRECTORY_MODE, parents=True)
            sync_directory(self.path.parent)
        if not self.log_path.exists():
            os.close(os.open(self.log_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE))
            sync_directory(self.path)

    @property
    def log_path(self) -> Path:
        """File of the database."""
        return self.path / LOG_NAME

    @property
    def journal_path(self) -> Path:
        """Write-ahead file of the database."""
        return self.path / JOURNAL_NAME

    def lock(self) -> FileLock:
        """Takes the directory for this process.

        Raises:
            StoreLocked: Another process has it.
        """
        return FileLock(self.path / _LOCK_NAME)

    def lock_snapshots(self) -> FileLock:
        """Takes the right to make a snapshot.

        Raises:
            StoreLocked: Another process is making one.
        """
        return FileLock(self.path / _SNAPSHOT_LOCK_NAME)

    def open_to_others(self) -> bool:
        """Whether other users of the machine may look into the directory."""
        return bool(self.path.stat().st_mode & 0o077)

    def free_bytes(self) -> int:
        """Returns the free space that an unprivileged process may use."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize


def sync_directory(path: Path) -> None:
    """Makes names created, renamed or removed in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create_file(path: Path) -> int:
    """Returns a descriptor of a new file for the owner alone, replacing any old one."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
