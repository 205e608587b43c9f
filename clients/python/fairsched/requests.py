"""How requests are built: plain Python values in, messages of `fairsched.v1` out."""

import uuid
from collections.abc import Iterable, Mapping

from google.protobuf import duration_pb2

from fairsched.v1 import decision_pb2, policy_pb2, scheduler_service_pb2

ERROR_BYTES_MAX = 256
"""Longest error text that the service keeps with a failure, bytes of UTF-8."""


def new_request(
    *,
    pool: str,
    user_id: str,
    request_id: str | None = None,
    cost: int = 0,
    prompt_tokens: int = 0,
    max_output_tokens: int = 0,
    predicted_output_tokens: int = 0,
    predicted_class: policy_pb2.PredictedClass.ValueType = policy_pb2.PREDICTED_CLASS_UNSPECIFIED,
    max_wait: float | None = None,
    kv_tokens: int = 0,
    required_labels: Iterable[str] = (),
    payload: bytes = b"",
    metadata: Mapping[str, str] | None = None,
) -> scheduler_service_pb2.EnqueueRequest:
    """Returns a request to be queued.

    The id is the idempotency key: keep it, and a repeat after a failure changes nothing twice.

    Args:
        pool: Scheduling domain: the servers of one model.
        user_id: Whose turn it takes: an API key, an organisation.
        request_id: Unique in the pool; None makes one.
        cost: Cost units, where the pool lets callers state them; 0 computes it from the tokens.
        prompt_tokens: Prompt length in tokens.
        max_output_tokens: Output cap in tokens.
        predicted_output_tokens: Predicted output length in tokens; 0 is no prediction.
        predicted_class: Class of the caller's predictor; unspecified derives it.
        max_wait: Seconds after which it leaves the queue; None takes the pool's.
        kv_tokens: KV tokens that its worker must have free; 0 derives it.
        required_labels: Labels that its worker must carry.
        payload: Handed to the worker as it is, at most 64 KiB.
        metadata: Handed to the worker as it is, at most 16 pairs.
    """
    return scheduler_service_pb2.EnqueueRequest(
        pool=pool,
        user_id=user_id,
        request_id=request_id or uuid.uuid4().hex,
        cost=cost,
        prompt_tokens=prompt_tokens,
        max_output_tokens=max_output_tokens,
        predicted_output_tokens=predicted_output_tokens,
        predicted_class=predicted_class,
        max_wait=duration(max_wait),
        kv_tokens=kv_tokens,
        required_labels=list(required_labels),
        payload=payload,
        metadata=dict(metadata or {}),
    )


def new_offer(
    *,
    free_tokens: int | None = None,
    total_tokens: int | None = None,
    accepted_classes: Iterable[policy_pb2.PredictedClass.ValueType] = (),
    labels: Iterable[str] = (),
    max_leases: int = 0,
) -> decision_pb2.Offer:
    """Returns what a worker can take.

    Args:
        free_tokens: KV tokens free now; None does not say, then everything fits.
        total_tokens: KV tokens in all; None does not say.
        accepted_classes: Classes it takes; none is all.
        labels: Labels it carries.
        max_leases: Leases it wants to hold at most; 0 is no limit of its own.
    """
    return decision_pb2.Offer(
        free_tokens=free_tokens,
        total_tokens=total_tokens,
        accepted_classes=list(accepted_classes),
        labels=list(labels),
        max_leases=max_leases,
    )


def new_usage(
    *, prompt_tokens: int | None = None, output_tokens: int | None = None
) -> scheduler_service_pb2.Usage:
    """Returns what a request really used, in tokens; None does not say."""
    return scheduler_service_pb2.Usage(prompt_tokens=prompt_tokens, output_tokens=output_tokens)


def duration(seconds: float | None) -> duration_pb2.Duration | None:
    """Returns a duration message; None stays absent."""
    if seconds is None:
        return None
    message = duration_pb2.Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def seconds(message: duration_pb2.Duration) -> float:
    """Returns a duration message in seconds."""
    return message.seconds + message.nanos / 1e9


def error_text(error: BaseException | str) -> str:
    """Returns the text to keep with a failure, cut at 256 bytes of UTF-8."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return text.encode("utf-8", "replace")[:ERROR_BYTES_MAX].decode("utf-8", "ignore")
