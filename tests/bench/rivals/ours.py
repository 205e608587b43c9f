"""The trace through Fairsched itself: a gateway that enqueues, workers that take one at a time."""

import asyncio
import time
from typing import Any

import grpc

from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from fairsched.v1 import scheduler_service_pb2_grpc as pb_grpc
from tests.bench.rivals import common
from tests.bench.rivals.fairness import SERVERS, Play
from tests.bench.servers import POOL


def replay(target: str, play: Play) -> list[common.Record]:
    """Plays a trace through a service whose pool lets callers state the cost."""
    return asyncio.run(_replay(target, play))


async def _replay(target: str, play: Play) -> list[common.Record]:
    async with grpc.aio.insecure_channel(target) as channel:
        scheduler: Any = pb_grpc.SchedulerServiceStub(channel)
        prefix = f"{time.monotonic_ns():x}"
        costs = sorted(arrival.cost for arrival in play.arrivals)
        cutoff = costs[int(len(costs) * 0.85)]

        async def put(arrival: common.Arrival) -> None:
            await scheduler.Enqueue(
                pb.EnqueueRequest(
                    pool=POOL,
                    user_id=arrival.user,
                    request_id=f"{prefix}-{arrival.index}",
                    cost=arrival.cost,
                    predicted_class=1 if arrival.cost <= cutoff else 2,
                )
            )

        async def take(server: int) -> Any:
            request = pb.NextDispatchRequest(
                pools=[POOL],
                worker_id=f"server-{server}",
                max_dispatches=1,
                hand_over_disabled=True,
            )
            request.wait_duration.FromMilliseconds(200)
            answer = await scheduler.NextDispatch(request)
            return answer.dispatches[0] if answer.dispatches else None

        async def done(_server: int, item: Any) -> None:
            await scheduler.Complete(
                pb.CompleteRequest(lease_id=item.lease_id, outcome=decision_pb2.OUTCOME_SUCCEEDED)
            )

        return await common.replay(
            play.arrivals,
            servers=SERVERS,
            unit_seconds=play.unit_seconds,
            put=put,
            take=take,
            done=done,
            index_of=lambda item: int(item.request_id.rsplit("-", 1)[1]),
        )
