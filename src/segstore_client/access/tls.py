"""TLS as clients use it: which servers to trust, and what is wrong when that fails.

Owns: ``ClientTls``, and the sentences about TLS. gRPC and sockets fail without a reason for users,
so ``find_tls_mistake`` connects once more and looks.

Invariants:
1. When a certificate is expired, for another host, or of an unknown authority, or a server speaks
   no TLS, the sentence tells which. Held by ``test_each_mistake_with_tls_has_its_own_sentence``.
2. When a server ends while a client looks, that is no mistake of TLS: the client may go on later.
   Held by ``test_a_server_that_ends_is_no_mistake``.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pravega_wire.blocking import is_segment_store
from segstore_client.access.words import ENVIRONMENT, AccessWords
from segstore_client.errors import UsageError

if TYPE_CHECKING:
    import ssl

    import grpc

# Some of the results of OpenSSL's verification, X509_V_ERR_...
_NOT_YET_VALID = 9
_EXPIRED = 10
_WRONG_HOST = (62, 64)
_SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)
LATE_SECONDS = 0.2
"""Maximum time, in seconds, in which a server says something after a handshake."""
_HTTP2_SETTINGS = b"\4"
"""The type of the frame with which a client and a server of HTTP/2 begin."""
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0" + _HTTP2_SETTINGS + bytes(5)
_NO_TLS_REASONS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")


@dataclass(frozen=True, slots=True)
class ClientTls:
    """The servers that a client trusts, and how it identifies itself. It can be pickled.

    ``ca`` is certificates in PEM form; None for the system's. ``certificate`` and ``key`` are the
    client's own, in PEM files, for servers that require one.
    """

    ca: bytes | None = field(default=None, repr=False)
    certificate: Path | None = None
    key: Path | None = None


def read_ca(path: Path) -> bytes:
    """Return the certificates of a PEM file, or of all in a directory. Raises ``UsageError``."""
    try:
        files = [path]
        if path.is_dir():
            files = [each for each in sorted(path.iterdir()) if each.suffix in (".pem", ".crt")]
        found = b"\n".join(each.read_bytes() for each in files)
    except OSError as error:
        raise UsageError(f"the CA file {path} cannot be read: {error.strerror}") from error
    if b"-----BEGIN CERTIFICATE-----" not in found:
        raise UsageError(f"the CA file {path} has no certificate in PEM form")
    return found


@lru_cache(maxsize=16)
def make_context(tls: ClientTls) -> ssl.SSLContext:
    """Return the context for sockets to servers. Raises ``UsageError`` for invalid files."""
    return _make_new_context(tls)


def _make_new_context(tls: ClientTls) -> ssl.SSLContext:
    import ssl

    try:
        cadata = None if tls.ca is None else tls.ca.decode("ascii", errors="replace")
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cadata=cadata)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
    except (OSError, ValueError) as error:
        raise UsageError(f"the certificates for TLS cannot be used: {error}") from error
    if tls.certificate is not None:
        try:
            context.load_cert_chain(tls.certificate, tls.key)
        except (OSError, ValueError) as error:
            raise UsageError(_describe_own_certificate(tls, error)) from error
    return context


def _describe_own_certificate(tls: ClientTls, error: Exception) -> str:
    """Return the sentence for a certificate of the client that cannot be used."""
    import ssl

    if not isinstance(error, ssl.SSLError):
        reason = error.strerror if isinstance(error, OSError) else str(error)
        files = tls.certificate if tls.key is None else f"{tls.certificate} or its key {tls.key}"
        return f"the client's certificate {files} cannot be read: {reason}"
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"{tls.key} is not the key of the client's certificate {tls.certificate}"
    if tls.key is None:
        return (
            f"{tls.certificate} has not both a client's certificate and its key in PEM form: name"
            " the key, such as by SEGSTORE_CLIENT_KEY"
        )
    return f"{tls.certificate} is no certificate, or {tls.key} no key, in PEM form"


def make_channel_credentials(tls: ClientTls) -> grpc.ChannelCredentials:
    """Return what gRPC needs for a channel with TLS. Raises ``UsageError`` for invalid files."""
    import grpc

    make_context(tls)  # gRPC does not tell what is wrong with a file
    try:
        chain = None if tls.certificate is None else tls.certificate.read_bytes()
        key = chain
        if tls.key is not None:
            key = tls.key.read_bytes()
    except OSError as error:
        raise UsageError(f"the client's certificate cannot be read: {error}") from error
    # Without roots, gRPC would trust a list of its own instead of the system's.
    roots = _system_roots() if tls.ca is None else tls.ca
    return grpc.ssl_channel_credentials(roots, key, chain)


def _system_roots() -> bytes | None:
    import ssl

    paths = ssl.get_default_verify_paths()
    for name in (paths.cafile, os.environ.get("SSL_CERT_FILE"), *_SYSTEM_BUNDLES):
        if name and Path(name).is_file():
            return Path(name).read_bytes()
    return None


def find_tls_mistake(
    host: str,
    port: int,
    tls: ClientTls,
    *,
    seconds_max: float,
    was_served: bool = False,
    words: AccessWords = ENVIRONMENT,
) -> str:
    """Connect with TLS, and return what is wrong, in words; "" if nothing is found.

    A server that does not answer at all is no mistake of TLS. Whether one that hangs up speaks no
    TLS is asked in the clear, without a word of the user's. ``was_served`` says that the client has
    had answers over TLS: then the server is ending, and nothing is asked.
    """
    found = _look_for_mistake(host, port, tls, seconds_max, words)
    if was_served and isinstance(found, _HangUp):
        return ""
    if found is _HangUp.IN_HANDSHAKE:
        is_plain = _answers_without_tls(host, port, seconds_max)
        return _describe_no_tls(host, port) if is_plain else ""
    if found is _HangUp.AFTER_HANDSHAKE:
        if _look_for_mistake(host, port, tls, seconds_max, words) is not _HangUp.AFTER_HANDSHAKE:
            return ""
        return f"{host}:{port} requires a certificate of the client, or is no controller"
    return found


class _HangUp(Enum):
    """The moment at which a server ended a connection without a reason.

    One that speaks no TLS, or requires a certificate, does so. A server that is ending does so,
    too, and a relay to a server that is not there.
    """

    IN_HANDSHAKE = auto()
    AFTER_HANDSHAKE = auto()


def _look_for_mistake(
    host: str, port: int, tls: ClientTls, seconds_max: float, words: AccessWords
) -> str | Literal[_HangUp.IN_HANDSHAKE, _HangUp.AFTER_HANDSHAKE]:
    import ssl

    try:
        with socket.create_connection((host, port), timeout=seconds_max) as plain:
            try:
                context = _make_new_context(tls)
                context.set_alpn_protocols(["h2"])  # without it, a controller hangs up
                with context.wrap_socket(plain, server_hostname=host) as secured:
                    mistake = _find_late_mistake(secured, host, port, words)
                    return "" if tls.certificate is not None else mistake
            except (ssl.SSLEOFError, ConnectionError):
                return _HangUp.IN_HANDSHAKE
            except ssl.SSLError as error:
                return describe_tls_error(error, host, port, words)
    except OSError:
        return ""


def _find_late_mistake(
    secured: ssl.SSLSocket, host: str, port: int, words: AccessWords
) -> str | Literal[_HangUp.AFTER_HANDSHAKE]:
    """Return what the server says after the handshake: it checks a client's certificate then."""
    import ssl

    try:
        # A controller says something at once, a segment store does not.
        secured.settimeout(LATE_SECONDS)
        if secured.recv(1):
            return ""
    except TimeoutError:
        return ""
    except (ssl.SSLEOFError, ConnectionError):
        pass
    except ssl.SSLError as error:
        return describe_tls_error(error, host, port, words)
    # The servers of gRPC hang up without a reason.
    return _HangUp.AFTER_HANDSHAKE


