"""The certificate of the gRPC port, which is replaced without a restart.

Owns: ``PortCertificate``: gRPC's credentials of a server, made of files.

gRPC asks for the certificate before each handshake. The answer costs a look at the files at most;
what has not changed is not read. Existing connections continue with the certificate that they began
with.

Invariants:
1. When the files are replaced, the next connection gets the new certificate, and existing
   connections continue. Held by ``test_a_new_certificate_is_shown_to_new_connections_alone``.
2. When the new files cannot be used, the previous certificate stays in use. Held by
   ``test_files_that_do_not_belong_together_change_nothing``.
3. With ``client_ca`` a client without a certificate of it gets no answer. Held by
   ``test_a_client_needs_a_certificate_if_its_ca_is_named``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import grpc
import structlog
import trio

from pravega_controller.config import ConfigurationError
from pravega_metrics.process_metrics import watch_certificate
from pravega_security.certificates import describe_chain
from pravega_security.tls import CertificateError, ServerCertificate, TlsSettings

LOOK_SECONDS: Final = 3600.0
"""Interval, in seconds, between two looks at the files, and at how long the certificate is valid,
while there are no new connections."""
VERSIONS: Final = frozenset({"TLSv1.2", "TLSv1.3"})

log = structlog.get_logger(__name__)


class PortCertificate:
    """The certificate and the key of a port, and the CA of its clients."""

    def __init__(self, settings: TlsSettings) -> None:
        """Read the files. Raises ``ConfigurationError`` with a sentence that names the file."""
        if set(settings.versions) != VERSIONS:
            raise ConfigurationError(
                "tls.versions of a controller have to be TLSv1.2 and TLSv1.3: gRPC always accepts"
                " both"
            )
        self._client_ca = settings.client_ca
        self._looked = _look_at(settings.client_ca)
        try:
            self.certificate = ServerCertificate(settings)
            self._clients = _read_clients(settings.client_ca)
        except CertificateError as error:
            raise ConfigurationError(f"TLS cannot be offered: {error}") from error
        self._used = self.certificate.pem()
        watch_certificate(self.certificate.end_time)

    def credentials(self) -> grpc.ServerCredentials:
        """Return what a gRPC server opens a port with."""
        # The stubs do not know that it takes a configuration as below.
        make: Any = grpc.dynamic_ssl_server_credentials
        made: grpc.ServerCredentials = make(
            self._configuration(),
            self._fetch,
            require_client_authentication=self._client_ca is not None,
        )
        return made

    async def watch(self) -> None:
        """Look at the files now and then, forever, so that the log warns before a certificate
        ends."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            await trio.to_thread.run_sync(self.certificate.refresh)

    def _fetch(self) -> Any:
        """Return gRPC's configuration if a file has changed, else None.

        gRPC calls this in its threads; an exception would end the connection.
        """
        try:
            pair, looked = self.certificate.pem(), _look_at(self._client_ca)
            if pair == self._used and looked == self._looked:
                return None
            if looked != self._looked:
                # Record this before the file is read, so that a broken file is reported once.
                self._looked = looked
                self._clients = _read_clients(self._client_ca)
            self._used = pair
            return self._configuration()
        except Exception as error:
            log.error("certificates not renewed, the old ones stay", reason=str(error))
            return None

    def _configuration(self) -> Any:
        make: Any = grpc.ssl_server_certificate_configuration
        return make([self._used], root_certificates=self._clients)


def _look_at(path: Path | None) -> tuple[int, ...] | None:
    """Return what changes when a file is replaced or written."""
    try:
        found = None if path is None else path.stat()
    except OSError:
        return None
    return None if found is None else (found.st_ino, found.st_mtime_ns, found.st_size)


def _read_clients(path: Path | None) -> bytes | None:
    """Return the certificates of the CA of clients. Raises ``CertificateError``."""
    if path is None:
        return None
    try:
        found = path.read_bytes()
    except OSError as error:
        raise CertificateError(f"{path} cannot be used: {error.strerror}") from error
    describe_chain(found, str(path))
    return found
