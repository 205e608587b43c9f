"""Statuses become typed errors: what a caller can do about it decides the type."""

import grpc
import pytest

from fairsched import errors


@pytest.mark.parametrize("details", ["CANCELLED", "Received RST_STREAM with error code 8", None])
def test_call_dropped_by_a_stopping_server_is_unavailable(details):
    """CANCELLED that nobody here asked for means: not there, come back."""
    error = errors.from_status(grpc.StatusCode.CANCELLED, details, ())

    assert isinstance(error, errors.UnavailableError)
    assert error.code is grpc.StatusCode.CANCELLED


@pytest.mark.parametrize("details", ["Locally cancelled by application!", "Channel closed!"])
def test_call_cancelled_here_is_not_repeated(details):
    """CANCELLED by this side is no reason to ask again."""
    error = errors.from_status(grpc.StatusCode.CANCELLED, details, ())

    assert type(error) is errors.CallError


@pytest.mark.parametrize("details", ["Internal error from Core", 'Failed "execute_batch": (0,)'])
def test_stream_that_broke_while_written_is_unavailable(details):
    """INTERNAL of the transport itself means: the stream is gone, come back."""
    error = errors.from_status(grpc.StatusCode.INTERNAL, details, ())

    assert isinstance(error, errors.UnavailableError)


def test_internal_of_the_service_stays_what_it_is():
    """INTERNAL from the other side is a defect there, and is not repeated."""
    error = errors.from_status(grpc.StatusCode.INTERNAL, "surprise", ())

    assert type(error) is errors.CallError
