"""The oracle on hand-made logs: a right one, and for every kind of record some wrong ones.

The log below was worked out by hand from the rules, not taken from the core.  Each case changes one
thing in it and names the difference that the oracle must report.
"""

import msgspec
import pytest

from scheduler_service.core import decisions as d
from scheduler_service.core.policy import MICRO, PRESETS, SECOND_NS, PredictedClass
from scheduler_service.oracle import Difference, Oracle
from scheduler_service.oracle.choice import Choice, Nothing

SHORT = PredictedClass.SHORT
OFFER = d.Offer()
SFQ = PRESETS["sfq"]


def accepted(sequence: int, user: str, cost: int, **fields) -> d.Accepted:
    """An arrival; `sequence` only names the request."""
    values = {
        "now_ns": 0,
        "pool": "p",
        "request_id": f"{user}{sequence}",
        "user_id": user,
        "cost": cost,
        "predicted_class": SHORT,
        "weight_milli": 1000,
        "kv_tokens": 0,
        "expire_ns": 0,
        "labels": (),
        "content_digest": b"",
        "payload_digest": b"",
        "payload_bytes": 0,
        "prompt_tokens": 0,
        "output_cap_tokens": 0,
        "expected_output_tokens": 0,
        "caller_bound": False,
        "rejoined": True,
        "meter_before": 0,
        "meter_after": 0,
        "virtual_time": 0,
    }
    return d.Accepted(**(values | fields))


def dispatched(request: str, sequence: int, cost: int, v: int, meter: int, **fields):
    """A dispatch at slack 0; meters in cost units."""
    values = {
        "now_ns": 0,
        "pool": "p",
        "request_id": request,
        "user_id": request[0],
        "request_sequence": sequence,
        "lease_id": f"lease-{request}",
        "worker": "w",
        "call": f"call-{request}",
        "attempt": 1,
        "lease_expire_ns": 60 * SECOND_NS,
        "hand_over_ns": 0,
        "turn": d.Turn.SELECTED,
        "rule": d.Rule.FIRST_COME,
        "cost": cost,
        "charge_micros": cost * MICRO,
        "weight_milli": 1000,
        "predicted_class": SHORT,
        "wait_ns": 0,
        "aging_threshold_ns": -1,
        "aged": False,
        "virtual_time_before": v * MICRO,
        "virtual_time_after": meter * MICRO,
        "meter_before": meter * MICRO,
        "meter_after": (meter + cost) * MICRO,
        "short_admission_count_before": 0,
        "short_admission_count_after": 0,
        "promotion_debt_before": False,
        "promotion_debt_after": False,
        "slack_micros": 0,
        "passes_after": 0,
        "users_waiting": 2,
        "runner_up": "b",
        "runner_up_meter": 0,
        "overtook": (),
        "policy_digest": "digest",
        "offer": OFFER,
        "idempotency_key": "",
    }
    return d.Dispatched(**(values | fields))


def good_log() -> list[d.Decision]:
    """Two users, three requests; one expires, one lease runs out, one is completed."""
    return [
        d.PoolConfigured(0, "p", SFQ, "digest", created=True),
        accepted(2, "a", 3),
        accepted(3, "b", 1),
        accepted(4, "b", 1, rejoined=False, expire_ns=70 * SECOND_NS),
        d.WorkerSeen(0, "w", "w", ("p",), OFFER, "", registered=False),
        dispatched("a2", 2, 3, 0, 0, hand_over_ns=5 * SECOND_NS),
        dispatched("b3", 3, 1, 0, 0, users_waiting=1, runner_up=""),
        d.LeasesConfirmed(SECOND_NS, "w"),
        d.Completed(
            2 * SECOND_NS,
            "p",
            "b3",
            "lease-b3",
            d.RequestState.SUCCEEDED,
            -1,
            -1,
            "",
            request_sequence=3,
            user_id="b",
            cost=1,
        ),
        d.LeaseEnded(
            61 * SECOND_NS, "p", "a2", "lease-a2", "w", d.LeaseEndCause.EXPIRED, 1, 0, user_id="a"
        ),
        d.Ended(
            70 * SECOND_NS,
            "p",
            "b4",
            d.RequestState.EXPIRED,
            "MAX_WAIT",
            request_sequence=4,
            user_id="b",
        ),
        d.BusyPeriodClosed(70 * SECOND_NS, "p", 0, 3 * MICRO),
    ]


