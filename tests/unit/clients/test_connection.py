"""What every connection of a client is made with."""

from fairsched import connection


def test_a_service_that_stands_still_is_noticed_as_soon_as_one_that_is_cut_off():
    """gRPC counts a ping that nobody answers apart, and a minute by default."""
    options = dict(connection.channel_options())

    assert options["grpc.http2.ping_timeout_ms"] == connection.KEEPALIVE_TIMEOUT_MS
    assert options["grpc.keepalive_timeout_ms"] == connection.KEEPALIVE_TIMEOUT_MS
    assert connection.KEEPALIVE_TIME_MS + connection.KEEPALIVE_TIMEOUT_MS <= 30_000
