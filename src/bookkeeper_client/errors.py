"""Declares the errors of this package, by what the caller can do about them."""

from __future__ import annotations


class BookKeeperError(Exception):
    """The base class of all errors of this package."""


class BookieProtocolError(BookKeeperError):
    """Raised when a bookie sends bytes that the protocol does not allow. Its connection is
    closed."""


class DigestMismatchError(BookKeeperError):
    """Raised when a copy of an entry is damaged. Another bookie may have a good one."""


class MetadataError(BookKeeperError):
    """Raised when a ledger's metadata are damaged or contradict themselves."""


class UnauthorizedError(BookKeeperError):
    """Raised when the ledger has another password."""


class NoSuchLedgerError(BookKeeperError):
    """Raised when ZooKeeper has no metadata of the ledger, because it was deleted or never made."""


class FencedError(BookKeeperError):
    """Raised when another client recovers or has recovered the ledger, so that this one may not
    write any more."""


class ClosedError(BookKeeperError):
    """Raised when this client has closed the ledger."""


class NotEnoughBookiesError(BookKeeperError):
    """Raised when fewer bookies answer than a quorum needs. A later attempt may succeed."""


class UnreadableEntryError(BookKeeperError):
    """Raised when no reachable bookie has an undamaged copy of an entry. Others may have one."""


class NoSuchEntryError(BookKeeperError):
    """Raised when all bookies that should have the entry report that they lack it."""
