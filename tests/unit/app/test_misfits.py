"""For how long requests waited for room, and pools stood still: from the log and from answers."""

import asyncio

import msgspec
import pytest

from scheduler_service.app.application import Application
from scheduler_service.app.limits import Limits
from scheduler_service.app.readiness import Readiness
from scheduler_service.app.waiters import Parked
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.outlook import WaitCause
from scheduler_service.core.policy import PRESETS, Placement
from tests.support.watched import LARGE, SECOND_NS, SMALL, Watched


async def test_a_stall_blocks_what_waits_behind_it(rig):
    """With `stall` the head waits for room, and what came later for the head; not before."""
    watched = Watched(rig, placement=Placement.STALL)
    watched.enqueue("big", 500)
    watched.enqueue("small", 5, "v")
    watched.pass_time(100)
    assert watched.ask(SMALL) == []
    watched.pass_time(4)
    watched.enqueue("late", 5, "v")
    watched.ask(SMALL)
    watched.pass_time(3)

    assert watched.seconds("big") == {WaitCause.FIT: 7}
    assert watched.seconds("small") == {WaitCause.STALLED: 7}
    assert watched.seconds("late") == {WaitCause.STALLED: 3}
    assert watched.blocked.misfits.stalled_ns("p", rig.clock.now_ns()) // SECOND_NS == 7


@pytest.mark.parametrize("preset", ["sfq", "qba"])
async def test_it_begins_with_the_call_that_got_nothing(rig, preset):
    """A call that gets nothing decides nothing: its time is not that of the last decision."""
    policy = msgspec.structs.replace(PRESETS[preset], placement=Placement.STALL)
    watched = Watched(rig, **msgspec.structs.asdict(policy))
    assert watched.ask(SMALL) == [], "the worker is known from here on"
    watched.enqueue("big", 500)
    watched.enqueue("small", 5, "v")
    watched.pass_time(14)
    sequence = rig.engine.state.sequence
    assert watched.ask(SMALL) == []
    assert rig.engine.state.sequence == sequence

    assert watched.seconds("big") == watched.seconds("small") == {}
    assert watched.blocked.misfits.stalled_ns("p", rig.clock.now_ns()) == 0
    watched.pass_time(2)
    assert watched.seconds("big") == {WaitCause.FIT: 2}
    assert watched.seconds("small") == {WaitCause.STALLED: 2}


async def test_a_dispatch_ends_a_stall(rig):
    """What is behind the head is not stalled any more once the head is gone."""
    watched = Watched(rig, placement=Placement.STALL)
    watched.enqueue("big", 500)
    watched.enqueue("small", 5, "v")
    watched.ask(SMALL)
    watched.pass_time(4)
    assert watched.ask(LARGE, "other") == ["big"]
    watched.pass_time(50)

    assert watched.seconds("small") == {WaitCause.STALLED: 4}
    assert watched.blocked.misfits.counts() == {}


async def test_what_is_passed_over_waits_for_room(rig):
    """The log alone says so: from the first dispatch that overtook it, to its own."""
    watched = Watched(rig)
    watched.enqueue("big", 500)
    watched.enqueue("small", 5, "v")
    watched.enqueue("small-2", 5, "v")
    watched.pass_time(9)
    assert watched.ask(SMALL) == ["small"]
    watched.pass_time(6)

    assert watched.seconds("big") == {WaitCause.FIT: 6}
    assert watched.seconds("small-2") == {}
    assert watched.ask(LARGE) == ["big"]
    assert watched.blocked.misfits.counts() == {}


async def test_what_is_next_and_fits_nobody_waits_for_room(rig):
    """With nobody to overtake it there is no record, but an answer that gave nothing."""
    watched = Watched(rig)
    watched.enqueue("big", 500)
    watched.enqueue("big-2", 500)
    watched.ask(SMALL)
    watched.pass_time(5)

    assert watched.seconds("big") == {WaitCause.FIT: 5}
    assert watched.seconds("big-2") == {}, "its turn has not come"


async def test_a_reserved_worker_stalls_the_others(rig):
    """A worker that is kept for a request and gives nothing to others: those are stalled."""
    watched = Watched(rig, max_overtakes=1)
    watched.enqueue("big", 500)
    for number in range(4):
        watched.enqueue(f"small-{number}", 5, "v")
    watched.ask(SMALL)
    watched.pass_time(3)
    assert watched.ask(SMALL) == []
    assert "big" in watched.pool.reserved_for
    watched.pass_time(5)

    assert watched.seconds("big") == {WaitCause.FIT: 8}
    assert watched.seconds("small-3") == {WaitCause.STALLED: 5}


