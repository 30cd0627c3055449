"""Which bookies of an ensemble an entry goes to, and what may be concluded from some of them."""

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
        """The same on at most ``count`` bookies, which are enough to confirm an entry: as many as
        before confirm one."""
        return Quorums(min(self.ensemble, count), min(self.write, count), self.ack)

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """The indices of the bookies that an entry goes to, in the order in which to read."""
        size = self.ensemble
        return tuple((entry_id + i) % size for i in range(self.write))

    def is_covered(self, unknown: AbstractSet[int]) -> bool:
        """Whether no entry can be confirmed any more by the bookies nothing is known of alone.

        Of no write set may as many be unknown as confirm an entry: so each entry that was
        confirmed is at one of the others, and each one that is sent now is refused there.
        """
        return all(
            len(unknown & set(self.write_set(start))) < self.ack for start in range(self.ensemble)
        )

    def proves_absence(self, absent_count: int) -> bool:
        """Whether an entry was never confirmed, given how many bookies of its write set lack it."""
        return absent_count > self.write - self.ack
