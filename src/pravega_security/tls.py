"""The certificates of servers, and the contexts of TLS for both sides of a connection.

Owns: ``TlsSettings``, ``ServerCertificate`` with the reloading of its files, and
``client_context``.

A certificate is renewed by replacing its files. ``ServerCertificate`` looks at them when it is
used, at most once in ``LOOK_SECONDS``; what is connected stays connected. Certificate and key are
read once, checked together, and handed to OpenSSL from memory, so that a half of one pair is never
used with a half of another.

Invariants:
1. When the files of a server are replaced by another pair, connections from then on get the new
   certificate. Held by ``test_a_new_pair_is_used_from_the_next_look_on``.
2. When the files are broken, missing, or do not belong together, a running server keeps the pair
   that it has, and logs so once for each state of the files. Held by
   ``test_a_broken_pair_leaves_the_old_one_in_use``.
3. When a server starts with files that it cannot use, it gets a ``CertificateError`` that names
   the file and the reason. Held by ``test_a_useless_pair_is_refused_with_the_file_and_the_reason``.
4. When a peer offers a version before TLS 1.2, there is no connection. Held by
   ``test_versions_before_the_first_allowed_one_are_refused``.
"""

from __future__ import annotations

import os
import ssl
import stat
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

if TYPE_CHECKING:  # it takes long to import, and servers without TLS never need it
    from cryptography.x509 import Certificate

VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
"""The versions that are spoken, by the original's names for them."""
LOOK_SECONDS: Final = 1.0
"""Minimum time, in seconds, between two looks at the files of a certificate."""
WARNING_DAYS: Final = 30
"""Number of days before the end of a certificate from which on it is warned of."""
WARNING_SECONDS: Final = 86_400.0
"""Interval, in seconds, of the warnings."""
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""The ciphers of TLS 1.2: those that authenticate, with keys that do not outlive a connection."""

logger = structlog.get_logger(__name__)


class CertificateError(Exception):
    """A file with a certificate or a key cannot be used; one sentence names it and the reason."""


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of TLS on the port of a server."""

    certificate: Path
    """File with the certificate of the server and those that lead to its CA, as PEM. It is read
    again when it changes."""
    key: Path
    """File with the private key of the certificate, as PEM and not encrypted. It is read again when
    it changes."""
    client_ca: Path | None = None
    """File with the certificates of CAs, as PEM: clients need a certificate of one of them. Clients
    need none when it is None."""
    versions: tuple[str, ...] = VERSIONS
    """Versions of TLS that are spoken: `TLSv1.2`, `TLSv1.3` or both."""

    def __post_init__(self) -> None:
        """Refuse, with a ``ValueError``, versions that are not spoken."""
        check_versions(self.versions)


def read_versions(text: str) -> tuple[str, ...]:
    """Return the versions of a list with commas, as the original's properties have it. Raises
    ``ValueError``."""
    versions = tuple(text.split(","))
    check_versions(versions)
    return versions


def check_versions(versions: Sequence[str]) -> None:
    """Raise ``ValueError`` for a version that is not spoken, or for none at all."""
    for each in versions:
        if each not in VERSIONS:
            raise ValueError(f"{each!r} is no version of TLS: {' or '.join(VERSIONS)}")
    if not versions:
        raise ValueError(f"at least one version of TLS is needed: {' or '.join(VERSIONS)}")


@dataclass(frozen=True, slots=True)
class _Pair:
    """A certificate that is in use."""

    key: bytes = field(repr=False)
    chain: bytes
    context: ssl.SSLContext
    names: str
    expires: datetime


