"""The attributes of a container's segments that are in memory.

Owns: ``SegmentAttributes``, the first level of the attribute cache: values by id, which the
ingestion pipeline looks up and changes; and ``AttributeCache``, which bounds the evictable ones.

Invariants:
1. ``values`` are right. ``NULL_ATTRIBUTE_VALUE`` there means that the attribute is known to be
   absent. An id that is not in ``values`` is absent, too, unless the segment has an index, which
   then has to be asked.
2. Core attributes stay, and so do dirty ones: those whose last change the index lacks.
3. All others may be evicted at any time: the index has them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final

from segstore.model.attributes import (
    ATTRIBUTE_SEGMENT_ROOT_POINTER,
    ATTRIBUTE_SEGMENT_TYPE,
    NULL_ATTRIBUTE_VALUE,
    AttributeId,
    SegmentType,
    attribute_id_bytes,
    is_core_attribute,
)
from segstore.model.operations import AttributeValues

CACHED_COUNT_MAX: Final = 4096
"""Maximum count of clean extended attributes of one segment in memory; the original's limit."""
CONTAINER_CACHED_COUNT_MAX: Final = 65_536
"""Maximum number of cached attributes of all segments of a container: about 16 MiB."""
ID_BYTES: Final = 16

# Members of an enum are slow, and a start looks at every segment.
_TRANSIENT: Final = int(SegmentType.TRANSIENT)


SHARED_SETS_MAX: Final = 256
SHARED_SET_COUNT_MAX: Final = 16
_shared_sets: Final[dict[frozenset[AttributeId], frozenset[AttributeId]]] = {}
"""Sets of core attributes' ids. Most segments have the same ones, and a start looks at each."""


def _shared(core: frozenset[AttributeId]) -> frozenset[AttributeId]:
    """Return a set of core attributes' ids that all segments with the same ids share."""
    if len(core) > SHARED_SET_COUNT_MAX or len(_shared_sets) >= SHARED_SETS_MAX:
        return _shared_sets.get(core, core)
    return _shared_sets.setdefault(core, core)


def _core_of(values: AttributeValues) -> frozenset[AttributeId]:
    known = _shared_sets.get(frozenset(values))
    return known or _shared(frozenset(each for each in values if is_core_attribute(each)))


