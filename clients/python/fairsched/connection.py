"""How a client reaches the service: target, credentials, deadlines, retries, keepalive.

What is decided here for every client, and why:

- Retries come from `retry.json`, which ships with the package: only `UNAVAILABLE`, five
  attempts, 0.1 s to 2 s.  Every call that changes something names an id, so a retry changes nothing
  twice.  Streams are not retried by gRPC but opened anew here, where they stopped: a stream of the
  synchronous gRPC that fails while it is being retried can lose the news, and whoever reads it
  waits for ever (grpcio 1.85).
- Reconnecting backs off to 5 s at most, so that a service that was down for minutes is found again
  at once (gRPC's own limit is two minutes).
- Keepalive pings find a frozen service or a cut network within 30 s, also on an idle connection.
- Each client has its own connection (`use_local_subchannel_pool`): closing one disturbs no other.
"""

import dataclasses
import importlib.resources
import os
import pathlib
from collections.abc import Callable, Sequence

import grpc

DEFAULT_TIMEOUT_S = 5.0
"""Deadline of a call for which the caller states none, seconds."""

ATTEMPTS_MAX = 5
"""Attempts at opening a stream for something new, as `retry.json` has it for other calls."""

RECONNECT_BACKOFF_MAX_MS = 5_000
"""Longest pause between two attempts to connect, milliseconds."""

KEEPALIVE_TIME_MS = 20_000
"""Silence after which the peer is asked whether it is still there, milliseconds."""

KEEPALIVE_TIMEOUT_MS = 10_000
"""How long the peer may take to answer that, milliseconds."""

ANSWER_MARGIN_S = 2.0
"""What the deadline of a long poll adds to the time it waits, seconds.

A long poll is answered 200 ms before its deadline; the rest is for a slow way there and back.
"""

Options = Sequence[tuple[str, int | str]]
"""Channel arguments of gRPC."""

Token = str | Callable[[], str]
"""A bearer token, or a function that returns the present one (for tokens that rotate)."""


def service_config() -> str:
    """Returns the retry policy that ships with the package, as JSON text."""
    return (importlib.resources.files("fairsched") / "retry.json").read_text("utf-8")


def channel_options(extra: Options = ()) -> list[tuple[str, int | str]]:
    """Returns the channel arguments of every client; `extra` goes last and wins."""
    return [
        ("grpc.service_config", service_config()),
        ("grpc.enable_retries", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 2_000),
        ("grpc.max_reconnect_backoff_ms", RECONNECT_BACKOFF_MAX_MS),
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        # What a peer that stands still runs into: its machine acknowledges what it is sent.
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
        *extra,
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class Tls:
    """Files for an encrypted connection.

    Attributes:
        ca: Certificates that the service's own must lead back to; None takes the system's.
        certificate: The client's own certificate, for mutual TLS.
        key: Its private key.
        server_name: Name that the service's certificate must carry, if not the target's.
    """

    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    server_name: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Returns gRPC credentials, read from the files now.

        Raises:
            OSError: A file cannot be read.
            ValueError: Only one of certificate and key is given.
        """
        if (self.certificate is None) != (self.key is None):
            msg = "mutual TLS needs both a certificate and its key"
            raise ValueError(msg)
        return grpc.ssl_channel_credentials(*map(_bytes, (self.ca, self.key, self.certificate)))

    def options(self) -> Options:
        """Returns the channel arguments that go with it."""
        return [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []


@dataclasses.dataclass(frozen=True, slots=True)
class Connection:
    """Where the service is and how to talk to it.

    Attributes:
        target: gRPC target, as in `127.0.0.1:50051` or `dns:///scheduler:50051`.
        token: Bearer token sent with every call; None sends none.
        tls: Files for TLS; None speaks plaintext.
        timeout: Deadline of a call for which the caller states none, seconds, above 0.
        options: Further channel arguments; they win over the shipped ones.
    """

    target: str
    token: Token | None = None
    tls: Tls | None = None
    timeout: float = DEFAULT_TIMEOUT_S
    options: Options = ()

    def __post_init__(self) -> None:
        if self.timeout <= 0:
            msg = f"timeout must be above 0 s, not {self.timeout}"
            raise ValueError(msg)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns what goes with every call."""
        if self.token is None:
            return ()
        token = self.token if isinstance(self.token, str) else self.token()
        return (("authorization", f"Bearer {token}"),)

    def sync_channel(self) -> grpc.Channel:
        """Returns a new channel for threads."""
        options = channel_options([*(self.tls.options() if self.tls else ()), *self.options])
        if self.tls is None:
            return grpc.insecure_channel(self.target, options)
        return grpc.secure_channel(self.target, self.tls.credentials(), options)

    def async_channel(self) -> grpc.aio.Channel:
        """Returns a new channel for the running event loop."""
        options = channel_options([*(self.tls.options() if self.tls else ()), *self.options])
        if self.tls is None:
            return grpc.aio.insecure_channel(self.target, options)
        return grpc.aio.secure_channel(self.target, self.tls.credentials(), options)


def _bytes(path: str | os.PathLike[str] | None) -> bytes | None:
    return None if path is None else pathlib.Path(path).read_bytes()
