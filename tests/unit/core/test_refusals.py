"""Every refusal of the core: its class, its reason, and that it changes nothing."""

import pytest

from scheduler_service.core import COMPILED
from scheduler_service.core import answers as a
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core import policy as limits
from scheduler_service.core.errors import (
    Conflict,
    Denied,
    InvalidCommand,
    LimitReached,
    SchedulerError,
    Superseded,
    Unknown,
    WrongState,
)
from scheduler_service.core.policy import SECOND_NS, PoolMode
from tests.support.driver import POOL, Driver
from tests.support.programs import SFQ, policy

NOWHERE = "nowhere"


def driver_with_work() -> Driver:
    """One leased request, one waiting request, a worker, a gate beside the pool."""
    driver = Driver(SFQ)
    driver.configure(policy("sfq", mode=PoolMode.GATE), pool="gate")
    driver.enqueue("leased", "a", content_digest=b"1")
    driver.enqueue("waiting", "a", content_digest=b"1")
    driver.next()
    return driver


def lease_of(driver: Driver) -> str:
    return driver.of(d.Dispatched)[0].lease_id


CASES = [
    (Unknown, "POOL_UNKNOWN", lambda x: x.enqueue("r", "a", pool=NOWHERE)),
    (Unknown, "POOL_UNKNOWN", lambda x: x.ask(pools=(NOWHERE,))),
    (Unknown, "POOL_UNKNOWN", lambda x: x.cancel("waiting", pool=NOWHERE)),
    (Unknown, "POOL_UNKNOWN", lambda x: x.weigh("a", 1, pool=NOWHERE)),
    (Unknown, "POOL_UNKNOWN", lambda x: x.pause(pool=NOWHERE)),
    (Unknown, "POOL_UNKNOWN", lambda x: x.resume(pool=NOWHERE)),
    (Unknown, "POOL_UNKNOWN", lambda x: x.do(c.DeletePool, pool=NOWHERE)),
    (Unknown, "POOL_UNKNOWN", lambda x: x.do(c.ForgetUser, pool=NOWHERE, user_id="a")),
    (Unknown, "POOL_UNKNOWN", lambda x: x.do(c.Requeue, pool=NOWHERE, request_id="r")),
    (Unknown, "POOL_UNKNOWN", lambda x: x.do(c.Discard, pool=NOWHERE, request_id="r")),
    (
        Unknown,
        "POOL_UNKNOWN",
        lambda x: x.do(c.UpdateEstimator, pool=NOWHERE, ratios=(), short_cutoff=0),
    ),
    (
        Unknown,
        "POOL_UNKNOWN",
        lambda x: x.do(c.RegisterWorker, worker="v", worker_name="v", pools=(NOWHERE,)),
    ),
    (
        Unknown,
        "POOL_UNKNOWN",
        lambda x: x.do(c.ConfigurePool, pool=NOWHERE, policy=SFQ, policy_digest="", create=False),
    ),
    (Unknown, "REQUEST_UNKNOWN", lambda x: x.cancel("nobody")),
    (Unknown, "REQUEST_UNKNOWN", lambda x: x.do(c.Requeue, pool=POOL, request_id="leased")),
    (Unknown, "REQUEST_UNKNOWN", lambda x: x.do(c.Discard, pool=POOL, request_id="leased")),
    (Unknown, "LEASE_UNKNOWN", lambda x: x.complete("no-such-lease")),
    (Unknown, "WORKER_UNKNOWN", lambda x: x.do(c.DrainWorker, worker="nobody")),
    (
        Conflict,
        "POOL_EXISTS",
        lambda x: x.do(c.ConfigurePool, pool=POOL, policy=SFQ, policy_digest="", create=True),
    ),
    (Conflict, "REQUEST_ID_REUSED", lambda x: x.enqueue("waiting", "a", 9, content_digest=b"2")),
    (Denied, "LEASE_OF_OTHER_WORKER", lambda x: x.complete(lease_of(x), worker="thief")),
    (WrongState, "POOL_NOT_EMPTY", lambda x: x.do(c.DeletePool, pool=POOL)),
    (WrongState, "USER_HAS_WORK", lambda x: x.do(c.ForgetUser, pool=POOL, user_id="a")),
    (WrongState, "POOL_MODE", lambda x: x.ask(pools=("gate",))),
    (WrongState, "POOL_MODE", lambda x: x.configure(policy("sfq", mode=PoolMode.GATE))),
]


@pytest.mark.parametrize(("kind", "reason", "call"), CASES)
def test_a_refusal_changes_nothing(kind, reason, call):
    """It has its class and its reason, writes no record and leaves the state as it was."""
    driver = driver_with_work()
    before, records = driver.digest(), len(driver.log)
    with pytest.raises(kind) as error:
        call(driver)
    assert error.value.reason == reason
    assert (driver.digest(), len(driver.log)) == (before, records)
    driver.enqueue("next", "b")


def test_a_refused_command_lets_due_timers_fire():
    """What the command's time made due has happened, whatever becomes of the command."""
    driver = Driver(SFQ)
    driver.enqueue("r", "a", max_wait_ns=SECOND_NS)
    driver.now_ns = SECOND_NS
    with pytest.raises(Unknown):
        driver.cancel("nobody")
    assert [record.state for record in driver.of(d.Ended)] == [d.RequestState.EXPIRED]


