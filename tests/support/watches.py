"""Laws that are watched while a driver runs: each looks at every record and at what it changes.

The numbers come from the oracle's naive state, which agrees with the core on every record; what
must hold of them is written down here once more, from the sources.
"""

from collections import defaultdict

from scheduler_service.core import decisions as d
from scheduler_service.core.policy import ClassOrder, Placement, PredictedClass, WithinUser
from scheduler_service.oracle.ledger import Pool, Request, User
from tests.support.driver import Driver

FINISHED = frozenset(
    state
    for state in d.RequestState
    if state not in {d.RequestState.WAITING, d.RequestState.LEASED, d.RequestState.REDELIVERY}
)


class _Watch:
    """Finds the pool of a record in the oracle's book."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def pool_of(self, record: d.Decision) -> Pool | None:
        """The pool that a record is about, if any."""
        return self.driver.oracle.book.pools.get(getattr(record, "pool", ""))

    def before(self, record: d.Decision) -> None:
        """Looks at a record before it is folded."""

    def after(self, record: d.Decision) -> None:
        """Looks at a record after it is folded."""


class Band(_Watch):
    """SFQ §3.1, widened by the slack: v never falls, S >= v when selectable, S <= v + D + L.

    D (with what overtaking may reach) and L are the largest since the busy period began.
    """

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.virtual_time: dict[str, int] = defaultdict(int)
        self.slack: dict[str, int] = defaultdict(int)
        self.charge: dict[str, int] = defaultdict(int)

    def before(self, record: d.Decision) -> None:
        pool = self.pool_of(record)
        if pool is None or pool.policy.unbounded:
            return
        if isinstance(record, d.Dispatched) and record.turn is not d.Turn.REDELIVERY:
            self._widen(pool, record.charge_micros)

    def _widen(self, pool: Pool, charge: int) -> None:
        slack = pool.slack() or 0
        if pool.policy.placement is Placement.OVERTAKE:
            own = pool.policy.overtake_slack_micros
            slack += slack if own == -1 else own
        self.slack[pool.name] = max(self.slack[pool.name], slack)
        self.charge[pool.name] = max(self.charge[pool.name], charge)

    def after(self, record: d.Decision) -> None:
        pool = self.pool_of(record)
        if pool is None:
            return
        if isinstance(record, d.BusyPeriodClosed):
            self.slack[pool.name] = self.charge[pool.name] = 0
        if not isinstance(record, d.Rebased):
            assert pool.virtual_time >= self.virtual_time[pool.name], "v fell"
        self.virtual_time[pool.name] = pool.virtual_time
        if pool.policy.unbounded:
            return
        if isinstance(record, d.UserConfigured | d.PoolConfigured):
            self._widen(pool, max(pool.charges, default=0))
        for user in pool.selectable():
            due = bool(self.driver.oracle.book.owed)  # a rejoin that follows at once
            assert user.meter >= pool.virtual_time or due, "a selectable user is below v"
        limit = pool.virtual_time + self.slack[pool.name] + self.charge[pool.name]
        for user in pool.users.values():
            assert user.meter <= limit, f"{user.user_id} is above v + D + L"


class PairBound(_Watch):
    """SFQ §3.2: |W_i - W_j| <= 2D + c_i + c_j for two users selectable throughout.

    W is in charges; D and a user's own largest charge c are taken since the busy period began.  A
    change of weight of either starts a new interval, with the clamp of that change as its charge;
    so does a rejoin, also of a user that was passed by because nobody alive could serve it.
    """

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.work: dict[tuple[str, str], int] = defaultdict(int)
        self.charge: dict[tuple[str, str], int] = defaultdict(int)
        self.slack: dict[str, int] = defaultdict(int)
        self.spread: dict[tuple[str, str, str], tuple[int, int]] = {}
        self.worst = 0.0

    def before(self, record: d.Decision) -> None:
        pool = self.pool_of(record)
        if pool is None or pool.policy.unbounded:
            return
        if isinstance(record, d.Dispatched):
            key = pool.name, record.user_id
            self.charge[key] = max(self.charge[key], record.charge_micros)
            self.work[key] += record.charge_micros
        reach = (pool.slack() or 0) + pool.overtake_slack()
        self.slack[pool.name] = max(self.slack[pool.name], reach)

    def after(self, record: d.Decision) -> None:
        pool = self.pool_of(record)
        if pool is None:
            return
        if isinstance(record, d.BusyPeriodClosed | d.PoolConfigured):
            self._forget(pool.name, None)
        if isinstance(record, d.UserConfigured | d.Rejoined):
            self._forget(pool.name, record.user_id)
        if isinstance(record, d.BusyPeriodClosed):
            self.slack[pool.name] = 0
            for key in [key for key in self.charge if key[0] == pool.name]:
                self.charge[key] = 0
        if isinstance(record, d.UserConfigured | d.PoolConfigured) and pool.charges:
            for user_id in pool.users:
                key = pool.name, user_id
                self.charge[key] = max(self.charge[key], *pool.charges)
        if not pool.policy.unbounded:
            self._check(pool)

    def _forget(self, pool: str, user_id: str | None) -> None:
        for key in list(self.spread):
            if key[0] == pool and (user_id is None or user_id in key[1:]):
                del self.spread[key]

    def _check(self, pool: Pool) -> None:
        users = sorted(user.user_id for user in pool.selectable())
        pairs = {(pool.name, a, b) for a in users for b in users if a < b}
        for key in [key for key in self.spread if key[0] == pool.name and key not in pairs]:
            del self.spread[key]
        for key in pairs:
            name, a, b = key
            lead = self.work[name, a] - self.work[name, b]
            low, high = self.spread.get(key, (lead, lead))
            self.spread[key] = low, high = min(low, lead), max(high, lead)
            bound = 2 * self.slack[name] + self.charge[name, a] + self.charge[name, b]
            assert high - low <= bound, f"{a} and {b}: {high - low} > {bound}"
            if bound:
                self.worst = max(self.worst, (high - low) / bound)


class Quotas(_Watch):
    """QBA §III-A6: 0 <= c <= k, debt iff c = k, promotions <= floor(counted shorts / k).

    For runs under one policy; a counter is a user's, or the pool's with unbounded slack.
    """

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.counted: dict[tuple[str, str], int] = defaultdict(int)
        self.admitted: dict[tuple[str, str], int] = defaultdict(int)

    def after(self, record: d.Decision) -> None:
        pool = self.pool_of(record)
        if pool is None:
            return
        k = pool.policy.quota_k
        for quota in [pool.quota, *(user.quota for user in pool.users.values())]:
            assert 0 <= quota.count <= k
            assert quota.debt == (quota.count == k)
        if pool.policy.class_order is not ClassOrder.QBA:
            return
        if isinstance(record, d.Dispatched) and record.turn is not d.Turn.REDELIVERY:
            before, after = record.short_admission_count_before, record.short_admission_count_after
            self._count(pool, record.user_id, before, after, record.predicted_class)
        self._check_rate(pool)

    def before(self, record: d.Decision) -> None:
        pool = self.pool_of(record)
        if isinstance(record, d.PrefillCompleted) and pool is not None:
            request = pool.requests[record.request_id]
            quota = pool.quota_of(request.user)
            after = record.short_admission_count_after
            cls = request.predicted_class
            self._count(pool, request.user.user_id, quota.count, after, cls)

    def _count(
        self, pool: Pool, user_id: str, before: int, after: int, cls: PredictedClass
    ) -> None:
        key = pool.name, "" if pool.policy.unbounded else user_id
        if cls is PredictedClass.SHORT:
            assert after in {before, before + 1}, "a short counts at most once"
            self.counted[key] += after - before
        elif after < before:
            assert (before, after) == (pool.policy.quota_k, 0), "a promotion pays a whole debt"
            self.admitted[key] += 1

    def _check_rate(self, pool: Pool) -> None:
        for key, admitted in self.admitted.items():
            if key[0] == pool.name:
                assert admitted * pool.policy.quota_k <= self.counted[key]


class Promotions(_Watch):
    """An eligible debtor's oldest aged long is next; age alone never bypasses the debt."""

    def before(self, record: d.Decision) -> None:
        pool = self.pool_of(record)
        if pool is None or not isinstance(record, d.Dispatched):
            return
        if pool.policy.class_order is not ClassOrder.QBA or record.turn is d.Turn.REDELIVERY:
            return
        user = pool.users[record.user_id]
        quota = pool.quota_of(user)
        if record.rule is d.Rule.PROMOTION:
            assert quota.debt, "a promotion without a debt"
            assert quota.promoting is None, "two promotions under way"
            assert record.aged, "a promotion that is not aged"
        due = self._due(pool, record)
        if record.turn is d.Turn.SELECTED and due:
            oldest = min(due, key=lambda request: request.sequence)
            assert record.request_id == oldest.request_id, "the debt was not paid"
            assert record.rule is d.Rule.PROMOTION

    def _due(self, pool: Pool, record: d.Dispatched) -> list[Request]:
        theta = record.aging_threshold_ns
        fifo = pool.policy.within_user is WithinUser.FIFO
        found = []
        for user in self._eligible(pool):
            quota = pool.quota_of(user)
            if not quota.debt or quota.promoting is not None or theta < 0:
                continue
            longs = [r for r in user.waiting if r.predicted_class is PredictedClass.LONG]
            if longs and (not fifo or longs[0] is user.waiting[0]):
                found += [r for r in longs[:1] if record.now_ns - r.accept_ns > theta]
        return found

    def _eligible(self, pool: Pool) -> list[User]:
        users = pool.selectable()
        slack = pool.slack()
        if slack is None:
            return users
        if pool.policy.user_by_user:
            return [min(users, key=lambda user: (user.meter, user.user_id))]
        low = min(user.meter for user in users)
        return [user for user in users if user.meter <= low + slack]


