"""Limits of the service that are not a pool's: one table of defaults.

What limits a pool (queues, users, leases, waits) is in its policy (`core.policy`).
"""

from dataclasses import dataclass

from scheduler_service.core.policy import SECOND_NS

ID_BYTES_MAX = 256
"""Length of an id, a label, a key."""

LABELS_MAX = 16
METADATA_PAIRS_MAX = 16
METADATA_BYTES_MAX = 16 << 10
"""Keys and values of one request's metadata together."""

ERROR_BYTES_MAX = 256
ENDPOINT_BYTES_MAX = 1024
REASON_BYTES_MAX = 64
POOLS_MAX = 1000
"""Pools of the service."""

POOLS_PER_CALL_MAX = 64
ENUMS_MAX = 100
"""Entries of a list of enum values."""

BATCH_MAX = 1000
"""Items of one call."""

TOKENS_MAX = 10**9
CREDITS_MAX = 1_000_000
PAGE_MAX = 1000
PAGE_DEFAULT = 100

MAX_WAIT_NS_MIN = 1_000_000
DAY_NS = 86_400 * SECOND_NS
LEASE_NS_MIN = SECOND_NS
WAIT_DURATION_NS_MAX = 3600 * SECOND_NS

DEADLINE_MARGIN_NS = 200_000_000
"""A call that waits is answered so long before its caller's deadline."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that an operator may set.

    Attributes:
        payload_bytes: Payload of one request, 0 … 16 MiB.
        message_bytes: One gRPC message, 64 KiB … 256 MiB.
        parked_calls: Calls that may wait at once (`NextDispatch`, `GetRequest`, `Acquire`).
        parked_calls_per_peer: The same for one caller.
        streams: Open sessions at once.
        streams_per_peer: The same for one caller.
        concurrent_streams: HTTP/2 streams of one connection, parked calls included.
        resume_grace_ns: How long after a restart a request waits for the call that waited for it.
        session_outbox: Answers of one session that may wait to be sent; then it is not read.
        retry_hint_seconds_max: Longest hint of when to try again.
        log_reserve_bytes: Free disk space below which nothing new is accepted.
    """

    payload_bytes: int = 64 << 10
    message_bytes: int = 4 << 20
    parked_calls: int = 100_000
    parked_calls_per_peer: int = 20_000
    streams: int = 10_000
    streams_per_peer: int = 2_000
    concurrent_streams: int = 20_000
    resume_grace_ns: int = 60 * SECOND_NS
    session_outbox: int = 64
    retry_hint_seconds_max: int = 30
    log_reserve_bytes: int = 256 << 20
