"""kill -9 of a real process around commits, checkpoints, snapshots and pruning.

R81 (ClickHouse/ClickHouse#112101): a crash during truncation bricked start-up.  R82
(HarperFast/rocksdb-js#723): durable entries were invisible until a later commit.
"""

import random

import pytest

from scheduler_service.store.directory import DataDirectory
from scheduler_service.store.snapshots import SnapshotFiles
from tests.fault.checks import start_and_check
from tests.fault.processes import command, kill_after

pytestmark = [pytest.mark.crash, pytest.mark.slow]

ROUNDS = 4


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("durability", ["sync", "async", "none"])
def test_killed_at_any_moment_it_starts_again_with_everything_acknowledged(
    tmp_path, rounds, durability
):
    """Rounds go on in one directory, so that every start meets what the last kill left."""
    rng = random.Random(durability)
    acknowledged = 0
    snapshots: set[int] = set()
    pruned = False
    count = ROUNDS * rounds if durability == "sync" else 2 * rounds
    for number in range(count):
        if number % 20 == 0:
            seed = rng.randrange(10**6)
            directory = DataDirectory(tmp_path / f"data{number}")
            acknowledged = 0
        arguments = command(
            directory,
            seed,
            durability=durability,
            snapshot_records=150,
            retention_bytes=3_000,
        )
        if number % 2 == 0:
            told = kill_after(arguments, rng.randrange(1, 400))
        else:
            told = kill_after(arguments, rng.randrange(1, 40), marker="snapshot.made")
        acknowledged = max(acknowledged, told)
        found = start_and_check(directory, seed, acknowledged=acknowledged)
        snapshots.update(SnapshotFiles(directory.path).sequences())
        pruned |= found.recovery.from_snapshot > 0
        acknowledged = found.head

    if durability == "sync":
        assert len(snapshots) >= 2
        assert pruned


def test_what_was_acknowledged_just_before_the_kill_is_there_at_once(tmp_path, rounds):
    """No new write is needed to see it (R82)."""
    for number in range(2 * rounds):
        directory = DataDirectory(tmp_path / f"data{number}")
        acknowledged = kill_after(command(directory, seed=number, groups=5000), lines=100)
        assert acknowledged >= 100

        start_and_check(directory, number, acknowledged=acknowledged)
