"""What is derived from decisions beside the core: forecasts, blocked time, attendance, presence."""

import pytest

from scheduler_service.app.attendance import Attendance
from scheduler_service.app.blocked import Blocked
from scheduler_service.app.outlook import Forecast
from scheduler_service.app.presence import Presence
from scheduler_service.app.readiness import Phase, Readiness
from scheduler_service.app.workers import Workers, give_back
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.errors import NotReady
from scheduler_service.core.outlook import WaitCause
from scheduler_service.core.policy import PoolMode, PoolPolicy
from tests.support.engines import running

SECOND_NS = 10**9


@pytest.fixture
async def rig():
    """An engine with one pool."""
    async with running() as rig:
        rig.create_pool()
        yield rig


def _pool(rig):
    return rig.engine.state.pools["p"]


class TestForecast:
    """How long a request may wait."""

    async def test_without_a_pace_there_is_no_forecast(self, rig):
        """Nothing is promised before anything was seen."""
        forecast = Forecast(rig.engine)
        rig.enqueue("a")
        request = _pool(rig).requests["a"]

        assert forecast.at_once(_pool(rig), request, rig.clock.now_ns()) == (0, -1)

    async def test_the_pace_is_that_of_busy_times(self, rig):
        """Time in which nothing waited does not count as slow."""
        forecast = Forecast(rig.engine)
        for _ in range(3):
            for number in range(4):
                rig.enqueue(f"{rig.clock.now_ns()}-{number}")
            for _ in range(4):
                rig.clock.advance(2 * SECOND_NS)
                rig.complete(*rig.dispatch())
            rig.clock.advance(3600 * SECOND_NS)
        for number in range(5):
            rig.enqueue(f"last-{number}")
        rig.dispatch()
        request = _pool(rig).requests["last-4"]
        ahead, wait_ns = forecast.at_once(_pool(rig), request, rig.clock.now_ns())

        assert ahead == 3
        assert 7 * SECOND_NS < wait_ns < 9 * SECOND_NS

    async def test_a_standstill_makes_the_forecast_longer(self, rig):
        """If nobody takes anything any more, the wait grows with it."""
        forecast = Forecast(rig.engine)
        for number in range(10):
            rig.enqueue(f"r{number}")
        for _ in range(6):
            rig.clock.advance(SECOND_NS)
            rig.dispatch()
        before = forecast.expected_wait_ns(_pool(rig), 0, rig.clock.now_ns())
        rig.clock.advance(600 * SECOND_NS)

        assert forecast.expected_wait_ns(_pool(rig), 0, rig.clock.now_ns()) > 50 * before

    async def test_the_count_at_once_takes_turns_into_account(self, rig):
        """A newcomer is not behind all that a flooding user has waiting (SFQ §3.2)."""
        forecast = Forecast(rig.engine)
        for number in range(100):
            rig.enqueue(f"flood-{number}", "flood")
        rig.enqueue("other", "other")
        rig.enqueue("mine", "me")
        pool = _pool(rig)
        mine, _ = forecast.at_once(pool, pool.requests["mine"], rig.clock.now_ns())
        flood, _ = forecast.at_once(pool, pool.requests["flood-99"], rig.clock.now_ns())

        assert mine == 2
        assert flood == 101


