"""A machine with every command, against the oracle, with a crash in between.

The driver compares every record with the oracle; the invariants compare the core with the fold of
its log.  Small domains on purpose: ties, empty queues and full limits are where mistakes live.
"""

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core import snapshot
from scheduler_service.core.completion import Complete
from scheduler_service.core.policy import SECOND_NS, AdmissionPoint, PoolMode
from tests.support import watches
from tests.support.driver import LONG, POOL, SHORT, Driver
from tests.support.programs import policy
from tests.support.traces import check_answer

USERS = st.sampled_from("abcd")
WORKERS = st.sampled_from(["w1", "w2"])
STEPS = st.sampled_from([0, 1, SECOND_NS // 2, 3 * SECOND_NS, 20 * SECOND_NS])
SMALL = {
    "quota_k": 2,
    "aging_min_sample": 2,
    "max_passes": 2,
    "max_overtakes": 2,
    "max_attempts": 2,
    "lease_duration_ns": 10 * SECOND_NS,
    "hand_over_ns": 2 * SECOND_NS,
    "retry_backoff_ns": 0,
    "max_waiting": 12,
    "max_waiting_per_user": 6,
    "unplaceable_wait_ns": 10 * SECOND_NS,
}


class Everything(RuleBasedStateMachine):
    """All commands of the core."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()
        for law in (watches.Band, watches.PairBound, watches.Fifo, watches.Lives):
            self.driver.watch(law(self.driver))
        self.requests: list[str] = []
        self.leases: list[str] = []

    @initialize(
        preset=st.sampled_from(["sfq", "fair_qba", "fair_qba", "qba", "aa"]),
        point=st.sampled_from(list(AdmissionPoint)),
        gate=st.booleans(),
    )
    def pool(self, preset, point, gate):
        mode = PoolMode.GATE if gate and preset == "sfq" else PoolMode.PULL
        self.rules = policy(preset, **SMALL, admission_point=point, mode=mode, gate_max_in_flight=2)
        self.gate = mode is PoolMode.GATE
        self.driver.configure(self.rules)

    def run(self, kind, **fields):
        command = self.driver.make(kind, **fields)
        answer = self.driver.attempt(command)
        check_answer(self.driver, command, answer)
        self.leases += [
            record.lease_id for record in self.driver.log[-4:] if isinstance(record, d.Dispatched)
        ]
        return answer

    @rule(
        user=USERS,
        cost=st.sampled_from([1, 1, 2, 5]),
        cls=st.sampled_from([SHORT, LONG]),
        kv=st.sampled_from([0, 0, 4, 8]),
        wait=st.sampled_from([0, 0, 0, 5 * SECOND_NS]),
    )
    def enqueue(self, user, cost, cls, kv, wait):
        self.requests.append(f"{user}{len(self.requests)}")
        self.run(
            c.Enqueue,
            pool=POOL,
            request_id=self.requests[-1],
            user_id=user,
            cost=cost,
            predicted_class=cls,
            kv_tokens=kv,
            max_wait_ns=wait,
        )

    @precondition(lambda self: not self.gate)
    @rule(
        worker=WORKERS,
        count=st.integers(1, 3),
        free=st.sampled_from([-1, 2, 6, 10]),
        hand_over=st.booleans(),
    )
    def next_dispatch(self, worker, count, free, hand_over):
        self.run(
            c.NextDispatch,
            pools=(POOL,),
            worker=worker,
            offer=d.Offer(free_tokens=free, total_tokens=-1 if free == -1 else 10),
            max_dispatches=count,
            hand_over=hand_over,
        )

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), outcome=st.sampled_from(list(d.Outcome)), undelivered=st.booleans())
    def complete(self, data, outcome, undelivered):
        lost = undelivered and outcome is d.Outcome.GIVEN_BACK
        lease = data.draw(st.sampled_from(self.leases[-8:]))
        self.run(Complete, lease_id=lease, outcome=outcome, undelivered=lost)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), prefilled=st.booleans())
    def renew(self, data, prefilled):
        lease = data.draw(st.sampled_from(self.leases[-8:]))
        done = (lease,) if prefilled else ()
        self.run(c.RenewLease, lease_ids=(lease,), prefill_complete=done)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data):
        request = data.draw(st.sampled_from(self.requests[-10:]))
        self.run(c.Cancel, pool=POOL, request_id=request)

    @rule(step=STEPS)
    def advance(self, step):
        self.driver.now_ns += step
        self.run(c.Tick)

    @rule(user=USERS, weight=st.sampled_from([0, 1, 500, 3000]), cap=st.sampled_from([-1, 0, 1]))
    def configure_user(self, user, weight, cap):
        self.run(c.ConfigureUser, pool=POOL, user_id=user, weight_milli=weight, max_in_flight=cap)

    @rule(user=st.sampled_from(["", "a", "b"]), until=st.sampled_from([0, 4 * SECOND_NS]))
    def pause(self, user, until):
        until_ns = self.driver.now_ns + until if until else 0
        self.run(c.Pause, pool=POOL, user_id=user, until_ns=until_ns)

    @rule(user=st.sampled_from(["", "a", "b"]))
    def resume(self, user):
        self.run(c.Resume, pool=POOL, user_id=user)

    @rule(worker=WORKERS, total=st.sampled_from([-1, 6, 10]))
    def register(self, worker, total):
        self.run(
            c.RegisterWorker,
            worker=worker,
            worker_name=worker,
            pools=(POOL,),
            offer=d.Offer(total_tokens=total),
        )

    @rule(worker=WORKERS)
    def drain(self, worker):
        self.run(c.DrainWorker, worker=worker)

    @precondition(lambda self: self.driver.pool().dead)
    @rule(data=st.data(), drop=st.booleans())
    def requeue(self, data, drop):
        dead = [r for r in self.driver.pool().dead if r.rule is not d.Rule.PROMOTION]
        if dead:
            request = data.draw(st.sampled_from(dead)).request_id
            self.run(c.Discard if drop else c.Requeue, pool=POOL, request_id=request)

    @rule(user=USERS)
    def forget(self, user):
        self.run(c.ForgetUser, pool=POOL, user_id=user)

    @rule(weight=st.sampled_from([1000, 300]), cap=st.sampled_from([0, 1]), k=st.integers(1, 3))
    def configure_pool(self, weight, cap, k):
        rules = msgspec.structs.replace(
            self.rules, default_weight_milli=weight, max_in_flight_per_user=cap, quota_k=k
        )
        self.run(c.ConfigurePool, pool=POOL, policy=rules, policy_digest=f"k{k}", create=False)

    @rule()
    def learn(self):
        self.run(c.UpdateEstimator, pool=POOL, ratios=(("", 400, 100),), short_cutoff=7)

    @rule(step=STEPS)
    def recover(self, step):
        self.driver.now_ns += step
        self.run(c.Recover, downtime_ns=step)

    @rule()
    def crash_and_replay(self):
        """The process dies: the fold of the log takes over."""
        state = self.driver.core.new_state()
        for record in self.driver.log:
            self.driver.core.evolve(state, record)
        self.driver.state = state

    @rule()
    def restore_a_snapshot(self):
        """The process dies: a snapshot takes over."""
        self.driver.state = snapshot.restore(snapshot.dump(self.driver.state))

    @invariant()
    def sound(self):
        self.driver.check()


TestEverything = Everything.TestCase
TestEverything.settings = settings(stateful_step_count=40)
