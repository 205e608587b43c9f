"""Errors of the core as callers see them."""

import grpc
import pytest

from scheduler_service.app.retry_hints import RetryHints
from scheduler_service.core import errors
from scheduler_service.rpc import status

SECOND_NS = 10**9
ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type)
    and issubclass(kind, errors.SchedulerError)
    and kind is not errors.SchedulerError
]


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_has_a_code(kind):
    """No error of the core reaches a caller as UNKNOWN, and each code is its own."""
    error = kind([]) if kind is errors.InvalidCommand else kind("REASON", "Text.")

    assert status.code_of(error) not in {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL}
    others = [other for other in ERRORS if other is not kind]
    codes = {status._CODES[other] for other in others}
    assert status._CODES[kind] not in codes


def test_an_item_carries_what_a_status_carries():
    """Items of batches say as much as an error of a call of its own."""
    error = errors.InvalidCommand([("a", "x"), ("b.c", "y")])
    item = status.item_error(error, 3)

    assert (item.code, item.reason) == (3, "INVALID_FIELDS")
    assert [(v.field, v.description) for v in item.field_violations] == [("a", "x"), ("b.c", "y")]
    assert item.retry_delay.seconds == 3


def test_only_what_gets_better_by_waiting_has_a_hint():
    """Full and not ready: come back. Everything else: do not."""
    hints = RetryHints(30)
    full = errors.LimitReached("QUEUE_FULL", "Full.", pool="p")

    assert status.retry_seconds(full, hints, 0) == 1
    assert status.retry_seconds(errors.NotReady("DRAINING", "Stopping."), hints, 0) == 1
    assert status.retry_seconds(errors.Conflict("REQUEST_ID_REUSED", "Taken."), hints, 0) == 0


def test_each_thing_that_is_full_has_its_own_hint():
    """One pool that sheds does not push the callers of another away."""
    hints = RetryHints(30)
    for second in range(8):
        hints.refused("QUEUE_FULL", "busy", second * SECOND_NS)

    assert hints.refused("QUEUE_FULL", "busy", 8 * SECOND_NS) > 2
    assert hints.refused("QUEUE_FULL", "calm", 8 * SECOND_NS) == 1
    assert hints.refused("USER_QUEUE_FULL", "busy", 8 * SECOND_NS) == 1
