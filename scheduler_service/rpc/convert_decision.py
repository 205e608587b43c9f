"""Records of the log to `Decision` messages.

One function a kind, in the order of the tags; what stands in the header (`pool`, `user_id`,
`request_id`, `peer`) is not repeated in the details.  The numbers of enums are the same on both
sides (a test compares them).
"""

from collections.abc import Callable
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from fairsched.v1 import decision_pb2 as pb
from scheduler_service.core import decisions as d
from scheduler_service.rpc.convert import duration, number, offer_message, timestamp
from scheduler_service.rpc.convert_policy import policy_message


def decision_message(
    sequence: int,
    decision: d.Decision,
    *,
    hashes: tuple[bytes, bytes],
    record: bytes = b"",
) -> pb.Decision:
    """Returns a decision as a message.

    Args:
        sequence: Its place in the log.
        decision: The decision.
        hashes: Chain hash before it and after it.
        record: Its encoded form, if the message is to carry it.
    """
    name, details = _DETAILS[type(decision)]
    kind: Any = type(decision).__struct_config__.tag
    return pb.Decision(
        sequence=sequence,
        time=timestamp(decision.now_ns),
        kind=kind,
        pool=getattr(decision, "pool", ""),
        user_id=getattr(decision, "user_id", ""),
        request_id=getattr(decision, "request_id", ""),
        peer=getattr(decision, "peer", ""),
        previous_hash=hashes[0],
        hash=hashes[1],
        record=record,
        **{name: details(decision)},
    )


def _time(value_ns: int) -> Timestamp | None:
    """Returns a time that is absent when it is 0."""
    return timestamp(value_ns) if value_ns else None


def _count(value: int) -> int | None:
    """Returns a count that is absent when it is negative."""
    return value if value >= 0 else None


def _span(value_ns: int) -> Duration | None:
    """Returns a duration that is absent when it is negative."""
    return duration(value_ns) if value_ns >= 0 else None


def _log_opened(x: d.LogOpened) -> pb.LogOpened:
    return pb.LogOpened(
        algorithm_version=x.algorithm_version,
        durability=x.durability,
        config_digest=x.config_digest,
    )


def _pool_configured(x: d.PoolConfigured) -> pb.PoolConfigured:
    return pb.PoolConfigured(
        policy=policy_message(x.policy), policy_digest=x.policy_digest, created=x.created
    )


def _user_configured(x: d.UserConfigured) -> pb.UserConfigured:
    return pb.UserConfigured(
        weight_milli=x.weight_milli,
        max_in_flight=x.max_in_flight,
        weight_milli_before=x.weight_milli_before,
        meter_before_micros=x.meter_before,
        meter_after_micros=x.meter_after,
    )


def _rejoined(x: d.Rejoined) -> pb.Rejoined:
    return pb.Rejoined(
        cause=number(x.cause),
        meter_before_micros=x.meter_before,
        meter_after_micros=x.meter_after,
    )


def _accepted(x: d.Accepted) -> pb.Accepted:
    return pb.Accepted(
        cost=x.cost,
        predicted_class=number(x.predicted_class),
        weight_milli=x.weight_milli,
        kv_tokens=x.kv_tokens,
        expire_time=_time(x.expire_ns),
        required_labels=x.labels,
        content_digest=x.content_digest,
        payload_digest=x.payload_digest,
        payload_bytes=x.payload_bytes,
        prompt_tokens=x.prompt_tokens,
        max_output_tokens=x.output_cap_tokens,
        expected_output_tokens=x.expected_output_tokens,
        caller_bound=x.caller_bound,
        rejoined=x.rejoined,
        meter_before_micros=x.meter_before,
        meter_after_micros=x.meter_after,
        virtual_time_micros=x.virtual_time,
    )


def _dispatched(x: d.Dispatched) -> pb.Dispatched:
    return pb.Dispatched(
        request_sequence=x.request_sequence,
        lease_id=x.lease_id,
        worker=x.worker,
        call=x.call,
        attempt=x.attempt,
        lease_expire_time=timestamp(x.lease_expire_ns),
        hand_over_time=_time(x.hand_over_ns),
        turn=number(x.turn),
        rule=number(x.rule),
        cost=x.cost,
        charge_micros=x.charge_micros,
        weight_milli=x.weight_milli,
        predicted_class=number(x.predicted_class),
        wait=duration(x.wait_ns),
        aging_threshold=_span(x.aging_threshold_ns),
        aged=x.aged,
        virtual_time_before_micros=x.virtual_time_before,
        virtual_time_after_micros=x.virtual_time_after,
        meter_before_micros=x.meter_before,
        meter_after_micros=x.meter_after,
        short_admission_count_before=x.short_admission_count_before,
        short_admission_count_after=x.short_admission_count_after,
        promotion_debt_before=x.promotion_debt_before,
        promotion_debt_after=x.promotion_debt_after,
        slack_micros=_count(x.slack_micros),
        passes_after=x.passes_after,
        users_waiting=x.users_waiting,
        runner_up=x.runner_up,
        runner_up_meter_micros=x.runner_up_meter,
        overtook=x.overtook,
        policy_digest=x.policy_digest,
        offer=offer_message(x.offer),
        idempotency_key=x.idempotency_key,
    )