def judged(log: list[d.Decision]) -> list[Difference]:
    """All that the oracle says about a log."""
    oracle = Oracle()
    found = [
        difference
        for sequence, record in enumerate(log, start=1)
        for difference in oracle.feed(sequence, record)
    ]
    return found + oracle.finish()


def changed(index: int, **fields) -> list[d.Decision]:
    """The good log with one record changed."""
    log = good_log()
    log[index] = msgspec.structs.replace(log[index], **fields)
    return log


def without(index: int) -> list[d.Decision]:
    """The good log with one record missing, sequences as they were."""
    return good_log()[:index] + good_log()[index + 1 :]


def test_the_good_log_is_right():
    """Nothing is named."""
    assert judged(good_log()) == []


@pytest.mark.parametrize(
    ("index", "fields", "what"),
    [
        (1, {"meter_after": 1}, "meter_after"),
        (1, {"rejoined": False}, "rejoined"),
        (3, {"rejoined": True}, "rejoined"),
        (1, {"virtual_time": 5}, "virtual_time"),
        (1, {"weight_milli": 999}, "weight_milli"),
        (5, {"charge_micros": 1}, "charge_micros"),
        (5, {"meter_after": 4 * MICRO}, "meter_after"),
        (5, {"virtual_time_after": MICRO}, "virtual_time_after"),
        (5, {"users_waiting": 1}, "users_waiting"),
        (5, {"runner_up": ""}, "runner_up"),
        (5, {"slack_micros": 1}, "slack_micros"),
        (5, {"passes_after": 1}, "passes_after"),
        (5, {"turn": d.Turn.MAX_PASSES}, "turn"),
        (5, {"rule": d.Rule.LONG}, "rule"),
        (5, {"overtook": ("b3",)}, "overtook"),
        (5, {"attempt": 2}, "attempt"),
        (5, {"wait_ns": 1}, "wait_ns"),
        (5, {"aging_threshold_ns": 0}, "aging_threshold_ns"),
        (5, {"aged": True}, "aged"),
        (5, {"short_admission_count_after": 1}, "short_admission_count_after"),
        (5, {"promotion_debt_after": True}, "promotion_debt_after"),
        (5, {"policy_digest": "other"}, "policy_digest"),
        (5, {"lease_expire_ns": 0}, "lease_expire_ns"),
        (5, {"hand_over_ns": SECOND_NS}, "hand_over_ns"),
        (5, {"request_sequence": 3}, "request_sequence"),
        (6, {"lease_id": "lease-a2"}, "lease_id"),
        (8, {"lease_id": "lease-a2"}, "lease_id"),
        (8, {"request_sequence": 2}, "request_sequence"),
        (8, {"user_id": "a"}, "user_id"),
        (8, {"cost": 2}, "cost"),
        (9, {"user_id": "b"}, "user_id"),
        (10, {"user_id": "a"}, "user_id"),
        (8, {"state": d.RequestState.CANCELLED}, "state"),
        (9, {"failures_after": 0}, "failures_after"),
        (9, {"cause": d.LeaseEndCause.HAND_OVER}, "cause"),
        (9, {"retry_ns": 1}, "retry_ns"),
        (9, {"worker": "x"}, "worker"),
        (9, {"now_ns": 59 * SECOND_NS}, "now_ns"),
        (10, {"state": d.RequestState.SHED}, "state"),
        (10, {"now_ns": 69 * SECOND_NS}, "state"),
        (11, {"virtual_time_after": 2 * MICRO}, "virtual_time_after"),
        (11, {"virtual_time_before": 1}, "virtual_time_before"),
    ],
)
def test_a_changed_field_is_named(index, fields, what):
    """One field of one record: the oracle names that field of that record."""
    found = judged(changed(index, **fields))
    assert (index + 1, what) in {(x.sequence, x.what) for x in found}


