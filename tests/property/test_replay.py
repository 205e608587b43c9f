"""Differential replay: the log alone gives the state, however it is cut and whoever folds it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.core import snapshot
from scheduler_service.core.errors import SchedulerError
from scheduler_service.core.evolve import evolve
from scheduler_service.core.policy import SECOND_NS
from scheduler_service.core.scheduler import apply
from scheduler_service.core.state import State
from tests.support.driver import Driver
from tests.support.programs import MIXED, Player, policy
from tests.support.traces import Trace

SEEDS = st.integers(0, 2**32)


class Stepwise(Trace):
    """Compares the fold with the live state after every command, to find the first difference."""

    def step(self, command) -> None:
        super().step(command)
        assert self.driver.digest(self.driver.replica) == self.driver.digest()


@given(SEEDS)
def test_the_fold_of_the_log_is_the_state_after_every_command(seed):
    """Digest by digest."""
    Stepwise(seed, steps=40).run()


@given(SEEDS, st.floats(0, 1))
def test_a_snapshot_and_the_tail_equal_the_whole_log(seed, where):
    """A state written down, read back and continued is the state that never stopped."""
    driver = Trace(seed, steps=40).run()
    cut = round(where * len(driver.log))
    state = State()
    for record in driver.log[:cut]:
        evolve(state, record)
    image = snapshot.dump(state)
    restored = snapshot.restore(image)
    assert snapshot.dump(restored) == image
    for record in driver.log[cut:]:
        evolve(restored, record)
    assert snapshot.digest(restored) == driver.digest()


@given(SEEDS, st.floats(0, 1))
def test_a_restored_core_decides_as_the_one_that_never_stopped(seed, where):
    """Not only the state: the same further commands give the same further records."""
    driver = Trace(seed, steps=40, fixed={"worker_ttl_ns": 86_400 * SECOND_NS}).run()
    cut = round(where * len(driver.history))
    first = State()
    log: list = []
    _replay(first, driver.history[:cut], log)
    second = snapshot.restore(snapshot.dump(first))
    tail: list = []
    _replay(second, driver.history[cut:], tail)
    assert log + tail == driver.log


def _replay(state, commands, log) -> None:
    for command in commands:
        try:
            apply(state, command, log)
        except SchedulerError:
            continue  # what was refused in the first run is refused again


@given(MIXED, st.sampled_from(["sfq", "fair_qba", "qba"]))
def test_many_at_once_are_as_many_one_by_one(program, preset):
    """One request, one selection, however many a call asks for."""
    rules = policy(preset, hand_over_ns=0)
    batched, single = Driver(rules), Driver(rules)
    Player(batched).play(program)
    Player(single).play(_split(program))
    assert _decided(batched) == _decided(single)


def _split(program):
    for step in program:
        if step[0] == "dispatch":
            yield from [("dispatch", 1)] * step[1]
        else:
            yield step


def _decided(driver: Driver) -> list[tuple]:
    return [
        (record.request_id, record.meter_after, record.virtual_time_after, record.rule)
        for record in driver.log
        if hasattr(record, "turn")
    ]


@pytest.mark.parametrize("damage", [b"", b"\x00", b"\x93\x01\x02\x03"])
def test_bytes_that_are_no_snapshot_are_refused(damage):
    """A snapshot is read whole or not at all."""
    with pytest.raises(ValueError, match="snapshot"):
        snapshot.restore(damage)


def test_a_digest_sees_every_meter():
    """Two states that differ in one meter have different digests."""
    digests = set()
    for cost in range(1, 6):
        driver = Driver(policy("sfq"))
        driver.enqueue("a0", "a", cost)
        driver.enqueue("a1", "a", 1)
        driver.next()
        digests.add(driver.digest())
    assert len(digests) == 5


def test_the_order_of_keys_does_not_matter():
    """Pools made in another order give the same digest only if the log is the same."""
    rng = random.Random(1)
    names = ["p", "q", "r"]
    first = Driver()
    for name in names:
        first.configure(policy("sfq"), pool=name)
    rng.shuffle(names)
    image = snapshot.dump(first.state)
    assert snapshot.dump(snapshot.restore(image)) == image
