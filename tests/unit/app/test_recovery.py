"""Recovery: snapshots, tails, damage, and payloads that do not match."""

import gc

import pytest

from scheduler_service.app import codec, recovery
from scheduler_service.app.memory import MemoryStore
from scheduler_service.app.ports import (
    GENESIS,
    Payload,
    Position,
    Snapshot,
    StoreDamaged,
    StoredGroup,
)
from scheduler_service.app.recovery import check_payloads, recover
from scheduler_service.core import snapshot as core_snapshot
from scheduler_service.core.state import State
from tests.fault.workload import POOL, Workload, next_group


class Log:
    """A filled memory store, snapshots taken on the way, and the events of recovery."""

    def __init__(self, groups: int = 40, snapshots_at: tuple[int, ...] = ()) -> None:
        self.store = MemoryStore()
        self.workload = Workload(seed=7)
        self.snapshots: list[Snapshot | StoreDamaged] = []
        self.events: list[tuple[str, dict[str, object]]] = []
        self.digests = {0: core_snapshot.digest(State())}
        for number in range(1, groups + 1):
            self.store.append(next_group(self.workload, self.store.head(), steps=3))
            self.digests[self.store.head().sequence] = core_snapshot.digest(self.workload.state)
            if number in snapshots_at:
                self.snapshots.insert(0, self.snapshot())

    def snapshot(self) -> Snapshot:
        state = self.workload.state
        body, digest = core_snapshot.dump(state), core_snapshot.digest(state)
        return Snapshot(self.store.head(), digest, body, f"snapshot-{state.sequence}")

    def load_newest_first(self):
        return iter(self.snapshots)

    def report(self, event, /, **values):
        self.events.append((event, values))

    def recover(self):
        return recover(self.store, self, report=self.report)

    def damage(self, number: int) -> int:
        """Flips a bit in the group `number` (negative from the end); returns its first sequence."""
        group = self.store._groups[number]
        frame = bytearray(group.frame)
        frame[-1] ^= 1
        self.store._groups[number] = group._replace(frame=bytes(frame))
        return group.first_sequence


def digest_of(found) -> str:
    return core_snapshot.digest(found.state)


def test_an_empty_log_is_an_empty_state():
    """An empty log is an empty state."""
    log = Log(groups=0)
    found = log.recover()

    assert (found.position, found.from_snapshot, found.replayed) == (GENESIS, 0, 0)
    assert digest_of(found) == log.digests[0]


def test_the_whole_log_folds_to_the_live_state():
    """The whole log folds to the live state."""
    log = Log()
    found = log.recover()

    assert digest_of(found) == core_snapshot.digest(log.workload.state)
    assert found.replayed == found.position.sequence == log.store.head().sequence
    assert log.events == []


def test_a_snapshot_and_its_tail_give_the_same_state_as_the_whole_log():
    """A snapshot and its tail give the same state as the whole log."""
    log = Log(snapshots_at=(10, 25))
    found = log.recover()

    assert digest_of(found) == core_snapshot.digest(log.workload.state)
    assert found.from_snapshot == log.snapshots[0].position.sequence
    assert found.replayed == log.store.head().sequence - found.from_snapshot


def test_a_snapshot_of_everything_leaves_nothing_to_replay():
    """A snapshot of everything leaves nothing to replay."""
    log = Log(snapshots_at=(40,))

    assert log.recover().replayed == 0


@pytest.mark.parametrize("garble", ["damaged", "body", "sequence", "chain"])
def test_a_newest_snapshot_that_is_no_use_falls_back_to_the_one_before(garble):
    """A newest snapshot that is no use falls back to the one before."""
    log = Log(snapshots_at=(10, 25))
    newest = log.snapshots[0]
    position = newest.position
    log.snapshots[0] = {
        "damaged": StoreDamaged("snapshot-x", 0, "the checksum is wrong"),
        "body": newest._replace(body=b"\x93\x01\x02\x03"),
        "sequence": newest._replace(body=log.snapshots[1].body),
        "chain": newest._replace(position=position._replace(chain_hash=bytes(32))),
    }[garble]
    found = log.recover()

    assert found.from_snapshot == log.snapshots[1].position.sequence
    assert digest_of(found) == core_snapshot.digest(log.workload.state)
    assert [event for event, _ in log.events] == [
        "snapshot.damaged" if garble == "damaged" else "snapshot.refused"
    ]


def test_a_snapshot_that_is_not_at_the_end_of_a_group_is_refused():
    """A snapshot that is not at the end of a group is refused."""
    log = Log(snapshots_at=(10,))
    position = log.snapshots[0].position
    log.snapshots[0] = log.snapshots[0]._replace(
        position=position._replace(sequence=position.sequence - 1)
    )

    assert log.recover().from_snapshot == 0


def test_without_any_snapshot_the_log_is_folded_from_its_beginning():
    """Without any snapshot the log is folded from its beginning."""
    log = Log(snapshots_at=(10, 25))
    log.snapshots = [StoreDamaged("a", 0, "x"), StoreDamaged("b", 0, "y")]
    found = log.recover()

    assert (found.from_snapshot, digest_of(found)) == (
        0,
        core_snapshot.digest(log.workload.state),
    )


