"""Spreads a ledger over racks, as far as bookies' racks are known.

Owns: ``Racks``.

Invariants:
1. Racks are a preference: they change the order in which bookies are chosen, and never how many are
   available.
2. All bookies whose rack is unknown count as one rack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence


class Racks:
    """Racks by the ids of bookies, or by the hosts in these where they are ``host:port``."""

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
        """Return the bookies in an order whose first ones, together with those that they are chosen
        ``beside``, are in as many racks as possible. Bookies that are in places already come last.
        Otherwise the order stays."""
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
