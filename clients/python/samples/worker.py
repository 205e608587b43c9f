"""A worker: takes what it has room for, runs it, reports what it used.  Ctrl-C or SIGTERM stops it.

python clients/python/samples/worker.py 127.0.0.1:50051 default gpu-1
"""

import asyncio
import sys

import fairsched
from fairsched.v1 import scheduler_service_pb2 as pb


async def run(job: fairsched.AsyncJob) -> pb.Usage:
    """Runs one request; raise `fairsched.GiveBack` to hand it to another worker."""
    print(f"{job.dispatch.request_id} of {job.dispatch.user_id}: {job.dispatch.cost} units")
    await asyncio.sleep(job.dispatch.cost / 10_000)
    return fairsched.new_usage(prompt_tokens=100, output_tokens=20)


async def main(target: str, pool: str, worker_id: str) -> None:
    async with fairsched.AsyncFairsched(target) as scheduler:
        worker = scheduler.worker(
            worker_id, [pool], run, concurrency=4, endpoint="http://127.0.0.1:8000"
        )
        await worker.run(handle_signals=True)
    print(f"{worker_id} ran {worker.done_count} requests")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
