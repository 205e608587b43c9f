"""The oracle's own state: pools, users, requests and leases, in plain lists and dictionaries.

Nothing here is fast on purpose.  Every question is answered by looking at everything, so that the
answer can be checked by reading.  Nobody is ever forgotten, no tag is kept sorted.

Source:
    SFQ §2 (meters), QBA §III-A (sample, quota), and the rules on top of them.
"""

from collections import deque
from dataclasses import dataclass, field

from scheduler_service.core.decisions import Offer, RequestState, Rule
from scheduler_service.core.policy import (
    MICRO,
    RECENT_DISPATCHES,
    Placement,
    PoolPolicy,
    PredictedClass,
    SlackKind,
)


@dataclass(slots=True, eq=False)
class Quota:
    """One short-admission counter with its debt (QBA §III-A6).

    Attributes:
        count: Short admissions counted, 0 … k.
        debt: Whether a promotion is owed.
        promoting: The request whose promotion is under way, or None.
    """

    count: int = 0
    debt: bool = False
    promoting: "Request | None" = None


@dataclass(slots=True, eq=False)
class Lease:
    """One live lease; times in nanoseconds, `hand_over_ns` 0 once confirmed."""

    lease_id: str
    worker: str
    call: str
    expire_ns: int
    hand_over_ns: int

    def due_ns(self) -> int:
        """When the lease ends if nobody says anything."""
        return min(self.expire_ns, self.hand_over_ns) if self.hand_over_ns else self.expire_ns


@dataclass(slots=True, eq=False)
class Request:
    """One accepted request that has not ended, or is dead-lettered.

    Attributes:
        failures: Leases that ran out.
        overtakes: How often it came first but did not fit.
        rule: Class rule of its first dispatch; None before it was charged and sampled.
        counted: Whether its admission point has passed.
        promotes: Counter whose debt it pays at its admission point, until it has.
        backoff: Worker that gave it back, and until when it is kept from it.
    """

    sequence: int
    request_id: str
    user: "User"
    cost: int
    predicted_class: PredictedClass
    kv_tokens: int
    labels: frozenset[str]
    accept_ns: int
    expire_ns: int
    state: RequestState = RequestState.WAITING
    failures: int = 0
    overtakes: int = 0
    rule: Rule | None = None
    cancelling: bool = False
    counted: bool = False
    promotes: Quota | None = None
    lease: Lease | None = None
    backoff: dict[str, int] = field(default_factory=dict)

    def fits(self, offer: Offer) -> bool:
        """Whether the worker can take it now."""
        return self._within(offer.free_tokens, offer)

    def holdable(self, offer: Offer) -> bool:
        """Whether the worker could take it when it is idle."""
        return self._within(offer.total_tokens, offer)

    def _within(self, tokens: int, offer: Offer) -> bool:
        short = self.predicted_class is PredictedClass.SHORT
        return (
            (tokens == -1 or self.kv_tokens <= tokens)
            and (offer.accepts_short if short else offer.accepts_long)
            and self.labels <= set(offer.labels)
        )


@dataclass(slots=True, eq=False)
class User:
    """One user of one pool.

    Attributes:
        meter: `S` in micro cost units.
        weight_milli: Own weight, or 0 for the pool's default.
        cap: Own cap, or -1 for the pool's default.
        paused_until: None when not paused, 0 without end.
        waiting: Waiting requests, oldest first.
        flight: Leased requests and redeliveries.
        held: Whether its own cap or a pause held it back after the last record.
        charge_max: Largest own charge in this busy period, for the band.
    """

    user_id: str
    meter: int = 0
    weight_milli: int = 0
    cap: int = -1
    paused_until: int | None = None
    waiting: list[Request] = field(default_factory=list)
    flight: list[Request] = field(default_factory=list)
    quota: Quota = field(default_factory=Quota)
    held: bool = False
    charge_max: int = 0

    def heads(self, *, fifo: bool) -> list[Request]:
        """Its candidates: the head, or with `fifo` false the head of each class."""
        if fifo:
            return self.waiting[:1]
        found: dict[PredictedClass, Request] = {}
        for request in self.waiting:
            found.setdefault(request.predicted_class, request)
        return list(found.values())


@dataclass(slots=True, eq=False)
class Worker:
    """A live worker; `offer` is what it has in all."""

    worker: str
    pools: tuple[str, ...]
    offer: Offer
    draining: bool = False


