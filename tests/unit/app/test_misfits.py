"""For how long requests waited for room, and pools stood still: from the log and from answers."""

import asyncio

import msgspec
import pytest

from scheduler_service.app.application import Application
from scheduler_service.app.blocked import Blocked
from scheduler_service.app.limits import Limits
from scheduler_service.app.misfits import MISFITS_MAX, Misfits
from scheduler_service.app.readiness import Readiness
from scheduler_service.app.spans import SPANS_MAX
from scheduler_service.app.waiters import Parked
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.outlook import WaitCause
from scheduler_service.core.policy import PRESETS, Placement, PoolPolicy
from tests.support.engines import Rig

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
        return [grant.request.request_id for grant in answer.granted]

    def pass_time(self, seconds):
        self.rig.clock.advance(seconds * SECOND_NS)

    def seconds(self, request_id):
        """Returns whole seconds blocked by cause."""
        request, now_ns = self.pool.requests[request_id], self.rig.clock.now_ns()
        found = self.blocked.of(self.pool, request, now_ns)
        return {cause: ns // SECOND_NS for cause, ns in found.items() if ns >= SECOND_NS}


@pytest.fixture
async def rig():
    """An engine."""
    rig = Rig()
    rig.engine.start()
    yield rig
    await rig.engine.close()


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


@pytest.mark.parametrize("leaves", ["gone", "drained", "paused", "empty"])
async def test_a_stall_ends_with_its_reason(rig, leaves):
    """Nobody is stalled by a worker that is not there, by a pause, or by nothing."""
    watched = Watched(rig, placement=Placement.STALL)
    watched.enqueue("big", 500)
    watched.enqueue("small", 5, "v")
    watched.ask(SMALL)
    watched.pass_time(4)
    if leaves == "drained":
        rig.do(c.DrainWorker, worker="w")
    elif leaves == "paused":
        rig.do(c.Pause, pool="p")
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

    again = Misfits(rig.engine)

    assert again.since(watched.pool, watched.pool.requests["big"]) == rig.engine.state.now_ns


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

    assert [grant.request.request_id for grant in found.granted] == ["small"]
