"""Why a request waits, and how many go first."""

import random
import statistics

import pytest

from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.ahead import BUDGET, ahead_of, requests_ahead
from scheduler_service.core.outlook import WaitCause, why_waiting
from scheduler_service.core.policy import Placement, PoolMode
from tests.support.scenes import LONG, SHORT, Scene

_SMALL = d.Offer(free_tokens=10, total_tokens=10)
_BUSY = d.Offer(free_tokens=10, total_tokens=1000)


def _why(scene, request_id, asking=None):
    request = scene.pool.requests[request_id]
    return why_waiting(scene.state, scene.pool, request, scene.now_ns, asking)


def test_turn():
    """A request behind others waits for its turn; the description says who goes first."""
    scene = Scene("sfq")
    scene.enqueue("a1", "a")
    scene.enqueue("b1", "b")
    scene.enqueue("b2", "b")

    why = _why(scene, "b2")

    assert why.cause is WaitCause.TURN
    assert why.ahead == (2, 2)
    assert "about 2 requests of 2 users go first" in why.description


def test_next_without_a_worker():
    """The request that is next waits for a worker."""
    scene = Scene()
    scene.enqueue("a1", "a")

    assert _why(scene, "a1").cause is WaitCause.WORKER
    assert "it is next" in _why(scene, "a1").description


def test_pauses():
    """A paused pool and a paused user are named, the pool first."""
    scene = Scene()
    scene.enqueue("a1", "a")
    scene.do(c.Pause, pool="p", user_id="a")
    by_user = _why(scene, "a1").cause
    scene.do(c.Pause, pool="p")

    assert by_user is WaitCause.USER_PAUSED
    assert _why(scene, "a1").cause is WaitCause.POOL_PAUSED


def test_cap():
    """A user at its cap holds its own requests."""
    scene = Scene(max_in_flight_per_user=1)
    scene.enqueue("a1", "a")
    scene.enqueue("a2", "a")
    scene.ask()

    assert _why(scene, "a2").cause is WaitCause.USER_CAP


def test_fit_and_stall():
    """What does not fit the asking workers waits for room; under `stall` it blocks the others."""
    scene = Scene(placement=Placement.STALL)
    scene.ask(offer=_BUSY)
    scene.enqueue("big", "a", kv_tokens=500)
    scene.enqueue("small", "b", kv_tokens=5)

    assert _why(scene, "big", [_BUSY]).cause is WaitCause.FIT
    assert _why(scene, "small", [_BUSY]).cause is WaitCause.STALLED
    assert _why(scene, "small", [_BUSY]).blocked_by == "big"
    assert "'big', which waits for room and blocks all" in _why(scene, "small", [_BUSY]).description


def test_overtaking_pool_is_not_stalled():
    """Where others may pass, a request that fits waits for its turn, one that does not for room."""
    scene = Scene()
    scene.ask(offer=_BUSY)
    scene.enqueue("big", "a", kv_tokens=500)
    scene.enqueue("small", "b", kv_tokens=5)
    scene.enqueue("big2", "b", kv_tokens=500)

    assert _why(scene, "small", [_BUSY]).cause is WaitCause.TURN
    assert _why(scene, "big2", [_BUSY]).cause is WaitCause.FIT


def test_unplaceable():
    """A request that no live worker could hold is unplaceable; without workers nothing is."""
    scene = Scene()
    scene.enqueue("big", "a", kv_tokens=500)
    nobody = _why(scene, "big").cause
    scene.ask(offer=_SMALL)

    assert nobody is WaitCause.WORKER
    assert _why(scene, "big").cause is WaitCause.UNPLACEABLE


def test_reserved():
    """A request that a worker is kept for waits for room."""
    scene = Scene(max_overtakes=1)
    scene.enqueue("big", "a", kv_tokens=500)
    for name in ("s1", "s2"):
        scene.enqueue(name, "b", kv_tokens=5)
        scene.ask(offer=_BUSY)

    assert "big" in scene.pool.reserved_for
    assert _why(scene, "big").cause is WaitCause.FIT


def test_gate():
    """At a full gate the next request waits for capacity, the others for their turn."""
    scene = Scene(mode=PoolMode.GATE, gate_max_in_flight=1)
    for number in range(3):
        scene.enqueue(f"r{number}", f"u{number}")

    causes = [_why(scene, f"r{number}").cause for number in (1, 2)]

    assert causes == [WaitCause.AT_CAPACITY, WaitCause.TURN]


def test_redelivery():
    """A request given back waits for another worker, or for its back-off if there is none."""
    scene = Scene()
    scene.enqueue("r", "a")
    scene.ask("w1")
    scene.finish("r", d.Outcome.GIVEN_BACK)
    alone = _why(scene, "r").cause
    scene.ask("w2", offer=_SMALL, count=1)
    scene.pass_time(1)
    taken = scene.pool.requests["r"].state

    assert alone is WaitCause.RETRY_BACKOFF
    assert taken is d.RequestState.LEASED


