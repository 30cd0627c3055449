"""The rule that gives containers to hosts: a pure function.

Owns: ``balance_containers``.

Invariants, for every map and every set of hosts:
1. Each container below the count is given to one host, nothing else is, and a host that is gone has
   none; every host is in the map.
2. No host has two containers more than another.
3. As few containers move as these allow: one moves only if its host is gone or has more than its
   share. The hosts that have the most already get the larger shares.
4. Equal maps and hosts give equal maps, and a balanced map stays unchanged.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Set
from typing import TypeVar

from pravega_cluster.records import Host

AnyHost = TypeVar("AnyHost", Host, int)
"""A host of a cluster, or the number of a store on one machine: any value that has an order."""


def balance_containers(
    current: Mapping[AnyHost, frozenset[int]], hosts: Set[AnyHost], container_count: int
) -> dict[AnyHost, frozenset[int]]:
    """Return a map that gives all containers to the hosts; there must be at least one host."""
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
