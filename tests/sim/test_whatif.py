"""A log decided again: the same policy gives the same waits, another one what it promises."""

import msgspec
import pytest

from scheduler_service.core import decisions as d
from scheduler_service.core.policy import PRESETS
from scheduler_service.sim.whatif import LogUnusableError, changed, groups, pools_of, read, replay
from tests.support.driver import LONG, SHORT, Driver

SECOND_NS = 1_000_000_000


def logged_run(preset):
    """Two slots; a heavy user floods first, a light one comes later; returns the records."""
    driver = Driver(msgspec.structs.replace(PRESETS[preset], hand_over_ns=0), replica=False)
    held = []
    for number in range(60):
        driver.enqueue(f"h{number}", "heavy", 10, LONG if number % 5 == 0 else SHORT)
    for step in range(200):
        if step in range(20, 40):
            driver.enqueue(f"l{step}", "light", 10)
        while len(held) < 2 and (granted := driver.next(1)):
            held.append((driver.now_ns + SECOND_NS, granted[0].lease_id))
        driver.advance(0.5)
        while held and held[0][0] <= driver.now_ns:
            driver.complete(held.pop(0)[1])
    return driver.log


def test_the_policy_of_the_log_gives_the_waits_of_the_log():
    """With durations as they were, the model repeats what happened."""
    logged = read(logged_run("fcfs"), "pool")
    waits = replay(logged, logged.policy, {})

    assert logged.slots == 2
    assert len(logged.requests) == 80
    assert waits == [one.wait_ns for one in logged.requests]


def test_fairness_helps_the_light_user_and_the_heavy_one_pays():
    """From FCFS to `fair_qba`: the light user waits less, the heavy one longer."""
    logged = read(logged_run("fcfs"), "pool")
    other = changed(logged.policy, PRESETS["fair_qba"], {})
    found = {
        group.name: group
        for group in groups(logged, replay(logged, logged.policy, {}), replay(logged, other, {}))
    }

    assert found["light"].after_mean < found["light"].before_mean / 2
    assert found["heavy"].after_mean > found["heavy"].before_mean
    assert found["all"].requests == 80


def test_a_weight_moves_waits():
    """Three times the weight, less waiting."""
    logged = read(logged_run("sfq"), "pool")
    before = replay(logged, logged.policy, {})
    after = replay(logged, logged.policy, {"light": 5000})
    light = [i for i, one in enumerate(logged.requests) if one.user_id == "light"]

    assert sum(after[i] for i in light) < sum(before[i] for i in light)


def test_what_cannot_be_decided_again_is_said():
    """A log without a finished request, and a value out of range."""
    log = logged_run("sfq")
    assert pools_of(log) == ["pool"]
    with pytest.raises(LogUnusableError):
        read([x for x in log if not isinstance(x, d.Completed)], "pool")
    with pytest.raises(ValueError, match="quota_k"):
        changed(PRESETS["sfq"], None, {"quota_k": 0})
