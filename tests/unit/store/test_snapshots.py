"""Snapshot files: whole or absent, checked, two kept."""

import stat

import pytest

from scheduler_service.app.ports import GENESIS, Snapshot, StoreDamaged
from scheduler_service.store.directory import DataDirectory
from scheduler_service.store.snapshots import SnapshotFiles


def snapshot(sequence: int, body: bytes = b"some state" * 50) -> Snapshot:
    position = GENESIS._replace(sequence=sequence, chain_hash=b"h" * 32, now_ns=5, log_bytes=6)
    return Snapshot(position, f"digest-{sequence}", body)


@pytest.fixture
def files(tmp_path):
    return SnapshotFiles(tmp_path)


def test_a_snapshot_comes_back_as_it_was_saved(files):
    """A snapshot comes back as it was saved."""
    path = files.save(snapshot(12))

    assert path.name == "snapshot-00000000000000000012"
    assert files.load(12) == snapshot(12)._replace(file=path.name)
    assert files.newest_position() == snapshot(12).position
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_no_snapshots_is_no_error(files):
    """No snapshots is no error."""
    assert files.sequences() == list(files.load_newest_first()) == []
    assert files.newest_position() is None
    assert files.prune_floor() == 0


def test_the_newest_two_are_kept(files):
    """The newest two are kept."""
    floors = []
    for sequence in (5, 100, 20_000, 30_000):
        files.save(snapshot(sequence))
        floors.append(files.prune_floor())

    assert files.sequences() == [30_000, 20_000]
    assert floors == [0, 5, 100, 20_000]


def test_every_flipped_byte_is_found(files):
    """Every flipped byte is found."""
    path = files.save(snapshot(9))
    content = path.read_bytes()
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 0x10
        path.write_bytes(changed)
        with pytest.raises(StoreDamaged) as caught:
            files.load(9)
        assert caught.value.file == path.name


def test_every_truncation_is_found(files):
    """Every truncation is found."""
    path = files.save(snapshot(9))
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(StoreDamaged):
            files.load(9)


def test_a_renamed_snapshot_is_found(files):
    """A renamed snapshot is found."""
    files.save(snapshot(9)).rename(files.path(10))

    with pytest.raises(StoreDamaged, match="holds sequence 9"):
        files.load(10)


def test_a_damaged_snapshot_is_passed_on_as_an_error_and_the_next_one_follows(files):
    """A damaged snapshot is passed on as an error and the next one follows."""
    files.save(snapshot(5))
    files.path(9).write_bytes(b"junk")
    newest, older = files.load_newest_first()

    assert isinstance(newest, StoreDamaged)
    assert older.position.sequence == 5
    assert files.newest_position().sequence == 5


def test_a_damaged_snapshot_does_not_push_out_a_good_one(files):
    """A damaged snapshot does not push out a good one."""
    files.save(snapshot(5))
    files.save(snapshot(9))
    files.path(9).write_bytes(b"junk")
    assert files.prune_floor() == 5
    files.save(snapshot(20))

    assert files.sequences() == [20, 5]


def test_a_failed_write_leaves_what_there_was(files, monkeypatch, tmp_path):
    """A failed write leaves what there was."""
    files.save(snapshot(5))

    def fail(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        files.save(snapshot(9))

    assert [path.name for path in tmp_path.iterdir()] == [files.path(5).name]


def test_a_disk_that_garbles_is_found_before_the_snapshot_has_its_name(files, monkeypatch):
    """A disk that garbles is found before the snapshot has its name."""
    monkeypatch.setattr("pathlib.Path.read_bytes", lambda _path: b"FAIRSNP1 garbled")
    with pytest.raises(StoreDamaged):
        files.save(snapshot(9))
    monkeypatch.undo()

    assert files.sequences() == []


def test_partial_files_are_ignored_and_can_be_removed(files, tmp_path):
    """Partial files are ignored and can be removed."""
    part = tmp_path / (files.path(9).name + ".part")
    part.write_bytes(b"half")
    assert files.sequences() == []
    files.remove_partial()

    assert not part.exists()


def test_a_large_body_is_written_whole(files, monkeypatch):
    """A large body is written whole."""
    monkeypatch.setattr("scheduler_service.store.snapshots._CHUNK_BYTES", 1000)
    body = bytes(range(256)) * 100
    files.save(snapshot(3, body))

    assert files.load(3).body == body


def test_snapshots_live_beside_the_log(tmp_path):
    """Snapshots live beside the log."""
    directory = DataDirectory(tmp_path / "data")
    directory.create()
    SnapshotFiles(directory.path).save(snapshot(1))

    assert SnapshotFiles(directory.path).sequences() == [1]
