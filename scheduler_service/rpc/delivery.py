"""Granted requests on their way to a worker.

The messages are written in the turn of the grant, when the state shows it; payloads are fetched
with the commit that makes the grant durable.  The time left on a lease is filled in when the answer
is sent, and with it all that many dispatches of an answer have in common: it is encoded once and
merged in, for what it takes to set one field.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.engine import Engine
from scheduler_service.core import answers as a
from scheduler_service.rpc import convert

if TYPE_CHECKING:
    import asyncio

    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

    from scheduler_service.app.ports import Payload
    from scheduler_service.core.request import Request

    _Field = RepeatedCompositeFieldContainer[pb.Dispatch]
    _Kind = tuple[Any, ...]
    """Pool, attempt, class, rule, turn, whether the caller is bound; see `core.search.Key`."""

DISPATCH_BYTES = 1 << 20
"""Payloads and metadata of one message of a session, roughly; larger deliveries are split."""

_KINDS_MAX = 1024
"""Kinds of dispatches kept encoded; a pool has some ten, more where many are tried again."""


class Delivery:
    """The requests that one answer of the core granted.

    Args:
        engine: Where the answer came from.
        answer: It, in the turn it was given.
        into: Where the messages go; they are complete after `fill`.

    Attributes:
        lease_ids: Their leases.
    """

    __slots__ = ("_engine", "_expire_ns", "_kinds", "_messages", "_payloads", "lease_ids")

    def __init__(self, engine: Engine, answer: a.Dispatches, into: "_Field") -> None:
        self._engine = engine
        self.lease_ids: list[str] = []
        self._messages: list[pb.Dispatch] = []
        self._kinds: list[_Kind] = []
        self._expire_ns: list[int] = []
        self._payloads: list[tuple[pb.Dispatch, asyncio.Future[Payload | None]]] = []
        before: Request | None = None
        kind: _Kind = ()
        for request in answer.granted:
            if before is None or not _are_alike(before, request):
                kind = _kind_of(request)
            before = request
            self._add(request, into.add(), kind)

    def _add(self, request: "Request", message: pb.Dispatch, kind: "_Kind") -> None:
        lease = request.held_lease
        message.sequence = lease.dispatch_sequence
        message.request_id = request.request_id
        message.user_id = request.user_id
        message.lease_id = lease.lease_id
        message.cost = request.cost
        self._messages.append(message)
        self.lease_ids.append(lease.lease_id)
        self._expire_ns.append(lease.expire_ns)
        self._kinds.append(kind)
        if self._engine.has_payload(request.sequence):
            self._payloads.append((message, self._engine.fetch(request.sequence)))

    @property
    def with_payloads(self) -> bool:
        """Whether any of the requests carries a payload or metadata."""
        return bool(self._payloads)

    def fill(self) -> None:
        """Completes the messages; their grants are durable, and so their payloads are there."""
        for message, future in self._payloads:
            payload = future.result()
            if payload is not None:
                message.payload = payload.payload
                message.metadata.update(convert.unpack_metadata(payload.metadata))
        now_ns = self._engine.now_ns()
        before: _Kind | None = None
        left, left_until_ns, common = b"", -1, b""
        for message, kind, expire_ns in zip(
            self._messages, self._kinds, self._expire_ns, strict=True
        ):
            if expire_ns != left_until_ns:
                left, left_until_ns = _lease_duration(expire_ns, now_ns), expire_ns
                before = None
            if kind is not before:
                common, before = _encoded(kind) + left, kind
            message.MergeFromString(common)

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


def _kind_of(request: "Request") -> "_Kind":
    """Returns what dispatches of an answer have in common."""
    lease = request.held_lease
    return (
        lease.pool,
        request.attempts,
        request.predicted_class,
        request.rule,
        lease.turn,
        request.caller_bound,
    )


def _are_alike(one: "Request", other: "Request") -> bool:
    """Whether two requests have the same kind, without making it."""
    first, second = one.held_lease, other.held_lease
    return (
        one.predicted_class is other.predicted_class
        and one.rule is other.rule
        and first.turn is second.turn
        and one.attempts == other.attempts
        and one.caller_bound == other.caller_bound
        and first.pool == second.pool
    )


@lru_cache(maxsize=_KINDS_MAX)
def _encoded(kind: "_Kind") -> bytes:
    """Returns a dispatch of nothing but its kind, encoded."""
    pool, attempt, predicted_class, rule, turn, caller_bound = kind
    return pb.Dispatch(
        pool=pool,
        attempt=attempt,
        predicted_class=convert.number(predicted_class),
        rule=convert.number(rule),
        turn=convert.number(turn),
        caller_bound=caller_bound,
    ).SerializeToString()


def _lease_duration(expire_ns: int, now_ns: int) -> bytes:
    """Returns a dispatch of nothing but the time left, encoded; appended to another it adds it."""
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