@pytest.mark.parametrize(
    ("index", "what"),
    [
        (1, "request_id"),
        (6, "lease_id"),
        (9, "missed timer"),
        (10, "BusyPeriodClosed"),
        (11, "BusyPeriodClosed"),
    ],
)
def test_a_missing_record_is_named(index, what):
    """A record left out shows in what comes after it, or at the end."""
    assert what in {difference.what for difference in judged(without(index))}


def test_the_wrong_user_is_named():
    """At equal meters user a is before user b."""
    log = good_log()
    log[5:7] = [dispatched("b3", 3, 1, 0, 0, runner_up="a")]
    found = judged(log[:6])
    assert ("request_id", "a2", "b3") in {(x.what, x.expected, x.found) for x in found}


def test_a_repeated_record_is_named():
    """A request is not dispatched under two leases, nor does it end twice."""
    log = good_log()
    again = [*log[:6], log[5]]
    assert ("request_id", "LEASED") in {(x.what, x.found) for x in judged(again)}
    twice = [*log[:9], log[8]]
    assert "lease_id" in {x.what for x in judged(twice)}


def test_swapped_records_are_named():
    """The order of a log is part of it."""
    log = good_log()
    log[5], log[6] = log[6], log[5]
    assert judged(log)


def test_sequence_and_time_go_forwards():
    """Both are named when they do not."""
    oracle = Oracle()
    first, second, *_ = good_log()
    oracle.feed(2, msgspec.structs.replace(first, now_ns=5))
    found = oracle.feed(1, second)
    assert {"sequence", "now_ns"} <= {x.what for x in found}


def test_a_record_of_an_unknown_pool_is_named():
    """Pools are created first."""
    assert [x.what for x in judged(good_log()[1:2])] == ["pool"]


def test_one_difference_does_not_hide_the_next():
    """The oracle follows the log, so each wrong record is judged by what the log says was there."""
    log = changed(5, charge_micros=1, meter_after=1)
    log[11] = d.BusyPeriodClosed(70 * SECOND_NS, "p", 0, MICRO)
    assert {x.sequence for x in judged(log)} == {6}


def test_a_difference_is_a_sentence():
    """For people: sequence, field, both values and the rule."""
    text = str(judged(changed(5, charge_micros=1))[0])
    assert text.startswith("#6 Dispatched.charge_micros: expected 3000000, found 1 (")


def test_the_oracle_says_what_a_worker_would_get():
    """`expect` answers the question of the next call, without a record."""
    oracle = Oracle()
    for sequence, record in enumerate(good_log()[:5], start=1):
        oracle.feed(sequence, record)
    found = oracle.expect("p", "w", OFFER, 0)
    assert isinstance(found, Choice)
    assert (found.request.request_id, found.turn) == ("a2", d.Turn.SELECTED)
    small = oracle.expect("p", "w", d.Offer(accepts_short=False), 0)
    assert isinstance(small, Nothing)
    assert small.reason is d.EmptyReason.STALLED_BY


