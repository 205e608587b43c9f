"""SFQ §7.2, §7.3: rebasing and forgetting change no order; the same input gives the same order."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.core import decisions as d
from scheduler_service.core.policy import REBASE_AT_MICROS
from tests.support.core import Edit, mutated
from tests.support.driver import Driver
from tests.support.programs import (
    CLASSES,
    COMPLETIONS,
    COSTS,
    DISPATCHES,
    LIVELY,
    SFQ,
    WAITS,
    WEIGHTS,
    Player,
    enqueues,
    policy,
    programs,
)

EAGER = mutated(
    Edit("recording", "pool.virtual_time >= REBASE_AT_MICROS", "pool.virtual_time > 0"),
    Edit("granting", "pool.virtual_time >= 2**60", "pool.virtual_time > 0"),
)
"""A core that rebases whenever it can."""

REMEMBERING = mutated(
    Edit("flows", "    if flow.waiting or flow.in_flight:\n        return", "    return"),
    Edit("flows", "if flow is not None and _is_idle(flow):", "if False:"),
)
"""A core that forgets nobody."""

ANY = programs(enqueues(COSTS, CLASSES), DISPATCHES, COMPLETIONS, WAITS, WEIGHTS, max_size=60)
PRESETS = st.sampled_from(["sfq", "fair_qba", "qba"])


def order(rules, program, core=None) -> list[tuple[str, int]]:
    """Request and turn of every dispatch; a changed core is not compared with the oracle."""
    options = {} if core is None else {"core": core, "strict": False}
    driver = Driver(rules, replica=False, **options)
    Player(driver).play(program).drain()
    return [(record.request_id, record.turn) for record in driver.of(d.Dispatched)]


@given(ANY, PRESETS)
def test_rebasing_changes_no_order(program, preset):
    """Taking v off every meter, even at every chance, decides nothing differently."""
    rules = policy(preset, aging_min_sample=1, quota_k=2)
    assert order(rules, program) == order(rules, program, EAGER)


@given(ANY, PRESETS)
def test_forgetting_changes_no_order(program, preset):
    """Users at or below v without work can be dropped or kept: the order is the same."""
    rules = policy(preset, aging_min_sample=1, quota_k=2)
    assert order(rules, program) == order(rules, program, REMEMBERING)


def test_an_eager_core_does_rebase():
    """The comparison is not empty: the eager core writes rebases, the real one none."""
    driver = Driver(SFQ, core=EAGER, strict=False, replica=False)
    for number in range(3):
        driver.enqueue(f"a{number}", "a")
    driver.next(3)
    assert driver.of(d.Rebased)


def test_meters_are_rebased_when_v_reaches_the_limit():
    """It is a record, it takes v off everything, and it happens at 2^60 and not before."""
    driver = Driver(policy("sfq", default_weight_milli=1))
    for number in range(4):
        for user in "ab":
            driver.enqueue(f"{user}{number}", user, 10**9)
    driver.enqueue("c0", "c", 7)
    driver.next(20)
    rebased = driver.of(d.Rebased)
    assert rebased
    for record in rebased:
        assert record.offset_micros >= REBASE_AT_MICROS
    assert driver.pool().virtual_time < REBASE_AT_MICROS
    assert len(driver.of(d.Dispatched)) == 9


@given(LIVELY)
def test_the_same_commands_give_the_same_log(program):
    """Selection is deterministic: no clock, no chance, no order of a set."""
    first, second = Driver(SFQ), Driver(SFQ)
    Player(first).play(program)
    Player(second).play(program)
    assert first.log == second.log


def test_ties_are_broken_by_user_id_at_slack_0():
    """By (S, user_id): not by arrival, not by request."""
    driver = Driver(SFQ)
    for user in ("b", "a", "é", "B", "aa"):
        driver.enqueue(f"of-{user}", user)
    assert [record.user_id for record in driver.next(5)] == ["B", "a", "aa", "b", "é"]


def test_ties_are_broken_by_age_within_a_window():
    """With a window the older request wins a tie."""
    driver = Driver(policy("fair_qba"))
    for user in ("b", "a"):
        driver.enqueue(f"of-{user}", user)
    assert [record.user_id for record in driver.next(2)] == ["b", "a"]
