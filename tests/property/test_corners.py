"""Corners that were wrong once, each with the smallest commands that showed it.

Most of them need a policy that changes while requests are under way, two pools in one command, or a
second worker that gives the same request back.
"""

import msgspec

from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core import snapshot
from scheduler_service.core.errors import WrongState
from scheduler_service.core.policy import (
    SECOND_NS,
    AdmissionPoint,
    Placement,
    PoolMode,
    PoolPolicy,
    SlackKind,
)
from tests.support.driver import LONG, POOL, Driver
from tests.support.programs import PATIENT, policy

GATE = policy("sfq", mode=PoolMode.GATE, gate_max_in_flight=1)


def changed(rules: PoolPolicy, **fields) -> PoolPolicy:
    return msgspec.structs.replace(rules, **fields)


def test_no_worker_takes_turns_of_a_gate():
    """A gate's turns are its own: asking for them is refused, or nothing is given."""
    driver = Driver(GATE)
    driver.enqueue("a0", "a")
    driver.enqueue("a1", "a")
    answer = driver.attempt(driver.make(c.NextDispatch, pools=(POOL,), worker="w"))
    assert isinstance(answer, WrongState) or not answer.granted


def test_lease_ids_of_one_command_differ():
    """A call that is answered by a worker's turn and by a gate's makes two leases, not one."""
    driver = Driver(policy("sfq", **PATIENT))
    driver.configure(GATE, pool="gate")
    driver.enqueue("g0", "a", pool="gate")
    driver.enqueue("g1", "a", pool="gate")
    driver.enqueue("a0", "a")
    driver.now_ns += 60 * SECOND_NS
    driver.next()


def test_two_gates_make_different_leases():
    """The same with two gates whose capacity grows by one tick."""
    driver = Driver(changed(GATE, lease_duration_ns=SECOND_NS))
    driver.configure(changed(GATE, lease_duration_ns=SECOND_NS), pool="gate")
    for pool in (POOL, "gate"):
        driver.enqueue(f"{pool}0", "a", pool=pool)
        driver.enqueue(f"{pool}1", "a", pool=pool)
    driver.advance(1)


def test_a_gate_places_nothing_so_labels_hold_nobody_back():
    """A gateway forwards through its own load balancer: a label cannot fail to fit."""
    driver = Driver(GATE)
    driver.enqueue("a0", "a", labels=("lora",))
    assert driver.of(d.Dispatched)


def test_there_are_no_passes_with_unbounded_slack():
    """A count left over from a finite slack is not carried on in the records."""
    driver = Driver(policy("fair_qba"))
    driver.enqueue("l0", "a", 1, LONG)
    driver.enqueue("s0", "b")
    assert driver.next()[0].passes_after == 1
    driver.configure(policy("qba"))
    assert driver.next()[0].passes_after == 0


def test_a_lower_limit_of_dead_letters_holds_at_once():
    """What is past the new limit is dropped when the limit is set, or at the next dead letter."""
    rules = policy("sfq", max_attempts=1, hand_over_ns=0, lease_duration_ns=SECOND_NS)
    driver = Driver(rules)
    for number in range(3):
        driver.enqueue(f"a{number}", "a")
    driver.next(3)
    driver.advance(1)
    driver.configure(changed(rules, max_dead_letters=1))
    driver.enqueue("a3", "a")
    driver.next()
    driver.advance(1)
    assert len(driver.state.pools[POOL].dead) == 1


def test_a_window_made_smaller_keeps_the_newest_waits():
    """Also when it had been the whole history."""
    rules = policy("fcfs", aging_sample_window=0, aging_min_sample=1, **PATIENT)
    driver = Driver(rules)
    for number, wait in enumerate((9, 1)):
        driver.enqueue(f"r{number}", "a")
        driver.advance(wait)
        driver.next()
    driver.configure(changed(rules, aging_sample_window=1))
    driver.enqueue("last", "a")
    assert driver.next()[0].aging_threshold_ns == SECOND_NS


def test_every_giver_is_spared_for_its_back_off():
    """Two workers gave the request back: the first one is still not offered it."""
    driver = Driver(policy("sfq"))
    driver.enqueue("a0", "a")
    driver.complete(driver.next(worker="w1")[0].lease_id, d.Outcome.GIVEN_BACK)
    driver.complete(driver.next(worker="w2")[0].lease_id, d.Outcome.GIVEN_BACK)
    assert not driver.next(worker="w1")


PREFILL = policy(
    "fair_qba",
    admission_point=AdmissionPoint.PREFILL_COMPLETE,
    quota_k=1,
    aging_min_sample=1,
    aging_quantile_bp=1,
    **PATIENT,
)


def promoting(rules: PoolPolicy = PREFILL) -> tuple[Driver, d.Dispatched]:
    """A promotion under way."""
    driver = Driver(rules)
    driver.enqueue("s0", "a")
    driver.complete(driver.next()[0].lease_id)
    for number in range(3):
        driver.enqueue(f"l{number}", "a", 1, LONG)
    driver.advance(1)
    promoted = driver.next()[0]
    assert promoted.rule is d.Rule.PROMOTION
    return driver, promoted


