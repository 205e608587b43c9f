"""What must hold of a data directory after any crash."""

from dataclasses import dataclass

from scheduler_service.app.recovery import Recovery, check_payloads, recover
from scheduler_service.core import snapshot as core_snapshot
from scheduler_service.store.directory import DataDirectory
from scheduler_service.store.snapshots import SnapshotFiles
from scheduler_service.store.sqlite import SqliteStore
from tests.fault.workload import Workload


@dataclass
class Found:
    """What a start after a crash found, and the model brought to the same place."""

    recovery: Recovery
    workload: Workload
    events: list[str]

    @property
    def head(self) -> int:
        return self.recovery.position.sequence


def start_and_check(
    directory: DataDirectory, seed: int, *, acknowledged: int, payload_bytes: int = 300
) -> Found:
    """Starts on what a crash left, and compares it with the stream that was being written.

    Nothing acknowledged is lost, nothing is invented: the state is the fold of a prefix of the
    stream that holds every acknowledged decision, and the payloads are those of that prefix.
    """
    events: list[str] = []
    store = SqliteStore(directory, report=lambda event, **_: events.append(event))
    try:
        recovery = recover(
            store, SnapshotFiles(directory.path), report=lambda event, **_: events.append(event)
        )
        head = store.head().sequence
        assert head >= acknowledged, f"acknowledged up to {acknowledged}, recovered up to {head}"
        workload = Workload(seed, payload_bytes=payload_bytes)
        workload.advance_to(head)
        assert core_snapshot.digest(recovery.state) == core_snapshot.digest(workload.state)
        assert store.payload_keys() == sorted(workload.payloads)
        assert store.payloads(workload.payloads) == workload.payloads
        assert check_payloads(recovery.state, store.payload_keys()) == ([], [])
    finally:
        store.close()
    return Found(recovery, workload, events)
