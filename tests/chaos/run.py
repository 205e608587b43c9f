"""Chaos: everything that happens to such a service, all at once, and a checker on the log.

    python -m tests.chaos.run --seconds 600 --seed 1

Gateways enqueue, repeat, cancel and drop; workers die, freeze, double and come too late; the
service is killed, stopped and frozen; its wall clock is set forward and back by up to hours (where
there is a C compiler).  At the end everything is drained and the log is judged.
"""

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import grpc

from fairsched.v1 import admin_service_pb2 as admin
from fairsched.v1 import admin_service_pb2_grpc, scheduler_service_pb2_grpc
from fairsched.v1 import scheduler_service_pb2 as pb
from tests.chaos.actors import POOL, SUCCEEDED, Actor, Gateway, Worker
from tests.chaos.checker import Sample, Verdict, check
from tests.support.child import Child
from tests.support.live import seconds
from tests.support.wall_clock import COMPILER, WallClock

FILE = """
[pools.default]
cost_source = "caller"
lease_duration_seconds = 1.5
hand_over_seconds = 0.3
retry_backoff_seconds = 0.2
max_attempts = 3
max_waiting = 400
max_waiting_per_user = 80
max_in_flight_per_user = 6
aging_min_sample = 16
"""
SETTINGS: dict[str, Any] = {"snapshot_records": 2000, "grace_seconds": 2}
CLOCK_OFF_BY_S = [0, -6 * 3600, -3600, -90, 90, 700, 3600, 6 * 3600]
"""By how much the wall clock is wrong at most is far below the retention of the log."""


class Stage:
    """The service, as it comes and goes."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder = folder
        self.rng = rng
        self.restarts = 0
        self.freezes = 0
        self.clock_steps = 0
        self.channel: grpc.aio.Channel | None = None
        self._config = folder / "config.toml"
        self._config.write_text(FILE)
        self._child: Child | None = None
        self._clock = WallClock(folder) if COMPILER else None
        self.scheduler: Any = None
        self.admin: Any = None

    async def start(self) -> None:
        """Starts the service and connects everybody to it."""
        environment = self._clock.environment if self._clock else None
        self._child = Child(
            self.folder / "data",
            environment=environment,
            config_file=str(self._config),
            **SETTINGS,
        )
        port = await self._child.serving()
        old, self.channel = self.channel, grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self.scheduler = scheduler_service_pb2_grpc.SchedulerServiceStub(self.channel)
        self.admin = admin_service_pb2_grpc.AdminServiceStub(self.channel)
        if old is not None:
            await old.close()

    async def trouble(self) -> None:
        """Sets the clock, if there is one to set; kills, stops or freezes the service, or not."""
        child = self._child
        assert child is not None
        if self._clock is not None and self.rng.random() < 0.6:
            self._clock.step(self.rng.choice(CLOCK_OFF_BY_S) - self._clock.offset_s)
            self.clock_steps += 1
            if self.rng.random() < 0.5:
                return
        dice = self.rng.random()
        if dice < 0.3:
            child.signal(signal.SIGSTOP)
            await asyncio.sleep(self.rng.uniform(0.2, 2.0))
            child.signal(signal.SIGCONT)
            self.freezes += 1
            return
        if dice < 0.8:
            await asyncio.to_thread(child.kill)
        else:
            child.signal(signal.SIGTERM)
            assert await child.ended(30) == 0, child.errors
        self.restarts += 1
        await self.start()

    async def stop(self) -> None:
        """Stops the service in order."""
        assert self._child is not None
        self._child.signal(signal.SIGTERM)
        assert await self._child.ended(30) == 0, self._child.errors

    def end(self) -> None:
        """Ends whatever still runs."""
        if self._child is not None:
            self._child.kill()

    async def watch(self, samples: list[Sample], stop: asyncio.Event) -> None:
        """Notes every second what the service says of itself."""
        while not stop.is_set():
            await asyncio.sleep(1)
            try:
                answer = await self.admin.GetStats(admin.GetStatsRequest(pool=POOL), timeout=2)
            except (grpc.aio.AioRpcError, asyncio.CancelledError):
                continue
            (pool,) = answer.pools
            samples.append(
                Sample(
                    answer.sequence,
                    pool.waiting_count,
                    pool.leased_count,
                    pool.redelivery_count,
                    pool.dead_letter_count,
                )
            )


async def _drain(stage: Stage) -> None:
    """Serves what is left until nothing waits and nothing is leased."""
    ask = pb.NextDispatchRequest(
        pools=[POOL], worker_id="last", max_dispatches=64, wait_duration=seconds(0.5)
    )
    async with asyncio.timeout(120):
        while True:
            answer = await stage.scheduler.NextDispatch(ask, timeout=5)
            for one in answer.dispatches:
                done = pb.CompleteRequest(lease_id=one.lease_id, outcome=SUCCEEDED)
                await stage.scheduler.Complete(done, timeout=5)
            stats = (await stage.admin.GetStats(admin.GetStatsRequest(pool=POOL))).pools[0]
            if not (stats.waiting_count or stats.leased_count or stats.redelivery_count):
                return


async def chaos(folder: Path, *, duration_s: float, seed: int) -> tuple[Verdict, dict[str, int]]:
    """Runs for about `duration_s` and returns the verdict and what was done."""
    rng = random.Random(seed)
    stage, samples, stop = Stage(folder, rng), [], asyncio.Event()
    loop = asyncio.get_running_loop()
    start = loop.time()
    try:
        await stage.start()
        actors: list[Actor] = [
            *(Gateway(f"g{n}", lambda: stage.scheduler, rng.randrange(1 << 30)) for n in range(6)),
            *(Worker(f"w{n}", lambda: stage.scheduler, rng.randrange(1 << 30)) for n in range(6)),
        ]
        tasks = [asyncio.create_task(one.run(stop)) for one in actors]
        watch = asyncio.create_task(stage.watch(samples, stop))
        end = loop.time() + duration_s
        while loop.time() < end:
            await asyncio.sleep(min(rng.uniform(2, 10), max(end - loop.time(), 0.1)))
            await stage.trouble()
            ended = [task for task in tasks if task.done()]
            assert not ended, ended
        stop.set()
        await asyncio.gather(*tasks, watch)
        await _drain(stage)
        await stage.stop()
    finally:
        stop.set()
        stage.end()
        if stage.channel is not None:
            await stage.channel.close()
    done = {
        "calls": sum(one.calls for one in actors),
        "restarts": stage.restarts,
        "freezes": stage.freezes,
        "clock_steps": stage.clock_steps,
    }
    lasted_s = loop.time() - start
    verdict = check(folder / "data", samples)
    if verdict.longest_life_s > lasted_s:
        verdict.problems.append(f"time leapt: {verdict.longest_life_s} s passed in {lasted_s} s")
    return verdict, done


def main() -> int:
    """Runs chaos and prints the verdict; returns 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = chaos(Path(folder), duration_s=given.seconds, seed=given.seed)
        verdict, done = asyncio.run(run)
    found = asdict(verdict) | done | {"seed": given.seed}
    found["problems"] = verdict.problems[:20]
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return 1 if verdict.problems else 0


if __name__ == "__main__":
    sys.exit(main())
