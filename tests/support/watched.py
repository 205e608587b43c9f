"""A pool whose answers to workers are watched for what does not fit, as the service does."""

import msgspec

from scheduler_service.app.blocked import Blocked
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.policy import PoolPolicy

SECOND_NS = 10**9
SMALL = d.Offer(free_tokens=10, total_tokens=1000)
LARGE = d.Offer(free_tokens=1000, total_tokens=1000)


class Watched:
    """A pool `p` whose answers to workers are watched, as the service does."""

    def __init__(self, rig, **policy):
        self.rig = rig
        rig.create_pool(policy=msgspec.structs.replace(PoolPolicy(), **policy))
        self.blocked = Blocked(rig.engine)

    @property
    def pool(self):
        return self.rig.engine.state.pools["p"]

    def enqueue(self, request_id, kv_tokens, user_id="u"):
        self.rig.do(
            c.Enqueue, pool="p", request_id=request_id, user_id=user_id, cost=10,
            kv_tokens=kv_tokens,
        )  # fmt: skip

    def ask(self, offer, worker="w", count=1):
        answer = self.rig.do(
            c.NextDispatch, pools=("p",), worker=worker, offer=offer, max_dispatches=count,
            hand_over=False,
        )  # fmt: skip
        self.blocked.misfits.asked(worker, ("p",), answer)
        return [request.request_id for request in answer.granted]

    def pass_time(self, seconds):
        self.rig.clock.advance(seconds * SECOND_NS)

    def seconds(self, request_id):
        """Returns whole seconds blocked by cause."""
        request, now_ns = self.pool.requests[request_id], self.rig.clock.now_ns()
        found = self.blocked.of(self.pool, request, now_ns)
        return {cause: ns // SECOND_NS for cause, ns in found.items() if ns >= SECOND_NS}
