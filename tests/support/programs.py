"""Small programs of commands, for laws that Hypothesis is to attack, and how to play them.

Few users and small costs on purpose: ties and empty queues are where mistakes live.
"""

from typing import Any

from hypothesis import strategies as st

from scheduler_service.core import decisions as d
from scheduler_service.core.completion import Complete
from scheduler_service.core.policy import PRESETS, SECOND_NS, PoolPolicy
from tests.support.driver import LONG, SHORT, Driver

Step = tuple[Any, ...]

USERS = st.sampled_from("abcd")
SFQ = PRESETS["sfq"]
FAIR = PRESETS["fair_qba"]


PATIENT = {"hand_over_ns": 0, "lease_duration_ns": 86_400 * SECOND_NS}
"""Leases that outlast any test."""


def policy(preset: str, **changes: Any) -> PoolPolicy:
    """A preset with some parameters changed."""
    base = PRESETS[preset]
    fields = {name: getattr(base, name) for name in base.__struct_fields__}
    return PoolPolicy(**(fields | changes))


SHORTS = st.just(SHORT)


def enqueues(costs: st.SearchStrategy[int], classes: Any = SHORTS) -> st.SearchStrategy[Step]:
    """One request of some user."""
    return st.tuples(st.just("enqueue"), USERS, costs, classes)


DISPATCHES = st.tuples(st.just("dispatch"), st.integers(1, 3))
CANCELS = st.tuples(st.just("cancel"), st.integers(0, 30))
COMPLETIONS = st.tuples(st.just("complete"), st.integers(0, 30), st.sampled_from(list(d.Outcome)))
WAITS = st.tuples(st.just("advance"), st.sampled_from([0.1, 1.0, 3.0, 70.0]))
WEIGHTS = st.tuples(st.just("weigh"), USERS, st.sampled_from([1, 333, 1000, 2000, 50_000]))
CAPS = st.tuples(st.just("cap"), USERS, st.sampled_from([-1, 0, 1, 2]))
PREFILLS = st.tuples(st.just("prefill"), st.integers(0, 30))


def programs(*steps: st.SearchStrategy[Step], max_size: int = 40) -> st.SearchStrategy[list[Step]]:
    """Programs made of these kinds of steps."""
    return st.lists(st.one_of(*steps), max_size=max_size)


COSTS = st.integers(1, 5)
CLASSES = st.sampled_from([SHORT, LONG])
PLAIN = programs(enqueues(COSTS), DISPATCHES)
"""Arrivals and dispatches only: the article's world."""
LIVELY = programs(enqueues(COSTS), DISPATCHES, CANCELS, COMPLETIONS, WAITS)
"""With everything that must not touch a meter."""
WEIGHTED = programs(enqueues(COSTS), DISPATCHES, CANCELS, COMPLETIONS, WEIGHTS, CAPS)
"""With weights and caps that change."""
MIXED = programs(enqueues(COSTS, CLASSES), DISPATCHES, CANCELS, WAITS)
"""Both classes."""


class Player:
    """Plays a program step by step.

    Attributes:
        driver: What it is played on.
        requests: Ids of everything accepted, in order.
        leases: Lease ids of everything dispatched, in order.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.requests: list[str] = []
        self.leases: list[str] = []

    def play(self, program: list[Step]) -> "Player":
        """Plays all steps; a step that the core refuses is passed over."""
        for name, *arguments in program:
            getattr(self, f"_{name}")(*arguments)
        return self

    def drain(self) -> "Player":
        """Dispatches until nothing is left that can go."""
        while answer := self._dispatch(8):
            assert answer <= 8
        return self

    def _enqueue(self, user: str, cost: int, cls: Any) -> None:
        request_id = f"{user}{len(self.requests)}"
        self.requests.append(request_id)
        self.driver.enqueue(request_id, user, cost, cls)

    def _dispatch(self, count: int) -> int:
        granted = self.driver.next(count)
        self.leases += [record.lease_id for record in granted]
        return len(granted)

    def _cancel(self, index: int) -> None:
        if self.requests:
            self.driver.cancel(self.requests[index % len(self.requests)])

    def _complete(self, index: int, outcome: d.Outcome) -> None:
        if self.leases:
            lease = self.leases[index % len(self.leases)]
            self.driver.attempt(self.driver.make(Complete, lease_id=lease, outcome=outcome))

    def _prefill(self, index: int) -> None:
        if self.leases:
            lease = self.leases[index % len(self.leases)]
            self.driver.renew(lease, prefilled=True)

    def _advance(self, seconds: float) -> None:
        self.driver.advance(seconds)

    def _weigh(self, user: str, weight_milli: int) -> None:
        self.driver.weigh(user, weight_milli)

    def _cap(self, user: str, cap: int) -> None:
        self.driver.weigh(user, 0, cap)


def play(rules: PoolPolicy, program: list[Step], *watches: type) -> Player:
    """Plays a program under a policy with laws watched, and checks the state at the end."""
    driver = Driver(rules)
    for watch in watches:
        driver.watch(watch(driver))
    player = Player(driver).play(program)
    driver.check()
    return player
