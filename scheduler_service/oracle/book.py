"""What the oracle has read so far, and what the log still owes.

Some records must follow others at once: the end of a busy period after the last waiting request
left, a rebase after `v` grew too large, a rejoin after a held-back user came free, the end of a
request after its last lease, the newcomer after somebody was shed for it.  Until such a record is
there, it is owed, and any other record is a difference.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler_service.core.decisions import RejoinCause, RequestState
from scheduler_service.core.policy import REBASE_AT_MICROS
from scheduler_service.oracle.ledger import Pool, Request, User, Worker
from scheduler_service.oracle.timers import NEVER


class Owed(NamedTuple):
    """A record that must come next.

    Attributes:
        record: Its type name.
        pool: Its pool.
        key: User or request it must name; empty if it names none.
        detail: What else is settled about it.
    """

    record: str
    pool: str
    key: str = ""
    detail: object = None


class Shed(NamedTuple):
    """Who held how many places when somebody was shed."""

    victim: Request
    held: dict[str, int]


@dataclass(slots=True, eq=False)
class Book:
    """Everything the oracle knows.

    Attributes:
        now_ns: Time of the last record.
        owed: Records that must follow now, in any order.
        earliest_ns: No timer is due before this.
        last_call: Call of the last dispatch, its worker and the tokens left free by it.
    """

    pools: dict[str, Pool] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    sequence: int = 0
    now_ns: int = 0
    owed: list[Owed] = field(default_factory=list)
    earliest_ns: int = NEVER
    last_call: tuple[str, str, int] = ("", "", -1)

    def note_timer(self, time_ns: int) -> None:
        """Remembers that something may be due at `time_ns`; 0 is never."""
        if time_ns:
            self.earliest_ns = min(self.earliest_ns, time_ns)

    def pay(self, record: str, pool: str, key: str = "") -> Owed | None:
        """Takes an owed record off the list, if it was owed."""
        for owed in self.owed:
            if (owed.record, owed.pool) == (record, pool) and owed.key in {"", key}:
                self.owed.remove(owed)
                return owed
        return None

    def owe(self, record: str, pool: str, key: str = "", detail: object = None) -> None:
        """Notes that a record must follow."""
        self.owed.append(Owed(record, pool, key, detail))

    def lease_ids(self) -> set[str]:
        """Ids of all live leases."""
        return {
            request.lease.lease_id
            for pool in self.pools.values()
            for request in pool.flight()
            if request.lease is not None
        }

    def leases_of(self, worker: str) -> int:
        """Live leases of a worker over all pools."""
        return sum(
            request.lease is not None and request.lease.worker == worker
            for pool in self.pools.values()
            for user in pool.users.values()
            for request in user.flight
        )

    def freed(self, pool: Pool, user: User, cause: RejoinCause) -> None:
        """Notes whether the user is held back, and owes its rejoin when it came free."""
        held = pool.holds_back(user)
        if user.held and not held and user.waiting:
            self.owe("Rejoined", pool.name, user.user_id, cause)
        user.held = held

    def bound_dead_letters(self, pool: Pool) -> None:
        """Owes the end of the dead letters that are past the limit, the oldest first."""
        for request in pool.dead[: max(0, len(pool.dead) - pool.policy.max_dead_letters)]:
            self.owe("DeadLetterDropped", pool.name, request.request_id)

    def settle(self, pool: Pool, *, left: bool = False) -> None:
        """Owes the end of the busy period when the last waiting request `left`, or a rebase.

        With unbounded slack meters and `v` rest: there is nothing to close or to rebase.
        """
        if pool.policy.unbounded:
            return
        if left and not any(user.waiting for user in pool.users.values()):
            self.owe("BusyPeriodClosed", pool.name)
        elif pool.virtual_time >= REBASE_AT_MICROS:
            self.owe("Rebased", pool.name)


def leave(book: Book, pool: Pool, request: Request, state: RequestState) -> None:
    """Takes a request out of wherever it stands; its meter stays as it is (SFQ §2.4)."""
    user = request.user
    waited = request in user.waiting
    if waited:
        user.waiting.remove(request)
    if request in user.flight:
        user.flight.remove(request)
    request.state = state
    request.lease = None
    for worker, reserved in list(pool.reservations.items()):
        if reserved is request:
            del pool.reservations[worker]
    if state is not RequestState.DEAD_LETTERED:
        del pool.requests[request.request_id]
    book.freed(pool, user, RejoinCause.CAP)
    book.settle(pool, left=waited)
