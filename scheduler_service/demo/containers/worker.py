"""A worker of the demo: takes requests as a GPU would, and spends their time asleep.

    python -m scheduler_service.demo.containers.worker

It is healthy while the scheduler lists it as active.
"""

import asyncio
import logging

from fairsched import AsyncFairsched, AsyncJob, AsyncWorker, errors, new_usage
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.demo.containers import common
from scheduler_service.demo.containers.settings import WorkerSettings

SHOW_LIFE_S = 2.0
"""Time between two signs of life, seconds."""

log = logging.getLogger("demo")


async def main() -> None:
    """Works until SIGTERM; then finishes or gives back what runs."""
    common.set_up_logging()
    settings = WorkerSettings()
    stopping = common.stop_on_signals()
    async with AsyncFairsched(settings.target) as client:
        worker = client.worker(
            settings.worker_id,
            [settings.pool],
            lambda job: simulate(settings, job),
            concurrency=settings.slots,
            lease_duration=settings.lease_seconds,
            grace=settings.grace_seconds,
        )
        working = asyncio.create_task(work(client, worker, settings))
        signal_came = asyncio.create_task(stopping.wait())
        helpers = [
            signal_came,
            asyncio.create_task(show_life(client, settings)),
            asyncio.create_task(report(worker, settings)),
        ]
        await asyncio.wait((working, signal_came), return_when=asyncio.FIRST_COMPLETED)
        worker.stop()
        await working
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)
    log.info("worker %s stopped after %d requests", settings.worker_id, worker.done_count)


async def work(client: AsyncFairsched, worker: AsyncWorker, settings: WorkerSettings) -> None:
    """Takes requests as soon as there is a pool."""
    await common.ensure_pool(client, settings.pool)
    log.info("worker %s: %d slots", settings.worker_id, settings.slots)
    await worker.run()


async def simulate(settings: WorkerSettings, job: AsyncJob) -> pb.Usage:
    """Sleeps as long as the tokens take, and says how many there were.

    The gateway tells the real output length in the metadata; the scheduler does not look there.
    """
    metadata = job.dispatch.metadata
    prompt_tokens = int(metadata.get("prompt_tokens", job.dispatch.cost))
    output_tokens = int(metadata.get("output_tokens", 0))
    await asyncio.sleep((prompt_tokens + output_tokens) / settings.tokens_per_second)
    return new_usage(prompt_tokens=prompt_tokens, output_tokens=output_tokens)


async def show_life(client: AsyncFairsched, settings: WorkerSettings) -> None:
    """Touches the sign of life while the scheduler knows this worker as active."""
    request = pb.ListWorkersRequest(pool=settings.pool, page_size=1000)
    while True:
        try:
            response = await client.scheduler.ListWorkers(request)
        except errors.CallError as error:
            log.info("not listed: %s", error)
        else:
            listed = {worker.worker_id: worker.state for worker in response.workers}
            if listed.get(settings.worker_id) == pb.WORKER_STATE_ACTIVE:
                settings.alive_file.touch()
        await asyncio.sleep(SHOW_LIFE_S)


async def report(worker: AsyncWorker, settings: WorkerSettings) -> None:
    """Says now and then how much is done."""
    while True:
        await asyncio.sleep(settings.report_seconds)
        log.info("worker %s done=%d", settings.worker_id, worker.done_count)


if __name__ == "__main__":
    asyncio.run(main())
