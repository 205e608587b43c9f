"""Every setting of the service: one schema for the file, the environment and the flags.

A setting `data_dir` is `data_dir = "…"` in the TOML file, `FAIRSCHED_DATA_DIR` in the environment
and `--data-dir` as a flag; flags win over the environment, that over the file, that over the
default.  Units are in the names.  Pools and their users are in the file alone.
"""

import enum
import ipaddress
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from scheduler_service.app.limits import Limits
from scheduler_service.app.ports import Durability
from scheduler_service.config.pools import PoolEntry, policy_of
from scheduler_service.core.errors import InvalidCommand
from scheduler_service.core.policy import POOLS_MAX, SECOND_NS
from scheduler_service.rpc.user_ids import UserIdMode
from scheduler_service.rpc.validate import is_id

DEFAULT_POOL = "default"

_MIB = 1 << 20
_LIMITS = Limits()
_DAY_SECONDS = 86_400
_PORT_MAX = 65_535


class LogLevel(enum.StrEnum):
    """Least important events that are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(enum.StrEnum):
    """How log events look."""

    JSON = "json"
    CONSOLE = "console"


def _range(default: Any, low: float, high: float, description: str) -> Any:
    return Field(default, ge=low, le=high, description=description)


def _about(default: Any, description: str, *, live: bool = False) -> Any:
    return Field(default, description=description, json_schema_extra={"live": live})


def _switch(description: str, *, on: bool = False) -> Any:
    return Field(on, description=description)


_Listen = Annotated[str, "host:port"]


class Settings(BaseModel):
    """All settings, checked; see the description of each."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    listen: _Listen = _about("127.0.0.1:50051", "Where gRPC listens, host:port; port 0 takes any.")
    admin_listen: _Listen = _about(
        "", "Own address for AdminService and AuditService; empty: none."
    )
    http_listen: _Listen = _about(
        "127.0.0.1:9464", "Where /metrics, /livez and /readyz are, host:port; empty: nowhere."
    )
    allow_plaintext: bool = _switch(
        "Allows addresses that other machines reach without TLS, on purpose."
    )
    port_file: Path | None = _about(None, "Written with the ports once the service listens.")
    tls_certificate: Path | None = _about(None, "PEM certificate chain; re-read when it changes.")
    tls_key: Path | None = _about(None, "PEM private key of the certificate.")
    tls_client_authorities: Path | None = _about(
        None, "PEM roots of client certificates; then every client needs one."
    )
    credentials_file: Path | None = _about(
        None, "Who may call what (TOML, digests of tokens); without it everybody may everything."
    )
    user_id_mode: UserIdMode = _about(
        UserIdMode.PLAIN, "What becomes of user ids at the edge: plain, or hmac (pseudonyms)."
    )
    user_id_key_file: Path | None = _about(None, "Secret key of the pseudonyms, 16 bytes or more.")

    data_dir: Path = _about(Path("fairsched-data"), "The decision log; one process at a time.")
    durability: Durability = _about(
        Durability.SYNC, "What an answered call survives: sync (a power cut), async, none."
    )
    sync_interval_ms: int = _range(100, 1, 60_000, "Durability async: time between syncs.")
    log_retention_hours: int = _range(24, 0, 24 * 3650, "Age of the log to keep; 0: no limit.")
    log_retention_bytes: int = _range(8 << 30, 0, 1 << 50, "Size of the log to keep; 0: no limit.")
    log_reserve_bytes: int = _range(
        _LIMITS.log_reserve_bytes, 0, 1 << 50, "Free disk space below which nothing is accepted."
    )
    snapshot_records: int = _range(200_000, 1, 10**12, "Decisions after which a snapshot is made.")
    snapshot_bytes: int = _range(128 * _MIB, 1, 1 << 50, "The same in bytes of the log.")
    snapshot_growth: int = _range(
        2, 0, 1000, "Behind a snapshot above 8 MiB so many times its size of log is needed, too."
    )

    payload_bytes: int = _range(_LIMITS.payload_bytes, 0, 16 * _MIB, "Payload of one request.")
    message_bytes: int = _range(_LIMITS.message_bytes, 65_536, 256 * _MIB, "One gRPC message.")
    parked_calls: int = _range(_LIMITS.parked_calls, 0, 10**7, "Calls that may wait at once.")
    parked_calls_per_peer: int = _range(
        _LIMITS.parked_calls_per_peer, 0, 10**7, "The same for one caller."
    )
    streams: int = _range(_LIMITS.streams, 0, 10**6, "Sessions and watches open at once.")
    streams_per_peer: int = _range(_LIMITS.streams_per_peer, 0, 10**6, "The same for one caller.")
    concurrent_streams: int = _range(
        _LIMITS.concurrent_streams, 1, 10**6, "Calls at once on one connection, waiting ones too."
    )
    session_outbox: int = _range(
        _LIMITS.session_outbox, 1, 10_000, "Unsent answers after which a session is not read."
    )
    retry_hint_seconds_max: int = _range(
        _LIMITS.retry_hint_seconds_max, 1, 3600, "Longest hint of when to try again."
    )
    resume_grace_seconds: float = _range(
        _LIMITS.resume_grace_ns / SECOND_NS,
        0,
        3600,
        "How long after a restart a request waits for the Acquire that waited for it.",
    )

    grace_seconds: float = _range(20, 0, 3600, "How long running calls may finish after SIGTERM.")
    stall_seconds: float = _range(5, 1, 3600, "Standstill after which health turns bad.")
    keepalive_seconds: int = _range(20, 1, 3600, "Idle time after which a client is pinged.")
    keepalive_timeout_seconds: int = _range(10, 1, 3600, "How long a client may take to answer.")
    keepalive_min_seconds: int = _range(5, 1, 3600, "Shortest time between two pings of a client.")
    estimator_seconds: int = _range(
        60, 1, _DAY_SECONDS, "Shortest time between two updates of learned costs."
    )
    metrics_users: int = _range(0, 0, 1000, "Users with metrics of their own; the rest is 'other'.")
    mask_user_ids: bool = _switch("Masks user ids in log lines and metrics.")
    log_level: LogLevel = _about(LogLevel.INFO, "Least important events logged.", live=True)
    log_format: LogFormat = _about(LogFormat.JSON, "json (one object a line) or console.")
    reflection: bool = _switch("Serves gRPC server reflection.", on=True)
    channelz: bool = _switch("Serves gRPC channelz, if grpcio-channelz is installed.")

    pools: dict[str, PoolEntry] = Field(
        default_factory=lambda: {DEFAULT_POOL: PoolEntry.model_validate({"cost_source": "caller"})},
        description="Pools by name, see the file's format; without any, one named default.",
        json_schema_extra={"live": True},
    )

    @field_validator("listen", "admin_listen", "http_listen")
    @classmethod
    def _check_address(cls, address: str, info: ValidationInfo) -> str:
        if not address and info.field_name != "listen":
            return address
        split_address(address)
        return address

    @field_validator("pools")
    @classmethod
    def _check_pools(cls, pools: dict[str, Any]) -> dict[str, Any]:
        if len(pools) > POOLS_MAX:
            message = f"must be at most {POOLS_MAX} pools"
            raise ValueError(message)
        problems = []
        for name, entry in pools.items():
            if not is_id(name):
                problems.append(f"{name!r}: must be 1 to 256 bytes without control characters")
            try:
                policy_of(name, entry.model_dump())
            except InvalidCommand as error:
                problems += [f"{field} {problem}" for field, problem in error.violations]
        if problems:
            raise ValueError("; ".join(problems))
        return pools

    @model_validator(mode="after")
    def _check_relations(self) -> "Settings":
        problems = []
        if (self.tls_certificate is None) != (self.tls_key is None):
            problems.append("tls_certificate and tls_key go together")
        if self.tls_client_authorities is not None and self.tls_certificate is None:
            problems.append("tls_client_authorities needs tls_certificate")
        if self.user_id_mode is UserIdMode.HMAC and self.user_id_key_file is None:
            problems.append("user_id_mode hmac needs user_id_key_file")
        if self.payload_bytes * 2 > self.message_bytes:
            problems.append("message_bytes must be at least twice payload_bytes")
        if not self.allow_plaintext:
            problems += self._public_addresses()
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _public_addresses(self) -> list[str]:
        """Returns what is wrong with addresses that other machines reach without TLS."""
        found = []
        if self.tls_certificate is None:
            found += [name for name in ("listen", "admin_listen") if self._is_public(name)]
        if self._is_public("http_listen"):
            found.append("http_listen")
        return [
            f"{name} {getattr(self, name)} can be reached from other machines in plaintext: "
            f"set up TLS, or state allow_plaintext on purpose"
            for name in found
        ]

    def _is_public(self, name: str) -> bool:
        address = getattr(self, name)
        return bool(address) and not is_loopback(split_address(address)[0])

    @property
    def limits(self) -> Limits:
        """The limits of the API."""
        return Limits(
            payload_bytes=self.payload_bytes,
            message_bytes=self.message_bytes,
            parked_calls=self.parked_calls,
            parked_calls_per_peer=self.parked_calls_per_peer,
            streams=self.streams,
            streams_per_peer=self.streams_per_peer,
            concurrent_streams=self.concurrent_streams,
            resume_grace_ns=int(self.resume_grace_seconds * SECOND_NS),
            session_outbox=self.session_outbox,
            retry_hint_seconds_max=self.retry_hint_seconds_max,
            log_reserve_bytes=self.log_reserve_bytes,
        )


def split_address(address: str) -> tuple[str, int]:
    """Returns host and port of `host:port`, `[v6]:port` or `unix:path` (port 0).

    Raises:
        ValueError: It is none of them.
    """
    if address.startswith("unix:"):
        return address, 0
    host, found, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not found or not host or not port.isascii() or not port.isdecimal() or int(port) > _PORT_MAX:
        message = f"{address!r} is not host:port"
        raise ValueError(message)
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    if host.startswith("unix:") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