def test_a_pruned_log_starts_at_its_snapshot():
    """A pruned log starts at its snapshot."""
    log = Log(snapshots_at=(10, 25))
    before = log.snapshots[1].position.sequence + 1
    assert log.store.prune(before, max_groups=1000) == 10
    log.snapshots[0] = StoreDamaged("snapshot-x", 0, "the checksum is wrong")
    found = log.recover()

    assert found.from_snapshot == log.store.base().sequence
    assert digest_of(found) == core_snapshot.digest(log.workload.state)


def test_a_pruned_log_without_a_snapshot_is_refused_in_words():
    """A pruned log without a snapshot is refused in words."""
    log = Log(snapshots_at=(10,))
    log.store.prune(10**9, max_groups=20)

    with pytest.raises(StoreDamaged, match="no usable snapshot reaches it; restore a backup"):
        log.recover()


def test_a_damaged_last_group_is_cut_with_one_event():
    """A damaged last group is cut with one event."""
    log = Log(snapshots_at=(10,))
    first = log.damage(-1)
    found = log.recover()

    assert found.cut_from == first
    assert log.store.head().sequence == found.position.sequence == first - 1
    assert digest_of(found) == log.digests[first - 1]
    assert [event for event, _ in log.events] == ["log.tail_cut"]
    assert log.events[0][1]["file"] == "memory"
    assert log.events[0][1]["sequence"] == first
    log.events.clear()

    assert digest_of(log.recover()) == log.digests[first - 1]
    assert log.events == []


@pytest.mark.parametrize("number", [0, 20, -2])
def test_damage_in_the_middle_is_refused_with_file_and_sequence(number):
    """Damage in the middle is refused with file and sequence."""
    log = Log()
    first = log.damage(number)
    head = log.store.head()

    with pytest.raises(StoreDamaged, match=f"memory, sequence {first}: the hash chain is broken"):
        log.recover()
    assert log.store.head() == head


def test_damage_behind_the_snapshot_does_not_matter_to_a_start():
    """Damage behind the snapshot does not matter to a start."""
    log = Log(snapshots_at=(10, 25))
    log.damage(3)

    assert digest_of(log.recover()) == core_snapshot.digest(log.workload.state)


def test_a_missing_group_is_refused():
    """A missing group is refused."""
    log = Log()
    del log.store._groups[20], log.store._ends[20]

    with pytest.raises(StoreDamaged, match="the next group begins at"):
        log.recover()


def test_a_record_of_another_version_is_not_taken_for_a_torn_tail():
    """A record of another version is not taken for a torn tail."""
    log = Log(groups=3)
    head = log.store.head()
    unknown = b"\x92\xcc\xf0\x01"
    end = Position(
        head.sequence + 1,
        recovery.chain.extend(head.chain_hash, [unknown]),
        head.now_ns,
        head.log_bytes + len(unknown),
    )
    log.store._groups.append(StoredGroup(end.sequence, end, codec.join_frame([unknown])))
    log.store._ends.append(end.sequence)

    with pytest.raises(StoreDamaged, match="cannot be decoded"):
        log.recover()
    assert log.store.head() == end


def test_a_log_that_ends_before_its_snapshot_goes_on_from_the_snapshot():
    """A log that ends before its snapshot goes on from the snapshot."""
    log = Log(snapshots_at=(10, 40))
    end = log.store.head()
    log.store.cut_tail(log.store._ends[29])
    found = log.recover()

    assert digest_of(found) == core_snapshot.digest(log.workload.state)
    assert log.store.head() == log.store.base() == found.position == end
    assert [event for event, _ in log.events] == ["log.ended_early"]
    log.store.append(next_group(log.workload, end))

    assert digest_of(log.recover()) == core_snapshot.digest(log.workload.state)


def test_progress_is_reported_up_to_the_head(monkeypatch):
    """Progress is reported up to the head."""
    monkeypatch.setattr(recovery, "PAGE_BYTES", 2000)
    log = Log()
    seen: list[tuple[int, int]] = []
    recover(log.store, log, report=log.report, progress=lambda at, head: seen.append((at, head)))

    head = log.store.head().sequence
    assert len(seen) > 3
    assert seen == sorted(seen)
    assert seen[-1] == (head, head)


@pytest.mark.parametrize(("until", "groups"), [(0, 0), (1, 1), (-1, 20)])
def test_a_fold_can_stop_behind_a_group(until, groups):
    """A fold can stop behind a group."""
    log = Log()
    until = log.store._ends[19] if until < 0 else until
    state = State()
    end = recovery.fold(state, log.store, GENESIS, until_sequence=until)

    assert end.sequence == state.sequence == ([0, *log.store._ends][groups])
    assert core_snapshot.digest(state) == log.digests[end.sequence]


def test_the_collector_is_only_paused():
    """The collector is only paused."""
    assert gc.isenabled()
    with recovery.collector_paused():
        assert not gc.isenabled()
        with recovery.collector_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_payloads_that_do_not_match_the_state_are_named():
    """Payloads that do not match the state are named."""
    log = Log()
    workload, store = log.workload, log.store
    assert check_payloads(workload.state, store.payload_keys()) == ([], [])
    store._payloads[10**6] = Payload(b"", b"")
    lost = next(
        request for request in workload.state.pools[POOL].requests.values() if request.payload_bytes
    )
    del store._payloads[lost.sequence]

    assert check_payloads(workload.state, store.payload_keys()) == (
        [10**6],
        [(POOL, lost.request_id)],
    )
