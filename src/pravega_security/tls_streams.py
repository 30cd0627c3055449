"""Opens streams of trio that speak TLS, for clients of segment stores.

Owns: ``open_tls_with``.

Invariants:
1. When the peer cannot prove that it is the host that was asked for, there is no stream, and the
   error says why in one sentence. Held by ``test_a_peer_that_proves_nothing_gets_no_stream``.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import trio

OpenStream: TypeAlias = Callable[[str, int], Awaitable[trio.abc.Stream]]
"""Opens a byte stream to a host and port, as ``trio.open_tcp_stream`` does. Raises ``OSError``."""

HANDSHAKE_SECONDS_MAX = 10.0
"""Maximum time, in seconds, of a handshake."""


class TlsRefusedError(ConnectionError):
    """The peer speaks no TLS, or does not prove who it is; one sentence says which."""


def open_tls_with(
    context: ssl.SSLContext, open_stream: OpenStream = trio.open_tcp_stream
) -> OpenStream:
    """Return a function that opens a stream with ``open_stream``, and speaks TLS on it.

    That function raises ``TlsRefusedError``, and the errors of ``open_stream``.
    """

    async def open_tls(host: str, port: int) -> trio.abc.Stream:
        stream = trio.SSLStream(
            await open_stream(host, port), context, server_hostname=host, https_compatible=True
        )
        try:
            with trio.fail_after(HANDSHAKE_SECONDS_MAX):
                await stream.do_handshake()
        except BaseException as error:
            await trio.aclose_forcefully(stream)
            if isinstance(error, trio.BrokenResourceError | trio.TooSlowError):
                raise TlsRefusedError(f"no TLS with {host}:{port}: {_reason_of(error)}") from error
            raise
        return stream

    return open_tls


def _reason_of(error: BaseException) -> str:
    cause = error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate was not accepted: {cause.verify_message}"
    if isinstance(error, trio.TooSlowError):
        return f"the handshake took longer than {HANDSHAKE_SECONDS_MAX} s"
    if isinstance(cause, ssl.SSLError):
        if cause.reason == "WRONG_VERSION_NUMBER":
            return "it does not speak TLS"
        return (cause.reason or str(cause)).replace("_", " ").lower()
    return "it ended the connection"
