"""`NextDispatch`: one call of a worker, from its fields to its leases.

1. Carried completions are applied, whatever becomes of the rest.
2. The rest is checked; the core is asked.
3. If there is nothing and the caller waits, the call is parked (`app.waiters`), in the same turn.
4. The answer is made in the turn of the grant and sent when it is durable.

A call that is cancelled after its grant was decided gives the leases back at once; with an
idempotency key it does not, since a repeat asks for the same leases.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, final

import msgspec

from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.application import Application
from scheduler_service.app.limits import (
    BATCH_MAX,
    DAY_NS,
    DEADLINE_MARGIN_NS,
    LEASE_NS_MIN,
    POOLS_PER_CALL_MAX,
    WAIT_DURATION_NS_MAX,
)
from scheduler_service.app.waiters import Parked
from scheduler_service.app.workers import SESSION_PREFIX, give_back
from scheduler_service.core import answers as a
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.admission import pool_named
from scheduler_service.core.errors import NotReady, SchedulerError, WrongState
from scheduler_service.core.policy import SECOND_NS, PoolMode
from scheduler_service.rpc import convert
from scheduler_service.rpc.calls import Context, peer_of, remaining_ns
from scheduler_service.rpc.delivery import Delivery
from scheduler_service.rpc.identity import Identity
from scheduler_service.rpc.offers import check_offer
from scheduler_service.rpc.validate import Checks

if TYPE_CHECKING:
    from scheduler_service.core.state import Worker

_REPEATED: Final = a.Existing.REPEATED
_GATE: Final = PoolMode.GATE

_NO_OFFER: Final = decision_pb2.Offer()
_PART_OF_MESSAGE: Final = 75
"""Percent of a message that dispatches may fill."""

_ENDS_THE_WAIT: Final = {d.EmptyReason.DRAINING}


def check_lease_duration(
    x: "pb.NextDispatchRequest | pb.RenewLeaseRequest | pb.WorkerSessionRequest"
    " | pb.GatewaySessionRequest | pb.AcquireRequest",
    checks: Checks,
) -> int:
    """Checks a lease duration and returns it in nanoseconds; 0 takes the pool's."""
    if not x.HasField("lease_duration"):
        return 0
    return checks.duration("lease_duration", x.lease_duration, LEASE_NS_MIN, DAY_NS)


def require_pull(app: Application, pools: Sequence[str]) -> None:
    """Checks that workers may take from these pools.

    Raises:
        Unknown: POOL_UNKNOWN.
        WrongState: POOL_MODE.
    """
    for name in pools:
        if pool_named(app.engine.state, name).policy.mode is _GATE:
            raise WrongState(
                "POOL_MODE", f"Pool {name!r} is a gate: no worker takes from it.", pool=name
            )


@final
class _Pull:
    """One call that asks for work.

    Attributes:
        template: The command; time, nonce and the order of pools are those of each attempt.
        key: Key of the worker.
        wait_ns: How long the call waits for its first request.
    """

    __slots__ = ("key", "template", "wait_ns")

    def __init__(self, template: c.NextDispatch, key: str, wait_ns: int) -> None:
        self.template = template
        self.key = key
        self.wait_ns = wait_ns


