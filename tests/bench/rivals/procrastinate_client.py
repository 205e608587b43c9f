"""Procrastinate (PostgreSQL): python -m tests.bench.rivals.procrastinate_client MODE FOLDER …

rate FOLDER COUNT BATCH      producer here, worker (concurrency 64) in a process of its own
latency FOLDER COUNT         one job at a time, from defer to its start
replay FOLDER TRACE SERVERS UNIT
"""

import asyncio
import sys
import time

import procrastinate

from tests.bench.rivals import common

_PRODUCERS = 16


def app_on(folder: str) -> procrastinate.App:
    """Returns an app on the database behind a socket folder."""
    connector = procrastinate.PsycopgConnector(
        kwargs={"host": folder, "user": "bench", "dbname": "postgres"}, max_size=24
    )
    return procrastinate.App(connector=connector)


async def prepare(app: procrastinate.App) -> None:
    """Makes the schema, once."""
    try:
        await app.schema_manager.apply_schema_async()
    except procrastinate.exceptions.ConnectorException:
        return


async def work(folder: str, count: int) -> None:
    """Runs jobs until `count` are done; says when it is ready and when it is done."""
    app, done = app_on(folder), 0
    finished = asyncio.Event()

    @app.task(name="job")
    async def job(body: str) -> None:
        nonlocal done
        done += 1
        if done == count:
            finished.set()

    async with app.open_async():
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        worker = asyncio.create_task(
            app.run_worker_async(
                concurrency=64, delete_jobs="always", install_signal_handlers=False
            )
        )
        await finished.wait()
        await asyncio.sleep(0.05)
        sys.stdout.write("done\n")
        sys.stdout.flush()
        worker.cancel()


async def rate(folder: str, count: int, batch: int) -> None:
    """Measures lifecycles a second: from the first defer to the last job done."""
    app = app_on(folder)

    @app.task(name="job")
    async def job(body: str) -> None:
        """Runs in the worker."""

    async with app.open_async():
        await prepare(app)
        words = ["-m", "tests.bench.rivals.procrastinate_client", "work", folder, str(count)]
        worker = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdout=asyncio.subprocess.PIPE
        )
        assert worker.stdout is not None
        await worker.stdout.readline()
        left = count
        began = time.perf_counter()

        async def produce() -> None:
            nonlocal left
            while left > 0:
                size = min(batch, left)
                left -= size
                if size == 1:
                    await job.defer_async(body="x" * 96)
                else:
                    await job.batch_defer_async(*({"body": "x" * 96} for _ in range(size)))

        await asyncio.gather(*(produce() for _ in range(_PRODUCERS)))
        added = time.perf_counter()
        await worker.stdout.readline()
        ended = time.perf_counter()
        await worker.wait()
    common.say(rate=count / (ended - began), enqueue_rate=count / (added - began))


async def latency(folder: str, count: int) -> None:
    """Measures the way of one job through an idle queue."""
    app, started = app_on(folder), asyncio.Event()

    @app.task(name="job")
    async def job(body: str) -> None:
        started.set()

    async with app.open_async():
        await prepare(app)
        worker = asyncio.create_task(
            app.run_worker_async(concurrency=1, delete_jobs="always", install_signal_handlers=False)
        )
        await asyncio.sleep(0.5)
        times = []
        for _ in range(count):
            started.clear()
            began = time.perf_counter()
            await job.defer_async(body="x")
            await started.wait()
            times.append(time.perf_counter() - began)
            await asyncio.sleep(0.01)
        worker.cancel()
    common.say(**common.latencies(times))


async def replay(folder: str, trace: str, servers: int, unit: float) -> None:
    """Plays a trace: first in, first out."""
    app, arrivals = app_on(folder), common.read_trace(trace)
    records: list[common.Record] = []
    finished = asyncio.Event()
    zero = 0.0

    @app.task(name="job")
    async def job(index: int) -> None:
        started = time.perf_counter() - zero
        await asyncio.sleep(arrivals[index].cost * unit)
        records.append((index, started, time.perf_counter() - zero))
        if len(records) == len(arrivals):
            finished.set()

    async with app.open_async():
        await prepare(app)
        worker = asyncio.create_task(
            app.run_worker_async(
                concurrency=servers, delete_jobs="always", install_signal_handlers=False
            )
        )
        await asyncio.sleep(0.5)
        zero = time.perf_counter()
        for arrival in arrivals:
            await asyncio.sleep(max(0.0, arrival.at_seconds - (time.perf_counter() - zero)))
            await job.defer_async(index=arrival.index)
        await finished.wait()
        worker.cancel()
    common.say(records=records)


if __name__ == "__main__":
    _, mode_, folder_, *rest_ = sys.argv
    run = {
        "work": lambda: work(folder_, int(rest_[0])),
        "rate": lambda: rate(folder_, int(rest_[0]), int(rest_[1])),
        "latency": lambda: latency(folder_, int(rest_[0])),
        "replay": lambda: replay(folder_, rest_[0], int(rest_[1]), float(rest_[2])),
    }[mode_]
    asyncio.run(run())
