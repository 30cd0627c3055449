"""Declares the effects that the state machines of this package request from their owners.

A machine never waits and uses neither network nor clock. It adds effects to ``effects``. After each
call of a machine its owner removes them, executes them in order, and reports the outcome:

    SendAdd, SendRead   ``on_added``, ``on_read`` with the bookie's code, or with None when no
                        answer came: the connection failed, or the time has expired
    StoreMetadata       ``on_stored`` with the new version, else ``on_store_doubtful``
    FetchMetadata       ``on_fetched``
    FindBookies         ``on_bookies_found`` with the bookies that accept writes now, in the order
                        of preference; called again from time to time while ``wants_bookies``

A report that comes late or twice has no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bookkeeper_client.metadata import LedgerMetadata
from bookkeeper_client.wire.protocol import Buffer


@dataclass(frozen=True, slots=True)
class SendAdd:
    """Send an entry to a bookie."""

    bookie: str
    entry_id: int
    entry: Sequence[Buffer]
    is_recovery: bool = False


@dataclass(frozen=True, slots=True)
class SendRead:
    """Ask a bookie for an entry."""

    bookie: str
    entry_id: int
    is_fencing: bool = False


@dataclass(frozen=True, slots=True)
class StoreMetadata:
    """Write the ledger's metadata if the stored ones have this version.

    If the outcome is uncertain or the version differs, ``on_store_doubtful`` is called.
    """

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class FetchMetadata:
    """Read the ledger's metadata, and retry until that succeeds."""


@dataclass(frozen=True, slots=True)
class FindBookies:
    """Find the bookies that accept writes."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Report that all entries up to this one are durable."""

    entry_id: int


@dataclass(frozen=True, slots=True)
class Closed:
    """Report that the ledger is closed, with these metadata."""

    metadata: LedgerMetadata


@dataclass(frozen=True, slots=True)
class Failed:
    """Report that the machine has ended with an error. The ledger may have unconfirmed entries or
    not."""

    error: Exception


Effect: TypeAlias = (
    SendAdd | SendRead | StoreMetadata | FetchMetadata | FindBookies | Confirmed | Closed | Failed
)
