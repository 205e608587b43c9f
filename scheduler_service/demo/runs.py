"""One run of the demo: a policy, the whole trace, a kill in the middle, and what was found."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Final

from fairsched import AsyncFairsched
from fairsched.errors import FairschedError
from fairsched.v1 import admin_service_pb2, audit_service_pb2, policy_pb2
from scheduler_service.demo.fleet import POOL, Clock, Gateways, Workers
from scheduler_service.demo.ledger import Ledger, Reader
from scheduler_service.demo.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scheduler_service.demo.arrivals import Replay

REPLAY_S: Final = 13.0
"""How long a run replays, seconds; the trace is compressed to it."""

KILL_AT: Final = 2 / 3
"""When the service is killed, as a part of the trace."""

LOOK_EVERY_S: Final = 0.25
END_WITHIN_S: Final = 60.0


@dataclasses.dataclass(slots=True)
class Progress:
    """What is told while a run goes on.

    Attributes:
        policy: Preset that decides.
        sent: Requests acknowledged.
        done: Requests that workers finished.
        waiting: Requests that wait.
        gap_micros: The live fairness gap, when last asked.
        bound_micros: Its bound; 0 if the policy has none.
        note: What is going on.
    """

    policy: str
    sent: int = 0
    done: int = 0
    waiting: int = 0
    gap_micros: int = 0
    bound_micros: int = 0
    note: str = ""


@dataclasses.dataclass(slots=True)
class Outcome:
    """What one run showed.

    Attributes:
        ledger: What the decision log says.
        acknowledged: Requests that the service acknowledged to the gateways.
        runs: How often the workers ran each request.
        repeated: Calls that gateways had to repeat.
        gap_micros: Largest live fairness gap seen.
        bound_micros: Its bound at that moment; 0 if the policy has none.
        violations: Violations of the band that the service itself found.
        work_done: What the workers did, as a part of what they could until the last one finished.
        head: Hash of the last record of the decision log.
    """

    ledger: Ledger
    acknowledged: set[str]
    runs: dict[str, int]
    repeated: int
    gap_micros: int = 0
    bound_micros: int = 0
    violations: int = 0
    work_done: float = 1.0
    head: str = ""

    def lost(self) -> set[str]:
        """Returns the requests that were acknowledged and did not end exactly once."""
        ended = {request for request, count in self.ledger.ended.items() if count == 1}
        return self.acknowledged - (ended & self.ledger.accepted & set(self.runs))


async def run(
    policy: str,
    replay: Replay,
    folder: Path,
    seconds: float,
    tell: Callable[[Progress], None],
) -> Outcome:
    """Replays the trace once.

    Args:
        policy: Preset that decides.
        replay: What to replay.
        folder: Data directory of the service.
        seconds: How long the replay takes; the trace is compressed to it.
        tell: Told how far it is, several times a second.
    """
    service = Service(folder)
    progress = Progress(policy, note="starting")
    tell(progress)
    try:
        await service.start()
        async with AsyncFairsched(service.target) as admin:
            made = admin_service_pb2.CreatePoolRequest(
                pool=POOL, policy=policy_pb2.PoolPolicy(preset=policy)
            )
            await admin.admin.CreatePool(made)
            outcome = await _replay(service, admin, replay, seconds, progress, tell)
        await service.stop()
    finally:
        await service.ensure_ended()
    return outcome


async def _replay(
    service: Service,
    admin: AsyncFairsched,
    replay: Replay,
    seconds: float,
    progress: Progress,
    tell: Callable[[Progress], None],
) -> Outcome:
    clock = Clock(replay.length_s / seconds)
    gateways = Gateways(service.target)
    workers = Workers(service.target, replay, clock, gateways.acknowledged)
    outcome = Outcome(Ledger(progress.policy), set(), workers.runs, 0)
    workers.start()
    watching = asyncio.create_task(_watch(admin, progress, outcome, tell, gateways))
    progress.note = "replaying"
    try:
        async with asyncio.timeout(2 * seconds + END_WITHIN_S):
            async with asyncio.TaskGroup() as group:
                group.create_task(gateways.replay(replay, clock))
                group.create_task(
                    _kill(service, clock, replay.length_s * KILL_AT, progress, [gateways, workers])
                )
            progress.note = "the trace is over; workers finish what waits"
            await workers.finished.wait()
        await workers.stop()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await gateways.close()
    outcome.repeated = gateways.repeated
    outcome.work_done = replay.cost / replay.capacity / max(clock.now_s(), replay.length_s)
    outcome.acknowledged = set(gateways.acknowledged)
    progress.note = "reading the decision log"
    tell(progress)
    await _look(admin, progress, outcome)
    outcome.ledger, outcome.head = await _read(admin, progress.policy, replay, clock)
    progress.note = "done"
    tell(progress)
    return outcome


async def _kill(
    service: Service,
    clock: Clock,
    at_s: float,
    progress: Progress,
    clients: list[Gateways | Workers],
) -> None:
    await clock.until(at_s)
    progress.note = "killed the service (SIGKILL); starting it again"
    clock.hold()
    await service.kill()
    await service.start()
    for group in clients:
        await group.connected()
    clock.go_on()
    progress.note = "goes on where it was"


async def _watch(
    admin: AsyncFairsched,
    progress: Progress,
    outcome: Outcome,
    tell: Callable[[Progress], None],
    gateways: Gateways,
) -> None:
    while True:
        outcome.acknowledged = set(gateways.acknowledged)
        await _look(admin, progress, outcome)
        tell(progress)
        await asyncio.sleep(LOOK_EVERY_S)


async def _look(admin: AsyncFairsched, progress: Progress, outcome: Outcome) -> None:
    progress.sent, progress.done = len(outcome.acknowledged), len(outcome.runs)
    try:
        request = admin_service_pb2.GetStatsRequest(pool=POOL)
        response = await admin.admin.GetStats(request, timeout=1.0)
    except FairschedError:
        return
    (pool,) = response.pools
    progress.waiting = pool.waiting_count
    progress.gap_micros = pool.fairness_gap_micros
    progress.bound_micros = pool.fairness_bound_micros
    found = response.service.invariant_violation_count
    outcome.violations = max(outcome.violations, found)
    if progress.bound_micros and progress.gap_micros > outcome.gap_micros:
        outcome.gap_micros, outcome.bound_micros = progress.gap_micros, progress.bound_micros


async def _read(
    admin: AsyncFairsched, policy: str, replay: Replay, clock: Clock
) -> tuple[Ledger, str]:
    users = sorted({arrival.user_id for arrival in replay.arrivals})
    reader = Reader(policy, clock.speed, users, clock.pauses_ns)
    request = audit_service_pb2.ListDecisionsRequest(page_size=1000)
    while True:
        response = await admin.audit.ListDecisions(request, timeout=30.0)
        for decision in response.decisions:
            reader.take(decision)
        if not response.next_page_token:
            return reader.finish(), response.head.newest_hash.hex()
        request.page_token = response.next_page_token
