"""Connects to bookies: where the reactor runs, it sends and receives in its steps.

An entry passes from a client's socket to the bookies, and their answers to the client's socket,
without a task that has to be resumed for it.
"""

from __future__ import annotations

import trio

from bookkeeper_client.transports import (
    RECEIVE_BYTES,
    OpenTransport,
    StreamTransport,
    Transport,
)
from segstore.runtime.reactor import current_reactor
from segstore.runtime.transport import OpenStream, ReceiveBuffer, SocketTransport


def make_opener(open_stream: OpenStream) -> OpenTransport:
    """Return what connects to bookies. A reactor that runs when a connection is opened has to run
    until it is closed."""
    reactor = current_reactor()
    buffer = ReceiveBuffer(RECEIVE_BYTES)

    async def open_transport(host: str, port: int) -> Transport:
        stream = await open_stream(host, port)
        if reactor.is_running and isinstance(stream, trio.SocketStream):
            return SocketTransport(stream, buffer, reactor)
        return StreamTransport(stream)

    return open_transport
