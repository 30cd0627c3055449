"""The ledger that tests of the client begin with: open, on three bookies, two of which confirm."""

from __future__ import annotations

from bookkeeper_client.entry_format import DigestType, EntryFormat
from bookkeeper_client.metadata import LedgerMetadata, Segment, State
from bookkeeper_client.quorums import Quorums

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
