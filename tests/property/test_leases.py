"""Leases: one at a time, fenced, redelivered first and for free, given up at max_attempts."""

import msgspec
import pytest
from hypothesis import given

from scheduler_service.core import answers as a
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core import snapshot
from scheduler_service.core.completion import Complete
from scheduler_service.core.errors import Denied, Superseded, Unknown, WrongState
from scheduler_service.core.policy import SECOND_NS
from scheduler_service.core.request import OLD_LEASES_MAX
from tests.support import watches
from tests.support.driver import POOL, Driver
from tests.support.programs import LIVELY, SFQ, Player, policy

RULES = policy("sfq", lease_duration_ns=10 * SECOND_NS, max_attempts=2)
LOST = policy("sfq", lease_duration_ns=10 * SECOND_NS, hand_over_ns=0, max_attempts=3)


def leased(rules=RULES) -> tuple[Driver, d.Dispatched]:
    """One request under its first lease."""
    driver = Driver(rules)
    driver.enqueue("a0", "a", 5)
    return driver, driver.next()[0]


@given(LIVELY)
def test_at_most_one_lease_of_a_request_is_live(program):
    """Whatever happens, a request is never under two leases, and ends once."""
    driver = Driver(RULES)
    driver.watch(watches.Lives(driver))
    Player(driver).play(program)
    driver.check()


@pytest.mark.parametrize(
    "call",
    [
        lambda driver, lease: driver.complete(lease),
        lambda driver, lease: driver.complete(lease, d.Outcome.FAILED),
        lambda driver, lease: driver.complete(lease, d.Outcome.GIVEN_BACK),
    ],
)
def test_a_superseded_lease_changes_nothing(call):
    """A late call on an old lease is refused and leaves state and log as they were."""
    driver, first = leased()
    driver.advance(11)
    second = driver.next(worker="w2")[0]
    before, records = driver.digest(), len(driver.log)
    with pytest.raises(Superseded):
        call(driver, first.lease_id)
    assert (driver.digest(), len(driver.log)) == (before, records)
    driver.complete(second.lease_id)


def test_a_renewal_of_a_superseded_lease_is_refused():
    """It neither extends the old lease nor touches the new one."""
    driver, first = leased()
    driver.advance(11)
    driver.next(worker="w2")
    records = len(driver.log)
    assert driver.renew(first.lease_id)[0].problem == "LEASE_SUPERSEDED"
    assert len(driver.log) == records


def test_an_expired_lease_is_refused_even_before_it_is_granted_anew():
    """Between expiry and redelivery nobody holds the request."""
    driver, first = leased()
    driver.advance(11)
    with pytest.raises(WrongState) as error:
        driver.complete(first.lease_id)
    assert error.value.reason == "LEASE_EXPIRED"


def test_a_doubled_completion_gets_the_first_answer():
    """The second call changes nothing and says what the first one did."""
    driver, first = leased()
    answer = driver.complete(first.lease_id)
    again = driver.complete(first.lease_id, d.Outcome.FAILED)
    assert (answer.state, answer.existing) == (d.RequestState.SUCCEEDED, a.Existing.NEW)
    assert (again.state, again.existing) == (d.RequestState.SUCCEEDED, a.Existing.REPEATED)
    assert len(driver.of(d.Completed)) == 1


def test_a_lease_belongs_to_its_worker():
    """Another worker can neither complete nor renew it."""
    driver, first = leased()
    with pytest.raises(Denied):
        driver.complete(first.lease_id, worker="thief")
    assert driver.renew(first.lease_id, worker="thief")[0].problem == "LEASE_OF_OTHER_WORKER"
    with pytest.raises(Unknown):
        driver.complete("no-such-lease")


def test_a_redelivery_goes_first_and_is_not_charged():
    """It paid for its turn: before any selection, oldest first, with every meter as it was."""
    driver = Driver(LOST)
    for name in ("a0", "a1", "b0", "b1", "b2"):
        driver.enqueue(name, name[0], 3)
    driver.next(4)
    driver.advance(11)
    meters = driver.meter("a"), driver.meter("b"), driver.pool().virtual_time
    again = driver.next(4, worker="w2")
    assert [record.request_id for record in again] == ["a0", "a1", "b0", "b1"]
    assert {record.turn for record in again} == {d.Turn.REDELIVERY}
    assert {record.charge_micros for record in again} == {0}
    assert (driver.meter("a"), driver.meter("b"), driver.pool().virtual_time) == meters
    assert driver.next(1, worker="w3")[0].request_id == "b2"


