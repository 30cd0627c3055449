"""Divides containers among several stores on one machine, as a pure function.

Owns: ``plan_shares``. Only one process at a time can write a journal, so each journal is given to
one store. If the stores would then have different numbers of containers, logs of containers have to
move to new journals.

Invariants, for each layout of journals and each number of stores up to that of the containers:
1. Each container is in exactly one store, and all containers of a journal are in the same store.
   Held by ``test_every_container_has_one_store_and_shares_are_even``.
2. The numbers of containers of two stores differ by at most one. Held by
   ``test_every_container_has_one_store_and_shares_are_even``.
3. When a log moves, it moves to a new journal, and each store gets at most one of these. Held by
   ``test_every_container_has_one_store_and_shares_are_even``.
4. When all containers go to one store, no log moves. Held by
   ``test_nothing_moves_to_one_store``.
5. When stores start again in the same number as last time, no log moves, and each has the same
   containers. Held by ``test_every_container_has_one_store_and_shares_are_even``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pravega_cluster.balance import balance_containers
from segstore.ownership.data_directory import DataDirectory


@dataclass(frozen=True, slots=True)
class Shares:
    """The containers of each store, and the journal in which each container's log has to be."""

    containers: tuple[tuple[int, ...], ...]
    """The containers of each store, in ascending order; the stores' numbers are the positions."""
    journals: tuple[int, ...]
    """The journal of each container; the containers' numbers are the positions."""
    journal_count: int

    @property
    def stores(self) -> tuple[int, ...]:
        """Return the store of each container; the containers' numbers are the positions."""
        owners = {each: store for store, mine in enumerate(self.containers) for each in mine}
        return tuple(owners[each] for each in range(len(self.journals)))


def plan_shares(directory: DataDirectory, store_count: int) -> Shares:
    """Return how the containers of a data directory are divided among stores. Changes nothing."""
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
    """Return the store of each journal. If there are as many stores as last time, that is the same
    store as then; otherwise the largest journal goes to the store with the fewest containers."""
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
