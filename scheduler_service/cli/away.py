"""Why nobody answers, in one sentence that says what to check.

What gRPC says about a connection names its own files and its own options; people who type a command
know theirs.
"""

from fairsched import errors

_CAUSES = (
    ("http1.x server", "{} speaks HTTP, not gRPC: check the port; metrics have one of their own"),
    (
        "WRONG_VERSION_NUMBER",
        "{} does not speak TLS: leave out the --tls options, or check --target",
    ),
    ("CERTIFICATE_VERIFY_FAILED", "the certificate of {} cannot be trusted: check --tls-ca"),
    ("Hostname Verification", "the certificate of {} carries another name: check --tls-name"),
    ("andshake", "TLS with {} failed: check --tls-ca, --tls-cert and --tls-key"),
    (
        "Socket closed",
        "{} closed the connection: check whether it speaks TLS (--tls-ca, --tls-cert)",
    ),
    ("Misformatted", "{} is no address: state --target as host:port"),
    ("resolving", "no host is known by the name in {}: check --target"),
    ("timed out", "nobody answers at {}: check --target, and what lies between"),
    ("unreachable", "no way leads to {}: check --target, and what lies between"),
)
"""What gRPC's text contains, and what to say; the first that fits."""

_OTHERWISE = "nobody answers at {}: check that the service runs there, and --target (host:port)"


def sentence(error: errors.UnavailableError | errors.DeadlineError, target: str) -> str:
    """Returns what is wrong with the way to `target`, or what the service itself said."""
    if error.reason:
        return str(error)
    if isinstance(error, errors.DeadlineError):
        return f"no answer from {target} in time: check that it runs, or state a longer --timeout"
    for part, said in _CAUSES:
        if part in error.message:
            return said.format(target)
    return _OTHERWISE.format(target)
