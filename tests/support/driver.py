"""Drives the scheduling core in tests: commands in, records out, everything checked on the way.

Every record goes to the oracle, which must agree, and into a second state, whose digest must stay
that of the live one.  What a test wants to say about a run it says about `driver.log`.
"""

from typing import Any, Protocol

from scheduler_service.core import answers as a
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.completion import Complete
from scheduler_service.core.errors import SchedulerError
from scheduler_service.core.policy import SECOND_NS, PoolPolicy, PredictedClass
from scheduler_service.oracle import Difference, Oracle
from tests.support.core import REAL, Core

SHORT, LONG = PredictedClass.SHORT, PredictedClass.LONG
POOL = "pool"


class DisagreementError(AssertionError):
    """The oracle found that the core decided what the algorithm does not."""

    def __init__(self, differences: list[Difference], history: list[c.Command]) -> None:
        super().__init__("\n".join(str(difference) for difference in differences))
        self.differences = differences
        self.history = history


class Watch(Protocol):
    """A law that is watched while a driver runs."""

    def before(self, record: d.Decision) -> None:
        """Called before the record is folded."""

    def after(self, record: d.Decision) -> None:
        """Called after the record is folded."""


class Driver:
    """One core, its oracle and its replica.

    Attributes:
        now_ns: Time of the next command; tests move it by `advance`.
        log: Every record so far; the sequence of `log[i]` is `i + 1`.
        history: Every command so far.
        strict: Whether a difference raises at once; otherwise it is kept in `differences`.
        watches: Laws that are watched: told of each record before and after the oracle reads it.
    """

    def __init__(
        self,
        policy: PoolPolicy | None = None,
        *,
        core: Core = REAL,
        strict: bool = True,
        replica: bool = True,
    ) -> None:
        self.core = core
        self.state = core.new_state()
        self.replica = core.new_state() if replica else None
        self.watches: list[Watch] = []
        self.oracle = Oracle()
        self.now_ns = 0
        self.log: list[d.Decision] = []
        self.history: list[c.Command] = []
        self.strict = strict
        self.differences: list[Difference] = []
        if policy is not None:
            self.configure(policy)

    # Commands

    def run(self, command: c.Command) -> Any:
        """Applies one command; returns its answer, or raises what the core raises."""
        self.history.append(command)
        records: list[d.Decision] = []
        try:
            return self.core.apply(self.state, command, records)
        finally:
            self._take(records)

    def attempt(self, command: c.Command) -> Any:
        """Like `run`, but returns the error instead of raising it."""
        try:
            return self.run(command)
        except SchedulerError as error:
            return error

    def make(self, kind: type, **fields) -> c.Command:
        """A command at the present time, with a nonce of its own."""
        kind = getattr(self.core.commands, kind.__name__)
        return kind(now_ns=self.now_ns, nonce=f"n{len(self.history)}", **fields)

    def do(self, kind: type, **fields):
        """Makes a command and runs it."""
        return self.run(self.make(kind, **fields))

    def configure(self, policy: PoolPolicy, *, pool: str = POOL):
        """Creates the pool or changes its policy."""
        create = pool not in self.oracle.book.pools
        digest = f"policy-{len(self.history)}"
        return self.do(
            c.ConfigurePool, pool=pool, policy=policy, policy_digest=digest, create=create
        )

    def enqueue(self, request_id: str, user_id: str, cost: int = 1, cls=SHORT, **fields):
        """Adds one request."""
        fields.setdefault("pool", POOL)
        return self.do(
            c.Enqueue,
            request_id=request_id,
            user_id=user_id,
            cost=cost,
            predicted_class=cls,
            **fields,
        )

    def next(self, count: int = 1, worker: str = "w", **fields) -> list[d.Dispatched]:
        """Asks for requests; returns the dispatch records of the answer."""
        return self.records(self.ask(count, worker, **fields))

    def ask(self, count: int = 1, worker: str = "w", **fields) -> a.Dispatches:
        """Asks for requests; returns the whole answer."""
        fields.setdefault("pools", (POOL,))
        return self.do(c.NextDispatch, worker=worker, max_dispatches=count, **fields)

    def records(self, answer: a.Dispatches) -> list[d.Dispatched]:
        """The dispatch records that an answer stands for."""
        return [self.log[request.held_lease.dispatch_sequence - 1] for request in answer.granted]

    def complete(self, lease_id: str, outcome=d.Outcome.SUCCEEDED, **fields):
        """Ends a lease."""
        return self.do(Complete, lease_id=lease_id, outcome=outcome, **fields)

    def cancel(self, request_id: str, **fields):
        """Cancels a request."""
        fields.setdefault("pool", POOL)
        return self.do(c.Cancel, request_id=request_id, **fields)

    def renew(self, *lease_ids: str, prefilled: bool = False, **fields: Any) -> Any:
        """Renews leases."""
        done = lease_ids if prefilled else ()
        return self.do(c.RenewLease, lease_ids=lease_ids, prefill_complete=done, **fields)

    def pause(self, user_id: str = "", until_ns: int = 0, *, pool: str = POOL) -> None:
        """Pauses the pool, or one user of it."""
        self.do(c.Pause, pool=pool, user_id=user_id, until_ns=until_ns)

    def resume(self, user_id: str = "", *, pool: str = POOL) -> None:
        """Ends a pause."""
        self.do(c.Resume, pool=pool, user_id=user_id)

    def weigh(self, user_id: str, weight_milli: int, max_in_flight: int = -1, *, pool=POOL):
        """Sets a user's weight and cap."""
        return self.do(
            c.ConfigureUser,
            pool=pool,
            user_id=user_id,
            weight_milli=weight_milli,
            max_in_flight=max_in_flight,
        )

    def advance(self, seconds: float) -> None:
        """Moves time and lets what is due fire."""
        self.now_ns += round(seconds * SECOND_NS)
        self.do(c.Tick)

    def watch(self, watch: Watch) -> "Driver":
        """Adds a law to watch."""
        self.watches.append(watch)
        return self

    # What was decided

    def of(self, kind: type) -> list:
        """Records of one type, in order."""
        return [record for record in self.log if isinstance(record, kind)]

    def pool(self, name: str = POOL):
        """The oracle's view of a pool."""
        return self.oracle.book.pools[name]

    def meter(self, user_id: str, pool: str = POOL) -> int:
        """A user's meter, from the oracle, which agrees with every record."""
        return self.oracle.book.pools[pool].users[user_id].meter

    def quota(self, user_id: str = "", pool: str = POOL):
        """The counter of a user, or of the pool."""
        own = self.oracle.book.pools[pool]
        return own.users[user_id].quota if user_id else own.quota

    # Checks

    def _take(self, records: list[d.Decision]) -> None:
        found: list[Difference] = []
        for record in records:
            for watch in self.watches:
                watch.before(record)
            self.log.append(record)
            found += self.oracle.feed(len(self.log), record)
            if self.replica is not None:
                self.core.evolve(self.replica, record)
            for watch in self.watches:
                watch.after(record)
        found += self.oracle.finish()
        self.differences += found
        if found and self.strict:
            raise DisagreementError(found, self.history)

    def check(self) -> None:
        """The live state is sound and is the fold of its log."""
        self.core.check(self.state)
        if self.replica is not None:
            assert self.digest(self.replica) == self.digest()

    def digest(self, state: Any = None) -> str:
        """Digest of the live state, or of another one."""
        return self.core.snapshot.digest(state or self.state)
