"""The write sets of entries in an ensemble, and the conclusions from a part of an ensemble."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quorums:
    """``ensemble`` bookies: each entry goes to ``write`` of them, ``ack`` of which confirm it."""

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
        """Return whether the unknown bookies alone can no longer confirm an entry.

        Then no write set has an ack quorum of unknown bookies. So each confirmed entry is on one of
        the other bookies, and each entry that is sent now is refused by one of them.
        """
        return all(
            len(unknown & set(self.write_set(start))) < self.ack for start in range(self.ensemble)
        )

    def proves_absence(self, absent_count: int) -> bool:
        """Return whether so many bookies lack an entry that it cannot have been confirmed."""
        return absent_count > self.write - self.ack
