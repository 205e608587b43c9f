"""Server credentials for TLS and mutual TLS, from files that may change while the service runs.

gRPC asks for the certificate at every handshake; the files are read again when their stamp has
changed.  A pair that cannot be read or does not belong together is refused, reported once, and the
one before stays in force.  Calls on connections that stand already go on under the old certificate.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import grpc

from scheduler_service.app.ports import Reporter

if TYPE_CHECKING:
    from collections.abc import Callable

_Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the certificate comes from.

    Attributes:
        certificate: PEM chain, the server's own certificate first.
        key: PEM private key of it.
        client_authorities: PEM roots that client certificates are checked against (mutual TLS: a
            client without a certificate is refused); None asks clients for none.
    """

    certificate: Path
    key: Path
    client_authorities: Path | None = None


class TlsError(ValueError):
    """The files are no certificate and key that belong together."""


class _Source:
    """Gives gRPC the certificate in force, on the thread of a handshake."""

    def __init__(self, files: TlsFiles, report: Reporter) -> None:
        self._files = files
        self._report = report
        self._stamp = self._stamp_now()

    def fetch(self) -> "grpc.ServerCertificateConfiguration | None":
        """Returns a new configuration if the files have changed, else None."""
        file = str(self._files.certificate)
        try:
            stamp = self._stamp_now()
            if stamp == self._stamp:
                return None
            self._stamp = stamp
            configuration = self.load()
        except (OSError, TlsError) as error:
            self._report("certificate.refused", file=file, error=str(error))
            return None
        self._report("certificate.read", file=file)
        return configuration

    def _paths(self) -> list[Path]:
        files = self._files
        paths = [files.certificate, files.key]
        if files.client_authorities is not None:
            paths.append(files.client_authorities)
        return paths

    def _stamp_now(self) -> _Stamp:
        stats = [path.stat() for path in self._paths()]
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)

    def load(self) -> "grpc.ServerCertificateConfiguration":
        """Reads the files.

        Raises:
            OSError: A file cannot be read.
            TlsError: They do not belong together.
        """
        files = self._files
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(files.certificate, files.key)
            if files.client_authorities is not None:
                context.load_verify_locations(files.client_authorities)
        except ssl.SSLError as error:
            message = f"{files.certificate} and {files.key} do not belong together: {error}"
            raise TlsError(message) from error
        pair = (files.key.read_bytes(), files.certificate.read_bytes())
        roots = None
        if files.client_authorities is not None:
            roots = files.client_authorities.read_bytes()
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=roots)


def server_credentials(files: TlsFiles, report: Reporter) -> "grpc.ServerCredentials":
    """Returns credentials for `add_secure_port` that follow the files.

    Raises:
        OSError: A file cannot be read.
        TlsError: They do not belong together.
    """
    source = _Source(files, report)
    # The stubs leave out that a fetcher may say "unchanged".
    fetch = cast("Callable[[], grpc.ServerCertificateConfiguration]", source.fetch)
    return grpc.dynamic_ssl_server_credentials(
        source.load(),
        fetch,
        require_client_authentication=files.client_authorities is not None,
    )
