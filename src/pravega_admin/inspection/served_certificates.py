"""Certificates that servers show: any port that speaks TLS, gRPC's or a segment store's.

Owns: ``fetch_certificate`` and ``check_certificate``. Each connects, and ends the connection after
the handshake, without a request.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from segstore_client.errors import UnavailableError, UsageError


def fetch_certificate(host: str, port: int, *, seconds_max: float) -> bytes:
    """Return the certificate that a server shows, in DER, without a check.

    Raises ``UnavailableError`` if it does not answer, or not in TLS.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    shown = _shake_hands(context, host, port, seconds_max)
    if shown is None:
        raise UnavailableError(f"{host}:{port} shows no certificate")
    return shown


def check_certificate(host: str, port: int, ca: Path | None, *, seconds_max: float) -> str:
    """Return why a client that trusts ``ca`` (the system's if None) would refuse the server; empty
    if it would not.

    Raises ``UnavailableError`` if it does not answer, ``UsageError`` if the CA cannot be read.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise UsageError(f"{ca} has no certificates in PEM: {error.strerror or error}") from error
    try:
        _shake_hands(context, host, port, seconds_max)
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    return ""


def _shake_hands(context: ssl.SSLContext, host: str, port: int, seconds_max: float) -> bytes | None:
    # gRPC ends a handshake without it.
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), seconds_max) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            return secure.getpeercert(binary_form=True)
    except ssl.SSLCertVerificationError:
        raise
    except (ssl.SSLError, ConnectionResetError, TimeoutError) as error:
        reason = getattr(error, "reason", None) or "no answer"
        raise UnavailableError(
            f"{host}:{port} does not answer in TLS ({reason}); it may serve without TLS"
        ) from error
    except OSError as error:
        raise UnavailableError(f"{host}:{port} cannot be reached: {error.strerror}") from error
