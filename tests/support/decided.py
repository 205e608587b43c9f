"""Decisions of a live service: all of them, and many more of them."""

from fairsched.v1 import audit_service_pb2 as pb
from scheduler_service.core import commands as c
from tests.support.live import POOL


async def list_all(live, **fields):
    """Returns every decision, page by page."""
    found, token = [], ""
    while True:
        request = pb.ListDecisionsRequest(page_token=token, **fields)
        page = await live.audit.ListDecisions(request)
        assert len(page.decisions) <= (fields.get("page_size") or 100)
        found += page.decisions
        token = page.next_page_token
        if not token:
            return found


def pause_often(engine, user_id: str, count: int) -> None:
    """Takes two decisions that leave nothing behind, `count` times."""
    for _ in range(count):
        now_ns = engine.now_ns()
        engine.apply(c.Pause(now_ns=now_ns, pool=POOL, user_id=user_id))
        engine.apply(c.Resume(now_ns=now_ns, pool=POOL, user_id=user_id))
