"""What a service opens before it can listen: its store, its certificate, its secret keys."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from scheduler_service.app.ports import Reporter, Store
from scheduler_service.config import ConfigRefused, Settings
from scheduler_service.core.policy import SECOND_NS
from scheduler_service.rpc.tls import TlsFiles, server_credentials
from scheduler_service.rpc.user_ids import UserIds
from scheduler_service.store.directory import DataDirectory
from scheduler_service.store.pruning import Retention
from scheduler_service.store.sqlite import SqliteStore

if TYPE_CHECKING:
    import grpc

_HOUR_NS = 3600 * SECOND_NS
_MILLI_NS = 1_000_000

StoreOpener = Callable[[DataDirectory, Settings, Reporter], Store]
"""Opens the store of a data directory."""


def open_sqlite(directory: DataDirectory, settings: Settings, report: Reporter) -> Store:
    """Opens the default store.

    Raises:
        StoreError: It cannot be used; `StoreLocked` if another process has it.
    """
    return SqliteStore(
        directory,
        durability=settings.durability,
        retention=Retention(
            max_age_ns=settings.log_retention_hours * _HOUR_NS,
            max_bytes=settings.log_retention_bytes,
        ),
        report=report,
        sync_interval_ns=settings.sync_interval_ms * _MILLI_NS,
    )


def credentials_of(settings: Settings, report: Reporter) -> "grpc.ServerCredentials | None":
    """Returns the certificate to serve with; None serves plaintext.

    Raises:
        TlsError: The certificate and the key do not belong together.
        OSError: They cannot be read.
    """
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    files = TlsFiles(
        settings.tls_certificate,
        settings.tls_key,
        settings.tls_client_authorities,
    )
    return server_credentials(files, report)


def user_ids_of(settings: Settings) -> UserIds:
    """Returns what turns user ids of callers into those the core sees.

    Raises:
        ConfigRefused: The key is too short, or cannot be read.
    """
    key = b""
    try:
        if settings.user_id_key_file is not None:
            key = settings.user_id_key_file.read_bytes().strip()
        return UserIds(settings.user_id_mode, key)
    except (OSError, ValueError) as error:
        raise ConfigRefused([("user_id_key_file", str(error))]) from error
