"""Opens connections to segment stores, with TLS or without, for tasks that do not block."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import ByteStream

from pravega_wire.blocking import ConnectionLostError
from pravega_wire.requests.store_connection import STREAM_ERRORS, StoreConnection
from segstore_client.access.tokens import StoreAccess, raise_if_untrusted

CONNECT_SECONDS = 10.0


@asynccontextmanager
async def open_connection(
    host: str, port: int, access: StoreAccess
) -> AsyncIterator[StoreConnection]:
    """Connect to a segment store, and greet it.

    Raises ``ConnectionLostError``, and ``UntrustedServerError`` when TLS forbids it.
    """
    async with await connect_stream(host, port, access) as stream:
        connection = StoreConnection(stream, f"{host}:{port}")
        await connection.greet()
        yield connection


async def connect_stream(host: str, port: int, access: StoreAccess) -> ByteStream:
    """Return a stream of bytes to a segment store. Raises errors as ``open_connection``."""
    try:
        with anyio.fail_after(CONNECT_SECONDS):
            context = access.make_context()
            if context is None:
                return await anyio.connect_tcp(host, port)
            return await anyio.connect_tcp(
                host, port, ssl_context=context, tls_standard_compatible=False
            )
    except (*STREAM_ERRORS, TimeoutError) as error:
        cause = error.__cause__ if isinstance(error.__cause__, ssl.SSLError) else error
        lost = ConnectionLostError(f"cannot connect to {host}:{port}: {error}")
        lost.__cause__ = cause
        raise_if_untrusted(lost, host, port, access.words)
        raise lost from cause