def _answers_without_tls(host: str, port: int, seconds_max: float) -> bool:
    """Return whether a controller or a segment store answers a client that speaks no TLS."""
    try:
        with socket.create_connection((host, port), timeout=seconds_max) as plain:
            plain.sendall(_HTTP2_PREFACE)
            if plain.recv(9)[3:4] == _HTTP2_SETTINGS:
                return True
    except OSError:
        pass
    return is_segment_store(host, port, seconds_max=seconds_max)


def speaks_tls(host: str, port: int, *, seconds_max: float) -> bool:
    """Return whether a server answers a TLS handshake, whatever its certificate is."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent on this connection
    try:
        with (
            socket.create_connection((host, port), timeout=seconds_max) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except OSError:
        return False


def describe_tls_error(error: ssl.SSLError, host: str, port: int, words: AccessWords) -> str:
    """Return the sentence for a handshake that failed."""
    import ssl

    where = f"{host}:{port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        code = error.verify_code
        if code == _EXPIRED:
            return f"the certificate of {where} has expired: renew it on the server"
        if code == _NOT_YET_VALID:
            return f"the certificate of {where} is not valid yet: compare the clocks"
        if code in _WRONG_HOST:
            return (
                f"the certificate of {where} is not for the name {host}: connect by a name that"
                " the certificate has, or make one for this name"
            )
        return (
            f"the certificate of {where} is not from an authority that this client trusts"
            f" ({error.verify_message}): {words.ca_advice}"
        )
    if "REQUIRED" in (error.reason or "") and "CERT" in (error.reason or ""):
        return f"{where} requires a certificate of the client"
    if error.reason in _NO_TLS_REASONS:
        return _describe_no_tls(host, port)
    return f"no TLS connection with {where}: {error.reason or error}"


def _describe_no_tls(host: str, port: int) -> str:
    return f"{host}:{port} speaks no TLS: say tcp:// instead of tls://"
