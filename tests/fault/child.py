"""A process that writes the stream of a seed into a data directory, to be killed or starved.

    python -m tests.fault.child DIRECTORY --seed 1 …

It recovers, checks that it recovered a prefix of the stream, and goes on.  Every acknowledgement is
one line `ack SEQUENCE` on stdout, written when the caller would be told.  It exits with 7 when the
store has failed, as the service does, and with 0 at the end of the stream.
"""

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path

from scheduler_service.app.chain import GroupBuilder
from scheduler_service.app.commit import CommitterFailed, GroupCommitter
from scheduler_service.app.ports import Durability, StoreError
from scheduler_service.app.recovery import recover
from scheduler_service.core import snapshot as core_snapshot
from scheduler_service.store import background, sqlite
from scheduler_service.store.directory import DataDirectory
from scheduler_service.store.pruning import Retention
from scheduler_service.store.schedule import SnapshotSchedule, SnapshotTriggers
from scheduler_service.store.snapshots import SnapshotFiles
from scheduler_service.store.sqlite import SqliteStore
from tests.fault.workload import Workload

EXIT_FAILED = 7


def tell(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def report(event: str, /, **values: object) -> None:
    sys.stderr.write(f"{event} {values}\n")
    sys.stderr.flush()


def start(options) -> tuple[SqliteStore, Workload]:
    store = SqliteStore(
        options.directory,
        durability=Durability(options.durability),
        retention=Retention(max_bytes=options.retention_bytes),
        report=report,
        sync_interval_ns=5_000_000,
    )
    recovery = recover(store, SnapshotFiles(options.directory.path), report=report)
    workload = Workload(options.seed, payload_bytes=options.payload_bytes)
    workload.advance_to(store.head().sequence)
    assert core_snapshot.digest(recovery.state) == core_snapshot.digest(workload.state)
    return store, workload


def write_directly(options) -> None:
    """Appends group by group on one thread: every storage operation in a fixed order."""
    store, workload = start(options)
    builder = GroupBuilder(store.head())
    for number in range(1, options.groups + 1):
        for _ in range(2):
            workload.step().add_to(builder)
        group = builder.take()
        store.append(group)
        tell(f"ack {group.end.sequence}")
        if number % 5 == 0:
            store.upkeep(idle=number % 10 == 0)
        if options.snapshot_groups and number % options.snapshot_groups == 0:
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "scheduler_service.store.snapshotter",
                    options.directory.path,
                ],
                check=False,
                stdout=subprocess.DEVNULL,
            )
    store.close()


async def write_as_the_service_does(options) -> None:
    """Commits on a thread, with snapshots made by processes and old groups pruned."""
    store, workload = start(options)
    schedule = SnapshotSchedule(
        options.directory,
        SnapshotTriggers(records=options.snapshot_records),
        report=lambda event, /, **_: tell(event),
    )

    def durable(commit) -> None:
        tell(f"ack {commit.group.end.sequence}")
        schedule.consider(committer.durable)

    committer = GroupCommitter(store, on_durable=durable, on_failure=report_failure)
    committer.start()
    for number in range(options.groups):
        step = workload.step()
        if step.decisions:
            committer.record(step.decisions)
        for key, payload in step.puts:
            committer.put_payload(key, payload)
        for key in step.deletes:
            committer.delete_payload(key)
        await (committer.drain() if number % 4 == 0 else asyncio.sleep(0))
    await committer.close()
    await schedule.close()
    store.close()


def report_failure(error: Exception) -> None:
    report("log.failed", error=str(error))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=lambda text: DataDirectory(Path(text)))
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--groups", type=int, default=1_000_000)
    parser.add_argument("--durability", default="sync")
    parser.add_argument("--payload-bytes", type=int, default=300)
    parser.add_argument("--retention-bytes", type=int, default=0)
    parser.add_argument("--checkpoint-bytes", type=int, default=100_000)
    parser.add_argument("--snapshot-groups", type=int, default=0)
    parser.add_argument("--snapshot-records", type=int, default=0)
    options = parser.parse_args()
    background.CHECKPOINT_BYTES = options.checkpoint_bytes
    sqlite._PRUNE_CHECK_NS = 0
    try:
        if options.snapshot_records:
            asyncio.run(write_as_the_service_does(options))
        else:
            write_directly(options)
    except (StoreError, CommitterFailed) as error:
        with contextlib.suppress(OSError):
            report("store.failed", error=str(error))
        return EXIT_FAILED
    tell("done")
    return 0


if __name__ == "__main__":
    # Without a tidy end: what is left on disk is what the store had made sure of.
    os._exit(main())