NOTHING = [
    d.LeaseRenewed(SECOND_NS, "p", "a2", "other", 90 * SECOND_NS, "a"),
    d.LeaseEnded(SECOND_NS, "p", "a2", "other", "w", d.LeaseEndCause.GIVEN_BACK, 0, 0, "", "a"),
    d.PrefillCompleted(SECOND_NS, "p", "a2", "other", 0, promotion_debt_after=False, user_id="a"),
    d.PrefillCompleted(
        SECOND_NS, "p", "a2", "lease-a2", 1, promotion_debt_after=False, user_id="a"
    ),
    d.CancelRequested(SECOND_NS, "p", "b4", "CALLER", "", "b"),
    d.Requeued(SECOND_NS, "p", "a2", "", "a"),
    d.DeadLetterDropped(SECOND_NS, "p", "a2", "", 2, "a"),
    d.Ended(SECOND_NS, "p", "nobody", d.RequestState.CANCELLED, "CALLER"),
    d.Ended(SECOND_NS, "p", "a2", d.RequestState.CANCELLED, "CALLER", "", 2, "a"),
    d.Ended(SECOND_NS, "p", "b4", d.RequestState.EXPIRED, "MAX_WAIT", "", 4, "b"),
    d.Ended(SECOND_NS, "p", "b4", d.RequestState.SHED, "POOL_FULL", "", 4, "b"),
    d.Ended(SECOND_NS, "p", "b4", d.RequestState.UNPLACEABLE, "NO_WORKER_CAN_HOLD", "", 4, "b"),
    d.Ended(SECOND_NS, "p", "b4", d.RequestState.DEAD_LETTERED, "MAX_ATTEMPTS", "", 4, "b"),
    d.Ended(SECOND_NS, "p", "a2", d.RequestState.LEASE_EXPIRED, "GATE_LEASE_EXPIRED", "", 2, "a"),
    d.Reserved(SECOND_NS, "p", "b4", "w", "b"),
    d.Reserved(SECOND_NS, "p", "nobody", "w", "b"),
    d.Rejoined(SECOND_NS, "p", "b", d.RejoinCause.CAP, 0, 0),
    d.Rejoined(SECOND_NS, "p", "b", d.RejoinCause.UNPLACEABLE, MICRO, 2 * MICRO),
    d.Rebased(SECOND_NS, "p", 5),
    d.BusyPeriodClosed(SECOND_NS, "p", 0, 3 * MICRO),
    d.Resumed(SECOND_NS, "p", "b", by_timer=False),
    d.Resumed(SECOND_NS, "p", "", by_timer=True),
    d.Paused(SECOND_NS, "p", "b", 1),
    d.PoolConfigured(SECOND_NS, "p", SFQ, "digest", created=True),
    d.PoolDeleted(SECOND_NS, "p"),
    d.UserForgotten(SECOND_NS, "p", "b"),
    d.UserConfigured(SECOND_NS, "p", "b", 2000, -1, 1000, 0, 0),
    d.UserConfigured(SECOND_NS, "p", "b", 2000, -1, 500, MICRO, MICRO // 2),
    d.WorkerDrained(SECOND_NS, "nobody"),
    d.WorkerGone(SECOND_NS, "w"),
    d.Recovered(SECOND_NS, -1),
    d.Accepted(
        **{
            name: getattr(accepted(2, "a", 3), name)
            for name in d.Accepted.__struct_fields__
            if name != "now_ns"
        },
        now_ns=SECOND_NS,
    ),
]
"""Records that have no place after the first eight of the good log."""


@pytest.mark.parametrize("record", NOTHING, ids=lambda x: f"{type(x).__name__}")
def test_a_record_without_a_reason_is_named(record):
    """Nothing had happened that would have led to it, or it says what was not so."""
    assert judged([*good_log()[:8], record])


def test_records_that_may_stand_there_are_not_named():
    """The cases above are wrong for what they say, not for where they stand."""
    fine = [
        d.LeaseRenewed(SECOND_NS, "p", "a2", "lease-a2", 90 * SECOND_NS, "a"),
        d.CancelRequested(SECOND_NS, "p", "a2", "CALLER", "", "a"),
        d.Paused(SECOND_NS, "p", "b", 0),
        d.Resumed(SECOND_NS, "p", "b", by_timer=False),
        d.Rejoined(SECOND_NS, "p", "b", d.RejoinCause.RESUMED, MICRO, MICRO),
        d.UserConfigured(SECOND_NS, "p", "b", 2000, -1, 1000, MICRO, MICRO // 2),
        d.WorkerDrained(SECOND_NS, "w"),
        d.Recovered(SECOND_NS, 0),
        d.LogOpened(SECOND_NS, 1, "sync", ""),
        d.EstimatorUpdated(SECOND_NS, "p", (), 0),
        d.Ended(SECOND_NS, "p", "b4", d.RequestState.CANCELLED, "CALLER", "", 4, "b"),
        d.BusyPeriodClosed(SECOND_NS, "p", 0, 3 * MICRO),
    ]
    assert judged([*good_log()[:8], *fine]) == []