def _prefill_completed(x: d.PrefillCompleted) -> pb.PrefillCompleted:
    return pb.PrefillCompleted(
        lease_id=x.lease_id,
        short_admission_count_after=x.short_admission_count_after,
        promotion_debt_after=x.promotion_debt_after,
    )


def _lease_ended(x: d.LeaseEnded) -> pb.LeaseEnded:
    return pb.LeaseEnded(
        lease_id=x.lease_id,
        worker=x.worker,
        cause=number(x.cause),
        failures_after=x.failures_after,
        retry_time=_time(x.retry_ns),
        error=x.error,
    )


def _completed(x: d.Completed) -> pb.Completed:
    return pb.Completed(
        lease_id=x.lease_id,
        state=number(x.state),
        prompt_tokens=_count(x.prompt_tokens),
        output_tokens=_count(x.output_tokens),
        error=x.error,
        request_sequence=x.request_sequence,
        cost=x.cost,
        predicted_class=number(x.predicted_class),
        stated_prompt_tokens=x.stated_prompt_tokens,
        max_output_tokens=x.output_cap_tokens,
        expected_output_tokens=x.expected_output_tokens,
    )


def _ended(x: d.Ended) -> pb.Ended:
    return pb.Ended(
        state=number(x.state),
        reason=x.reason,
        request_sequence=x.request_sequence,
    )


def _busy_period_closed(x: d.BusyPeriodClosed) -> pb.BusyPeriodClosed:
    return pb.BusyPeriodClosed(
        virtual_time_before_micros=x.virtual_time_before,
        virtual_time_after_micros=x.virtual_time_after,
    )


def _worker_seen(x: d.WorkerSeen) -> pb.WorkerSeen:
    return pb.WorkerSeen(
        worker=x.worker,
        worker_id=x.worker_name,
        pools=x.pools,
        offer=offer_message(x.offer),
        endpoint=x.endpoint,
        registered=x.registered,
    )


def _estimator_updated(x: d.EstimatorUpdated) -> pb.EstimatorUpdated:
    ratios = [
        pb.EstimatorRatio(user_id=user_id, output_ratio_milli=ratio, cap_tokens=cap)
        for user_id, ratio, cap in x.ratios
    ]
    return pb.EstimatorUpdated(ratios=ratios, short_cutoff=x.short_cutoff)


_DETAILS: dict[type[Any], tuple[str, Callable[[Any], Any]]] = {
    d.LogOpened: ("log_opened", _log_opened),
    d.Recovered: ("recovered", lambda x: pb.Recovered(downtime=duration(x.downtime_ns))),
    d.PoolConfigured: ("pool_configured", _pool_configured),
    d.PoolDeleted: ("pool_deleted", lambda _: pb.PoolDeleted()),
    d.UserConfigured: ("user_configured", _user_configured),
    d.Paused: ("paused", lambda x: pb.Paused(until_time=_time(x.until_ns))),
    d.Resumed: ("resumed", lambda x: pb.Resumed(by_timer=x.by_timer)),
    d.Rejoined: ("rejoined", _rejoined),
    d.Accepted: ("accepted", _accepted),
    d.Dispatched: ("dispatched", _dispatched),
    d.LeasesConfirmed: ("leases_confirmed", lambda x: pb.LeasesConfirmed(worker=x.worker)),
    d.LeaseRenewed: (
        "lease_renewed",
        lambda x: pb.LeaseRenewed(lease_id=x.lease_id, lease_expire_time=timestamp(x.expire_ns)),
    ),
    d.PrefillCompleted: ("prefill_completed", _prefill_completed),
    d.LeaseEnded: ("lease_ended", _lease_ended),
    d.Completed: ("completed", _completed),
    d.CancelRequested: ("cancel_requested", lambda x: pb.CancelRequested(reason=x.reason)),
    d.Ended: ("ended", _ended),
    d.Requeued: ("requeued", lambda _: pb.Requeued()),
    d.BusyPeriodClosed: ("busy_period_closed", _busy_period_closed),
    d.Rebased: ("rebased", lambda x: pb.Rebased(offset_micros=x.offset_micros)),
    d.Reserved: ("reserved", lambda x: pb.Reserved(worker=x.worker)),
    d.WorkerSeen: ("worker_seen", _worker_seen),
    d.WorkerDrained: ("worker_drained", lambda x: pb.WorkerDrained(worker=x.worker)),
    d.WorkerGone: ("worker_gone", lambda x: pb.WorkerGone(worker=x.worker)),
    d.EstimatorUpdated: ("estimator_updated", _estimator_updated),
    d.DeadLetterDropped: (
        "dead_letter_dropped",
        lambda x: pb.DeadLetterDropped(request_sequence=x.request_sequence),
    ),
    d.UserForgotten: ("user_forgotten", lambda _: pb.UserForgotten()),
}