def test_a_redelivery_ignores_caps_but_not_pauses_nor_fit():
    """It keeps its place in flight, so the cap does not hold it; a pause and its size do."""
    driver = Driver(LOST)
    driver.weigh("a", 0, 1)
    driver.enqueue("a0", "a", kv_tokens=10)
    driver.next()
    driver.advance(11)
    assert driver.ask(offer=d.Offer(free_tokens=5)).empty_reason is d.EmptyReason.HELD_BY_FIT
    driver.pause("a")
    assert not driver.next()
    driver.resume("a")
    assert [record.request_id for record in driver.next()] == ["a0"]


def test_a_redelivery_that_does_not_fit_does_not_block():
    """The selection goes on behind it."""
    driver = Driver(LOST)
    driver.enqueue("big", "a", kv_tokens=10)
    driver.next()
    driver.enqueue("small", "b")
    driver.advance(11)
    assert driver.next(offer=d.Offer(free_tokens=5))[0].request_id == "small"


def test_an_unconfirmed_lease_is_handed_on_and_not_counted():
    """An answer that reached nobody costs the request nothing."""
    driver, _ = leased()
    driver.advance(5)
    ended = driver.of(d.LeaseEnded)[0]
    assert (ended.cause, ended.failures_after) == (d.LeaseEndCause.HAND_OVER, 0)
    assert driver.next(worker="w2")[0].attempt == 1


@pytest.mark.parametrize(
    "confirm",
    [
        lambda driver, lease: driver.renew(lease),
        lambda driver, _: driver.ask(1),
    ],
)
def test_the_next_message_confirms_a_lease(confirm):
    """A renewal, or the next call of the same worker, ends the hand-over time."""
    driver, first = leased()
    driver.now_ns += SECOND_NS
    confirm(driver, first.lease_id)
    driver.advance(5)
    assert not driver.of(d.LeaseEnded)


def test_leases_of_one_call_do_not_confirm_each_other():
    """Several requests in one answer are as unconfirmed as one."""
    driver = Driver(RULES)
    driver.enqueue("a0", "a")
    driver.enqueue("a1", "a")
    driver.next(2)
    driver.advance(5)
    assert [record.cause for record in driver.of(d.LeaseEnded)] == [d.LeaseEndCause.HAND_OVER] * 2


def test_a_request_given_back_is_kept_from_its_giver_for_a_while():
    """Another worker may take it at once, the giver after `retry_backoff`."""
    driver, first = leased()
    driver.complete(first.lease_id, d.Outcome.GIVEN_BACK)
    assert not driver.next()
    driver.now_ns += 5 * SECOND_NS - 1
    assert not driver.next()
    driver.now_ns += 1
    assert driver.next()[0].attempt == 1, "a polite give-back is not held against it"


def _given_back(driver, lease_id):
    answer = driver.complete(lease_id, d.Outcome.GIVEN_BACK)
    return answer.state, answer.existing


def test_a_doubled_give_back_gets_the_first_answer():
    """Whatever has become of the request since, and after a restart from a snapshot."""
    driver, first = leased()
    told = [_given_back(driver, first.lease_id)]
    second = driver.next(worker="w2")[0]
    told.append(_given_back(driver, first.lease_id))
    driver.complete(second.lease_id)
    told.append(_given_back(driver, first.lease_id))
    before, records = driver.digest(), len(driver.log)
    driver.state = snapshot.restore(snapshot.dump(driver.state))
    told.append(_given_back(driver, first.lease_id))

    redelivery = d.RequestState.REDELIVERY
    assert told == [(redelivery, a.Existing.NEW)] + [(redelivery, a.Existing.REPEATED)] * 3
    assert (driver.digest(), len(driver.log)) == (before, records)


def test_a_doubled_give_back_that_was_the_last_one_says_so_again():
    """A limit of attempts that was lowered meanwhile ends a request that is given back."""
    driver, first = leased(LOST)
    driver.advance(11)
    second = driver.next(worker="w2")[0]
    driver.configure(msgspec.structs.replace(LOST, max_attempts=1))
    told = [_given_back(driver, second.lease_id) for _ in range(2)]
    with pytest.raises(WrongState, match="has ended"):
        driver.complete(first.lease_id)

    dead = d.RequestState.DEAD_LETTERED
    assert told == [(dead, a.Existing.NEW), (dead, a.Existing.REPEATED)]


def test_what_is_remembered_of_a_request_given_back_without_end_is_bounded():
    """The first of its leases are forgotten, the last answer is still given again."""
    driver, granted = leased(msgspec.structs.replace(RULES, retry_backoff_ns=0))
    first = granted
    for _ in range(3 * OLD_LEASES_MAX):
        _given_back(driver, granted.lease_id)
        driver.advance(1)
        granted = driver.next(worker="w1")[0]
    request = driver.state.pools[POOL].requests["a0"]
    held = len(request.old_leases), len(request.given_back), len(driver.state.old_leases)
    last = _given_back(driver, request.old_leases[-1])
    with pytest.raises(Unknown):
        _given_back(driver, first.lease_id)
    driver.complete(granted.lease_id)
    driver.check()

    assert held == (OLD_LEASES_MAX,) * 3
    assert last == (d.RequestState.REDELIVERY, a.Existing.REPEATED)