def test_an_expired_and_a_superseded_lease_are_told_apart():
    """LEASE_EXPIRED while nobody holds the request, LEASE_SUPERSEDED once another does."""
    driver = Driver(policy("sfq", hand_over_ns=0, lease_duration_ns=SECOND_NS))
    driver.enqueue("r", "a")
    lease = driver.next()[0].lease_id
    driver.advance(1)
    with pytest.raises(WrongState) as expired:
        driver.complete(lease)
    driver.next()
    with pytest.raises(Superseded) as superseded:
        driver.complete(lease)
    reasons = (expired.value.reason, superseded.value.reason)
    assert reasons == ("LEASE_EXPIRED", "LEASE_SUPERSEDED")
    assert driver.renew(lease, "never-was")[1].problem == "LEASE_UNKNOWN"


@pytest.mark.skipif(COMPILED, reason="compiled, limits are no variables")
def test_pools_and_workers_are_bounded(monkeypatch):
    """One more than the limit is refused."""
    monkeypatch.setattr("scheduler_service.core.admin.POOLS_MAX", 2)
    monkeypatch.setattr("scheduler_service.core.admin.WORKERS_MAX", 1)
    driver = Driver(SFQ)
    driver.configure(SFQ, pool="second")
    with pytest.raises(LimitReached) as pools:
        driver.configure(SFQ, pool="third")
    driver.ask(worker="one")
    with pytest.raises(LimitReached) as workers:
        driver.ask(worker="two")
    assert (pools.value.reason, workers.value.reason) == ("POOLS_FULL", "WORKERS_FULL")


def test_workers_that_have_gone_do_not_keep_a_pool():
    """Live ones do, five of them by name; after the time to live nobody is there for it."""
    driver = Driver(policy("sfq", worker_ttl_ns=SECOND_NS))
    for number in range(7):
        driver.ask(worker=f"w{number}")
    with pytest.raises(WrongState, match="'w0', 'w1', 'w2', 'w3', 'w4' and 2 more"):
        driver.do(c.DeletePool, pool=POOL)
    driver.advance(1)
    driver.do(c.DeletePool, pool=POOL)

    assert not driver.state.pools


def test_a_pool_is_deleted_with_its_dead_letters_and_memory():
    """Once it holds no request; its name is free again."""
    rules = policy("sfq", max_attempts=1, hand_over_ns=0, lease_duration_ns=SECOND_NS)
    driver = Driver(rules)
    driver.enqueue("r", "a")
    driver.enqueue("done", "a")
    driver.complete(driver.next(2)[1].lease_id)
    driver.advance(1)
    driver.do(c.DeletePool, pool=POOL, force=True)
    assert driver.of(d.DeadLetterDropped)
    assert not driver.state.pools
    assert not driver.state.old_leases
    driver.configure(rules)
    driver.enqueue("r", "a")


def test_a_dead_letter_is_repeated_not_accepted_anew():
    """Its id is taken; the answer says what became of it."""
    rules = policy("sfq", max_attempts=1, hand_over_ns=0, lease_duration_ns=SECOND_NS)
    driver = Driver(rules)
    driver.enqueue("r", "a", content_digest=b"1")
    driver.next()
    driver.advance(1)
    answer = driver.enqueue("r", "a", content_digest=b"1")
    assert answer.existing is a.Existing.REPEATED
    assert answer.state is d.RequestState.DEAD_LETTERED


def test_a_dead_letter_of_a_forgotten_user_needs_room():
    """Requeued into a pool that is full of users, it is refused and kept."""
    rules = policy("sfq", max_users=1, max_attempts=1, hand_over_ns=0, lease_duration_ns=SECOND_NS)
    driver = Driver(rules)
    driver.enqueue("r", "a")
    driver.next()
    driver.advance(1)
    driver.enqueue("other", "b")
    with pytest.raises(LimitReached) as error:
        driver.do(c.Requeue, pool=POOL, request_id="r")
    assert error.value.reason == "USERS_FULL"
    driver.cancel("other")
    driver.do(c.Requeue, pool=POOL, request_id="r")
    assert driver.next()[0].request_id == "r"


def test_a_gate_without_capacity_grants_nothing():
    """0 is no room at all; a change takes effect at once."""
    driver = Driver(policy("sfq", mode=PoolMode.GATE))
    driver.enqueue("r", "a")
    assert not driver.of(d.Dispatched)
    driver.configure(policy("sfq", mode=PoolMode.GATE, gate_max_in_flight=1))
    assert driver.of(d.Dispatched)


def test_invalid_fields_are_named_together():
    """One error for all bad fields of a call."""
    error = InvalidCommand([("cost", "must be positive"), ("user_id", "must not be empty")])
    assert error.reason == "INVALID_FIELDS"
    assert str(error) == "Bad value in: cost, user_id."
    assert isinstance(error, SchedulerError)


@pytest.mark.parametrize("name", sorted(limits._RANGES))
def test_policies_have_ranges(name):
    """Each parameter is checked at both ends."""
    low, high = limits._RANGES[name]
    for value, good in ((low, True), (high, True), (low - 1, False), (high + 1, False)):
        other = {"output_cost_milli": 1} if name == "prompt_cost_milli" else {}
        other |= {"prompt_cost_milli": 1} if name == "output_cost_milli" else {}
        found = limits.violations(policy("fair_qba", **{name: value}, **other))
        assert [field for field, _ in found] == ([] if good else [name])


def test_something_must_cost():
    """Both coefficients 0 would let everybody ride free."""
    found = limits.violations(policy("sfq", prompt_cost_milli=0, output_cost_milli=0))
    assert [field for field, _ in found] == ["prompt_cost_milli"]


@pytest.mark.parametrize("preset", sorted(limits.PRESETS))
def test_presets_are_good_policies(preset):
    """And each names itself."""
    assert limits.violations(limits.PRESETS[preset]) == []
    assert limits.PRESETS[preset].preset == preset
