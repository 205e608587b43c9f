"""The state of the scheduler as plain data.

`State` is the fold of the decision log.  Only `evolve` changes what is stated here; the orders in
`Backlog` and the timer heap are derived from it and may be tidied by a reader.

Requests of one user and class form a doubly linked list through the requests themselves: any of
them can leave in O(1), and a queue without requests costs nothing.  Links are cleared when a
request leaves, so that nothing is left in a cycle: compiled, the garbage collector does not track
these classes.
"""

from collections import deque
from typing import TYPE_CHECKING, Any, final

from mypy_extensions import mypyc_attr

from scheduler_service.core.backlog import Backlog
from scheduler_service.core.decisions import Offer
from scheduler_service.core.policy import (
    RECENT_DISPATCHES,
    PoolPolicy,
    UserSettings,
)
from scheduler_service.core.request import Past, Request
from scheduler_service.core.rules import Rules
from scheduler_service.core.windows import ReferenceSample, SlidingMax

if TYPE_CHECKING:
    from scheduler_service.core.gone import Gone
    from scheduler_service.core.grant import Grant
    from scheduler_service.core.held import HeldIndex
    from scheduler_service.core.search import Key


@final
@mypyc_attr(acyclic=True)
class Flow:
    """A user of a pool: the fairness entity (SFQ §1.1).

    Attributes:
        meter: S, micro cost units.
        weight_milli: Weight in force, thousandths.
        max_in_flight: Cap of leased requests; 0 is none.
        paused: Whether the user is paused.
        waiting: Requests waiting.
        in_flight: Requests leased or due for redelivery.
        short_admission_count: QBA counter of this user, 0 … k.
        promotion_debt: Whether the counter is at k and not yet paid.
        promotion_under_way: Whether a promotion has not reached its admission point yet.
        oldest_short, newest_short, oldest_long, newest_long: Ends of its two queues.
        place: Where the backlog keeps it (see `Backlog`).
        key: Its entry in the backlog's index, while it has one.
        idle_entry: Its entry among the idle users, if any; its meter may have risen since.
    """

    __slots__ = (
        "idle_entry",
        "in_flight",
        "key",
        "max_in_flight",
        "meter",
        "newest_long",
        "newest_short",
        "oldest_long",
        "oldest_short",
        "paused",
        "place",
        "promotion_debt",
        "promotion_under_way",
        "short_admission_count",
        "user_id",
        "waiting",
        "weight_milli",
    )

    def __init__(
        self,
        user_id: str,
        meter: int,
        weight_milli: int,
        max_in_flight: int,
        *,
        paused: bool = False,
    ) -> None:
        self.user_id = user_id
        self.meter = meter
        self.weight_milli = weight_milli
        self.max_in_flight = max_in_flight
        self.paused = paused
        self.waiting: int = 0
        self.in_flight: int = 0
        self.short_admission_count: int = 0
        self.promotion_debt: bool = False
        self.promotion_under_way: bool = False
        self.oldest_short: Request | None = None
        self.newest_short: Request | None = None
        self.oldest_long: Request | None = None
        self.newest_long: Request | None = None
        self.place: int = 0
        self.key: Key | None = None
        self.idle_entry: tuple[Any, ...] | None = None

    def oldest(self) -> Request | None:
        """Returns the oldest waiting request of either class."""
        short, long = self.oldest_short, self.oldest_long
        if short is None or (long is not None and long.sequence < short.sequence):
            return long
        return short

    def newest(self) -> Request | None:
        """Returns the newest waiting request of either class."""
        short, long = self.newest_short, self.newest_long
        if short is None or (long is not None and long.sequence > short.sequence):
            return long
        return short


