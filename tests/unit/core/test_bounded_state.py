"""What the core keeps grows with what is there, not with what has been."""

import random

import pytest

from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core import snapshot
from scheduler_service.core.backlog import ELIGIBLE
from scheduler_service.core.evolve import evolve
from scheduler_service.core.flows import FORGOTTEN_AT_ONCE, remembered
from scheduler_service.core.policy import SlackKind
from tests.support.driver import LONG, POOL, SHORT, Driver
from tests.support.programs import PATIENT, policy


def churn(driver: Driver, users: int, steps: int) -> None:
    """Users come and go: requests arrive, are cancelled, dispatched and completed."""
    rng = random.Random(7)
    for number in range(steps):
        user = f"u{rng.randrange(users)}"
        cls = rng.choice([SHORT, LONG])
        driver.enqueue(f"r{number}", user, rng.choice([1, 2, 9]), cls)
        if rng.random() < 0.4:
            driver.cancel(f"r{number}")
        if rng.random() < 0.5:
            for record in driver.next():
                driver.complete(record.lease_id)


@pytest.mark.parametrize("preset", ["sfq", "fair_qba", "qba"])
def test_indexes_stay_in_proportion(preset):
    """Void entries of the heaps are cleared away; the oracle agrees throughout."""
    driver = Driver(policy(preset, quota_k=2, aging_min_sample=4, **PATIENT), replica=False)
    churn(driver, 12, 2500)
    for record in driver.next(2000):
        driver.complete(record.lease_id)
    pool = driver.state.pools[POOL]
    heads = (pool.backlog._shorts, pool.backlog._longs, pool.backlog._debtors)
    assert max(len(x.heap) for x in heads) < 400
    assert not pool.backlog.index
    assert len(pool.idle) + len(pool.idle_in_quota) < 400
    driver.core.check(driver.state)


def test_who_comes_while_nobody_is_served_is_taken_in_at_once():
    """A selection is not left to take in all who came while the workers were away."""
    driver = Driver(policy("fair_qba", **PATIENT), replica=False)
    for round_ in range(3):
        for user in range(50):
            driver.enqueue(f"r{round_}-{user}", f"u{user}", 5)
        pool = driver.state.pools[POOL]
        assert {flow.place for flow in pool.flows.values()} == {ELIGIBLE}
        for record in driver.next(50):
            driver.complete(record.lease_id)


def test_idle_users_are_forgotten():
    """Without work, quota and lead nothing is kept of a user."""
    driver = Driver(policy("sfq"), replica=False)
    for number in range(500):
        driver.enqueue(f"r{number}", f"u{number}")
        driver.complete(driver.next()[0].lease_id)
    assert not driver.state.pools[POOL].flows


def test_a_user_that_is_ahead_is_remembered_until_v_has_caught_up():
    """Its lead survives its absence, and no longer."""
    driver = Driver(policy("sfq"), replica=False)
    driver.enqueue("a0", "a", 5)
    for number in range(10):
        driver.enqueue(f"b{number}", "b")
    driver.complete(driver.next()[0].lease_id)
    driver.next(4)
    assert driver.state.pools[POOL].flows["a"].meter == 5_000_000
    driver.next(3)
    assert "a" not in driver.state.pools[POOL].flows


def test_a_started_quota_keeps_a_user_until_room_is_needed():
    """At the limit of users the one with the smallest meter is forgotten for a newcomer."""
    driver = Driver(policy("fair_qba", max_users=2))
    for user in "ab":
        driver.enqueue(f"{user}0", user)
        driver.complete(driver.next()[0].lease_id)
    assert sorted(driver.state.pools[POOL].flows) == ["a", "b"]
    driver.enqueue("c0", "c")
    assert sorted(driver.state.pools[POOL].flows) == ["b", "c"]


def test_room_is_made_in_the_order_of_the_meters_of_now():
    """A user that has come back and gone since does not go first for what its meter was.

    Else a service that starts from a snapshot, which has the meters of now, would decide otherwise.
    """
    driver = Driver(policy("fair_qba", max_users=2))
    for number, (user, cost) in enumerate([("a", 1), ("b", 5), ("a", 7)]):
        driver.enqueue(f"r{number}", user, cost)
        driver.complete(driver.next()[0].lease_id)
    restored = snapshot.restore(snapshot.dump(driver.state))
    made = len(driver.log)
    driver.enqueue("r3", "c")
    for record in driver.log[made:]:
        evolve(restored, record)

    assert sorted(driver.state.pools[POOL].flows) == ["a", "c"]
    assert driver.digest(restored) == driver.digest()


