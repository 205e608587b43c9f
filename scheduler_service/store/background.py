"""What the store does on a thread of its own, so that no reply waits for it.

- *Checkpoints.*  Pages of the write-ahead file are copied into the database while commits go on.  A
  copy that runs beside commits never catches up with the last of them, so when it is close it
  leaves the rest, a few pages, to the committer's thread, which then has the file to itself for
  a moment; the next commit begins the file anew.
- *Syncs* of the write-ahead file, in durability mode `async`.
- *Sizes* of the files and of the free space, for metrics and the reserve.
"""

import os
import sqlite3
import threading

from scheduler_service.app.ports import Durability, StoreError, StoreFailed
from scheduler_service.store import database
from scheduler_service.store.directory import DataDirectory

CHECKPOINT_BYTES = 4 << 20
"""A checkpoint begins when about this much was committed since the last one."""

REST_PAGES = 256
"""A rest of this many pages (1 MiB) is left to the committer's thread."""

_PASSES_MAX = 16
_TICK_SECONDS = 1.0


class Background:
    """The thread.  It ends with `close`, and keeps the first error it met in `failure`.

    Attributes:
        rest_is_small: Whether the committer's thread should finish a checkpoint.
        failure: The error that ends the store.
        journal_bytes, file_bytes, free_bytes: Sizes of a moment ago.
        checkpoint_count: Checkpoints it worked on.
        full_count: How often it could not go on because the disk was full.
    """

    def __init__(
        self, directory: DataDirectory, durability: Durability, sync_interval_ns: int
    ) -> None:
        self.rest_is_small = False
        self.failure: StoreError | None = None
        self.checkpoint_count = 0
        self.full_count = 0
        self.journal_bytes = self.file_bytes = 0
        self.free_bytes = -1
        self._directory = directory
        self._syncs = durability is Durability.ASYNC
        self._tick_seconds = sync_interval_ns / 1e9 if self._syncs else _TICK_SECONDS
        self._wake = threading.Event()
        self._checkpoint_due = False
        self._dirty = False
        self._stop = False
        self.measure()
        self._connection = database.open_writer(directory.log_path, durability)
        self._thread = threading.Thread(target=self._run, name="fairsched-store", daemon=True)
        self._thread.start()

    def appended(self, bytes_since_checkpoint: int) -> None:
        """Is told after every commit; cheap."""
        self._dirty = True
        if bytes_since_checkpoint >= CHECKPOINT_BYTES and not self._checkpoint_due:
            self._checkpoint_due = True
            self._wake.set()

    def finished_checkpoint(self) -> None:
        """Is told when the committer's thread has finished one."""
        self.rest_is_small = False

    def measure(self) -> None:
        """Takes sizes now."""
        sizes = {}
        with os.scandir(self._directory.path) as entries:
            for entry in entries:
                try:
                    sizes[entry.name] = entry.stat().st_size
                except FileNotFoundError:
                    continue
        self.file_bytes = sum(sizes.values())
        self.journal_bytes = sizes.get(self._directory.journal_path.name, 0)
        self.free_bytes = self._directory.free_bytes()

    def close(self) -> None:
        """Ends the thread, after a last sync where it is the one who syncs."""
        self._stop = True
        self._wake.set()
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        try:
            while not self._stop:
                self._wake.wait(self._tick_seconds)
                self._wake.clear()
                self._step()
            self._sync()
        except StoreError as error:
            self.failure = error
        except OSError as error:
            self.failure = StoreFailed(f"{error.filename or self._directory.path}: {error}")

    def _step(self) -> None:
        self._sync()
        if self._checkpoint_due:
            try:
                self._checkpoint()
            except sqlite3.Error as error:
                if not database.is_full(error):
                    raise database.translate(error, self._directory.log_path.name) from error
                self.full_count += 1
            self._checkpoint_due = False
        self.measure()

    def _sync(self) -> None:
        if not self._syncs or not self._dirty:
            return
        self._dirty = False
        descriptor = os.open(self._directory.journal_path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def _checkpoint(self) -> None:
        """Copies pages until the rest is small, or a reader stands in the way."""
        before = -1
        for _ in range(_PASSES_MAX):
            row = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            _, frames, copied = row
            self.checkpoint_count += 1
            if frames - copied <= REST_PAGES or copied == before:
                break
            before = copied
        self.rest_is_small = True
