"""Core values to messages and back: times, offers, requests, workers.

The numbers of enums are the same on both sides (a test compares them), so they are handed over as
they are.  Functions that read the state must be called in the turn of the decision they show.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import msgspec
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from fairsched.v1 import decision_pb2, policy_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.core import decisions as d
from scheduler_service.core.gone import Gone
from scheduler_service.core.policy import SECOND_NS
from scheduler_service.core.request import Request
from scheduler_service.core.state import Pool, State, Worker

ANY_OFFER = d.Offer()
"""What a worker that says nothing can take: everything."""


def number(value: IntEnum) -> Any:
    """Returns a value of ours as the API's enum of the same name, which has the same numbers.

    A test compares them; the generated code has a type of its own for each.
    """
    return value


def duration(value_ns: int) -> Duration:
    """Returns a duration message of nanoseconds, at least 0."""
    return Duration(seconds=value_ns // SECOND_NS, nanos=value_ns % SECOND_NS)


def set_duration(message: Duration, value_ns: int) -> None:
    """Writes nanoseconds, at least 0, into a duration message."""
    message.seconds = value_ns // SECOND_NS
    message.nanos = value_ns % SECOND_NS


def timestamp(value_ns: int) -> Timestamp:
    """Returns a timestamp message of engine time."""
    return Timestamp(seconds=value_ns // SECOND_NS, nanos=value_ns % SECOND_NS)


def time_left(expire_ns: int, now_ns: int) -> Duration:
    """Returns how long something still lasts, never less than nothing."""
    return duration(max(expire_ns - now_ns, 0))


def pack_metadata(metadata: Mapping[str, str]) -> bytes:
    """Returns metadata as it is kept beside a payload; empty for none."""
    return msgspec.msgpack.encode(dict(metadata)) if metadata else b""


def unpack_metadata(packed: bytes) -> dict[str, str]:
    """Returns what `pack_metadata` packed."""
    return msgspec.msgpack.decode(packed, type=dict[str, str]) if packed else {}


def offer_from(message: decision_pb2.Offer, session: d.Offer | None = None) -> d.Offer:
    """Returns what a worker offers; what it does not say is taken from its session.

    A worker that says what it has in all and not what is free is taken to be idle: it gets no more
    than it could hold.
    """
    base = session or ANY_OFFER
    total = message.total_tokens if message.HasField("total_tokens") else base.total_tokens
    free = message.free_tokens if message.HasField("free_tokens") else total
    classes = message.accepted_classes
    return d.Offer(
        free,
        total,
        policy_pb2.PREDICTED_CLASS_SHORT in classes if classes else base.accepts_short,
        policy_pb2.PREDICTED_CLASS_LONG in classes if classes else base.accepts_long,
        tuple(sorted(set(message.labels))) if message.labels else base.labels,
        message.max_leases or base.max_leases,
    )


def offer_message(offer: d.Offer) -> decision_pb2.Offer:
    """Returns an offer as a message."""
    message = decision_pb2.Offer(labels=offer.labels, max_leases=offer.max_leases)
    if offer.free_tokens >= 0:
        message.free_tokens = offer.free_tokens
    if offer.total_tokens >= 0:
        message.total_tokens = offer.total_tokens
    if not (offer.accepts_short and offer.accepts_long):
        if offer.accepts_short:
            message.accepted_classes.append(policy_pb2.PREDICTED_CLASS_SHORT)
        if offer.accepts_long:
            message.accepted_classes.append(policy_pb2.PREDICTED_CLASS_LONG)
    return message


def worker_message(worker: Worker, last_sign_ns: int, *, silent: bool) -> pb.Worker:
    """Returns a worker as a message.

    Args:
        worker: The worker.
        last_sign_ns: When it last showed that it is there.
        silent: Whether that is too long ago.
    """
    state = pb.WORKER_STATE_SILENT if silent else pb.WORKER_STATE_ACTIVE
    return pb.Worker(
        worker_id=worker.name,
        pools=worker.pools,
        offer=offer_message(worker.offer),
        endpoint=worker.endpoint,
        registered=worker.registered,
        state=pb.WORKER_STATE_DRAINING if worker.draining else state,
        lease_count=worker.leases,
        last_seen_time=timestamp(last_sign_ns),
    )


def worker_name(state: State, key: str) -> str:
    """Returns the own id of the worker known under `key`."""
    worker = state.workers.get(key)
    return key if worker is None else worker.name


def request_message(state: State, pool: Pool, request: Request) -> pb.RequestInfo:
    """Returns a request that has not ended, or is dead-lettered, as a message."""
    dead = request.request_id in pool.dead
    message = pb.RequestInfo(
        pool=pool.name,
        request_id=request.request_id,
        user_id=request.user_id,
        state=number(d.RequestState.DEAD_LETTERED if dead else request.state),
        sequence=request.sequence,
        cost=request.cost,
        predicted_class=number(request.predicted_class),
        enqueue_time=timestamp(request.enqueue_ns),
        attempts=request.attempts,
        failures=request.failures,
        overtakes=request.overtakes,
        cancel_requested=bool(request.cancel_reason),
        error=request.last_error,
        kv_tokens=request.kv_tokens,
        required_labels=request.labels,
        payload_bytes=request.payload_bytes,
        caller_bound=request.caller_bound,
    )
    if request.expire_ns:
        message.expire_time.CopyFrom(timestamp(request.expire_ns))
    if request.first_dispatch_ns:
        message.first_dispatch_time.CopyFrom(timestamp(request.first_dispatch_ns))
    lease = request.lease
    if lease is not None:
        message.worker_id = worker_name(state, lease.worker)
        message.lease_expire_time.CopyFrom(timestamp(lease.expire_ns))
        message.provisional = lease.hand_over_ns > 0
    gone = pool.gone.get(request.request_id) if dead else None
    if gone is not None:
        message.reason = gone.reason
        message.end_time.CopyFrom(timestamp(gone.end_ns))
    return message


def gone_message(pool: Pool, gone: Gone) -> pb.RequestInfo:
    """Returns what is remembered of an ended request as a message."""
    reason, error = end_of(gone)
    message = pb.RequestInfo(
        pool=pool.name,
        request_id=gone.request_id,
        user_id=gone.user_id,
        state=number(gone.state),
        sequence=gone.sequence,
        cost=gone.cost,
        predicted_class=number(gone.predicted_class),
        enqueue_time=timestamp(gone.enqueue_ns),
        end_time=timestamp(gone.end_ns),
        attempts=gone.attempts,
        reason=reason,
        error=error,
    )
    if gone.first_dispatch_ns:
        message.first_dispatch_time.CopyFrom(timestamp(gone.first_dispatch_ns))
    return message


def end_of(gone: Gone) -> tuple[str, str]:
    """Returns why a request ended, as a reason and as its worker's text; either may be empty."""
    if gone.state in {d.RequestState.SUCCEEDED, d.RequestState.FAILED}:
        return "", gone.reason
    return gone.reason, ""