def test_a_give_back_is_remembered_as_long_as_its_request():
    """After the retention time nobody knows the lease any more."""
    driver, first = leased()
    driver.complete(first.lease_id, d.Outcome.GIVEN_BACK)
    driver.complete(driver.next(worker="w2")[0].lease_id)
    driver.advance(driver.state.pools[POOL].policy.retention_ns // SECOND_NS + 1)
    driver.enqueue("b", "b")
    driver.cancel("b")
    with pytest.raises(Unknown):
        driver.complete(first.lease_id, d.Outcome.GIVEN_BACK)


def test_after_so_many_expiries_a_request_is_dead_lettered():
    """With its reason; it can be put back with fresh attempts, or dropped."""
    driver, _ = leased()
    for _ in range(2):
        driver.advance(4)
        driver.ask(1)
        driver.advance(10)
        driver.next()
    ended = driver.of(d.Ended)[-1]
    assert (ended.state, ended.reason) == (d.RequestState.DEAD_LETTERED, "MAX_ATTEMPTS")
    driver.do(c.Requeue, pool=POOL, request_id="a0")
    again = driver.next(worker="w2")[0]
    assert (again.turn, again.attempt, again.charge_micros) == (d.Turn.REDELIVERY, 1, 0)


def test_a_leased_request_asked_to_cancel_ends_when_its_lease_does():
    """Its worker is told at the next renewal; whatever it says then, the end is CANCELLED."""
    driver, first = leased()
    driver.cancel("a0")
    assert driver.renew(first.lease_id)[0].cancel_requested
    assert driver.complete(first.lease_id).state is d.RequestState.CANCELLED
    other, lost = leased()
    other.cancel("a0")
    other.advance(20)
    assert other.of(d.Ended)[0].state is d.RequestState.CANCELLED
    assert not other.next()
    assert isinstance(
        other.attempt(other.make(Complete, lease_id=lost.lease_id, outcome=d.Outcome.SUCCEEDED)),
        WrongState,
    )


def test_downtime_costs_no_lease():
    """After a restart live leases are extended by the downtime; waiting limits are not."""
    driver, _ = leased(LOST)
    driver.enqueue("b0", "b", max_wait_ns=8 * SECOND_NS)
    driver.now_ns += 9 * SECOND_NS
    driver.do(c.Recover, downtime_ns=9 * SECOND_NS)
    driver.advance(9)
    assert not driver.of(d.LeaseEnded)
    assert [record.request_id for record in driver.of(d.Ended)] == ["b0"]
    driver.advance(1)
    assert [record.request_id for record in driver.of(d.LeaseEnded)] == ["a0"]


def test_leases_expire_in_order_of_time_and_then_of_acceptance():
    """Several timers due at once fire in one stated order, before the command."""
    driver = Driver(LOST)
    for name in ("a0", "b0", "c0"):
        driver.enqueue(name, name[0])
    driver.next(1, lease_duration_ns=3 * SECOND_NS)
    driver.next(2, lease_duration_ns=2 * SECOND_NS)
    driver.enqueue("late", "d", max_wait_ns=2 * SECOND_NS)
    driver.advance(60)
    order = [
        record.request_id for record in driver.log if isinstance(record, d.Ended | d.LeaseEnded)
    ]
    assert order == ["b0", "c0", "late", "a0"]


def test_capacity_is_counted_over_leases_not_over_calls():
    """A worker's own limit and the pool's hold across calls."""
    driver = Driver(policy("sfq", max_leases_per_worker=2))
    for number in range(5):
        driver.enqueue(f"a{number}", "a")
    first = driver.ask(5)
    assert (len(first.granted), first.empty_reason) == (2, d.EmptyReason.LEASES_FULL)
    driver.complete(first.granted[0].held_lease.lease_id)
    assert len(driver.ask(5).granted) == 1
    own = driver.ask(5, "w2", offer=d.Offer(max_leases=1))
    assert (len(own.granted), own.empty_reason) == (1, d.EmptyReason.LEASES_FULL)


def test_the_same_key_gets_the_same_leases():
    """A repeated call is answered as the first was, and charges nothing more."""
    driver = Driver(SFQ)
    driver.enqueue("a0", "a")
    driver.enqueue("a1", "a")
    (first,) = driver.records(driver.ask(1, idempotency_key="k"))
    meter = driver.meter("a")
    again = driver.ask(1, idempotency_key="k")
    assert again.existing is a.Existing.REPEATED
    assert driver.records(again) == [first]
    assert driver.meter("a") == meter
    assert len(driver.of(d.Dispatched)) == 1
