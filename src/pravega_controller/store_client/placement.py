"""Finds the segment store of a segment.

Owns: the mapping from a segment to its container to its store, in two forms.

1. ``StaticPlacement``: the store of each container is given, and never changes while the controller
   runs. The segment stores must be started with the same assignment.
2. ``MapPlacement``: the map of a cluster, which changes while stores come and go. Two queries about
   one segment may have different answers: a caller of a store that has lost the container gets
   ``WrongHost`` or no reply, and asks again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from pravega_cluster.records import ContainerMap, Host
from pravega_controller.authority import is_local
from pravega_controller.errors import StoreUnavailableError
from pravega_wire import names

Address: TypeAlias = tuple[str, int]


class Placement(Protocol):
    """Finds the store of a segment.

    Raises ``StoreUnavailableError`` when no store has the segment's container now.
    """

    @property
    def is_fixed(self) -> bool:
        """Return whether each container always stays with the same store."""
        ...

    def containers_by_store(self) -> dict[Address, int]:
        """Return how many containers each segment store has."""
        ...

    def container_of(self, segment: str) -> int:
        """Return the number of the segment's container."""
        ...

    def store_of(self, segment: str) -> Address:
        """Return the host and port at which the controller reaches the segment's store."""
        ...

    def address_for(self, segment: str, dialled_host: str) -> Address:
        """Return the host and port for a client that has reached the controller at a host."""
        ...


@dataclass(frozen=True, slots=True)
class StaticPlacement:
    """A fixed list of segment stores that share a fixed number of containers.

    ``owners`` are the stores of the containers, by index; without them container ``c`` belongs to
    store ``c % len(stores)``. Clients reach them at the host at which they reach the controller.
    """

    stores: tuple[Address, ...]
    container_count: int
    owners: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not self.stores or self.container_count < 1:
            raise ValueError("placement needs at least one segment store and one container")

    @property
    def is_fixed(self) -> bool:
        """See ``Placement``."""
        return True

    def containers_by_store(self) -> dict[Address, int]:
        """See ``Placement``."""
        owners = Counter(map(self._owner_of, range(self.container_count)))
        return {address: owners[number] for number, address in enumerate(self.stores)}

    def container_of(self, segment: str) -> int:
        """See ``Placement``."""
        return names.container_of(segment, self.container_count)

    def store_of(self, segment: str) -> Address:
        """See ``Placement``."""
        return self.stores[self._owner_of(self.container_of(segment))]

    def _owner_of(self, container: int) -> int:
        return container % len(self.stores) if self.owners is None else self.owners[container]

    def address_for(self, segment: str, dialled_host: str) -> Address:
        """See ``Placement``."""
        _, port = self.store_of(segment)
        return dialled_host, port


class MapPlacement:
    """The segment stores of a cluster, at the addresses that they publish."""

    def __init__(self, container_count: int) -> None:
        self._container_count = container_count
        self._owners: dict[int, Host] = {}

    @property
    def is_fixed(self) -> bool:
        """See ``Placement``."""
        return False

    def update(self, containers: ContainerMap) -> None:
        """Use this map from now on."""
        self._owners = {each: host for host, given in containers.items() for each in given}

    def containers_by_store(self) -> dict[Address, int]:
        """See ``Placement``."""
        return dict(Counter(host.address for host in self._owners.values()))

    def container_of(self, segment: str) -> int:
        """See ``Placement``."""
        return names.container_of(segment, self._container_count)

    def store_of(self, segment: str) -> Address:
        """See ``Placement``."""
        container = self.container_of(segment)
        owner = self._owners.get(container)
        if owner is None:
            raise StoreUnavailableError(f"no segment store has container {container} of {segment}")
        return owner.address

    def address_for(self, segment: str, dialled_host: str) -> Address:
        """See ``Placement``; the dialled host replaces one that is valid on one machine only."""
        host, port = self.store_of(segment)
        return dialled_host if is_local(host) else host, port