@dataclass(slots=True, eq=False)
class Pool:
    """One scheduling domain.

    Attributes:
        virtual_time: `v` in micro cost units.
        meter_max: Largest meter ever since the last rebase.
        quota: Counter in use while the slack is unbounded.
        sample: Waits of started requests, oldest first (the reference sample).
        costs: Costs of the last charged dispatches.
        charges: Their charges.
        passes: Charged dispatches in a row that passed the smallest meter.
        dead: Dead letters in the order in which they were given up.
        reservations: Worker to the request that it is kept for.
        slack_seen: Largest `D`, with `O` where overtaking is on, of this busy period.
        charge_seen: Largest charge of this busy period.
    """

    name: str
    policy: PoolPolicy
    digest: str
    virtual_time: int = 0
    meter_max: int = 0
    users: dict[str, User] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    quota: Quota = field(default_factory=Quota)
    sample: list[int] = field(default_factory=list)
    costs: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_DISPATCHES))
    charges: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_DISPATCHES))
    passes: int = 0
    paused_until: int | None = None
    dead: list[Request] = field(default_factory=list)
    reservations: dict[str, Request] = field(default_factory=dict)
    slack_seen: int = 0
    charge_seen: int = 0

    def user(self, user_id: str) -> User:
        """The user, new at `v` when it was never seen."""
        if user_id not in self.users:
            self.users[user_id] = User(user_id, meter=self.virtual_time)
        return self.users[user_id]

    def weight_of(self, user: User) -> int:
        """Weight in force, in thousandths."""
        return user.weight_milli or self.policy.default_weight_milli

    def holds_back(self, user: User) -> bool:
        """Whether a pause or its own cap keeps the user from being selectable."""
        cap = self.policy.max_in_flight_per_user if user.cap == -1 else user.cap
        return user.paused_until is not None or 0 < cap <= len(user.flight)

    def selectable(self) -> list[User]:
        """Users with a waiting request that only the order holds back."""
        return [user for user in self.users.values() if user.waiting and not self.holds_back(user)]

    def waiting_count(self) -> int:
        """Waiting requests of all users."""
        return sum(len(user.waiting) for user in self.users.values())

    def flight(self) -> list[Request]:
        """Leased requests and redeliveries, oldest first."""
        found = [request for user in self.users.values() for request in user.flight]
        return sorted(found, key=lambda request: request.sequence)

    def quota_of(self, user: User) -> Quota:
        """The counter that this user's dispatches move."""
        return self.quota if self.policy.unbounded else user.quota

    def slack(self) -> int | None:
        """`D` in micro cost units; None when unbounded."""
        policy = self.policy
        if policy.unbounded:
            return None
        if policy.slack_kind is SlackKind.ABSOLUTE:
            return policy.slack_micros
        largest = max(self.costs, default=0)
        return min(largest * MICRO * policy.slack_milli // 1000, policy.slack_max_micros)

    def overtake_slack(self) -> int:
        """`O` in micro cost units; 0 where nothing overtakes."""
        if self.policy.placement is not Placement.OVERTAKE:
            return 0
        own = self.policy.overtake_slack_micros
        return (self.slack() or 0) if own == -1 else own

    def theta(self) -> int:
        """The aging threshold by nearest rank; -1 while the sample is too small."""
        if len(self.sample) < self.policy.aging_min_sample:
            return -1
        rank = -(-self.policy.aging_quantile_bp * len(self.sample) // 10_000)
        return sorted(self.sample)[rank - 1]

    def is_aged(self, request: Request, now_ns: int, theta: int) -> bool:
        """Whether a predicted-long request has waited longer than theta."""
        long = request.predicted_class is PredictedClass.LONG
        return long and theta >= 0 and now_ns - request.accept_ns > theta

    def trim_sample(self) -> None:
        """Keeps the newest entries that the window allows."""
        window = self.policy.aging_sample_window
        if window:
            del self.sample[:-window]

    def raise_meter(self, user: User, meter: int) -> None:
        """Sets a meter, and the running maximum with it."""
        user.meter = meter
        self.meter_max = max(self.meter_max, meter)

    def is_blank(self, user: User) -> bool:
        """Whether the user could be forgotten without changing anything."""
        ahead = user.meter > self.virtual_time and not self.policy.unbounded
        return not (user.waiting or user.flight or ahead or user.quota.count)

    def renew_blank(self, user: User, meter: int) -> None:
        """Lets a user that was forgotten come back as a new one, at `v`."""
        if self.is_blank(user) and meter == self.virtual_time:
            user.meter = meter


def oldest(user: User) -> int:
    """Accept sequence of the user's oldest waiting request."""
    return user.waiting[0].sequence