class ServerCertificate:
    """The certificate of a server, renewed when its files change. For any thread.

    Raises ``CertificateError`` when it cannot be used. ``now`` returns the time of day, ``clock``
    one that never goes back, in seconds.
    """

    def __init__(
        self,
        settings: TlsSettings,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._now = now
        self._clock = clock
        self._lock = threading.Lock()
        self._files = [settings.certificate, settings.key]
        if settings.client_ca is not None:
            self._files.append(settings.client_ca)
        self._state = self._look_at_files()
        self._pair = _read_pair(settings, now())
        self._log_pair("certificate in use")
        self._warn_of_readers()
        self._next_look = clock() + LOOK_SECONDS
        self._next_warning = clock()
        self._warn()

    def server_context(self) -> ssl.SSLContext:
        """Return the context for the next connection."""
        return self._current().context

    def pem(self) -> tuple[bytes, bytes]:
        """Return the private key and the chain of certificates, both as PEM."""
        pair = self._current()
        return pair.key, pair.chain

    def end_time(self) -> float:
        """Return when the certificate for the next connection ends, in seconds since 1970."""
        return self._current().expires.timestamp()

    def client_ca_pem(self) -> bytes | None:
        """Return the certificates of the CAs of clients, as PEM; None if clients need none."""
        path = self._settings.client_ca
        return None if path is None else _read_file(path)

    def refresh(self) -> None:
        """Look at the files now, use what is new, and warn of the end of the certificate."""
        with self._lock:
            self._refresh()

    def _current(self) -> _Pair:
        with self._lock:
            if self._clock() >= self._next_look:
                self._refresh()
            return self._pair

    def _refresh(self) -> None:
        self._next_look = self._clock() + LOOK_SECONDS
        state = self._look_at_files()
        if state != self._state:
            self._state = state
            try:
                self._pair = _read_pair(self._settings, self._now())
            except CertificateError as error:
                logger.error("certificate not renewed, the old one stays", reason=str(error))
            else:
                self._log_pair("certificate renewed")
                self._warn_of_readers()
                self._next_warning = self._clock()
        self._warn()

    def _warn_of_readers(self) -> None:
        path = self._settings.key
        with suppress(OSError):
            if path.stat().st_mode & stat.S_IROTH:
                logger.warning("others can read a private key: chmod 600 ends it", file=str(path))

    def _look_at_files(self) -> list[tuple[int, ...]]:
        """Return what changes when a file is replaced or written."""
        state: list[tuple[int, ...]] = []
        for path in self._files:
            try:
                found = path.stat()
            except OSError as error:
                state.append((error.errno or 0,))
            else:
                state.append((found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns))
        return state

    def _log_pair(self, event: str) -> None:
        logger.info(
            event,
            file=str(self._settings.certificate),
            names=self._pair.names,
            until=self._pair.expires.isoformat(),
        )

    def _warn(self) -> None:
        """Warn, once a day, of a certificate that ends soon."""
        if self._clock() < self._next_warning:
            return
        self._next_warning = self._clock() + WARNING_SECONDS
        days = (self._pair.expires - self._now()).total_seconds() / 86_400
        if days < WARNING_DAYS:
            logger.warning(
                "certificate expires soon" if days > 0 else "certificate has expired",
                file=str(self._settings.certificate),
                until=self._pair.expires.isoformat(),
                days=round(days, 1),
            )


def client_context(
    ca: Path | None,
    *,
    check_hostname: bool,
    certificate: Path | None = None,
    key: Path | None = None,
) -> ssl.SSLContext:
    """Return a context for clients, which trust the CAs in the file ``ca``, as PEM, else those of
    the system. ``certificate`` and ``key`` are for servers that ask clients for one.

    Raises ``CertificateError``.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = check_hostname
    if ca is None:
        context.load_default_certs()
    else:
        _trust(context, ca, _read_file(ca))
    if certificate is not None:
        chain = _read_file(certificate)
        _parse_chain(certificate, chain)
        key_path = certificate if key is None else key
        _load_pair(context, certificate, chain, key_path, _read_file(key_path))
    return context


def _read_pair(settings: TlsSettings, now: datetime) -> _Pair:
    """Read and check the files of a server. Raises ``CertificateError``."""
    chain, key = _read_file(settings.certificate), _read_file(settings.key)
    certificates = _parse_chain(settings.certificate, chain)
    own = certificates[0]
    for each in certificates:
        if each.not_valid_after_utc <= now:
            raise CertificateError(
                f"{settings.certificate} cannot be used: the certificate of {_names_of(each)}"
                f" expired at {each.not_valid_after_utc.isoformat()}"
            )
    if own.not_valid_before_utc > now:
        raise CertificateError(
            f"{settings.certificate} cannot be used: the certificate of {_names_of(own)} is not"
            f" valid before {own.not_valid_before_utc.isoformat()}"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _version(min(settings.versions))
    context.maximum_version = _version(max(settings.versions))
    context.set_ciphers(CIPHERS)
    # Connections last long: to resume one saves nothing, and tickets would outlive a certificate.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0
    _load_pair(context, settings.certificate, chain, settings.key, key)
    if settings.client_ca is not None:
        _trust(context, settings.client_ca, _read_file(settings.client_ca))
        context.verify_mode = ssl.CERT_REQUIRED
    return _Pair(key, chain, context, _names_of(own), own.not_valid_after_utc)


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise CertificateError(f"{path} cannot be used: there is no such file") from error
    except OSError as error:
        raise CertificateError(f"{path} cannot be used: {error.strerror}") from error


def _parse_chain(path: Path, chain: bytes) -> list[Certificate]:
    from cryptography.x509 import load_pem_x509_certificates

    if b"-----BEGIN" not in chain:
        raise CertificateError(f"{path} cannot be used: it is not PEM")
    try:
        return load_pem_x509_certificates(chain)
    except ValueError as error:
        raise CertificateError(f"{path} cannot be used: it has no certificate as PEM") from error


def _load_pair(
    context: ssl.SSLContext, certificate: Path, chain: bytes, key_path: Path, key: bytes
) -> None:
    """Load a certificate and its key from memory: the files may change meanwhile."""
    _check_key(key_path, key)
    with _InMemoryFile(chain) as chain_file, _InMemoryFile(key) as key_file:
        try:
            context.load_cert_chain(chain_file.name, key_file.name)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise CertificateError(
                    f"{key_path} cannot be used: it is not the key of the certificate in"
                    f" {certificate}"
                ) from None
            reason = _words_of(error)
            raise CertificateError(
                f"{certificate} and {key_path} cannot be used: {reason}"
            ) from None


def _check_key(path: Path, key: bytes) -> None:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if b"-----BEGIN" not in key:
        raise CertificateError(f"{path} cannot be used: it is not PEM")
    try:
        load_pem_private_key(key, None)
    except TypeError:
        raise CertificateError(
            f"{path} cannot be used: the key is encrypted, and there is no password for it"
        ) from None
    # Do not chain the cause: these errors may quote the file.
    except (ValueError, UnsupportedAlgorithm):
        raise CertificateError(f"{path} cannot be used: it has no private key as PEM") from None


def _trust(context: ssl.SSLContext, path: Path, certificates: bytes) -> None:
    _parse_chain(path, certificates)
    try:
        context.load_verify_locations(cadata=certificates.decode("ascii", "replace"))
    except ssl.SSLError as error:
        raise CertificateError(f"{path} cannot be used: {_words_of(error)}") from None


class _InMemoryFile:
    """Bytes that have a path, and are on no disk."""

    def __init__(self, data: bytes) -> None:
        self._descriptor = os.memfd_create("tls")
        self.name = f"/proc/self/fd/{self._descriptor}"
        with open(self._descriptor, "wb", closefd=False) as file:
            file.write(data)

    def __enter__(self) -> _InMemoryFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _version(name: str) -> ssl.TLSVersion:
    return ssl.TLSVersion.TLSv1_2 if name == "TLSv1.2" else ssl.TLSVersion.TLSv1_3


def _names_of(certificate: Certificate) -> str:
    """Return the hosts that a certificate is for, else its subject."""
    from cryptography.x509 import (
        DNSName,
        ExtensionNotFound,
        IPAddress,
        SubjectAlternativeName,
    )

    try:
        found = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    except (ExtensionNotFound, ValueError):
        return certificate.subject.rfc4514_string()
    names = found.get_values_for_type(DNSName)
    addresses = found.get_values_for_type(IPAddress)
    return ", ".join([*names, *map(str, addresses)]) or certificate.subject.rfc4514_string()


def _words_of(error: ssl.SSLError) -> str:
    """Return the reason of an error of OpenSSL in words."""
    return (error.reason or str(error)).replace("_", " ").lower()