class TestBlocked:
    """Time for which something other than the order held a request back."""

    async def test_pauses_of_user_and_pool_are_told_apart(self, rig):
        """Each cause has its own time, from the acceptance of the request."""
        blocked = Blocked(rig.engine)
        rig.do(c.Pause, pool="p", user_id="u")
        rig.enqueue("a")
        rig.clock.advance(5 * SECOND_NS)
        rig.do(c.Resume, pool="p", user_id="u")
        rig.clock.advance(100 * SECOND_NS)
        rig.do(c.Pause, pool="p")
        rig.clock.advance(3 * SECOND_NS)
        found = blocked.of(_pool(rig), _pool(rig).requests["a"], rig.clock.now_ns())

        assert {cause: ns // SECOND_NS for cause, ns in found.items()} == {
            WaitCause.USER_PAUSED: 5,
            WaitCause.POOL_PAUSED: 3,
        }

    async def test_a_cap_is_counted_and_only_since_acceptance(self, rig):
        """A request that came later was blocked for less."""
        blocked = Blocked(rig.engine)
        rig.do(c.ConfigureUser, pool="p", user_id="u", weight_milli=0, max_in_flight=1)
        rig.enqueue("a")
        rig.enqueue("b")
        rig.dispatch()
        rig.clock.advance(4 * SECOND_NS)
        rig.enqueue("late")
        rig.clock.advance(2 * SECOND_NS)
        pool, now_ns = _pool(rig), rig.clock.now_ns()

        early = blocked.of(pool, pool.requests["b"], now_ns)
        late = blocked.of(pool, pool.requests["late"], now_ns)
        assert early[WaitCause.USER_CAP] // SECOND_NS == 6
        assert late[WaitCause.USER_CAP] // SECOND_NS == 2
        rig.complete("a")
        rig.clock.advance(50 * SECOND_NS)
        after = blocked.of(pool, pool.requests["b"], rig.clock.now_ns())
        assert after[WaitCause.USER_CAP] // SECOND_NS == 6

    async def test_memory_is_bounded(self, rig):
        """Thousands of short blocks are run together, and a user without work keeps none."""
        blocked = Blocked(rig.engine)
        rig.do(c.ConfigureUser, pool="p", user_id="u", weight_milli=0, max_in_flight=1)
        rig.enqueue("last")
        for number in range(1000):
            rig.enqueue(f"r{number}")
            (running,) = rig.dispatch()
            rig.clock.advance(SECOND_NS)
            rig.complete(running)
        (causes,) = blocked._users.values()
        total = causes[WaitCause.USER_CAP].since(0, rig.clock.now_ns())

        assert len(causes[WaitCause.USER_CAP].closed) <= 33
        assert 995 <= total // SECOND_NS <= 1001
        (running,) = rig.dispatch()
        rig.complete(running)
        assert blocked._users == {}


class TestAttendance:
    """Requests that end with the calls that wait for them."""

    async def test_the_last_one_to_leave_cancels(self, rig):
        """Two callers of one request are two reasons to keep it."""
        attendance = Attendance(rig.engine)
        self._bound(rig, "a")
        attendance.attend("p", "a")
        attendance.attend("p", "a")
        attendance.leave("p", "a", gone=True)
        assert "a" in _pool(rig).requests
        attendance.leave("p", "a", gone=True)

        assert _pool(rig).gone["a"].reason == "CALLER_GONE"

    async def test_who_got_what_it_came_for_cancels_nothing(self, rig):
        """Leaving in order is not leaving."""
        attendance = Attendance(rig.engine)
        self._bound(rig, "a")
        attendance.attend("p", "a")
        attendance.leave("p", "a", gone=False)

        assert "a" in _pool(rig).requests

    async def test_a_service_that_stops_cancels_nothing(self, rig):
        """All callers leave when the service stops; they will be back."""
        attendance = Attendance(rig.engine)
        self._bound(rig, "a")
        attendance.attend("p", "a")
        attendance.close()
        attendance.leave("p", "a", gone=True)

        assert "a" in _pool(rig).requests

    async def test_an_undelivered_lease_of_a_gate_is_ended(self, rig):
        """The place of a caller that never heard of its grant is free at once."""
        rig.create_pool("g", PoolPolicy(mode=PoolMode.GATE, gate_max_in_flight=1))
        attendance = Attendance(rig.engine)
        for request_id in ("a", "b"):
            self._bound(rig, request_id, "g")
            attendance.attend("g", request_id)
        pool = rig.engine.state.pools["g"]
        lease_id = pool.requests["a"].lease.lease_id
        attendance.leave("g", "a", gone=True, lease_id=lease_id)

        assert pool.gone["a"].state is d.RequestState.CANCELLED
        assert pool.requests["b"].lease is not None

    @staticmethod
    def _bound(rig, request_id, pool="p"):
        rig.do(c.Enqueue, pool=pool, request_id=request_id, user_id="u", cost=1, caller_bound=True)