def test_only_who_was_moved_out_is_looked_at_again():
    """Asks that nothing fits make the edge rise and fall; they do not walk the whole window."""
    slack = {"slack_kind": SlackKind.ABSOLUTE, "slack_micros": 100_000_000}
    wide = {"overtake_slack_micros": 200_000_000, "max_overtakes": 10**6, "max_passes": 10**6}
    driver = Driver(policy("fair_qba", **slack, **wide, **PATIENT), replica=False, strict=False)
    room, none = (d.Offer(free, 10**6) for free in (10**6, 0))
    driver.enqueue("nobody can hold it", "x", kv_tokens=10**7)
    for number in range(300):
        driver.enqueue(f"a{number}", f"u{number}", 60 + number * 37 % 90, kv_tokens=10)
    assert len(driver.next(300, offer=room)) == 300
    for number in range(300):
        driver.enqueue(f"b{number}", f"u{number}", 5, kv_tokens=10)
    backlog = driver.state.pools[POOL].backlog
    moved = set()
    for _ in range(20):
        assert driver.ask(offer=none).empty_reason is d.EmptyReason.HELD_BY_FIT
        backlog.check()
        moved.add((backlog._reached, len(backlog._moved)))

    assert moved == {(160_000_001, 0)}
    assert len(driver.next(301, offer=room)) == 300
    backlog.check()
    driver.core.check(driver.state)


def test_ended_ids_and_keys_are_forgotten_by_count_and_time():
    """So many, for so long."""
    driver = Driver(policy("sfq", retention_count=10), replica=False)
    for number in range(50):
        driver.enqueue(f"r{number}", "a")
        answer = driver.ask(1, idempotency_key=f"k{number}")
        driver.complete(answer.granted[0].held_lease.lease_id)
    pool = driver.state.pools[POOL]
    assert len(pool.gone) == len(driver.state.old_leases) == 10
    assert len(driver.state.keys) <= 11
    driver.now_ns += 700 * 10**9
    driver.enqueue("last", "a")
    assert all(remembered(pool, request_id, driver.now_ns) is None for request_id in pool.gone)
    driver.enqueue("another", "a")
    assert not pool.gone


def test_forgetting_many_is_spread_and_forgets_nothing_new():
    """What falls due together goes a few at a time; an id used again is remembered anew."""
    driver = Driver(policy("sfq"), replica=False)
    for number in range(200):
        driver.enqueue(f"r{number}", "a")
        driver.complete(driver.next()[0].lease_id)
    pool = driver.state.pools[POOL]
    driver.now_ns += 700 * 10**9
    driver.enqueue("r190", "a")
    assert len(pool.gone) == 200 - FORGOTTEN_AT_ONCE - 1
    again = driver.next()[0]
    assert again.request_id == "r190"
    driver.complete(again.lease_id)
    for number in range(30):
        driver.enqueue(f"n{number}", "a")

    assert list(pool.gone) == ["r190"]
    assert pool.gone["r190"].lease_id == again.lease_id
    assert len(pool.forget_queue) == len(driver.state.old_leases) == 1


def test_a_log_is_opened_once_under_one_configuration():
    """The command repeats itself in silence; a change is a record."""
    driver = Driver(policy("sfq"))
    driver.do(c.OpenLog, durability="sync", config_digest="1")
    driver.do(c.OpenLog, durability="sync", config_digest="1")
    driver.do(c.OpenLog, durability="async", config_digest="1")
    assert [record.durability for record in driver.of(d.LogOpened)] == ["sync", "async"]
    driver.check()


def test_learned_values_are_state_and_go_with_their_user():
    """They survive a snapshot, and a user that is forgotten takes its own along."""
    driver = Driver(policy("sfq"))
    ratios = (("", 400, 100), ("a", 700, 50))
    driver.do(c.UpdateEstimator, pool=POOL, ratios=ratios, short_cutoff=7)
    restored = snapshot.restore(snapshot.dump(driver.state)).pools[POOL]
    assert restored.short_cutoff == 7
    assert set(restored.ratios) == {"", "a"}
    driver.do(c.ForgetUser, pool=POOL, user_id="a")
    assert set(driver.state.pools[POOL].ratios) == {""}


def test_a_snapshot_of_another_version_is_refused(monkeypatch):
    """A reader does not guess."""
    driver = Driver(policy("sfq"))
    monkeypatch.setattr(snapshot, "VERSION", snapshot.VERSION + 1)
    newer = snapshot.dump(driver.state)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="version"):
        snapshot.restore(newer)
