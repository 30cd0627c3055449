"""Connects to bookies, with or without TLS. While the reactor runs, its steps send and receive on
these connections.

So an entry goes from a client's socket to the bookies, and their answers to the client's socket,
and no task has to be resumed for it.

Invariants:
1. When a bookie has no TLS, or does not prove to be the host that is dialled, no request is sent to
   it, and the error says why. Held by ``test_a_bookie_that_cannot_be_trusted_gets_no_request``.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

import trio

from bookkeeper_client.connections.transports import (
    RECEIVE_BYTES,
    OpenTransport,
    StreamTransport,
    Transport,
    request_tls,
)
from bookkeeper_client.errors import BookKeeperError
from pravega_security.tls import CertificateError
from segstore.runtime.reactor import current_reactor
from segstore.runtime.transport import OpenStream, ReceiveBuffer, SocketTransport
from segstore.tls.transport import PlainBuffer, TlsRefusedError, TlsTransport


def make_opener(
    open_stream: OpenStream, make_context: Callable[[], ssl.SSLContext] | None = None
) -> OpenTransport:
    """Return a function that connects to bookies. If the reactor runs when a connection is opened,
    it must run until the connection is closed.

    With ``make_context``, which is called in a thread for each connection and may raise
    ``CertificateError``, connections speak TLS. They need the reactor.
    """
    reactor = current_reactor()
    buffer = ReceiveBuffer(RECEIVE_BYTES)
    if make_context is not None:
        return _make_tls_opener(open_stream, make_context, buffer)

    async def open_transport(host: str, port: int) -> Transport:
        stream = await open_stream(host, port)
        if reactor.is_running and isinstance(stream, trio.SocketStream):
            return SocketTransport(stream, buffer, reactor)
        return StreamTransport(stream)

    return open_transport


def _make_tls_opener(
    open_stream: OpenStream, make_context: Callable[[], ssl.SSLContext], buffer: ReceiveBuffer
) -> OpenTransport:
    plain = PlainBuffer(RECEIVE_BYTES)
    threads = trio.CapacityLimiter(1)

    async def open_transport(host: str, port: int) -> Transport:
        try:
            context = await trio.to_thread.run_sync(make_context)
        except CertificateError as error:
            raise BookKeeperError(str(error)) from error
        stream = await open_stream(host, port)
        assert isinstance(stream, trio.SocketStream)
        transport: TlsTransport | None = None
        try:
            await request_tls(stream)
            transport = TlsTransport(
                stream, context, buffer, plain, current_reactor(), server_hostname=host
            )
            await transport.handshake(threads)
        except BaseException as error:
            await (stream if transport is None else transport).aclose()
            if isinstance(error, TlsRefusedError):
                raise BookKeeperError(
                    f"no TLS with the bookie at {host}:{port}: {error}"
                ) from error
            raise
        return transport

    return open_transport
