"""Snapshot files: written whole or not at all, checked before they are believed.

    magic        8 bytes
    head length  u32, little endian
    head         msgpack array, see `_Head`
    body         the state, as the core dumped it
    checksum     SHA-256 of everything before it

A file is written under another name, synced, read back, renamed, and its directory is synced; so a
name that looks like a snapshot is one, unless the disk changed it.
"""

import os
import struct
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import msgspec

from scheduler_service.app.ports import Position, Snapshot, StoreDamaged
from scheduler_service.store.directory import SNAPSHOT_PREFIX, create_file, sync_directory

KEPT_SNAPSHOTS = 2
"""The one before the newest stays: if the newest is damaged, recovery begins there."""

_MAGIC = b"FAIRSNP1"
_LENGTH = struct.Struct("<I")
_CHECKSUM_BYTES = 32
_PART_SUFFIX = ".part"
_CHUNK_BYTES = 8 << 20


class _Head(msgspec.Struct, array_like=True):
    """What is known of a snapshot without its body; extended only at the end."""

    sequence: int
    chain_hash: bytes
    now_ns: int
    log_bytes: int
    state_digest: str
    body_bytes: int


class SnapshotFiles:
    """The snapshots of a data directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def sequences(self) -> list[int]:
        """Returns the sequences of all snapshots, newest first, without reading them."""
        found = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                number = entry.name.removeprefix(SNAPSHOT_PREFIX)
                if number != entry.name and number.isdecimal():
                    found.append(int(number))
        return sorted(found, reverse=True)

    def path(self, sequence: int) -> Path:
        """Returns the file of the snapshot at `sequence`."""
        return self._directory / f"{SNAPSHOT_PREFIX}{sequence:020}"

    def prune_floor(self) -> int:
        """Returns the sequence that the log must reach back to; 0 is its beginning.

        It is that of the oldest snapshot kept, so that the log still serves if all newer ones are
        damaged, and 0 until there are as many as are kept.
        """
        found = self.sequences()
        return found[KEPT_SNAPSHOTS - 1] if len(found) >= KEPT_SNAPSHOTS else 0

    def newest_position(self) -> Position | None:
        """Returns the position of the newest snapshot with a readable head."""
        for sequence in self.sequences():
            try:
                with self.path(sequence).open("rb") as file:
                    return _position(_read_head(file.read(4096), self.path(sequence).name))
            except (OSError, StoreDamaged):
                continue
        return None

    def size(self, sequence: int) -> int:
        """Returns the bytes of the snapshot at `sequence`; 0 if there is none."""
        try:
            return self.path(sequence).stat().st_size
        except OSError:
            return 0

    def load_newest_first(self) -> Iterator[Snapshot | StoreDamaged]:
        """Yields every snapshot, newest first; a damaged one as the error it is."""
        for sequence in self.sequences():
            try:
                yield self.load(sequence)
            except StoreDamaged as damage:
                yield damage

    def load(self, sequence: int) -> Snapshot:
        """Reads and checks the snapshot at `sequence`.

        Raises:
            StoreDamaged: It is not what was written, or cannot be read.
        """
        path = self.path(sequence)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise StoreDamaged(path.name, 0, f"cannot be read: {error.strerror}") from error
        return _parse(content, path.name, sequence)

    def save(self, snapshot: Snapshot) -> Path:
        """Writes a snapshot and drops those no longer kept.

        Steps, with what a crash after each leaves: 1. the partial file is written and synced (a
        partial file, removed next time); 2. it is read back and checked; 3. it is renamed, and the
        directory synced (the snapshot); 4. old ones are removed (more snapshots than are kept).

        Raises:
            OSError: It could not be written, for want of space say; nothing has changed.
            StoreDamaged: The disk did not give back what was written; nothing has changed.
        """
        target = self.path(snapshot.position.sequence)
        part = target.with_name(target.name + _PART_SUFFIX)
        try:
            _write_synced(part, snapshot)
            _parse(part.read_bytes(), part.name, snapshot.position.sequence)
            part.rename(target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        sync_directory(self._directory)
        self._drop_old()
        return target

    def _drop_old(self) -> None:
        """Removes all but the newest whole ones; a damaged one does not count as kept."""
        kept = 0
        for sequence in self.sequences():
            if kept < KEPT_SNAPSHOTS and self._is_whole(sequence):
                kept += 1
            else:
                self.path(sequence).unlink(missing_ok=True)

    def _is_whole(self, sequence: int) -> bool:
        try:
            self.load(sequence)
        except StoreDamaged:
            return False
        return True

    def remove_partial(self) -> None:
        """Removes what interrupted writers left; only for the holder of the snapshot lock."""
        for path in self._directory.glob(f"{SNAPSHOT_PREFIX}*{_PART_SUFFIX}"):
            path.unlink(missing_ok=True)


def _write_synced(path: Path, snapshot: Snapshot) -> None:
    position, digest, body, _ = snapshot
    head = msgspec.msgpack.encode(_Head(*position, digest, len(body)))
    start = b"".join((_MAGIC, _LENGTH.pack(len(head)), head))
    checksum = sha256(start)
    checksum.update(body)
    descriptor = create_file(path)
    with open(descriptor, "wb", buffering=0) as file:  # noqa: PTH123 - a descriptor, not a path
        for part in (start, memoryview(body), checksum.digest()):
            view = memoryview(part)
            while view:
                view = view[file.write(view[:_CHUNK_BYTES]) :]
        os.fsync(file.fileno())


def _parse(content: bytes, name: str, sequence: int) -> Snapshot:
    head = _read_head(content, name)
    if head.sequence != sequence:
        raise StoreDamaged(name, 0, f"holds sequence {head.sequence}")
    end = len(content) - _CHECKSUM_BYTES
    if end < head.body_bytes or sha256(memoryview(content)[:end]).digest() != content[end:]:
        raise StoreDamaged(name, 0, "the checksum is wrong")
    body = content[end - head.body_bytes : end]
    return Snapshot(_position(head), head.state_digest, body, name)


def _read_head(content: bytes, name: str) -> _Head:
    start = len(_MAGIC) + _LENGTH.size
    if len(content) < start or not content.startswith(_MAGIC):
        raise StoreDamaged(name, 0, "it is no snapshot")
    (length,) = _LENGTH.unpack_from(content, len(_MAGIC))
    try:
        return msgspec.msgpack.decode(content[start : start + length], type=_Head)
    except msgspec.DecodeError as error:
        raise StoreDamaged(name, 0, f"the head is malformed: {error}") from error


def _position(head: _Head) -> Position:
    return Position(head.sequence, head.chain_hash, head.now_ns, head.log_bytes)
