"""Fixtures for tests of the client: an open ledger on three bookies, two of which confirm, and
connections of both kinds."""

from __future__ import annotations

import pytest
import trio

from bookkeeper_client.connections.transports import OpenTransport
from bookkeeper_client.metadata import LedgerMetadata, Segment, State
from bookkeeper_client.quorums import Quorums
from bookkeeper_client.wire.entry_format import DigestType, EntryFormat
from segstore.runtime.reactor import current_reactor
from segstore.tiers.bookkeeper.transports import make_opener

BOOKIES = ("a", "b", "c")
ENTRIES = EntryFormat(7, DigestType.CRC32C, b"")
OPEN = LedgerMetadata(
    quorums=Quorums(3, 3, 2),
    state=State.OPEN,
    segments=(Segment(0, BOOKIES),),
    digest_type=DigestType.CRC32C,
    password=b"",
    custom={},
)


@pytest.fixture(params=["in tasks", "in steps"])
async def open_transport(request: pytest.FixtureRequest, nursery: trio.Nursery) -> OpenTransport:
    """Opens connections that tasks send to and receive from, or the reactor's steps."""
    if request.param == "in steps":
        await nursery.start(current_reactor().run)
    return make_opener(trio.open_tcp_stream)
