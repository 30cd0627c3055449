"""Which segment store a segment lives on.

Owns: the mapping from segment to container to store, while it is static: container ``c`` of ``n``
belongs to store ``c % len(stores)``. Whoever starts the segment stores must assign containers so.
"""

from __future__ import annotations

from dataclasses import dataclass

from pravega_wire import names


@dataclass(frozen=True, slots=True)
class StaticPlacement:
    """A fixed list of segment stores that share a fixed number of containers."""

    stores: tuple[tuple[str, int], ...]
    container_count: int

    def __post_init__(self) -> None:
        if not self.stores or self.container_count < 1:
            raise ValueError("placement needs at least one segment store and one container")

    def store_index(self, segment: str) -> int:
        """The index in ``stores`` of the one that owns the segment's container."""
        return names.container_of(segment, self.container_count) % len(self.stores)

    def store_of(self, segment: str) -> tuple[str, int]:
        """The host and port of the store that owns the segment's container."""
        return self.stores[self.store_index(segment)]
