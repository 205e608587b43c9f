"""Counts of what happened agree with a recount of the log, and stay bounded."""

from collections import Counter

import pytest

from scheduler_service.app import tally as tally_module
from scheduler_service.app.tally import WAIT_BOUNDS_NS, Tally
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.policy import PredictedClass
from tests.support.scenes import LONG, SHORT, Scene


def _scene() -> Scene:
    scene = Scene(max_in_flight_per_user=3, quota_k=2, aging_min_sample=2)
    for number in range(120):
        scene.pass_time(0.7)
        kind = LONG if number % 3 == 0 else SHORT
        scene.enqueue(f"r{number}", f"u{number % 5}", cost=1 + number, predicted_class=kind)
        if number % 2:
            scene.ask("w1", offer=d.Offer(free_tokens=1000))
        if number % 10 == 9:
            for request_id in [x.request_id for x in list(scene.state.leases.values())[:3]]:
                outcome = d.Outcome.GIVEN_BACK if number % 20 == 9 else d.Outcome.SUCCEEDED
                scene.finish(request_id, outcome)
        if number % 17 == 0:
            scene.do(c.Cancel, pool="p", request_id=f"r{number}")
    scene.pass_time(61)
    scene.do(c.Tick)
    return scene


def _tallied(scene: Scene) -> Tally:
    tally = Tally(0, [])
    for start in range(0, len(scene.log), 7):
        tally.decided(start, scene.log[start : start + 7])
    return tally


def test_recount():
    """Every count is the number of decisions it stands for."""
    scene = _scene()
    tally = _tallied(scene)
    pool = tally.pools["p"]
    first = [
        x for x in scene.log if isinstance(x, d.Dispatched) and x.turn is not d.Turn.REDELIVERY
    ]
    again = [x for x in scene.log if isinstance(x, d.Dispatched) and x.turn is d.Turn.REDELIVERY]

    assert tally.decisions == Counter(type(x) for x in scene.log)
    assert pool.accepted == 120
    assert pool.dispatched == len(first) == sum(pool.dispatches.values())
    assert pool.redelivered == len(again) > 0
    assert pool.cost == sum(x.cost for x in first)
    assert pool.promoted == sum(x.rule is d.Rule.PROMOTION for x in first) > 0
    assert pool.ended == Counter(x.state for x in scene.log if hasattr(x, "state"))
    assert pool.leases_ended == Counter(x.cause for x in scene.log if isinstance(x, d.LeaseEnded))
    assert pool.rejoins == sum(isinstance(x, d.Rejoined) for x in scene.log) > 0
    for kind in PredictedClass:
        waits = [x.wait_ns for x in first if x.predicted_class is kind]
        assert sum(pool.waits[kind].counts) == len(waits)
        assert pool.waits[kind].sum_ns == sum(waits)
        assert pool.waits[kind].counts[0] == sum(w <= WAIT_BOUNDS_NS[0] for w in waits)
    for user_id in ("u0", "u3"):
        mine = [x for x in first if x.user_id == user_id]
        assert pool.users[user_id].dispatched == len(mine)
        assert pool.users[user_id].cost == sum(x.cost for x in mine)


def test_accepted_is_what_there_is_and_what_ended():
    """Requests accepted are those alive and those ended: none is counted twice or lost."""
    scene = _scene()
    pool = _tallied(scene).pools["p"]

    assert pool.accepted == len(scene.pool.requests) + sum(pool.ended.values())


def test_users_are_bounded(monkeypatch):
    """With too many users the smaller half is dropped; the largest keep their counts."""
    monkeypatch.setattr(tally_module, "USERS_TALLIED_MAX", 10)
    scene = Scene()
    for number in range(100):
        scene.enqueue(f"r{number}", f"u{number:02}", cost=1000 if number < 3 else 1)
        scene.ask()
    pool = _tallied(scene).pools["p"]

    assert len(pool.users) <= 10
    assert all(pool.users[f"u{number:02}"].cost == 1000 for number in range(3))
    assert pool.dispatched == 100


def test_deleted_and_unknown_pools():
    """A deleted pool is dropped; a refusal that names no known pool is counted apart."""
    scene = Scene()
    scene.do(c.DeletePool, pool="p")
    tally = _tallied(scene)
    tally.refuse("p", "QUEUE_FULL")

    assert tally.pools == {}
    assert tally.refused == {"QUEUE_FULL": 1}


@pytest.mark.parametrize("known", [True, False])
def test_refusals(known):
    """Refusals are counted by reason."""
    tally = Tally(0, ["p"])
    for _ in range(3):
        tally.refuse("p" if known else "q", "USER_QUEUE_FULL")

    counted = tally.pools["p"].refused if known else tally.refused
    assert counted == {"USER_QUEUE_FULL": 3}
