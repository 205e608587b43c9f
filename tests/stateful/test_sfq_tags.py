"""The core at slack 0 against SFQ by tags, in exact rationals, command by command."""

from fractions import Fraction

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler_service.core import decisions as d
from scheduler_service.core.completion import Complete
from scheduler_service.core.policy import MICRO
from tests.stateful.tag_oracle import TagOracle
from tests.support.driver import POOL, Driver
from tests.support.programs import SFQ

WEIGHTS = {"a": 1000, "b": 2000, "c": 500, "d": 4000}
"""Weights that divide every cost exactly, so that rationals and integers can be compared."""


class TagMachine(RuleBasedStateMachine):
    """Two schedulers that share no idea: one meter a user, and one tag a request."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(SFQ, replica=False)
        self.oracle = TagOracle()
        self.names: dict[int, str] = {}

    @initialize(weighted=st.booleans())
    def weigh(self, weighted):
        self.weights = dict.fromkeys("abcd", 1000)
        if weighted:
            self.weights = WEIGHTS
            for user, weight in WEIGHTS.items():
                self.driver.weigh(user, weight)

    @rule(user=st.sampled_from("abcd"), cost=st.integers(1, 5))
    def enqueue(self, user, cost):
        arrival = self.oracle.enqueue(user, cost, Fraction(self.weights[user], 1000))
        self.names[arrival] = f"{user}{arrival}"
        self.driver.enqueue(self.names[arrival], user, cost)

    @rule(count=st.integers(1, 3))
    def dispatch(self, count):
        sent = [self.oracle.dispatch() for _ in range(count)]
        expected = [self.names[arrival] for arrival in sent if arrival is not None]
        assert [record.request_id for record in self.driver.next(count)] == expected

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def cancel(self, data):
        arrival = data.draw(st.sampled_from(sorted(self.names)))
        if self.oracle.cancel(arrival):
            self.driver.cancel(self.names[arrival])

    @precondition(lambda self: self.driver.of(d.Dispatched))
    @rule(data=st.data(), outcome=st.sampled_from([d.Outcome.SUCCEEDED, d.Outcome.FAILED]))
    def complete(self, data, outcome):
        lease = data.draw(st.sampled_from(self.driver.of(d.Dispatched))).lease_id
        self.driver.attempt(self.driver.make(Complete, lease_id=lease, outcome=outcome))

    @invariant()
    def virtual_time_and_tags_agree(self):
        pool = self.driver.state.pools[POOL]
        assert pool.virtual_time == self.oracle.virtual_time * MICRO
        heads: dict[str, Fraction] = {}
        for tagged in self.oracle.tags():
            heads.setdefault(tagged.user, tagged.start)
        for user, start in heads.items():
            assert pool.flows[user].meter == start * MICRO


TestTags = TagMachine.TestCase
TestTags.settings = settings(stateful_step_count=40)
