"""What happens to a request whose caller waits for its turn, as messages.

Shared by `Acquire` and `GatewaySession`.  A `Follower` looks at its request when its caller can be
told something, and says what is new; the time left on a lease is filled in when the message is
sent.  A grant is noted when it is made: its worker may be done before the caller has been told.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.application import Application
from scheduler_service.core import answers as a
from scheduler_service.core import commands as c
from scheduler_service.core.decisions import RequestState
from scheduler_service.core.policy import PoolMode
from scheduler_service.core.request import Request
from scheduler_service.core.state import Pool
from scheduler_service.rpc import convert
from scheduler_service.rpc.convert import number

if TYPE_CHECKING:
    from scheduler_service.core.gone import Gone

_ENDED_UNKNOWN = "FORGOTTEN"


class Event(NamedTuple):
    """Something new about a request; one of the messages is set.

    Attributes:
        lease_id: With `granted`: the lease.
        expire_ns: With `granted`: end of the lease, engine time.
        last: Whether the caller has nothing more to wait for.
    """

    queued: pb.AcquireQueued | None = None
    granted: pb.AcquireGranted | None = None
    ended: pb.AcquireEnded | None = None
    lease_id: str = ""
    expire_ns: int = 0
    last: bool = False


class Follower:
    """Follows one request for a caller that waits for its turn.

    Args:
        app: The use cases.
        pool_name: Pool of the request.
        accepted: The answer to its acceptance.
        request_id: The request.
        lease_duration: Returns how long a gate's lease is to be, nanoseconds; 0 is the pool's.

    """

    def __init__(
        self,
        app: Application,
        pool_name: str,
        request_id: str,
        accepted: pb.EnqueueResponse,
        lease_duration: Callable[[], int],
    ) -> None:
        self._app = app
        self._pool_name = pool_name
        self._request_id = request_id
        # A copy: the message may be part of a larger one that is gone once it was sent.
        self._accepted = pb.EnqueueResponse()
        self._accepted.CopyFrom(accepted)
        self._lease_duration = lease_duration
        self._lease_id = ""
        self._sent_lease_id = ""
        self._waited = False
        self._told: tuple[int, int] | None = None
        self._grant: Event | None = None

    def woken(self) -> None:
        """Notes a worker's grant; to be called in the turn of every decision about the request."""
        pool = self._app.engine.state.pools.get(self._pool_name)
        request = None if pool is None else pool.requests.get(self._request_id)
        if pool is None or request is None or request.lease is None:
            return
        # A gate's grant may have to be made longer, which is a decision; and nobody else ends it.
        if pool.policy.mode is not PoolMode.GATE and request.lease.lease_id != self._lease_id:
            self._grant = self._granted(pool, request)

    def primed(self) -> bool:
        """Takes the answer to the acceptance as told; returns whether there is more to tell."""
        if self._accepted.state == int(RequestState.WAITING):
            self._waited = True
            self._told = (int(RequestState.WAITING), self._accepted.requests_ahead)
        return self._accepted.state != int(RequestState.WAITING)

    def sent(self, event: Event) -> None:
        """Takes note that the caller was told."""
        if event.lease_id:
            self._sent_lease_id = event.lease_id

    @property
    def undelivered(self) -> str:
        """With a gate: the lease that was granted while the caller waited and did not reach it."""
        pool = self._app.engine.state.pools.get(self._pool_name)
        request = None if pool is None else pool.requests.get(self._request_id)
        if pool is None or request is None or request.lease is None:
            return ""
        if not self._waited and self._accepted.state != int(RequestState.WAITING):
            return ""
        if pool.policy.mode is not PoolMode.GATE or request.lease.lease_id == self._sent_lease_id:
            return ""
        return request.lease.lease_id

    def news(self) -> Event | None:
        """Returns what is new; nothing if nothing is.

        That is a grant that was noted, else what the state shows now.  After a grant there may be
        more at once.
        """
        noted, self._grant = self._grant, None
        if noted is not None:
            return noted
        state = self._app.engine.state
        pool = state.pools.get(self._pool_name)
        request = None if pool is None else pool.requests.get(self._request_id)
        if pool is None or request is None:
            return self._ended(pool)
        if request.lease is None:
            return self._queued(pool, request)
        if request.lease.lease_id == self._lease_id:
            return None
        return self._granted(pool, request)

    def _queued(self, pool: Pool, request: Request) -> Event | None:
        self._lease_id = ""
        now_ns = self._app.engine.now_ns()
        outlook = pb.EnqueueResponse()
        outlook.CopyFrom(self._accepted)
        if self._waited:
            ahead, wait_ns = self._app.forecast.outlook(pool, request, now_ns)
            outlook.requests_ahead = ahead
            outlook.ClearField("expected_wait")
            if wait_ns >= 0:
                convert.set_duration(outlook.expected_wait, wait_ns)
        self._waited = True
        outlook.state = number(request.state)
        shown = (int(request.state), outlook.requests_ahead)
        if shown == self._told:
            return None
        self._told = shown
        return Event(queued=pb.AcquireQueued(outlook=outlook))

    def _granted(self, pool: Pool, request: Request) -> Event:
        lease = request.held_lease
        self._lease_id = lease.lease_id
        self._told = None
        gate = pool.policy.mode is PoolMode.GATE
        expire_ns = lease.expire_ns
        if gate:
            expire_ns = self._extended(lease.lease_id, expire_ns)
        state = self._app.engine.state
        worker = state.workers.get(lease.worker)
        granted = pb.AcquireGranted(
            sequence=lease.dispatch_sequence,
            lease_id=lease.lease_id,
            attempt=request.attempts,
            worker_id=convert.worker_name(state, lease.worker),
            endpoint="" if worker is None else worker.endpoint,
            wait=convert.duration(lease.granted_ns - request.enqueue_ns),
            rule=number(request.rule),
            turn=number(lease.turn),
        )
        return Event(granted=granted, lease_id=lease.lease_id, expire_ns=expire_ns, last=gate)

    def _extended(self, lease_id: str, expire_ns: int) -> int:
        """Gives a gate's lease the length its caller wants; never less than the pool's."""
        duration_ns = self._lease_duration()
        engine = self._app.engine
        now_ns = engine.now_ns()
        if now_ns + duration_ns <= expire_ns:
            return expire_ns
        renewed: tuple[a.Renewed, ...] = engine.apply(
            c.RenewLease(
                now_ns=now_ns,
                nonce=engine.nonce(),
                lease_ids=(lease_id,),
                lease_duration_ns=duration_ns,
            )
        )
        return renewed[0].expire_ns or expire_ns

    def _ended(self, pool: Pool | None) -> Event:
        ended = pb.AcquireEnded(reason=_ENDED_UNKNOWN)
        dead = None if pool is None else pool.dead.get(self._request_id)
        gone: Gone | None = None if pool is None else pool.gone.get(self._request_id)
        if gone is not None:
            reason, error = convert.end_of(gone)
            ended = pb.AcquireEnded(
                state=number(gone.state),
                reason=reason,
                error=error,
            )
        elif dead is not None:
            ended = pb.AcquireEnded(state=number(RequestState.DEAD_LETTERED))
        if dead is not None:
            ended.error = dead.last_error
        return Event(ended=ended, last=True)
