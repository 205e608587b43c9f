"""Workers whose calls wait are shown to the core in parts, and none is left out."""

import asyncio

from scheduler_service.app.presence import Presence
from scheduler_service.core import commands as c

REFUSED, HEALTHY = 220, 230


async def test_workers_that_cannot_be_shown_do_not_keep_others_from_it(rig):
    """Those of a pool that was deleted are passed over; everybody else is seen in time."""
    for pool in "pq":
        rig.create_pool(pool)
    presence = Presence(rig.engine)
    for number in range(REFUSED + HEALTHY):
        command = c.NextDispatch(
            now_ns=rig.clock.advance(1),
            nonce=f"n{number}",
            pools=("p",) if number < REFUSED else ("q",),
            worker=f"w{number}",
            max_dispatches=0,
        )
        rig.engine.apply(command)
        presence.enter(object(), command)
    rig.do(c.DeletePool, pool="p", force=True)
    ttl_ns = rig.engine.state.pools["q"].policy.worker_ttl_ns
    rig.clock.advance(ttl_ns * 6 // 10)
    presence._look()
    workers = [worker for worker in rig.engine.state.workers.values() if worker.pools == ("q",)]
    for _ in range(1000):
        await asyncio.sleep(0)
        if all(worker.last_seen_ns == rig.engine.now_ns() for worker in workers):
            break

    assert len(workers) == HEALTHY
    assert {worker.last_seen_ns for worker in workers} == {rig.engine.now_ns()}
    assert presence._due_ns > rig.engine.now_ns()
