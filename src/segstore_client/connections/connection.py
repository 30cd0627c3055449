"""Opens connections to segment stores, with TLS or without, for tasks that do not block."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import anyio
from anyio.streams.tls import TLSStream

from pravega_wire.blocking import ConnectionLostError
from pravega_wire.requests.store_connection import (
    RECEIVE_BYTES,
    STREAM_ERRORS,
    StoreConnection,
)
from segstore_client.access.tokens import StoreAccess, raise_if_untrusted
from segstore_client.connections.socket_stream import SocketStream, connect_socket

CONNECT_SECONDS = 10.0


@asynccontextmanager
async def open_connection(
    host: str, port: int, access: StoreAccess, *, receive_bytes: int = RECEIVE_BYTES
) -> AsyncIterator[StoreConnection]:
    """Connect to a segment store, and greet it. At most so many bytes are received at once.

    Raises ``ConnectionLostError``, and ``UntrustedServerError`` when TLS forbids it.
    """
    async with aclosing(await connect_stream(host, port, access)) as stream:
        connection = StoreConnection(stream, f"{host}:{port}", receive_bytes=receive_bytes)
        await connection.greet()
        yield connection


async def connect_stream(host: str, port: int, access: StoreAccess) -> SocketStream | TLSStream:
    """Return a stream of bytes to a segment store. Raises errors as ``open_connection``."""
    try:
        context = access.make_context()
        with anyio.fail_after(CONNECT_SECONDS):
            if context is None:
                return await connect_socket(host, port, seconds_max=CONNECT_SECONDS)
            return await anyio.connect_tcp(
                host, port, ssl_context=context, tls_standard_compatible=False
            )
    except (*STREAM_ERRORS, TimeoutError) as error:
        cause = error.__cause__ if isinstance(error.__cause__, ssl.SSLError) else error
        lost = ConnectionLostError(f"cannot connect to {host}:{port}: {error}")
        lost.__cause__ = cause
        raise_if_untrusted(lost, host, port, access.words)
        raise lost from cause
