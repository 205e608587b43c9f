"""A gateway: waits for each request's turn, and until the request is done.

python clients/python/samples/gateway.py 127.0.0.1:50051 default acme 10
"""

import asyncio
import sys

import fairsched


async def forward() -> int:
    """Stands for the call of a model behind your own load balancer; returns the tokens it gave."""
    await asyncio.sleep(0.01)
    return 20


async def serve_one(scheduler: fairsched.AsyncFairsched, pool: str, user_id: str) -> None:
    request = fairsched.new_request(
        pool=pool, user_id=user_id, prompt_tokens=100, max_output_tokens=50, max_wait=30
    )
    try:
        async with scheduler.acquire(request) as turn:
            if turn.worker_id:  # it runs the request and says when it is done
                await turn.completed()
            else:  # a gate, or nobody to ask: the request is ours to forward
                turn.used(prompt_tokens=100, output_tokens=await forward())
    except fairsched.NotGrantedError as error:  # expired, shed, cancelled: answer 503 or 429
        print(f"{request.request_id}: {error}")
    except fairsched.LimitReachedError as error:  # full: answer 429 with Retry-After
        print(f"{request.request_id}: try again in {error.retry_after} s")
    else:
        print(f"{request.request_id}: waited {turn.wait:.3f} s, ran on {turn.worker_id}")


async def main(target: str, pool: str, user_id: str, count: int) -> None:
    passing = fairsched.Open(max_local_in_flight=8)  # or nothing: refuse while it is away
    async with fairsched.AsyncFairsched(target, on_unavailable=passing) as scheduler:
        await asyncio.gather(*(serve_one(scheduler, pool, user_id) for _ in range(count)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
