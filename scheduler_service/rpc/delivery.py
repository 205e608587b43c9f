"""Granted requests on their way to a worker.

The messages are made in the turn of the grant, when the state shows it; payloads are fetched with
the commit that makes the grant durable; the time left on a lease is filled in when the answer is
sent.
"""

from typing import TYPE_CHECKING

from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.engine import Engine
from scheduler_service.core import commands as c
from scheduler_service.rpc import convert

if TYPE_CHECKING:
    import asyncio

    from scheduler_service.app.ports import Payload


class Delivery:
    """The requests that one answer of the core granted.

    Args:
        engine: Where the answer came from.
        answer: It, in the turn it was given.

    Attributes:
        dispatches: The messages, complete after `prepare`.
        lease_ids: Their leases.
    """

    __slots__ = ("_engine", "_expire_ns", "_payloads", "dispatches", "lease_ids")

    def __init__(self, engine: Engine, answer: c.Dispatches) -> None:
        self._engine = engine
        self.dispatches: list[pb.Dispatch] = []
        self.lease_ids: list[str] = []
        self._expire_ns: list[int] = []
        self._payloads: list[tuple[pb.Dispatch, asyncio.Future[Payload | None]]] = []
        for grant in answer.granted:
            self._add(grant)

    def _add(self, grant: c.Grant) -> None:
        request, lease = grant.request, grant.lease
        message = pb.Dispatch(
            sequence=grant.sequence,
            request_id=request.request_id,
            user_id=request.user_id,
            pool=grant.pool,
            lease_id=lease.lease_id,
            attempt=request.attempts,
            cost=request.cost,
            predicted_class=int(request.predicted_class),  # type: ignore[arg-type]
            rule=int(request.rule),  # type: ignore[arg-type]
            turn=int(lease.turn),  # type: ignore[arg-type]
            caller_bound=request.caller_bound,
        )
        self.dispatches.append(message)
        self.lease_ids.append(lease.lease_id)
        self._expire_ns.append(lease.expire_ns)
        if self._engine.has_payload(request.sequence):
            self._payloads.append((message, self._engine.fetch(request.sequence)))

    async def prepare(self) -> None:
        """Completes the messages once their grants are durable.

        Raises:
            NotReady: LOG_STALLED.
        """
        await self._engine.durable()
        for message, future in self._payloads:
            payload = await future
            if payload is not None:
                message.payload = payload.payload
                message.metadata.update(convert.unpack_metadata(payload.metadata))
        now_ns = self._engine.now_ns()
        for message, expire_ns in zip(self.dispatches, self._expire_ns, strict=True):
            message.lease_duration.CopyFrom(convert.time_left(expire_ns, now_ns))

    def trim(self, bytes_max: int) -> list[str]:
        """Takes out what would make a message larger than `bytes_max`, but never the first.

        Returns:
            The leases taken out.
        """
        size = 0
        for count, dispatch in enumerate(self.dispatches):
            size += dispatch.ByteSize()
            if size > bytes_max and count:
                break
        else:
            return []
        excess = self.lease_ids[count:]
        del self.dispatches[count:], self.lease_ids[count:], self._expire_ns[count:]
        return excess

    def abandon(self) -> None:
        """Stops waiting for payloads that nobody will be sent."""
        for _, future in self._payloads:
            future.cancel()
