"""The write-ahead file cut at any byte of its end, emptied, and garbled.

R80 (camunda/camunda#12374): a file cut short by a crash caused a crash loop.
"""

import sqlite3

import pytest

from scheduler_service.app.ports import Durability
from scheduler_service.store.directory import DataDirectory
from scheduler_service.store.journal import torn_tail_offset
from scheduler_service.store.sqlite import SqliteStore
from tests.fault.checks import start_and_check
from tests.fault.workload import Workload, next_group
from tests.support.crashed import copy_as_crashed

SEED = 11


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    """A directory as a crash leaves it: one part checkpointed, one part in the journal only.

    Gives the directory, the sequences at which its groups end, and the checkpointed frames.
    """
    path = tmp_path_factory.mktemp("torn")
    directory = DataDirectory(path / "data")
    store = SqliteStore(directory, report=print, durability=Durability.NONE)
    workload = Workload(SEED)
    ends = []
    for number in range(60):
        store.append(next_group(workload, store.head()))
        ends.append(store.head().sequence)
        if number == 30:
            # A reader keeps the journal from being begun anew, so that its end is the newest.
            reader = sqlite3.connect(directory.log_path, isolation_level=None)
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM log").fetchone()
            checkpoint = store._writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    copy = copy_as_crashed(directory, path / "crashed")
    reader.close()
    store.close()
    return copy, ends, checkpoint[2]


@pytest.fixture
def copy(crashed, tmp_path):
    return copy_as_crashed(crashed[0], tmp_path / "copy"), crashed[1]


def test_an_untorn_journal_is_whole_and_nothing_is_reported(copy):
    """An untorn journal is whole and nothing is reported."""
    directory, ends = copy
    found = start_and_check(directory, SEED, acknowledged=ends[-1])

    assert (found.head, found.events) == (ends[-1], [])


def test_a_journal_cut_at_each_of_its_last_200_bytes_loses_the_torn_group_only(copy):
    """A journal cut at each of its last 200 bytes loses the torn group only."""
    directory, ends = copy
    whole = directory.journal_path.read_bytes()
    for cut in range(1, 201):
        target = copy_as_crashed(directory, directory.path.parent / "again")
        target.journal_path.write_bytes(whole[:-cut])
        found = start_and_check(target, SEED, acknowledged=ends[-2])

        assert (found.head, found.events) == (ends[-2], ["log.tail_cut"]), cut


@pytest.mark.parametrize("kept", [0, 1, 31, 32, 40, 56])
def test_a_journal_cut_to_almost_nothing_leaves_what_was_checkpointed(copy, kept):
    """A journal cut to almost nothing leaves what was checkpointed."""
    directory, ends = copy
    directory.journal_path.write_bytes(directory.journal_path.read_bytes()[:kept])
    found = start_and_check(directory, SEED, acknowledged=ends[30])

    assert found.head == ends[30]
    assert found.events == ([] if kept in {0, 32} else ["log.tail_cut"])


def test_a_journal_cut_at_any_frame_behind_the_checkpoint_leaves_a_prefix(copy, crashed):
    """A journal cut at any frame behind the checkpoint leaves a prefix."""
    directory, ends = copy
    checkpointed = crashed[2]
    whole = directory.journal_path.read_bytes()
    frame = 24 + 4096
    heads = []
    for length in range(32 + checkpointed * frame, len(whole) + 1, frame * 3):
        target = copy_as_crashed(directory, directory.path.parent / "again")
        target.journal_path.write_bytes(whole[: length + 100])
        heads.append(start_and_check(target, SEED, acknowledged=0).head)

    assert heads == sorted(heads)
    assert set(heads) <= {0, *ends}


def test_a_garbled_last_frame_is_dropped(copy):
    """A garbled last frame is dropped."""
    directory, ends = copy
    content = bytearray(directory.journal_path.read_bytes())
    content[-100] ^= 4
    directory.journal_path.write_bytes(content)
    found = start_and_check(directory, SEED, acknowledged=ends[-2])

    assert (found.head, found.events) == (ends[-2], ["log.tail_cut"])


def test_the_report_names_file_and_offset(copy, events):
    """The report names file and offset."""
    directory, _ = copy
    size = directory.journal_path.stat().st_size
    directory.journal_path.write_bytes(directory.journal_path.read_bytes()[:-7])
    SqliteStore(directory, report=events).close()
    [(name, values)] = events

    assert name == "log.tail_cut"
    assert values["file"] == "log.sqlite3-wal"
    assert size - 10 * 4120 <= values["offset"] < size
    assert (values["offset"] - 32) % 4120 == 0


def test_frames_of_an_earlier_round_are_not_taken_for_a_torn_tail(directory, tmp_path, events):
    """Frames of an earlier round are not taken for a torn tail."""
    store = SqliteStore(directory, report=events, durability=Durability.NONE)
    workload = Workload(SEED)
    for _ in range(40):
        store.append(next_group(workload, store.head()))
    store._writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    for _ in range(3):
        store.append(next_group(workload, store.head()))
    copy = copy_as_crashed(directory, tmp_path / "crashed")
    head = store.head().sequence
    store.close()
    assert copy.journal_path.stat().st_size > 40 * 4096

    assert start_and_check(copy, SEED, acknowledged=head).events == []


def test_no_journal_is_no_torn_journal(tmp_path):
    """No journal is no torn journal."""
    assert torn_tail_offset(tmp_path / "absent", 0, 4096) is None
