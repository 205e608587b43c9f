"""Limits of the service that are not a pool's: one table of defaults.

What limits a pool (queues, users, leases, waits) is in its policy (`core.policy`).
"""

from dataclasses import dataclass
from typing import Final

from scheduler_service.core.policy import SECOND_NS

ID_BYTES_MAX: Final = 256
"""Length of an id, a label, a key."""

LABELS_MAX: Final = 16
METADATA_PAIRS_MAX: Final = 16
METADATA_BYTES_MAX: Final = 16 << 10
"""Keys and values of one request's metadata together."""

ERROR_BYTES_MAX: Final = 256
ENDPOINT_BYTES_MAX: Final = 1024
REASON_BYTES_MAX: Final = 64
POOLS_MAX: Final = 1000
"""Pools of the service."""

POOLS_PER_CALL_MAX: Final = 64
ENUMS_MAX: Final = 100
"""Entries of a list of enum values."""

BATCH_MAX: Final = 1000
"""Items of one call."""

TOKENS_MAX: Final = 10**9
CREDITS_MAX: Final = 1_000_000
PAGE_MAX: Final = 1000
PAGE_DEFAULT: Final = 100

MAX_WAIT_NS_MIN: Final = 1_000_000
DAY_NS: Final = 86_400 * SECOND_NS
LEASE_NS_MIN: Final = SECOND_NS
WAIT_DURATION_NS_MAX: Final = 3600 * SECOND_NS

DEADLINE_MARGIN_NS: Final = 200_000_000
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