async def test_a_reserved_worker_that_may_take_others_stalls_nobody(rig):
    """The user it is kept for is paused, so it was offered the rest: that did not fit."""
    watched = Watched(rig, max_overtakes=1)
    watched.enqueue("big", 500)
    for number in range(2):
        watched.enqueue(f"small-{number}", 5, "v")
    watched.ask(SMALL)
    watched.ask(SMALL)
    assert "w" in watched.pool.reservations
    rig.do(c.Pause, pool="p", user_id="u")
    assert watched.ask(SMALL) == ["small-1"]
    watched.enqueue("other", 500, "x")
    assert watched.ask(SMALL) == []
    watched.pass_time(5)

    assert watched.seconds("other") == {WaitCause.FIT: 5}
    assert watched.blocked.misfits.stalled_ns("p", rig.clock.now_ns()) < SECOND_NS


@pytest.mark.parametrize("preset", ["sfq", "qba", "fcfs"])
@pytest.mark.parametrize("leaves", ["gone", "drained", "paused", "held", "changed", "empty"])
async def test_a_stall_ends_with_its_reason(rig, leaves, preset):
    """Nobody is stalled by a worker that is not there, by a pause, or by nothing."""
    policy = msgspec.structs.replace(PRESETS[preset], placement=Placement.STALL)
    watched = Watched(rig, **msgspec.structs.asdict(policy))
    watched.enqueue("big", 500)
    watched.enqueue("small", 5, "v")
    watched.ask(SMALL)
    watched.pass_time(4)
    if leaves == "drained":
        rig.do(c.DrainWorker, worker="w")
    elif leaves == "paused":
        rig.do(c.Pause, pool="p")
    elif leaves == "held":
        rig.do(c.Pause, pool="p", user_id="u")
        rig.do(c.Pause, pool="p", user_id="v")
    elif leaves == "changed":
        overtake = msgspec.structs.replace(policy, placement=Placement.OVERTAKE)
        rig.do(c.ConfigurePool, pool="p", policy=overtake, policy_digest="other", create=False)
    elif leaves == "empty":
        rig.do(c.Cancel, pool="p", request_id="big")
        rig.do(c.Cancel, pool="p", request_id="small")
    else:
        watched.pass_time(10 * watched.pool.policy.worker_ttl_ns // SECOND_NS)
        rig.do(c.Tick)
        assert rig.engine.state.workers == {}
    before = watched.blocked.misfits.stalled_ns("p", rig.clock.now_ns())
    watched.pass_time(60)

    assert watched.blocked.misfits.stalled_ns("p", rig.clock.now_ns()) == before
    assert before >= 4 * SECOND_NS


async def test_a_pause_is_not_counted_as_waiting_for_room(rig):
    """A misfit whose user is paused is held back by the pause."""
    watched = Watched(rig)
    watched.enqueue("big", 500)
    watched.ask(SMALL)
    watched.pass_time(5)
    rig.do(c.Pause, pool="p", user_id="u")
    watched.pass_time(7)
    rig.do(c.Resume, pool="p", user_id="u")
    watched.pass_time(2)

    assert watched.seconds("big") == {WaitCause.FIT: 7, WaitCause.USER_PAUSED: 7}


async def test_a_full_worker_says_nothing(rig):
    """Who reached its own limit did not refuse anything; nor who got all it asked for."""
    watched = Watched(rig, placement=Placement.STALL)
    watched.enqueue("a", 5)
    watched.enqueue("b", 5)
    one = d.Offer(free_tokens=10, total_tokens=1000, max_leases=1)
    assert watched.ask(one, count=2) == ["a"]
    watched.pass_time(5)

    assert watched.seconds("b") == {}


async def test_a_parked_call_is_served_when_a_misfit_has_gone(rig):
    """Another worker takes what stood in the way: a call that waits need not wait for more."""
    app = Application.around(rig.engine, Limits(), Readiness())
    rig.create_pool(policy=PRESETS["sfq"])
    for request_id, user_id, kv_tokens in (("big", "u", 500), ("small", "v", 5)):
        rig.do(
            c.Enqueue, pool="p", request_id=request_id, user_id=user_id, cost=10,
            kv_tokens=kv_tokens,
        )  # fmt: skip

    def command(worker="w1", offer=SMALL):
        now_ns = rig.clock.advance(1)
        return c.NextDispatch(now_ns=now_ns, nonce=worker, pools=("p",), worker=worker, offer=offer)

    answer = rig.engine.apply(command())
    app.blocked.misfits.asked("w1", ("p",), answer)
    assert answer.empty_reason is d.EmptyReason.STALLED_BY
    served = asyncio.get_running_loop().create_future()
    call = Parked("w1", ("p",), SMALL, command, served.set_result, served.set_exception)
    app.waiters.park(call)
    rig.engine.apply(command("w2", LARGE))
    async with asyncio.timeout(0.5):
        found = await served

    assert [request.request_id for request in found.granted] == ["small"]
