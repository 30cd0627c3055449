"""Orders bookies so that a ledger is spread over many racks.

Owns: ``Racks``. All bookies whose rack is unknown count as one rack.

Invariants:
1. When bookies are in several racks, the first ones in the order are in as many racks as possible.
   Held by ``test_the_first_bookies_are_in_as_many_racks_as_possible``.
2. When all bookies are in one rack, or no rack is known, all of them are returned all the same.
   Held by ``test_bookies_of_one_rack_and_of_none_are_taken_all_the_same``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence


class Racks:
    """The names of racks, by the ids of bookies, or by the hosts in ids like ``host:port``."""

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self._names = names or {}

    def of(self, bookie: str) -> str:
        """Return the rack of a bookie; an empty text if it is not known."""
        found = self._names.get(bookie)
        return self._names.get(bookie.rpartition(":")[0], "") if found is None else found

    def spread(
        self,
        bookies: Sequence[str],
        beside: Collection[str] = (),
        instead_of: Collection[str] = (),
    ) -> list[str]:
        """Return the bookies in an order whose first ones, together with those in ``beside``, are
        in as many racks as possible. Bookies in ``beside`` or ``instead_of`` come last. Otherwise
        the order stays."""
        if not self._names:
            return list(bookies)
        taken = Counter(self.of(bookie) for bookie in beside)
        placed = {*beside, *instead_of}
        left = [bookie for bookie in bookies if bookie not in placed]
        ordered: list[str] = []
        while left:
            best = min(left, key=lambda bookie: taken[self.of(bookie)])
            left.remove(best)
            ordered.append(best)
            taken[self.of(best)] += 1
        return ordered + [bookie for bookie in bookies if bookie in placed]
