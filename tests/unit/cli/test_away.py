"""Why nobody answers: one sentence that says what to check, in words of the command line."""

import pytest
import typer

from fairsched import errors
from scheduler_service.cli import away, session

FAILED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "


@pytest.mark.parametrize(
    ("told", "begins", "names"),
    [
        (FAILED + "Failed to connect to remote host: Connection refused", "nobody", "--target"),
        (FAILED + "connection attempt timed out before receiving SETTINGS frame", "nobody", "lies"),
        ("errors resolving gpu:1: [field:hostname lookup error: not found]", "no host", "--target"),
        ("errors resolving http://gpu: Misformatted domain name", "gpu:1 is no", "host:port"),
        (FAILED + "Failed parsing HTTP/2 (Trying to connect an http1.x server", "gpu:1", "port"),
        (FAILED + "Socket closed", "gpu:1 closed", "--tls-ca"),
        (FAILED + "Tls handshake failed: WRONG_VERSION_NUMBER", "gpu:1 does not", "--tls"),
        (FAILED + "Tls handshake failed: CERTIFICATE_VERIFY_FAILED", "the certificate", "--tls-ca"),
        (FAILED + "Hostname Verification Check failed.", "the certificate", "--tls-name"),
        (FAILED + "Handshake read failed", "TLS with", "--tls-key"),
        ("something that gRPC has not said so far", "nobody answers", "--target"),
    ],
)
def test_every_cause_has_its_sentence(told, begins, names):
    """What gRPC says is not repeated."""
    said = away.sentence(errors.unavailable(told), "gpu:1")

    assert said.startswith(begins)
    assert names in said
    assert "gpu:1" in said
    assert told not in said


def test_a_deadline_says_what_to_try():
    """Without an answer nothing is known but that."""
    assert "--timeout" in away.sentence(errors.deadline("x"), "gpu:1")


def test_what_the_service_says_is_told_as_it_is():
    """A service that is starting or stopping has said so itself."""
    starting = errors.UnavailableError(None, "The service is starting.", reason="REPLAYING")

    assert away.sentence(starting, "gpu:1") == str(starting)


def test_when_to_try_again_is_told_whatever_failed(capsys):
    """A service that stops says when to come back."""
    stopping = errors.UnavailableError(
        None, "The service is stopping.", reason="DRAINING", retry_after=2.0
    )
    with pytest.raises(typer.Exit):
        session.fail(stopping, "gpu:1")

    assert "try again in 2" in " ".join(capsys.readouterr().err.split())