def test_a_promotion_is_released_on_the_counter_it_was_made_on():
    """A failure while the counter is the pool's must not leave the user's promotion under way."""
    driver, promoted = promoting()
    unbounded = changed(PREFILL, slack_kind=SlackKind.UNBOUNDED)
    driver.configure(unbounded)
    driver.complete(promoted.lease_id, d.Outcome.FAILED)
    driver.configure(PREFILL)
    assert driver.next()[0].rule is d.Rule.PROMOTION


def test_a_promotion_pays_although_the_admission_point_has_changed():
    """It was admitted: one debt, one promotion."""
    driver, promoted = promoting()
    driver.configure(changed(PREFILL, admission_point=AdmissionPoint.DISPATCH))
    driver.complete(promoted.lease_id)
    assert driver.next()[0].rule is d.Rule.LONG


def test_a_requeued_dead_letter_is_no_promotion_any_more():
    """It was released with its debt unpaid; another promotion has taken that debt."""
    rules = changed(PREFILL, max_attempts=1)
    driver, _ = promoting(rules)
    driver.advance(86_400)
    assert driver.of(d.Ended)[-1].state is d.RequestState.DEAD_LETTERED
    assert driver.next()[0].rule is d.Rule.PROMOTION
    driver.do(c.Requeue, pool=POOL, request_id="l0")
    again = driver.next()[0]
    driver.renew(again.lease_id, prefilled=True)
    assert driver.quota("a").debt, "the other promotion is still under way"


def test_the_stated_bound_covers_what_overtaking_has_done():
    """Turning overtaking off must not make the bound smaller than the meters already are."""
    rules = policy(
        "fair_qba",
        slack_kind=SlackKind.ABSOLUTE,
        slack_micros=1,
        overtake_slack_micros=2_000_000,
        max_passes=100,
    )
    driver = Driver(rules)
    driver.enqueue("a0", "a", kv_tokens=10)
    for number in range(4):
        driver.enqueue(f"b{number}", "b")
    driver.next(3, offer=d.Offer(free_tokens=5, total_tokens=20))
    driver.configure(changed(rules, placement=Placement.STALL))
    driver.check()


def test_a_restored_core_forgets_workers_when_the_other_would():
    """The time a worker is next looked at is part of the state."""
    driver = Driver(policy("sfq", worker_ttl_ns=5 * SECOND_NS, lease_duration_ns=6 * SECOND_NS))
    driver.enqueue("a0", "a")
    driver.next(hand_over=False)
    driver.now_ns = 5 * SECOND_NS + 500_000_000
    driver.do(c.Tick)
    restored = snapshot.restore(snapshot.dump(driver.state))
    live, again = len(driver.log), []
    for now_ns in (6 * SECOND_NS, 6 * SECOND_NS + 500_000_000):
        driver.now_ns = now_ns
        driver.do(c.Tick)
        driver.core.apply(restored, driver.history[-1], again)
    assert again == driver.log[live:]


def test_shedding_settles_when_places_do_not_divide():
    """Three users and four places: newcomers displace each other for ever."""
    driver = Driver(policy("sfq", max_waiting=4))
    shed = []
    for number in range(60):
        before = len(driver.of(d.Ended))
        enqueue = driver.make(
            c.Enqueue, pool=POOL, request_id=f"r{number}", user_id="abc"[number % 3], cost=1
        )
        driver.attempt(enqueue)
        shed.append(len(driver.of(d.Ended)) - before)
    assert not any(shed[30:])


def test_a_worker_is_kept_for_one_request_at_a_time():
    """While the first one's user is held back, no second reservation replaces it in silence."""
    driver = Driver(policy("qba", placement=Placement.OVERTAKE, max_overtakes=1, **PATIENT))
    small = d.Offer(free_tokens=2, total_tokens=10)
    driver.enqueue("a0", "a", kv_tokens=8)
    driver.enqueue("b0", "b", kv_tokens=8)
    for number in range(4):
        driver.enqueue(f"c{number}", "c")
    driver.next(offer=small)
    assert driver.ask(offer=small).empty_reason is d.EmptyReason.RESERVED
    driver.pause("a")
    driver.next(3, offer=small)
    assert [record.request_id for record in driver.of(d.Reserved)] == ["a0"]


def test_a_stall_in_one_pool_is_none_in_the_next():
    """One call over two pools: what blocks the first must not stand for the second."""
    driver = Driver(policy("sfq"))
    driver.configure(policy("sfq"), pool="q")
    driver.enqueue("p0", "a", kv_tokens=10)
    driver.enqueue("q0", "a", kv_tokens=100, pool="q")
    driver.enqueue("q1", "b", 5, pool="q")
    driver.enqueue("q2", "b", 5, pool="q")
    offer = d.Offer(free_tokens=5, total_tokens=20)
    granted = driver.next(3, pools=(POOL, "q"), offer=offer)
    assert [record.request_id for record in granted] == ["q1", "q2"]
