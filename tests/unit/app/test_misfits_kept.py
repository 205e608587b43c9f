"""What is remembered of misfits: in bounded memory, and only while they wait."""

import contextlib
import random

import msgspec
import pytest

from scheduler_service.app.misfits import MISFITS_MAX, Misfits
from scheduler_service.app.spans import SPANS_MAX
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.errors import SchedulerError
from scheduler_service.core.policy import PRESETS, Placement, PoolPolicy
from tests.support.watched import LARGE, SECOND_NS, SMALL, Watched


async def test_memory_of_misfits_is_bounded(rig):
    """What ended is forgotten, many spans are run together, and the table has a limit."""
    watched = Watched(rig, placement=Placement.STALL)
    for number in range(3 * SPANS_MAX):
        watched.enqueue(f"big-{number}", 500)
        watched.ask(SMALL)
        watched.pass_time(1)
        rig.complete(*watched.ask(LARGE, "other"))
    misfits = watched.blocked.misfits
    (stall,) = misfits._stalls.values()

    assert len(stall.spans.closed) == SPANS_MAX
    assert misfits.stalled_ns("p", rig.clock.now_ns()) // SECOND_NS == 3 * SPANS_MAX
    assert misfits._since == {}
    watched.enqueue("big", 500)
    watched.ask(SMALL)
    rig.do(c.Cancel, pool="p", request_id="big")
    assert misfits._since == {}
    for number in range(MISFITS_MAX + 5):
        misfits._note("p", str(number), 1)
    assert len(misfits._since) == MISFITS_MAX
    assert next(iter(misfits._since)) == ("p", "5")


async def test_reservations_outlive_a_restart(rig):
    """After a restart a reserved request is a misfit from then on; the rest begins anew."""
    watched = Watched(rig, max_overtakes=1)
    watched.enqueue("big", 500)
    watched.enqueue("small", 5, "v")
    watched.enqueue("small-2", 5, "v")
    watched.ask(SMALL)
    watched.ask(SMALL)

    watched.pass_time(5)
    again = Misfits(rig.engine)

    assert again.since(watched.pool, watched.pool.requests["big"]) == rig.clock.now_ns()


async def test_an_id_belongs_to_its_pool(rig):
    """What stalls one pool of a call is not looked for in another that knows the same id."""
    watched = Watched(rig, placement=Placement.STALL)
    rig.create_pool("q", msgspec.structs.replace(PoolPolicy(), placement=Placement.STALL))
    misfits = watched.blocked.misfits
    fields = {"user_id": "u", "cost": 10}
    watched.enqueue("b", 5)
    assert rig.dispatch("other") == ["b"]
    watched.enqueue("a", 500)
    rig.do(c.Enqueue, pool="q", request_id="b", kv_tokens=500, **fields)
    pools = ("p", "q")
    answer = rig.do(c.NextDispatch, pools=pools, worker="w", offer=SMALL, hand_over=False)
    misfits.asked("w", pools, answer)

    assert answer.stalled_by == "b", "the one of q; that of p runs"
    assert set(misfits._since) == {("p", "a"), ("q", "b")}


async def test_a_deleted_pool_leaves_nothing(rig):
    """Neither misfits nor stalls of a pool outlive it."""
    watched = Watched(rig, placement=Placement.STALL)
    misfits = watched.blocked.misfits
    watched.enqueue("big", 500)
    watched.ask(SMALL)
    rig.do(c.Cancel, pool="p", request_id="big")
    misfits._note("p", "lost", 1)
    misfits._note("q", "kept", 1)
    rig.do(c.DeletePool, pool="p", force=True)

    assert set(misfits._since) == {("q", "kept")}
    assert misfits._stalls == {}


@pytest.mark.parametrize("preset", ["fair_qba", "sfq", "qba"])
async def test_only_what_waits_is_a_misfit(rig, preset):
    """Whatever happens, what is noted is a waiting request of its pool."""
    rng = random.Random(preset)
    placement = rng.choice(list(Placement))
    policy = msgspec.structs.replace(PRESETS[preset], placement=placement, max_overtakes=2)
    watched = Watched(rig, **msgspec.structs.asdict(policy))
    rig.create_pool("q", policy)
    misfits, pools, noted = watched.blocked.misfits, rig.engine.state.pools, 0
    for number in range(1500):
        what, pool = rng.random(), rng.choice("pq")
        requests = list(pools[pool].requests.values())
        one = rng.choice(requests) if requests else None
        if what < 0.4:
            request_id = f"r{number % 50}"
            with contextlib.suppress(SchedulerError):
                rig.do(
                    c.Enqueue, pool=pool, request_id=request_id, user_id=rng.choice("uvw"),
                    cost=10, kv_tokens=rng.choice([5, 5, 500]),
                )  # fmt: skip
        elif what < 0.8:
            worker, offer = rng.choice([("w", SMALL), ("w2", SMALL), ("x", LARGE)])
            names = rng.choice([("p", "q"), ("q", "p"), ("p",)])
            answer = rig.do(
                c.NextDispatch, pools=names, worker=worker, offer=offer, hand_over=False
            )
            misfits.asked(worker, names, answer)
        elif one is not None and one.lease is not None:
            outcome = rng.choice([d.Outcome.SUCCEEDED, d.Outcome.GIVEN_BACK])
            with contextlib.suppress(SchedulerError):
                rig.complete(one.request_id, pool, outcome=outcome)
        elif one is not None and what < 0.9:
            rig.do(c.Cancel, pool=pool, request_id=one.request_id)
        watched.pass_time(rng.choice([0, 1, 400]))
        for name, request_id in misfits._since:
            assert pools[name].requests[request_id].state is d.RequestState.WAITING
            noted += 1

    assert noted > 100