class TestWorkers:
    """Sessions beside the core."""

    async def test_who_supersedes_whom_is_found_again(self, rig):
        """After a restart the newest session of a name is the one that is not drained."""
        workers = Workers(rig.engine)
        for session in ("session-z", "session-a"):
            register = c.RegisterWorker(
                now_ns=rig.clock.advance(1), worker=session, worker_name="w", pools=("p",)
            )
            workers.register(register)
        again = Workers(rig.engine)

        for found in (workers, again):
            assert found.superseded(rig.engine.state.workers["session-z"])
            assert not found.superseded(rig.engine.state.workers["session-a"])
            assert found.keys_of("w") == ["session-a"]

    async def test_cancelled_leases_are_known_until_they_end(self, rig):
        """What a worker is to stop is listed, by worker, and found again after a restart."""
        workers = Workers(rig.engine)
        rig.enqueue("a")
        rig.enqueue("b")
        rig.dispatch("w1")
        rig.dispatch("w2")
        rig.do(c.Cancel, pool="p", request_id="a")
        lease_id = _pool(rig).requests["a"].lease.lease_id

        for found in (workers, Workers(rig.engine)):
            assert found.cancelled("w1") == [lease_id]
            assert found.cancelled("w2") == []
        rig.complete("a")
        assert workers.cancelled("w1") == []

    async def test_giving_back_ends_what_is_still_there(self, rig):
        """A lease that has ended meanwhile is no problem."""
        rig.enqueue("a")
        rig.enqueue("b")
        rig.dispatch(count=2)
        leases = list(rig.engine.state.leases)
        rig.complete("a")
        give_back(rig.engine, leases)

        assert _pool(rig).leased == 0
        assert _pool(rig).requests["b"].attempts == 0


async def test_presence_keeps_a_silent_worker(rig):
    """A worker whose call waits is shown to the core before it is forgotten."""
    rig.do(
        c.ConfigurePool,
        pool="p",
        policy=PoolPolicy(worker_ttl_ns=SECOND_NS),
        policy_digest="",
        create=False,
    )
    presence = Presence(rig.engine)
    ask = {"pools": ("p",), "max_dispatches": 1, "hand_over": False}
    for worker in ("here", "away"):
        rig.do(c.NextDispatch, worker=worker, **ask)
    presence.enter(self_ := object(), c.NextDispatch(now_ns=0, worker="here", **ask))
    for _ in range(10):
        rig.clock.advance(SECOND_NS * 3 // 5)
        presence._look()
        rig.engine.tick()

    assert list(rig.engine.state.workers) == ["here"]
    presence.leave(self_, "here")
    rig.clock.advance(2 * SECOND_NS)
    presence._look()
    rig.engine.tick()
    assert rig.engine.state.workers == {}


async def test_a_stopped_worker_is_silent_soon(rig):
    """Waiting calls, leases and late calls are signs of life; what has none for 10 s is silent."""
    presence, state = Presence(rig.engine), rig.engine.state
    ask = {"pools": ("p",), "max_dispatches": 1, "hand_over": False}
    rig.enqueue("a")
    for worker in ("holds", "waits", "calls", "stopped"):
        rig.do(c.NextDispatch, worker=worker, **ask)
    presence.enter(self_ := object(), c.NextDispatch(now_ns=0, worker="waits", **ask))
    for _ in range(4):
        rig.clock.advance(5 * SECOND_NS)
        presence.sign("calls")
        presence.sign("unheard of")
    silent = {name for name, worker in state.workers.items() if presence.is_silent(worker)}

    assert silent == {"stopped"}
    assert presence.active_count() == 3
    assert rig.engine.now_ns() - presence.last_sign_ns(state.workers["waits"]) < 1000
    presence.leave(self_, "waits")
    rig.do(c.DrainWorker, worker="calls")
    assert presence.active_count() == 2
    rig.clock.advance(11 * SECOND_NS)
    assert presence.is_silent(state.workers["waits"])
    silence_ns = rig.engine.now_ns() - presence.last_sign_ns(state.workers["waits"])
    assert silence_ns // SECOND_NS in {10, 11}
    for _ in range(60):
        rig.clock.advance(2 * SECOND_NS)
        rig.engine.tick()
    assert "waits" not in state.workers
    assert "waits" not in presence._signs


async def test_readiness_tells_its_listeners():
    """Phases and problems make it ready or not, with one reason."""
    readiness, told = Readiness(), []
    readiness.listeners.append(lambda: told.append(readiness.ready))
    with pytest.raises(NotReady, match="replays"):
        readiness.require()
    readiness.enter(Phase.SERVING)
    readiness.require()
    readiness.problem("log", "It stands still.")
    readiness.problem("log", "It stands still.")
    readiness.require()
    assert readiness.reason == "It stands still."
    readiness.problem("log", None)
    readiness.problem("log", None)
    readiness.enter(Phase.DRAINING)
    with pytest.raises(NotReady, match="stopping"):
        readiness.require()

    assert told == [True, False, True, False]