class Fifo(_Watch):
    """SFQ §1.1: a user's requests of one class are dispatched in the order of acceptance."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.last: dict[tuple[str, str, int], int] = defaultdict(int)

    def before(self, record: d.Decision) -> None:
        pool = self.pool_of(record)
        if pool is None or not isinstance(record, d.Dispatched):
            return
        if record.turn is d.Turn.REDELIVERY:
            return
        key = pool.name, record.user_id, int(record.predicted_class)
        assert record.request_sequence > self.last[key], "a request passed an older one"
        self.last[key] = record.request_sequence


class Lives(_Watch):
    """One live lease a request; every accepted request ends exactly once."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.alive: dict[tuple[str, str], int] = {}
        self.leases: dict[tuple[str, str], str] = {}
        self.dead: set[tuple[str, str]] = set()
        self.ended = 0

    def after(self, record: d.Decision) -> None:
        key = getattr(record, "pool", ""), getattr(record, "request_id", "")
        match record:
            case d.Accepted():
                assert key not in self.alive, "an id was accepted twice"
                self.alive[key] = len(self.driver.log)
            case d.Dispatched():
                assert key in self.alive, "a request was dispatched after its end"
                assert key not in self.leases, "two live leases"
                assert record.lease_id not in self.leases.values(), "a lease id was used twice"
                self.leases[key] = record.lease_id
            case d.LeaseEnded():
                assert self.leases.pop(key) == record.lease_id, "a superseded lease ended"
            case d.Completed():
                assert self.leases.pop(key) == record.lease_id, "a superseded lease completed"
                self._end(key)
            case d.Ended():
                assert key not in self.leases, "a leased request ended"
                self._end(key)
                if record.state is d.RequestState.DEAD_LETTERED:
                    self.dead.add(key)
            case d.Requeued():
                self.dead.remove(key)
                self.alive[key] = 0
            case d.DeadLetterDropped():
                self.dead.remove(key)

    def _end(self, key: tuple[str, str]) -> None:
        assert key in self.alive, "a request ended twice"
        del self.alive[key]
        self.ended += 1


class Meters(_Watch):
    """SFQ §2.6: only dispatches, rejoins, weights and policies change a meter; nothing lowers v."""

    MOVERS = (
        d.Accepted,
        d.Dispatched,
        d.Rejoined,
        d.UserConfigured,
        d.PoolConfigured,
        d.BusyPeriodClosed,
        d.Rebased,
        d.Requeued,
    )

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.seen: dict[str, object] = {}

    def after(self, record: d.Decision) -> None:
        live = getattr(self.driver.replica, "pools", {})
        for name, pool in live.items():
            meters = {user_id: flow.meter for user_id, flow in pool.flows.items()}
            now = (pool.virtual_time, meters)
            old = self.seen.get(name)
            if isinstance(old, tuple) and not isinstance(record, self.MOVERS):
                assert pool.virtual_time == old[0], f"{type(record).__name__} moved v"
                for user_id, meter in meters.items():
                    assert old[1].get(user_id, meter) == meter, (
                        f"{type(record).__name__}: {user_id}"
                    )
            self.seen[name] = now


ALL = (Band, PairBound, Promotions, Fifo, Lives, Meters)