class _Wait:
    """A call while it is parked.

    Attributes:
        delivery: What it was granted, once it was.
    """

    def __init__(
        self,
        app: Application,
        template: c.NextDispatch,
        command: Callable[[], c.NextDispatch],
        reply: pb.NextDispatchResponse,
    ) -> None:
        self.delivery: Delivery | None = None
        self._app = app
        self._reply = reply
        self._loop = asyncio.get_running_loop()
        self._result: asyncio.Future[tuple[a.Dispatches, Delivery] | None]
        self._result = self._loop.create_future()
        self._parked = Parked(
            template.worker, template.pools, template.offer, command, self._granted, self._refused
        )
        app.waiters.park(self._parked)

    def _granted(self, answer: a.Dispatches) -> None:
        self.delivery = Delivery(self._app.engine, answer, self._reply.dispatches)
        # A call may have been cancelled earlier in this turn; whoever waited for it gives back.
        if not self._result.done():
            self._result.set_result((answer, self.delivery))

    def _refused(self, error: SchedulerError) -> None:
        if not self._result.done():
            self._result.set_exception(error)

    def _give_up(self) -> None:
        self._app.waiters.unpark(self._parked)
        if not self._result.done():
            self._result.set_result(None)

    async def result(self, wait_ns: int) -> tuple[a.Dispatches, Delivery] | None:
        """Returns what was granted, or nothing when the time is over.

        Raises:
            SchedulerError: The call has become impossible.
        """
        timer = self._loop.call_later(wait_ns / SECOND_NS, self._give_up)
        try:
            return await self._result
        except asyncio.CancelledError:
            if not self._result.cancelled():
                self._result.exception()
            raise
        finally:
            timer.cancel()
            self._app.waiters.unpark(self._parked)


