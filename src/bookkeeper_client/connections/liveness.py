"""Checks whether a bookie answers requests. An open port does not prove it, because the kernel
accepts connections for a process that hangs.

Owns: ``ask_bookie``, which reads an entry of a ledger that does not exist.
"""

from __future__ import annotations

from typing import Final

import trio

from bookkeeper_client.connections.transports import OpenTransport, open_tcp_transport
from bookkeeper_client.errors import BookKeeperError
from bookkeeper_client.wire.protocol import ReplyDecoder, encode_read

UNUSED_LEDGER: Final = 2**63 - 1
"""The id of a ledger that does not exist: ids are given in ascending order from 0."""


async def ask_bookie(
    host: str, port: int, *, open_transport: OpenTransport = open_tcp_transport
) -> None:
    """Return when the bookie has answered. Raises ``OSError`` or ``BookKeeperError`` if it cannot
    be reached or closes the connection. The caller limits the time."""
    transport = await open_transport(host, port)
    decoder = ReplyDecoder()
    try:
        await transport.send(encode_read(UNUSED_LEDGER, 0))
        while data := await transport.receive():
            if decoder.feed(data):
                return
    except trio.BrokenResourceError as error:
        raise BookKeeperError(f"the bookie at {host}:{port} hangs up") from error
    finally:
        await transport.aclose()
    raise BookKeeperError(f"the bookie at {host}:{port} hangs up")
