"""Random traces: users, workers, weights and policies, all small, so that limits and ties are met.

A trace is made from one seed.  It runs against a `Driver`, so the oracle judges every record; and
every answer to a worker is checked for work conservation.
"""

import random
from typing import Any

import msgspec

from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.completion import Complete
from scheduler_service.core.errors import SchedulerError
from scheduler_service.core.policy import (
    SECOND_NS,
    AdmissionPoint,
    ClassOrder,
    Placement,
    PoolMode,
    PoolPolicy,
    SlackKind,
    WithinUser,
)
from scheduler_service.oracle.choice import Choice
from tests.support.driver import LONG, SHORT, Driver

SLACKS: list[dict[str, Any]] = [
    {"slack_milli": 0},
    {"slack_milli": 1},
    {"slack_milli": 500},
    {"slack_milli": 1000},
    {"slack_milli": 3000},
    {"slack_milli": 5000, "slack_max_micros": 2_000_000},
    {"slack_kind": SlackKind.ABSOLUTE, "slack_micros": 0},
    {"slack_kind": SlackKind.ABSOLUTE, "slack_micros": 1},
    {"slack_kind": SlackKind.ABSOLUTE, "slack_micros": 2_500_000},
    {"slack_kind": SlackKind.UNBOUNDED},
    {"slack_kind": SlackKind.UNBOUNDED},
]
PACES_NS: list[list[int]] = [
    [0, 0, 0, 1],
    [0, 0, SECOND_NS // 10, SECOND_NS // 10],
    [0, SECOND_NS // 10, SECOND_NS // 3, SECOND_NS],
    [0, 0, SECOND_NS // 10, SECOND_NS, 5 * SECOND_NS],
    [0, SECOND_NS, 2 * SECOND_NS, 5 * SECOND_NS, 70 * SECOND_NS],
]
"""How time goes on between commands, from a rush to an idle night."""


def random_policy(rng: random.Random) -> PoolPolicy:
    """A policy with small numbers, so that every limit is met within a short trace."""
    pick = rng.choice
    gate = rng.random() < 0.1
    return PoolPolicy(
        **pick(SLACKS),
        class_order=pick([ClassOrder.QBA] * 4 + [*ClassOrder]),
        within_user=pick([WithinUser.CLASS, WithinUser.CLASS, WithinUser.FIFO]),
        placement=pick(list(Placement)),
        quota_k=pick([1, 2, 3, 5]),
        aging_quantile_bp=pick([1, 5000, 8000, 10_000]),
        aging_sample_window=pick([0, 1, 4, 16, 1024]),
        aging_min_sample=pick([1, 1, 3, 8]),
        admission_point=pick([AdmissionPoint.DISPATCH, *AdmissionPoint]),
        max_passes=pick([1, 2, 3, 8]),
        overtake_slack_micros=pick([-1, -1, 0, 2_000_000]),
        overtake_scan=pick([1, 2, 3, 32]),
        max_overtakes=pick([1, 2, 3, 16]),
        lease_duration_ns=pick([SECOND_NS, 10 * SECOND_NS, *[60 * SECOND_NS] * 3]),
        hand_over_ns=pick([0, SECOND_NS, 5 * SECOND_NS]),
        max_attempts=pick([1, 2, 3]),
        retry_backoff_ns=pick([0, SECOND_NS, 5 * SECOND_NS]),
        max_wait_ns=pick([0, 0, 0, 0, 0, 3 * SECOND_NS, 30 * SECOND_NS]),
        unplaceable_wait_ns=pick([SECOND_NS, 10 * SECOND_NS]),
        worker_ttl_ns=pick([5 * SECOND_NS, 60 * SECOND_NS]),
        max_waiting=pick([3, 8, *[1000] * 5]),
        max_waiting_per_user=pick([2, 5, *[1000] * 6]),
        max_users=pick([2, 3, *[1000] * 4]),
        max_in_flight_per_user=pick([0, 0, 0, 0, 0, 1, 2]),
        max_leases_per_worker=pick([1, 3, *[1000] * 6]),
        default_weight_milli=pick([1000, 1000, 500, 3000]),
        mode=PoolMode.GATE if gate else PoolMode.PULL,
        gate_max_in_flight=pick([1, 2, 3]),
        gate_max_in_flight_cost=pick([0, 3, 10]),
        max_dead_letters=pick([1, 2, 1000]),
    )


class Trace:
    """One random run: its own users, workers, weights and mood."""

    def __init__(
        self,
        seed: int,
        *,
        steps: int = 80,
        driver: Driver | None = None,
        fixed: dict[str, Any] | None = None,
    ) -> None:
        self.fixed = fixed or {}
        self.rng = random.Random(seed)
        self.driver = driver or Driver()
        self.steps = steps
        rng = self.rng
        self.pools = ["p", "q"][: rng.choice([1, 1, 1, 2])]
        self.users = list("abcdef")[: rng.choice([1, 2, 3, 6])]
        self.workers = ["w1", "w2", "w3"][: rng.choice([1, 2, 3])]
        self.costs = rng.choice([[1], [1, 1, 3], [1, 2, 5, 40], [1, 10**9], [10**9]])
        self.weights = rng.choice([[0], [0, 1000, 2000], [0, 1, 333, 1000, 1_000_000]])
        self.kv = rng.choice([[0], [0, 0, 2, 6], [1, 4, 9, 30]])
        self.long_share = rng.choice([0.0, 0.3, 0.5, 0.5, 1.0])
        self.pace = rng.choice(PACES_NS)
        self.burst = rng.choice([0, 5, 15, 30])
        self.offers = rng.choice([[-1], [-1, 5, 10, 50], [10], [50]])
        self.requests = 0
        self.leases: list[str] = []
        moods: dict[str, list[int]] = {
            "enqueue": [30, 60],
            "next": [20, 40],
            "complete": [5, 20, 40],
            "renew": [0, 6, 20],
            "cancel": [0, 0, 6],
            "advance": [0, 6],
            "weigh": [0, 0, 6],
            "policy": [0, 0, 3],
            "pause": [0, 0, 4],
            "fleet": [0, 0, 3],
            "requeue": [0, 0, 4],
            "recover": [0, 0, 1],
            "forget": [0, 0, 2],
        }
        self.kinds = list(moods)
        self.mood = [rng.choice(values) for values in moods.values()]
        self._choose_world()

    def _choose_world(self) -> None:
        """Some traces are about one thing that is rare where everything goes on at once."""
        rng = self.rng
        world = rng.choices(["any", "rebase", "quota", "fit"], [12, 2, 2, 2])[0]
        if world == "any":
            return
        self.offers, self.kv, self.pace = [-1], [0], PACES_NS[rng.choice([0, 1, 2])]
        calm = {"max_wait_ns": 0, "lease_duration_ns": 60 * SECOND_NS, "max_waiting": 1000}
        if world == "rebase":
            self.costs, self.weights, self.users = [10**9, 10**9, 1, 1], [0], list("abcd")
            self.mood[:2] = [40, 40]
            calm |= {"max_in_flight_per_user": 0, "max_users": 1000, "mode": PoolMode.PULL}
            calm["default_weight_milli"] = 1
        elif world == "quota":
            self.long_share = 0.5
            self.mood[self.kinds.index("renew")] = 20
            calm |= {"quota_k": rng.choice([1, 2]), "aging_min_sample": 1, "aging_quantile_bp": 1}
            calm["class_order"] = ClassOrder.QBA
        else:
            self.offers, self.kv = [10], [0, 0, 3, 8]
            calm |= {"placement": Placement.OVERTAKE, "max_overtakes": rng.choice([1, 2, 3])}
        self.fixed = calm | self.fixed

    def run(self) -> Driver:
        """Runs all steps; raises at the first difference."""
        for pool in self.pools:
            self.driver.configure(self._policy_of(), pool=pool)
        for _ in range(self.burst):
            self.step(self._enqueue())
        for _ in range(self.steps):
            kind = self.rng.choices(self.kinds, self.mood)[0]
            self.driver.now_ns += self.rng.choice(self.pace)
            self.step(getattr(self, f"_{kind}")())
        self.driver.check()
        return self.driver

    def step(self, command: c.Command) -> None:
        """Runs one command and checks its answer against what the oracle expects."""
        answer = self.driver.attempt(command)
        self.leases += [
            record.lease_id for record in self.driver.log[-8:] if isinstance(record, d.Dispatched)
        ]
        check_answer(self.driver, command, answer)

    @property
    def gates(self) -> list[str]:
        """Pools that no worker may ask."""
        pools = self.driver.oracle.book.pools
        return [name for name in self.pools if pools[name].policy.mode is PoolMode.GATE]

    def _enqueue(self) -> c.Command:
        rng = self.rng
        self.requests += 1
        old = rng.random() < 0.03
        number = rng.randrange(self.requests) if old else self.requests
        return self.driver.make(
            c.Enqueue,
            pool=rng.choice(self.pools),
            request_id=f"r{number}",
            user_id=rng.choice(self.users),
            cost=rng.choice(self.costs),
            predicted_class=LONG if rng.random() < self.long_share else SHORT,
            kv_tokens=rng.choice(self.kv),
            labels=("lora",) if rng.random() < 0.05 else (),
            max_wait_ns=rng.choice([*[0] * 8, SECOND_NS, 20 * SECOND_NS]),
            content_digest=b"x",
        )

    def _next(self) -> c.Command:
        rng = self.rng
        total = rng.choice(self.offers)
        pulled = [pool for pool in self.pools if pool not in self.gates]
        if not pulled or rng.random() < 0.02:
            pulled = self.pools
        return self.driver.make(
            c.NextDispatch,
            pools=tuple(rng.sample(pulled, rng.randint(1, len(pulled)))),
            worker=rng.choice(self.workers),
            offer=d.Offer(
                free_tokens=-1 if total == -1 else rng.choice([0, 2, total // 2, total]),
                total_tokens=total,
                accepts_short=rng.random() < 0.95,
                accepts_long=rng.random() < 0.9,
                labels=("lora",) if rng.random() < 0.7 else (),
                max_leases=rng.choice([0, 0, 0, 2]),
            ),
            max_dispatches=rng.choice([1, 1, 1, 2, 5]),
            lease_duration_ns=rng.choice([0, 0, 0, 2 * SECOND_NS]),
            idempotency_key=rng.choice(["", "", "", "k1", "k2"]),
            hand_over=rng.random() < 0.5,
        )

    def _lease(self) -> str:
        if self.leases and self.rng.random() < 0.97:
            return self.rng.choice(self.leases[-12:])
        return "no-such-lease"

    def _complete(self) -> c.Command:
        rng = self.rng
        outcome = rng.choice([d.Outcome.SUCCEEDED, d.Outcome.SUCCEEDED, *d.Outcome])
        return self.driver.make(
            Complete,
            lease_id=self._lease(),
            outcome=outcome,
            output_tokens=rng.choice([-1, 7, 1_000_000]),
            undelivered=outcome is d.Outcome.GIVEN_BACK and rng.random() < 0.3,
        )

    def _renew(self) -> c.Command:
        leases = tuple({self._lease(), self._lease()})
        prefilled = tuple(lease for lease in leases if self.rng.random() < 0.6)
        return self.driver.make(c.RenewLease, lease_ids=leases, prefill_complete=prefilled)

    def _cancel(self) -> c.Command:
        number = self.rng.randint(max(1, self.requests - 15), max(1, self.requests))
        return self.driver.make(c.Cancel, pool=self.rng.choice(self.pools), request_id=f"r{number}")

    def _advance(self) -> c.Command:
        return self.driver.make(c.Tick)

    def _weigh(self) -> c.Command:
        return self.driver.make(
            c.ConfigureUser,
            pool=self.rng.choice(self.pools),
            user_id=self.rng.choice(self.users),
            weight_milli=self.rng.choice(self.weights),
            max_in_flight=self.rng.choice([-1, -1, 0, 1, 2]),
        )

    def _policy(self) -> c.Command:
        pool = self.rng.choice(self.pools)
        policy = self._policy_of()
        return self.driver.make(
            c.ConfigurePool,
            pool=pool,
            policy=policy,
            policy_digest=f"digest-{len(self.driver.history)}",
            create=False,
        )

    def _policy_of(self) -> PoolPolicy:
        return msgspec.structs.replace(random_policy(self.rng), **self.fixed)

    def _pause(self) -> c.Command:
        rng = self.rng
        pool, user = rng.choice(self.pools), rng.choice(["", *self.users])
        if rng.random() < 0.6:
            return self.driver.make(c.Resume, pool=pool, user_id=user)
        until = rng.choice([0, self.driver.now_ns + 3 * SECOND_NS])
        return self.driver.make(c.Pause, pool=pool, user_id=user, until_ns=until)

    def _fleet(self) -> c.Command:
        rng = self.rng
        worker = rng.choice(self.workers)
        if rng.random() < 0.3:
            return self.driver.make(c.DrainWorker, worker=worker)
        return self.driver.make(
            c.RegisterWorker,
            worker=worker,
            worker_name=worker,
            pools=tuple(self.pools),
            offer=d.Offer(total_tokens=rng.choice([-1, 5, 50])),
        )

    def _requeue(self) -> c.Command:
        pool = self.rng.choice(self.pools)
        dead = self.driver.pool(pool).dead
        if not dead or self.rng.random() < 0.1:
            return self.driver.make(c.Requeue, pool=pool, request_id="r1")
        request = self.rng.choice(dead)
        kind = self.rng.choice([c.Requeue, c.Requeue, c.Discard])
        return self.driver.make(kind, pool=pool, request_id=request.request_id)

    def _forget(self) -> c.Command:
        pool, user = self.rng.choice(self.pools), self.rng.choice(self.users)
        return self.driver.make(c.ForgetUser, pool=pool, user_id=user)

    def _recover(self) -> c.Command:
        return self.driver.make(c.Recover, downtime_ns=self.rng.choice([0, SECOND_NS]))


def check_answer(driver: Driver, command: c.Command, answer: Any) -> None:
    """Work conservation: a worker that got less than it asked for could get no more."""
    if type(command).__name__ != "NextDispatch" or isinstance(answer, SchedulerError):
        return
    if answer.existing or len(answer.granted) >= command.max_dispatches:
        return
    if answer.empty_reason is d.EmptyReason.LEASES_FULL:
        pools = [driver.oracle.book.pools[pool] for pool in command.pools]
        limits = [pool.policy.max_leases_per_worker for pool in pools]
        limit = min([*limits, command.offer.max_leases or max(limits)])
        assert driver.oracle.book.leases_of(command.worker) >= limit
        return
    free = command.offer.free_tokens
    if free != -1:
        free -= sum(request.kv_tokens for request in answer.granted)
    offer = msgspec.structs.replace(command.offer, free_tokens=free)
    for pool in command.pools:
        expected = driver.oracle.expect(pool, command.worker, offer, command.now_ns)
        if isinstance(expected, Choice):
            got = f"{command.worker} got {len(answer.granted)} and {answer.empty_reason.name}"
            message = f"{got}, but {expected.request.request_id} could go ({expected.turn.name})"
            raise AssertionError(message)  # noqa: TRY004 - it is not about a type
        assert not expected.stuck, "users that nobody can serve hold the pool up"
        if len(command.pools) == 1:
            assert expected.reason is answer.empty_reason
