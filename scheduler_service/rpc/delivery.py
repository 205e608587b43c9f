"""Granted requests on their way to a worker.

The messages are written in the turn of the grant, when the state shows it; payloads are fetched
with the commit that makes the grant durable; the time left on a lease is filled in when the answer
is sent.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.engine import Engine
from scheduler_service.core import commands as c
from scheduler_service.rpc import convert

if TYPE_CHECKING:
    import asyncio

    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

    from scheduler_service.app.ports import Payload

    _Field = RepeatedCompositeFieldContainer[pb.Dispatch]

DISPATCH_BYTES = 1 << 20
"""Payloads and metadata of one message of a session, roughly; larger deliveries are split."""


class Delivery:
    """The requests that one answer of the core granted.

    Args:
        engine: Where the answer came from.
        answer: It, in the turn it was given.
        into: Where the messages go; they are complete after `prepare` or `fill`.

    Attributes:
        lease_ids: Their leases.
    """

    __slots__ = ("_engine", "_expire_ns", "_messages", "_payloads", "lease_ids")

    def __init__(self, engine: Engine, answer: c.Dispatches, into: "_Field") -> None:
        self._engine = engine
        self.lease_ids: list[str] = []
        self._messages: list[pb.Dispatch] = []
        self._expire_ns: list[int] = []
        self._payloads: list[tuple[pb.Dispatch, asyncio.Future[Payload | None]]] = []
        for grant in answer.granted:
            self._add(grant, into.add())

    def _add(self, grant: c.Grant, message: pb.Dispatch) -> None:
        request, lease = grant.request, grant.lease
        message.sequence = grant.sequence
        message.request_id = request.request_id
        message.user_id = request.user_id
        message.pool = grant.pool
        message.lease_id = lease.lease_id
        message.attempt = request.attempts
        message.cost = request.cost
        message.predicted_class = convert.number(request.predicted_class)
        message.rule = convert.number(request.rule)
        message.turn = convert.number(lease.turn)
        if request.caller_bound:
            message.caller_bound = True
        self._messages.append(message)
        self.lease_ids.append(lease.lease_id)
        self._expire_ns.append(lease.expire_ns)
        if self._engine.has_payload(request.sequence):
            self._payloads.append((message, self._engine.fetch(request.sequence)))

    @property
    def with_payloads(self) -> bool:
        """Whether any of the requests carries a payload or metadata."""
        return bool(self._payloads)

    async def prepare(self) -> None:
        """Completes the messages once their grants are durable.

        Raises:
            NotReady: LOG_STALLED.
        """
        await self._engine.durable()
        self.fill()

    def fill(self) -> None:
        """Completes the messages; their grants are durable, and so their payloads are there."""
        for message, future in self._payloads:
            payload = future.result()
            if payload is not None:
                message.payload = payload.payload
                message.metadata.update(convert.unpack_metadata(payload.metadata))
        now_ns = self._engine.now_ns()
        left, left_until_ns = b"", -1
        for message, expire_ns in zip(self._messages, self._expire_ns, strict=True):
            if expire_ns != left_until_ns:
                left, left_until_ns = _lease_duration(expire_ns, now_ns), expire_ns
            message.MergeFromString(left)

    def trim(self, dispatches: "_Field", bytes_max: int) -> list[str]:
        """Takes out what would make a message larger than `bytes_max`, but never the first.

        Args:
            dispatches: The field that all of the delivery, and nothing else, was written into.
            bytes_max: Bytes that dispatches may fill.

        Returns:
            The leases taken out.
        """
        if not self._payloads:
            return []
        size = 0
        for count, dispatch in enumerate(dispatches):
            size += dispatch.ByteSize()
            if size > bytes_max and count:
                break
        else:
            return []
        excess = self.lease_ids[count:]
        del dispatches[count:], self.lease_ids[count:]
        return excess

    def abandon(self) -> None:
        """Stops waiting for payloads that nobody will be sent."""
        for _, future in self._payloads:
            future.cancel()


def _lease_duration(expire_ns: int, now_ns: int) -> bytes:
    """Returns a dispatch of nothing but the time left, encoded: merging it in is cheapest."""
    left = convert.time_left(expire_ns, now_ns)
    return pb.Dispatch(lease_duration=left).SerializeToString()


def split(reply: pb.WorkerSessionResponse, bytes_max: int) -> Iterator[pb.WorkerSessionResponse]:
    """Yields a message as several, none with more than `bytes_max` bytes of dispatches."""
    if reply.ByteSize() <= bytes_max:
        yield reply
        return
    dispatches = list(reply.dispatches)
    part, size = pb.WorkerSessionResponse(), 0
    part.CopyFrom(reply)
    del part.dispatches[:]
    for dispatch in dispatches:
        length = dispatch.ByteSize()
        if size and size + length > bytes_max:
            yield part
            part, size = pb.WorkerSessionResponse(), 0
        part.dispatches.append(dispatch)
        size += length
    yield part
