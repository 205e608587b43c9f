"""Fails and crashes at every storage operation in turn, until a run ends without a fault."""

import asyncio
import random

import pytest

from scheduler_service.app.commit import CommitterFailed, GroupCommitter
from scheduler_service.app.memory import MemoryStore
from scheduler_service.app.ports import StoreFailed
from scheduler_service.app.recovery import recover
from scheduler_service.core import snapshot as core_snapshot
from tests.fault.faulty import CrashError, FaultyStore
from tests.fault.workload import Workload

STEPS = 25


class NoSnapshots:
    def load_newest_first(self):
        return iter(())


async def run(store, workload: Workload) -> tuple[int, list[Exception]]:
    """Records the stream until something fails; returns what was acknowledged, and the errors."""
    acknowledged: list[int] = []
    failures: list[Exception] = []
    committer = GroupCommitter(
        store,
        on_durable=lambda commit: acknowledged.append(commit.group.end.sequence),
        on_failure=failures.append,
    )
    committer.start()
    try:
        for number in range(STEPS):
            step = workload.step()
            if step.decisions:
                committer.record(step.decisions)
            for key, payload in step.puts:
                committer.put_payload(key, payload)
            for key in step.deletes:
                committer.delete_payload(key)
            if number % 3 == 0:
                await committer.drain()
            else:
                await asyncio.sleep(0)
        await committer.drain()
    except CommitterFailed:
        for _ in range(20):
            with pytest.raises(CommitterFailed):
                committer.record(workload.step().decisions[:1])
            await asyncio.sleep(0)
    try:
        await committer.close()
    except CommitterFailed:
        assert failures
    assert acknowledged == sorted(acknowledged)
    return max(acknowledged, default=0), failures


def check(inner: MemoryStore, seed: int, acknowledged: int) -> None:
    found = recover(inner, NoSnapshots(), report=print)
    head = inner.head().sequence
    assert head >= acknowledged
    model = Workload(seed)
    model.advance_to(head)
    assert core_snapshot.digest(found.state) == core_snapshot.digest(model.state)
    assert inner.payload_keys() == sorted(model.payloads)


@pytest.mark.parametrize("crash", [False, True], ids=["error", "crash"])
@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for-ever"])
def test_a_fault_at_any_operation_loses_nothing_acknowledged(crash, for_ever, rounds):
    """A fault at any operation loses nothing acknowledged."""
    for seed in range(4 * rounds):
        fail_at = 1
        while True:
            inner = MemoryStore()
            rng = random.Random(f"{seed}-{fail_at}")
            store = FaultyStore(inner, rng, fail_at=fail_at, for_ever=for_ever, crash=crash)
            acknowledged, failures = asyncio.run(run(store, Workload(seed)))
            check(inner, seed, acknowledged)
            if store.failures == 0:
                assert failures == []
                break
            assert [type(failure) for failure in failures] == [CrashError if crash else StoreFailed]
            assert store.failures == 1, "the store was used after it had failed"
            fail_at += 1
        assert fail_at > STEPS // 3


def test_a_fault_at_any_operation_of_recovery_can_be_repeated():
    """A crash during recovery, then another start."""
    inner = MemoryStore()
    asyncio.run(run(inner, Workload(3)))
    group = inner._groups[-1]
    inner._groups[-1] = group._replace(frame=group.frame[:-1])
    fail_at = 1
    while True:
        copy = MemoryStore()
        copy.__dict__.update(
            _groups=list(inner._groups), _ends=list(inner._ends), _payloads=dict(inner._payloads)
        )
        store = FaultyStore(copy, random.Random(0), fail_at=fail_at, crash=True)
        try:
            recover(store, NoSnapshots(), report=lambda _event, **_: None)
        except CrashError:
            fail_at += 1
        found = recover(copy, NoSnapshots(), report=lambda _event, **_: None)
        assert copy.head().sequence == found.position.sequence == group.first_sequence - 1
        if not store.failures:
            break

    assert fail_at >= 3