def test_long_request_says_when_it_may_be_promoted():
    """A predicted-long request is told theta and how much of the quota is earned."""
    scene = Scene(aging_min_sample=1, quota_k=3)
    scene.enqueue("s0", "a", cost=1)
    scene.pass_time(5)
    scene.ask()
    scene.enqueue("s1", "b", cost=1)
    scene.enqueue("l", "a", cost=1, predicted_class=LONG)

    before = _why(scene, "l").description
    scene.pass_time(6)
    after = _why(scene, "l")

    assert "may be promoted from 5 s on: 1 of 3 short admissions have earned one" in before
    assert after.aged
    assert "predicted long and aged, so it may be promoted" in after.description


def _random_backlog(preset, users, requests, seed):
    rng = random.Random(seed)
    scene = Scene(preset, aging_min_sample=32)
    for number in range(users):
        if number % 3 == 0:
            weight = rng.choice([500, 1000, 3000])
            scene.do(
                c.ConfigureUser, pool="p", user_id=f"u{number}", weight_milli=weight,
                max_in_flight=-1,
            )  # fmt: skip
    shares = [1 / (number + 1) for number in range(users)]
    for number in range(requests):
        scene.pass_time(0.01)
        kind = rng.choice([SHORT, SHORT, LONG])
        cost = rng.randrange(1, 300) if kind is SHORT else rng.randrange(300, 3000)
        user = rng.choices(range(users), shares)[0]
        scene.enqueue(f"r{number}", f"u{user}", cost=cost, predicted_class=kind)
    for _ in range(requests // 4):
        scene.pass_time(0.01)
        for request in scene.ask().granted:
            scene.finish(request.request_id)
    return scene


def _errors(scene):
    """Returns how far the estimate was off for each waiting request, and the backlog."""
    waiting = [r for r in scene.pool.requests.values() if r.state is d.RequestState.WAITING]
    estimates = {r.request_id: ahead_of(scene.pool, r).requests for r in waiting}
    order = scene.drain()
    return [estimates[name] - place for place, name in enumerate(order)], len(order)


@pytest.mark.parametrize("preset", ["sfq", "psf", "fcfs"])
@pytest.mark.parametrize("users", [1, 3, 20])
def test_ahead_is_exact(preset, users):
    """At slack 0, and for FCFS and PSF, the count is what happens if nothing else arrives."""
    errors, count = _errors(_random_backlog(preset, users, 300, seed=users))

    assert count > 200
    assert set(errors) == {0}


@pytest.mark.parametrize("preset", ["fair_qba", "qba"])
@pytest.mark.parametrize("users", [2, 10, 60])
def test_ahead_with_promotions_is_close(preset, users):
    """With promotions the count is off by a few per cent of the backlog, and not one-sided."""
    errors, count = _errors(_random_backlog(preset, users, 600, seed=users))

    assert statistics.mean(map(abs, errors)) <= 0.05 * count
    assert abs(statistics.mean(errors)) <= 0.03 * count


class _Counted(dict):
    """Requests that count how many of them are looked at, newest first."""

    looks = 0

    def values(self):
        return self

    def __reversed__(self):
        for value in reversed(super().values()):
            self.looks += 1
            yield value


@pytest.mark.parametrize("preset", ["qba", "psf", "aa", "fcfs"])
def test_what_runs_costs_a_newcomer_nothing(preset):
    """Its place with unbounded slack follows from counts; others look at so many and no more."""
    scene = Scene(preset, max_leases_per_worker=10**6, max_waiting=10**6)
    first = scene.enqueue("first", "paused")
    scene.do(c.Pause, pool="p", user_id="paused")
    for number in range(BUDGET + 100):
        scene.enqueue(f"running-{number}", "u")
        scene.ask()
    for number in range(20):
        scene.enqueue(f"r{number}", "u", predicted_class=LONG if number % 3 else SHORT)
    newest = scene.pool.requests["r19"]
    counted = scene.pool.requests = _Counted(scene.pool.requests)

    assert requests_ahead(scene.pool, newest) == 20
    assert counted.looks == 1
    assert 0 <= requests_ahead(scene.pool, first) <= 20
    assert counted.looks <= BUDGET + 2


@pytest.mark.parametrize("preset", ["qba", "psf", "fcfs"])
def test_ahead_by_age_past_the_budget_is_scaled(preset):
    """Beyond the budget a place by age is taken from the accept sequences, a tenth off at most."""
    scene = Scene(preset, max_waiting=10**6)
    rng = random.Random(1)
    count = 3 * BUDGET
    for number in range(count):
        kind = LONG if rng.random() < 0.3 else SHORT
        scene.enqueue(f"r{number}", f"u{number % 40}", predicted_class=kind)
    asked = {f"r{number}": 0 for number in range(0, count, 501)}
    for request_id in asked:
        asked[request_id] = requests_ahead(scene.pool, scene.pool.requests[request_id])
    order = {request_id: place for place, request_id in enumerate(scene.drain())}

    for request_id, said in asked.items():
        assert abs(said - order[request_id]) <= 0.1 * count, request_id


def test_ahead_past_the_budget_is_scaled():
    """A backlog far beyond the budget is answered from a part of it, a fifth off at most."""
    scene = Scene("sfq")
    users, each = 40, 3 * BUDGET // 40
    for number in range(users * each):
        scene.enqueue(f"r{number}", f"u{number % users}", cost=10)
    last = scene.pool.requests[f"r{users * each - 1}"]

    count = ahead_of(scene.pool, last).requests

    assert abs(count - (users * each - 1)) <= 0.2 * users * each
