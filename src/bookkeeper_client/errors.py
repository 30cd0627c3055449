"""The errors between a client and its bookies, by what the caller can do about them."""

from __future__ import annotations


class BookKeeperError(Exception):
    """The client failed."""


class BookieProtocolError(BookKeeperError):
    """A bookie sent bytes that the protocol does not allow: its connection is unusable."""


class DigestMismatchError(BookKeeperError):
    """A copy of an entry is not what was written. Another bookie may have a sound one."""


class MetadataError(BookKeeperError):
    """A ledger's metadata cannot be read, or contradict themselves."""


class UnauthorizedError(BookKeeperError):
    """The ledger has another password."""


class NoSuchLedgerError(BookKeeperError):
    """ZooKeeper has no metadata of the ledger: it was deleted, or never made."""


class FencedError(BookKeeperError):
    """Another client recovers the ledger, or has done so: this writer is no longer its owner."""


class ClosedError(BookKeeperError):
    """The ledger takes no more entries from this writer."""


class NotEnoughBookiesError(BookKeeperError):
    """Fewer bookies answer than a quorum needs; a later attempt may succeed."""


class UnreadableEntryError(BookKeeperError):
    """No reachable bookie has a sound copy, which does not prove that there is none."""


class NoSuchEntryError(BookKeeperError):
    """Every bookie that should have the entry reports that it does not."""
