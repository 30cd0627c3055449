"""The state of one container's log in the journal.

Owns: ``LogState``. The event loop's thread alone uses it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from _fast.log.journal import EntryIndex
from segstore.tiers.journal.byte_count import ByteCount


@dataclass(slots=True)
class LogState:
    """The state of one container's log in memory."""

    epoch: int = 0
    first_position: int = 1
    next_position: int = 1
    durable_position: int = 0
    """Position of the last durable entry."""
    byte_count: ByteCount = field(default_factory=ByteCount)
    indexes: dict[int, EntryIndex] | None = None
    """The places of the entries that the recovery found, by file generation; None after the first
    append, when they are incomplete."""
    digests: dict[int, list[bytes | None]] = field(default_factory=dict)
    """The digests of those entries, by file generation, until a reader takes them."""

    def truncate(self, position: int) -> None:
        """Forget the entries before ``position``."""
        self.first_position = max(self.first_position, position)
        self.byte_count.truncate(self.first_position, end=self.next_position)
