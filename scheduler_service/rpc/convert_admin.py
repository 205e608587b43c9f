"""Pools, users and statistics as messages.  To be called in the turn of what they show."""

from fairsched.v1 import admin_service_pb2 as pb
from scheduler_service.app.application import Application
from scheduler_service.app.census import PoolCensus, census, oldest_of
from scheduler_service.app.observation import Observation, service_version
from scheduler_service.app.tally import PoolTally
from scheduler_service.core import flows as fl
from scheduler_service.core.decisions import LeaseEndCause
from scheduler_service.core.policy import UserSettings
from scheduler_service.core.state import Pool
from scheduler_service.estimator.learning import Errors
from scheduler_service.rpc.audit_servicer import head_message
from scheduler_service.rpc.convert import duration, number, timestamp
from scheduler_service.rpc.convert_policy import policy_message

_NO_SETTINGS = UserSettings()


def pause_message(paused: bool, until_ns: int) -> pb.PauseInfo | None:  # noqa: FBT001 - a state
    """Returns a pause as a message; None without one."""
    if not paused:
        return None
    return pb.PauseInfo(until_time=timestamp(until_ns) if until_ns else None)


def pool_message(pool: Pool) -> pb.Pool:
    """Returns a pool as a message."""
    return pb.Pool(
        pool=pool.name,
        policy=policy_message(pool.policy),
        policy_digest=pool.policy_digest,
        pause=pause_message(pool.paused, pool.pause_until_ns),
    )


def user_message(pool: Pool, user_id: str, now_ns: int, seen: Observation) -> pb.User:
    """Returns a user of a pool as a message, whether or not it has state."""
    flow = pool.flows.get(user_id)
    settings = pool.settings.get(user_id, _NO_SETTINGS)
    message = pb.User(
        pool=pool.name,
        user_id=user_id,
        weight_milli=fl.weight_of(pool, user_id),
        max_in_flight=fl.cap_of(pool, user_id),
        configured=settings.weight_milli > 0 or settings.max_in_flight >= 0,
        pause=pause_message(settings.paused, settings.pause_until_ns),
        meter_micros=pool.virtual_time,
    )
    if flow is not None:
        message.meter_micros = flow.meter
        message.waiting_count = flow.waiting
        message.in_flight_count = flow.in_flight
        message.short_admission_count = flow.short_admission_count
        message.promotion_debt = flow.promotion_debt
        oldest_ns = oldest_of(flow, now_ns)
        if oldest_ns >= 0:
            message.oldest_wait.CopyFrom(duration(oldest_ns))
    tally = seen.tally.pools[pool.name].users.get(user_id)
    if tally is not None:
        message.dispatched_count = tally.dispatched
        message.charged_cost = tally.cost
    learner = seen.learners.get(pool.name)
    errors = None if learner is None else learner.user_errors.get(user_id)
    if errors is not None:
        message.used_cost = errors.real_cost
    return message


def pool_stats(pool: Pool, now_ns: int, seen: Observation) -> pb.PoolStats:
    """Returns the numbers of a pool as a message."""
    now = census(pool, now_ns)
    message = pb.PoolStats(
        pool=pool.name,
        pause=pause_message(pool.paused, pool.pause_until_ns),
        waiting_count=now.waiting,
        leased_count=now.leased,
        redelivery_count=now.redelivery,
        dead_letter_count=now.dead_letters,
        remembered_count=now.remembered,
        user_count=now.users,
        selectable_user_count=now.selectable_users,
        in_flight_cost=now.in_flight_cost,
        virtual_time_micros=now.virtual_time,
        fairness_gap_micros=now.gap,
        aging_sample_size=now.sample_size,
        short_admission_count=now.short_admission_count,
        promotion_debt=now.promotion_debt,
        short_cutoff=now.short_cutoff,
        output_ratio_milli=now.output_ratio_milli,
        counters=_counters(seen.tally.pools[pool.name]),
    )
    _fill_optional(message, now)
    learner = seen.learners.get(pool.name)
    message.estimator.CopyFrom(_estimator(Errors() if learner is None else learner.errors))
    return message


def _fill_optional(message: pb.PoolStats, now: PoolCensus) -> None:
    if now.oldest_wait_ns >= 0:
        message.oldest_wait.CopyFrom(duration(now.oldest_wait_ns))
    if now.bound >= 0:
        message.fairness_bound_micros = now.bound
    if now.slack >= 0:
        message.slack_micros = now.slack
    if now.threshold_ns >= 0:
        message.aging_threshold.CopyFrom(duration(now.threshold_ns))


def _counters(tally: PoolTally) -> pb.PoolCounters:
    ended = tally.leases_ended
    return pb.PoolCounters(
        accepted_count=tally.accepted,
        dispatched_count=tally.dispatched,
        redelivered_count=tally.redelivered,
        promoted_count=tally.promoted,
        overtaken_count=tally.overtaking,
        lease_expired_count=ended.get(LeaseEndCause.EXPIRED, 0),
        hand_over_failed_count=ended.get(LeaseEndCause.HAND_OVER, 0),
        given_back_count=ended.get(LeaseEndCause.GIVEN_BACK, 0),
        ended=[
            pb.StateCount(state=number(state), count=count)
            for state, count in sorted(tally.ended.items())
        ],
        rejected=[
            pb.ReasonCount(reason=reason, count=count)
            for reason, count in sorted(tally.refused.items())
        ],
        charged_cost=tally.cost,
    )


def _estimator(errors: Errors) -> pb.EstimatorStats:
    return pb.EstimatorStats(
        compared_count=errors.measured,
        estimated_cost=errors.charged_cost,
        used_cost=errors.real_cost,
        absolute_error_cost=errors.too_low_cost + errors.too_high_cost,
        long_to_short_count=errors.long_as_short,
        short_to_long_count=errors.short_as_long,
        short_count=errors.shorts,
        long_count=errors.longs,
    )


def service_stats(app: Application, seen: Observation) -> pb.ServiceStats:
    """Returns the numbers of the service as a message."""
    engine = seen.engine
    usage = seen.store.usage()
    return pb.ServiceStats(
        version=service_version(),
        algorithm_version=engine.state.algorithm_version,
        durability=str(seen.store.durability),
        start_time=timestamp(seen.tally.start_ns),
        log=head_message(seen.log.head()),
        log_bytes=usage.log_bytes,
        free_bytes=usage.free_bytes,
        worker_count=app.presence.active_count(),
        parked_call_count=app.slots.calls,
        stream_count=app.slots.streams,
        invariant_violation_count=int(isinstance(engine.failed, AssertionError)),
    )