class Pulling:
    """Serves `NextDispatch`."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def next_dispatch(
        self,
        x: pb.NextDispatchRequest,
        context: Context,
        caller: Identity,
        reply: pb.NextDispatchResponse,
    ) -> None:
        """Gives the caller its requests.

        Args:
            x: As stated.
            context: The call.
            caller: Who calls.
            reply: The answer to be; it holds the results of the completions that were carried.

        Raises:
            InvalidCommand: Names every bad field.
            Unknown: POOL_UNKNOWN, WORKER_UNKNOWN.
            WrongState: POOL_MODE.
            Superseded: SESSION_SUPERSEDED.
            LimitReached: CALLS_PARKED_FULL, WORKERS_FULL.
        """
        pull = self._read(x, caller)
        app = self._app
        answer: a.Dispatches = app.engine.apply(self._command(pull))
        app.presence.sign(pull.key)
        app.blocked.misfits.asked(pull.key, pull.template.pools, answer)
        repeated = answer.existing is _REPEATED
        if answer.granted or repeated or not pull.wait_ns or answer.empty_reason in _ENDS_THE_WAIT:
            delivery = Delivery(app.engine, answer, reply.dispatches)
            await self._send(pull, answer, delivery, reply)
            return
        left = remaining_ns(context)
        wait_ns = pull.wait_ns if left is None else min(pull.wait_ns, left - DEADLINE_MARGIN_NS)
        if wait_ns <= 0:
            delivery = Delivery(app.engine, answer, reply.dispatches)
            await self._send(pull, answer, delivery, reply)
            return
        peer = peer_of(context, caller)
        app.slots.take_call(peer)
        app.presence.enter(pull, pull.template)
        try:
            answer, delivery = await self._parked(pull, answer, wait_ns, reply)
        finally:
            app.presence.leave(pull, pull.key)
            app.slots.free_call(peer)
        await self._send(pull, answer, delivery, reply)

    def _read(self, x: pb.NextDispatchRequest, caller: Identity) -> _Pull:
        checks = Checks()
        pools = checks.ids("pools", x.pools, POOLS_PER_CALL_MAX)
        checks.id("session_id", x.session_id, required=False)
        checks.id("worker_id", x.worker_id, required=not x.session_id)
        if x.worker_id.startswith(SESSION_PREFIX):
            checks.bad("worker_id", f"must not begin with {SESSION_PREFIX!r}")
        if not pools and not x.session_id:
            checks.bad("pools", "is required without session_id")
        if len(set(pools)) != len(pools):
            checks.bad("pools", "must not name a pool twice")
        if x.HasField("offer"):
            check_offer(x.offer, checks)
        count = checks.count("max_dispatches", x.max_dispatches, BATCH_MAX, 1)
        wait_ns = 0
        if x.HasField("wait_duration"):
            limit = WAIT_DURATION_NS_MAX
            wait_ns = checks.duration("wait_duration", x.wait_duration, 0, limit)
        lease_ns = check_lease_duration(x, checks)
        checks.id("idempotency_key", x.idempotency_key, required=False)
        checks.entries("completions", len(x.completions), BATCH_MAX)
        checks.done()
        session: Worker | None = None
        if x.session_id:
            session = self._app.workers.session(x.session_id)
            if x.worker_id and x.worker_id != session.name:
                checks.bad("worker_id", "is not the worker of session_id")
                checks.done()
            self._app.workers.require_current(session)
            pools = pools or session.pools
        for pool in pools:
            caller.require_pool(pool)
        require_pull(self._app, pools)
        offer = convert.ANY_OFFER
        if x.HasField("offer") or session is not None:
            base = None if session is None else session.offer
            offer = convert.offer_from(x.offer if x.HasField("offer") else _NO_OFFER, base)
        key = x.session_id or x.worker_id
        template = c.NextDispatch(
            now_ns=0,
            peer=caller.name,
            pools=pools,
            worker=key,
            offer=offer,
            max_dispatches=count,
            lease_duration_ns=lease_ns,
            idempotency_key=x.idempotency_key,
            hand_over=not x.hand_over_disabled,
        )
        return _Pull(template, key, wait_ns)

    def _command(self, pull: _Pull) -> c.NextDispatch:
        engine, template = self._app.engine, pull.template
        pools = template.pools
        if len(pools) > 1:
            pools = self._app.workers.rotated(pull.key, pools)
        return msgspec.structs.replace(
            template, now_ns=engine.now_ns(), nonce=engine.nonce(), pools=pools
        )

    async def _parked(
        self, pull: _Pull, empty: a.Dispatches, wait_ns: int, reply: pb.NextDispatchResponse
    ) -> tuple[a.Dispatches, Delivery]:
        """Waits for the first request; to be called in the turn that found nothing."""
        app = self._app
        wait = _Wait(app, pull.template, lambda: self._command(pull), reply)
        try:
            found = await wait.result(wait_ns)
        except asyncio.CancelledError:
            if wait.delivery is not None:
                self._undo(pull, wait.delivery)
            raise
        except NotReady:
            if app.engine.failed is not None:
                raise
            found = None
        return found or (empty, Delivery(app.engine, empty, reply.dispatches))

    async def _send(
        self,
        pull: _Pull,
        answer: a.Dispatches,
        delivery: Delivery,
        reply: pb.NextDispatchResponse,
    ) -> None:
        """Completes the answer; it may be sent when this returns."""
        app = self._app
        if answer.empty_reason:
            reply.empty_reason = convert.number(answer.empty_reason)
            reply.stalled_request_id = stalled_by(app, pull.template.pools, pull.key, answer)
        cancelled = app.workers.cancelled(pull.key)
        if cancelled:
            reply.cancelled_lease_ids.extend(cancelled)
        if answer.existing is _REPEATED:
            reply.duplicate = True
        try:
            await app.engine.durable()
        except asyncio.CancelledError:
            self._undo(pull, delivery)
            raise
        delivery.fill()
        # What one message cannot carry goes back at once, and first to who asks next.
        bytes_max = app.limits.message_bytes * _PART_OF_MESSAGE // 100
        give_back(app.engine, delivery.trim(reply.dispatches, bytes_max))

    def _undo(self, pull: _Pull, delivery: Delivery) -> None:
        """Gives back what a cancelled call was granted, unless it will be asked for again."""
        delivery.abandon()
        if not pull.template.idempotency_key:
            give_back(self._app.engine, delivery.lease_ids)


def stalled_by(app: Application, pools: Sequence[str], key: str, answer: a.Dispatches) -> str:
    """Returns the request that waits for room, if the answer says that there is one."""
    state = app.engine.state
    if answer.empty_reason is d.EmptyReason.STALLED_BY:
        return answer.stalled_by
    if answer.empty_reason is d.EmptyReason.RESERVED:
        for name in pools:
            kept_for = state.pools[name].reservations.get(key)
            if kept_for:
                return kept_for
    return ""
