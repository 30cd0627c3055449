"""A container whose tiers survive it, and what tests of attributes look at in it."""

from __future__ import annotations

import pytest

from segstore.attributes.attribute_index import attribute_segment_name
from segstore.inactive.eviction import ALL_STAY
from segstore.model.segment_attributes import SegmentAttributes
from support.faults.crashing_tiers import CrashingTiers


class Tiers(CrashingTiers):
    """A view into the container that was opened last."""

    def memory(self, name: str) -> SegmentAttributes:
        """Return the attributes of a segment that are in memory."""
        return self.container.parts.metadata.by_name[name].attribute_memory

    def forget_clean(self, name: str) -> None:
        """Evict everything that may go."""
        memory = self.memory(name)
        memory.evict(len(memory.cached))
        self.attribute_cache.count = 0
        self.attribute_cache._segments.clear()

    async def index_bytes(self, name: str) -> int:
        """Return how many bytes tier 2 has of a segment's attributes."""
        segment = self.container.parts.metadata.by_name[name]
        chunks = await self.chunks.list_chunks(attribute_segment_name(segment.storage_name))
        return sum(chunk.length for chunk in chunks)


@pytest.fixture
def tiers() -> Tiers:
    return Tiers(ALL_STAY)
