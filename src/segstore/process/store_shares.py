"""Divides containers among several stores on one machine: a pure function.

Owns: ``plan_shares``. A store takes whole journals, since one process at a time writes a journal;
where these are not even, logs of containers have to move to new journals.

Invariants, for every layout of journals and every count of stores up to that of the containers:
1. Each container is in one store, and all containers of a journal are in the same one.
2. No store has two containers more than another.
3. A log moves only to a new journal, of which a store gets one at most. None moves to one store, to
   as many stores as logs were moved for last, or where the journals, given out from the largest to
   the smallest, are even.
4. Equal layouts and counts give equal shares.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pravega_cluster.balance import balance_containers
from segstore.process.data_directory import DataDirectory


@dataclass(frozen=True, slots=True)
class Shares:
    """The containers of each store, and the journals in which their logs have to be."""

    containers: tuple[tuple[int, ...], ...]
    """Containers of each store, by the stores' numbers, in ascending order."""
    journals: tuple[int, ...]
    """The journal of each container, by the containers' numbers."""
    journal_count: int

    @property
    def stores(self) -> tuple[int, ...]:
        """Return the store of each container, by the containers' numbers."""
        owners = {each: store for store, mine in enumerate(self.containers) for each in mine}
        return tuple(owners[each] for each in range(len(self.journals)))


def plan_shares(directory: DataDirectory, store_count: int) -> Shares:
    """Share out the containers of a data directory over the stores. Changes nothing."""
    container_count = directory.container_count
    assert 1 <= store_count <= container_count
    journals, journal_count = directory.journals_of_containers(), directory.journal_count
    owners = _give_journals(directory, store_count)
    given = {store: frozenset[int]() for store in range(store_count)}
    for journal, store in owners.items():
        given[store] |= frozenset(directory.containers_of(journal))
    even = balance_containers(given, given.keys(), container_count)
    after = list(journals)
    for store in range(store_count):
        moved = [each for each in sorted(even[store]) if owners[journals[each]] != store]
        for container in moved:
            after[container] = journal_count
        journal_count += bool(moved)
    shares = tuple(tuple(sorted(even[store])) for store in range(store_count))
    return Shares(shares, tuple(after), journal_count)


def _give_journals(directory: DataDirectory, store_count: int) -> dict[int, int]:
    """Return the store of each journal: as last time, or the largest to the smallest store."""
    journals = directory.journals_of_containers()
    if len(set(directory.stores)) == store_count:
        return dict(zip(journals, directory.stores, strict=True))
    sizes = Counter(journals)
    filled = dict.fromkeys(range(store_count), 0)
    owners: dict[int, int] = {}
    for journal in sorted(sizes, key=lambda each: (-sizes[each], each)):
        store = min(filled, key=lambda each: (filled[each], each))
        owners[journal] = store
        filled[store] += sizes[journal]
    return owners