class SegmentAttributes:
    """The attributes of one segment that are in memory.

    ``dirty`` has the number of the operation that changed an attribute last. ``cached`` has the
    clean extended attributes, the least recently used first; some of them may be dirty again.
    """

    __slots__ = ("cached", "core", "dirty", "is_transient", "values")

    def __init__(self) -> None:
        self.values: AttributeValues = {}
        self.dirty: dict[AttributeId, int] = {}
        self.cached: dict[AttributeId, None] = {}
        self.core: frozenset[AttributeId] = frozenset()
        self.is_transient = False

    @property
    def root_pointer(self) -> int:
        """Return the place of the last footer of the index; the null value when there is no
        index."""
        return self.values.get(ATTRIBUTE_SEGMENT_ROOT_POINTER, NULL_ATTRIBUTE_VALUE)

    @property
    def is_indexed(self) -> bool:
        """Return whether an index may have attributes that are not in memory."""
        return ATTRIBUTE_SEGMENT_ROOT_POINTER in self.values

    @property
    def id_bytes(self) -> int:
        """Return how long the segment's extended attribute ids are."""
        return attribute_id_bytes(self.values)

    @property
    def changed_by(self) -> int:
        """Return the last operation that changed a dirty attribute; 0 when none is dirty."""
        return max(self.dirty.values(), default=0)

    def start_with(self, values: AttributeValues, sequence_number: int) -> None:
        """Set the attributes of a new segment, or of one from a checkpoint."""
        self.is_transient = bool(values.get(ATTRIBUTE_SEGMENT_TYPE, 0) & _TRANSIENT)
        self.values.update(values)
        if self.is_transient:
            self._drop_absent(values)
            return
        self.core = core = _core_of(values)
        if len(core) < len(values):
            self.dirty.update(
                (attribute_id, sequence_number)
                for attribute_id in values
                if attribute_id not in core
            )

    def apply(self, values: AttributeValues, sequence_number: int) -> None:
        """Store resolved values of a durable operation; the null value removes."""
        self.values.update(values)
        if self.is_transient:
            self._drop_absent(values)
            return
        # Core attributes are sorted out when the rest is written: this is on the way of appends.
        dirty = self.dirty
        for attribute_id in values:
            dirty[attribute_id] = sequence_number

    def _drop_absent(self, changed: AttributeValues) -> None:
        for attribute_id, value in changed.items():
            if value == NULL_ATTRIBUTE_VALUE:
                self.values.pop(attribute_id, None)

    def pin(self, values: AttributeValues) -> None:
        """Set core attributes that the container itself keeps."""
        self.values.update(values)
        self._add_core(values)

    def _add_core(self, attribute_ids: Collection[AttributeId]) -> None:
        if not self.core.issuperset(attribute_ids):
            self.core = _shared(self.core.union(attribute_ids))

    def lacks(self, attribute_id: AttributeId) -> bool:
        """Return whether only the index has the attribute's value."""
        return (
            attribute_id not in self.values
            and self.is_indexed
            and len(attribute_id) == self.id_bytes
            and not is_core_attribute(attribute_id)
        )

    def load(self, values: Iterable[tuple[AttributeId, int | None]]) -> list[AttributeId]:
        """Add values from the index that are not in memory; return the ids of the new ones."""
        loaded = []
        for attribute_id, value in values:
            if attribute_id not in self.values:
                self.values[attribute_id] = NULL_ATTRIBUTE_VALUE if value is None else value
                loaded.append(attribute_id)
        return loaded

    def unpersisted(self) -> list[tuple[int, AttributeId]]:
        """Return the dirty extended attributes behind their operations' numbers, the oldest change
        first.

        A change that turns out to be of a core attribute is not dirty any more, as
        checkpoints have it.
        """
        core = [attribute_id for attribute_id in self.dirty if is_core_attribute(attribute_id)]
        for attribute_id in core:
            del self.dirty[attribute_id]
        self._add_core(core)
        return sorted((number, attribute_id) for attribute_id, number in self.dirty.items())

    def persisted(self, sequence_number: int) -> list[AttributeId]:
        """Mark all changes up to an operation as clean, since the index has them; return their
        ids."""
        clean = [
            attribute_id for attribute_id, number in self.dirty.items() if number <= sequence_number
        ]
        for attribute_id in clean:
            del self.dirty[attribute_id]
        core = [attribute_id for attribute_id in clean if is_core_attribute(attribute_id)]
        self._add_core(core)
        return [attribute_id for attribute_id in clean if attribute_id not in self.core]

    def checkpointed(self) -> AttributeValues:
        """Return the attributes that a checkpoint must contain: core ones, and those the index
        lacks."""
        values = self.values
        if self.is_transient or (not self.dirty and len(self.core) == len(values)):
            return values
        kept = {attribute_id: values[attribute_id] for attribute_id in self.core}
        kept.update((attribute_id, values[attribute_id]) for attribute_id in self.dirty)
        return kept

    def evict(self, count: int) -> int:
        """Evict up to ``count`` of ``cached``, the oldest first; return how many were evicted."""
        evicted = list(islice(self.cached, count))
        for attribute_id in evicted:
            del self.cached[attribute_id]
            if attribute_id not in self.dirty:
                self.values.pop(attribute_id, None)
        return len(evicted)


class AttributeCache:
    """Bounds the clean extended attributes in memory, per segment and for a container."""

    def __init__(
        self,
        *,
        segment_count_max: int = CACHED_COUNT_MAX,
        container_count_max: int = CONTAINER_CACHED_COUNT_MAX,
    ) -> None:
        self._segment_count_max = segment_count_max
        self._container_count_max = container_count_max
        self._segments: dict[SegmentAttributes, None] = {}
        self.count = 0

    def add(self, attributes: SegmentAttributes, used: Iterable[AttributeId]) -> None:
        """Clean attributes of a segment were used now; others may go for them."""
        cached = attributes.cached
        before = len(cached)
        for attribute_id in used:
            cached.pop(attribute_id, None)
            cached[attribute_id] = None
        self.count += len(cached) - before
        self._segments.pop(attributes, None)
        if cached:
            self._segments[attributes] = None
        self._evict(attributes, len(cached) - self._segment_count_max)
        while self.count > self._container_count_max:
            oldest = next(iter(self._segments))
            self._evict(oldest, self.count - self._container_count_max)

    def touch(self, attributes: SegmentAttributes, used: Iterable[AttributeId]) -> None:
        """Mark those of a segment's attributes that are cached as used now."""
        cached = attributes.cached
        self.add(attributes, [each for each in used if each in cached])

    def forget(self, attributes: SegmentAttributes) -> None:
        """Remove a segment that is gone, with its cached attributes."""
        self.count -= len(attributes.cached)
        self._segments.pop(attributes, None)
        attributes.cached.clear()

    def clear(self) -> None:
        """Forget all segments."""
        self._segments.clear()
        self.count = 0

    def _evict(self, attributes: SegmentAttributes, count: int) -> None:
        if count > 0:
            self.count -= attributes.evict(count)
            if not attributes.cached:
                self._segments.pop(attributes, None)
