"""Calculates the write sets of entries, and what the answers of some bookies prove."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quorums:
    """The sizes of a ledger's quorums: ``ensemble`` bookies have the ledger, ``write`` of them get
    each entry, and ``ack`` must confirm it."""

    ensemble: int
    write: int
    ack: int

    def __post_init__(self) -> None:
        if not self.ensemble >= self.write >= self.ack >= 1:
            raise ValueError(f"quorums of {self.ensemble}, {self.write} and {self.ack} bookies")

    def narrowed(self, count: int) -> Quorums:
        """Return these quorums on at most ``count`` bookies, with the same ack quorum."""
        return Quorums(min(self.ensemble, count), min(self.write, count), self.ack)

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """Return the indices of the bookies that have an entry, in the order for reads."""
        size = self.ensemble
        return tuple((entry_id + i) % size for i in range(self.write))

    def is_covered(self, unknown: AbstractSet[int]) -> bool:
        """Return whether the bookies with the indices in ``unknown`` cannot confirm an entry by
        themselves.

        Then each write set has fewer than ``ack`` of them. So each confirmed entry is on one of the
        other bookies, and an entry that is sent now needs one of the others.
        """
        return all(
            len(unknown & set(self.write_set(start))) < self.ack for start in range(self.ensemble)
        )

    def proves_absence(self, absent_count: int) -> bool:
        """Return whether an entry cannot have been confirmed if this many bookies of its write set
        lack it."""
        return absent_count > self.write - self.ack
