"""Assigns containers to hosts, by a pure function.

Owns: ``balance_containers``.

Invariants:
1. Whatever the map and the hosts are, the new map has exactly these hosts and gives each container
   to one of them; no host has two containers more than another. Held by
   ``test_a_map_is_whole_even_and_stays``.
2. When a map is balanced already, it stays the same. Held by
   ``test_a_map_is_whole_even_and_stays``.
3. When containers have to move, no balanced map needs fewer moves. Held by
   ``test_no_map_needs_fewer_moves``.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Set
from typing import TypeVar

from pravega_cluster.records import Host

AnyHost = TypeVar("AnyHost", Host, int)
"""A host of a cluster, or the number of a store on one machine. Any sortable type will do."""


def balance_containers(
    current: Mapping[AnyHost, frozenset[int]], hosts: Set[AnyHost], container_count: int
) -> dict[AnyHost, frozenset[int]]:
    """Return a map that assigns all containers to ``hosts``, of which there must be at least
    one."""
    every = frozenset(range(container_count))
    kept = {host: sorted(current.get(host, frozenset()) & every) for host in hosts}
    share, larger_count = divmod(container_count, len(hosts))
    by_size = sorted(hosts, key=lambda host: (-len(kept[host]), host))
    for place, host in enumerate(by_size):
        del kept[host][share + (place < larger_count) :]
    left = sorted(every.difference(*kept.values()))
    smallest = [(len(containers), host) for host, containers in kept.items()]
    heapq.heapify(smallest)
    for container in left:
        size, host = smallest[0]
        kept[host].append(container)
        heapq.heapreplace(smallest, (size + 1, host))
    return {host: frozenset(containers) for host, containers in kept.items()}