class Pool:
    """One scheduling domain: the servers of one model (SFQ §1.1).

    Attributes:
        rules: The part of `policy` that every decision reads.
        virtual_time: v, micro cost units; never falls but by a rebase.
        largest_meter: Running maximum of all meters; falls only at a rebase.
        busy: Whether something has waited since the last busy period closed.
        slack_max, charge_max: Largest D (D + O where overtaking is on) and L since the busy
            period began.
        passes: Charged dispatches in a row that passed the smallest meter.
        short_admission_count, promotion_debt, promotion_under_way: The pool's quota, in force
            with unbounded slack.
        waiting, waiting_shorts: Waiting requests, and those of them predicted short.
        leased: Leased requests.
        waiting_weight_milli: Weights of the users with waiting requests.
        in_flight_cost: Cost of everything leased.
        flows: Users with state.
        settings: Configuration of users.
        requests: Requests alive, by id.
        gone: Ended requests that are remembered, by id.
        forget_queue: Ids of ended requests in order of ending.
        redelivery: (sequence, request id) of requests due again, oldest first.
        dead: Dead-lettered requests by id.
        reservations: Worker -> request id it is kept for; `reserved_for` is the inverse.
        held_index: Places held by users, kept only while the pool is nearly full.
        idle, idle_in_quota: Heaps of (meter, user id, whether in quota) of users without work, to
            forget; `idle_place`, `quota_place`: where the next look for void entries begins.
        ratios, short_cutoff: Learned estimator values in force.
    """

    def __init__(self, name: str, policy: PoolPolicy, policy_digest: str) -> None:
        self.name = name
        self.govern(policy, policy_digest)
        self.virtual_time = 0
        self.largest_meter = 0
        self.busy = False
        self.slack_max = 0
        self.charge_max = 0
        self.passes = 0
        self.short_admission_count = 0
        self.promotion_debt = False
        self.promotion_under_way = False
        self.paused = False
        self.pause_until_ns = 0
        self.waiting = 0
        self.waiting_shorts = 0
        self.waiting_weight_milli = 0
        self.in_flight_cost = 0
        self.recent_costs = SlidingMax(RECENT_DISPATCHES)
        self.recent_charges = SlidingMax(RECENT_DISPATCHES)
        self.sample = ReferenceSample(policy.aging_sample_window)
        self.flows: dict[str, Flow] = {}
        self.settings: dict[str, UserSettings] = {}
        self.requests: dict[str, Request] = {}
        self.leased = 0
        self.gone: dict[str, Gone] = {}
        self.forget_queue: deque[Past] = deque()
        self.redelivery: list[tuple[int, str]] = []
        self.dead: dict[str, Request] = {}
        self.reservations: dict[str, str] = {}
        self.reserved_for: dict[str, str] = {}
        self.held_index: HeldIndex | None = None
        self.ratios: dict[str, tuple[int, int]] = {}
        self.short_cutoff = policy.short_cutoff
        self.idle: list[tuple[Any, ...]] = []
        self.idle_in_quota: list[tuple[Any, ...]] = []
        self.idle_place = self.quota_place = 0
        self.backlog = Backlog(policy, self.flows)

    def govern(self, policy: PoolPolicy, policy_digest: str) -> None:
        """Puts a policy in force for what is decided from now on."""
        self.policy = policy
        self.policy_digest = policy_digest
        self.rules = Rules(policy)

    @property
    def may_hold_back(self) -> bool:
        """Whether any user may be held back, by a cap or by a pause of that user."""
        return bool(self.settings) or self.rules.max_in_flight_per_user > 0


@final
@mypyc_attr(acyclic=True)
class Worker:
    """A worker the service has heard of.

    Attributes:
        offer: What it has in all (its last offer).
        last_seen_ns: When a record last showed it alive.
        leases: Live leases it holds.
        armed: Whether a timer looks at it.
        provisional: Lease id -> request of the leases that wait to be confirmed.
    """

    __slots__ = (
        "armed",
        "draining",
        "endpoint",
        "last_seen_ns",
        "leases",
        "name",
        "offer",
        "pools",
        "provisional",
        "registered",
        "worker",
    )

    def __init__(
        self,
        worker: str,
        name: str,
        pools: tuple[str, ...],
        offer: Offer,
        endpoint: str,
        last_seen_ns: int,
        *,
        registered: bool,
    ) -> None:
        self.worker = worker
        self.name = name
        self.pools = pools
        self.offer = offer
        self.endpoint = endpoint
        self.registered = registered
        self.last_seen_ns = last_seen_ns
        self.draining = False
        self.leases: int = 0
        self.armed: bool = False
        self.provisional: dict[str, Request] = {}


class State:
    """Everything.

    Attributes:
        sequence: Sequence of the last decision folded in.
        now_ns: Its time.
        pools: By name.
        gates: Names of the pools in gate mode.
        workers: By session or name.
        leases: Live lease id -> its request.
        old_leases: Dispatch sequence of an ended lease -> what it was of, for the retention time.
        keys: (worker, idempotency key) of a call -> (pool, request id, lease id) it granted.
        key_queue: (time, key) in order of first use.
        timers: Heap of (time, request sequence, kind, pool, id).
        timer_place: Where the next look for void timers begins.
        void_timers: Timers that became void since they were last cleared away, about.
        at_hand: Request of the completion being taken, where who takes it has it (`recording`).
        grant: The dispatch being taken, likewise.
    """

    def __init__(self) -> None:
        self.sequence = 0
        self.now_ns = 0
        self.algorithm_version = 0
        self.durability = ""
        self.config_digest = ""
        self.pools: dict[str, Pool] = {}
        self.gates: dict[str, None] = {}
        self.workers: dict[str, Worker] = {}
        self.leases: dict[str, Request] = {}
        self.old_leases: dict[int, Past] = {}
        self.keys: dict[tuple[str, str], tuple[tuple[str, str, str], ...]] = {}
        self.key_queue: deque[tuple[int, tuple[str, str]]] = deque()
        self.timers: list[tuple[Any, ...]] = []
        self.timer_place = 0
        self.void_timers = 0
        self.at_hand: Request | None = None
        self.grant: Grant | None = None
