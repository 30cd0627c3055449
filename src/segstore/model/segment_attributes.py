"""The attributes of a container's segments that are in memory.

Owns: ``SegmentAttributes``, the attribute values of one segment that are in memory, which
operations read and change; and ``AttributeCache``, which evicts values that the indexes have, too.
A changed attribute is *dirty* until the index has the change, and then *clean*.

Invariants:
1. A reader gets the last committed value of an attribute, whichever attributes are in memory. Held
   by ``test_attributes_equal_the_model_whatever_happens``.
2. Core attributes and dirty ones, whose last change the index lacks, are not evicted; the others
   are when there are too many. Held by
   ``test_attributes_equal_the_model_whatever_happens``.

In ``values``, ``NULL_ATTRIBUTE_VALUE`` means that an attribute is known to be absent. An attribute
that is not in ``values`` is absent, unless the segment has an index, which then has to be read.
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

# A start uses this for each segment, and looking up a member of an enum is slow.
_TRANSIENT: Final = int(SegmentType.TRANSIENT)


SHARED_SETS_MAX: Final = 256
SHARED_SET_COUNT_MAX: Final = 16
_shared_sets: Final[dict[frozenset[AttributeId], frozenset[AttributeId]]] = {}
"""Sets of ids of core attributes. Most segments have equal sets, so one object of each is kept."""


def _shared(core: frozenset[AttributeId]) -> frozenset[AttributeId]:
    """Return the kept set that is equal to this one."""
    if len(core) > SHARED_SET_COUNT_MAX or len(_shared_sets) >= SHARED_SETS_MAX:
        return _shared_sets.get(core, core)
    return _shared_sets.setdefault(core, core)


def _core_of(values: AttributeValues) -> frozenset[AttributeId]:
    known = _shared_sets.get(frozenset(values))
    return known or _shared(frozenset(each for each in values if is_core_attribute(each)))


class SegmentAttributes:
    """The attributes of one segment that are in memory.

    ``dirty`` has, for each dirty attribute, the number of the operation that changed it last. A
    recovery may set a greater number; then the attribute is written to the index once more.
    ``cached`` has the attributes that may be evicted unless they are dirty again, the least
    recently used first.
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
        """Return the offset of the last footer of the index, or ``NULL_ATTRIBUTE_VALUE`` if there
        is no index."""
        return self.values.get(ATTRIBUTE_SEGMENT_ROOT_POINTER, NULL_ATTRIBUTE_VALUE)

    @property
    def is_indexed(self) -> bool:
        """Return whether an index may have attributes that are not in memory."""
        return ATTRIBUTE_SEGMENT_ROOT_POINTER in self.values

    @property
    def id_bytes(self) -> int:
        """Return the length of the ids of extended attributes, in bytes."""
        return attribute_id_bytes(self.values)

    @property
    def changed_by(self) -> int:
        """Return the number of the last operation that changed a dirty attribute; 0 if none is
        dirty."""
        return max(self.dirty.values(), default=0)

    def start_with(self, values: AttributeValues, sequence_number: int) -> None:
        """Set the first attributes of a segment that is new or is read from a checkpoint. They were
        changed by the operation with this number."""
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
        """Store the plain values that a durable operation sets; ``NULL_ATTRIBUTE_VALUE`` removes an
        attribute."""
        self.values.update(values)
        if self.is_transient:
            self._drop_absent(values)
            return
        # Each append calls this, so core attributes are removed from ``dirty`` later, when the
        # others are written to the index.
        dirty = self.dirty
        for attribute_id in values:
            dirty[attribute_id] = sequence_number

    def set_change_numbers(self, numbers: dict[AttributeId, int]) -> None:
        """Set the numbers of the operations that changed attributes last. It is called after
        ``apply`` with the greatest of these numbers."""
        if not self.is_transient:
            self.dirty.update(numbers)

    def _drop_absent(self, changed: AttributeValues) -> None:
        for attribute_id, value in changed.items():
            if value == NULL_ATTRIBUTE_VALUE:
                self.values.pop(attribute_id, None)

    def pin(self, values: AttributeValues) -> None:
        """Set core attributes by the container itself, without an operation."""
        self.values.update(values)
        self._add_core(values)

    def _add_core(self, attribute_ids: Collection[AttributeId]) -> None:
        if not self.core.issuperset(attribute_ids):
            self.core = _shared(self.core.union(attribute_ids))

    def lacks(self, attribute_id: AttributeId) -> bool:
        """Return whether memory cannot tell the attribute's value, so that the index has to be
        read."""
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
        """Return the dirty extended attributes, each as (number of its operation, id), the oldest
        change first.

        Core attributes are removed from ``dirty``, because each checkpoint has them.
        """
        core = [attribute_id for attribute_id in self.dirty if is_core_attribute(attribute_id)]
        for attribute_id in core:
            del self.dirty[attribute_id]
        self._add_core(core)
        return sorted((number, attribute_id) for attribute_id, number in self.dirty.items())

    def persisted(self, sequence_number: int) -> list[AttributeId]:
        """Record that the index has all changes up to the operation with this number. Return the
        ids of the attributes that are clean now."""
        clean = [
            attribute_id for attribute_id, number in self.dirty.items() if number <= sequence_number
        ]
        for attribute_id in clean:
            del self.dirty[attribute_id]
        core = [attribute_id for attribute_id in clean if is_core_attribute(attribute_id)]
        self._add_core(core)
        return [attribute_id for attribute_id in clean if attribute_id not in self.core]

    def checkpointed(self) -> AttributeValues:
        """Return the attributes that a checkpoint has to contain: the core attributes, and the
        dirty ones."""
        values = self.values
        if self.is_transient or (not self.dirty and len(self.core) == len(values)):
            return values
        kept = {attribute_id: values[attribute_id] for attribute_id in self.core}
        kept.update((attribute_id, values[attribute_id]) for attribute_id in self.dirty)
        return kept

    def evict(self, count: int) -> int:
        """Evict up to ``count`` members of ``cached``, the least recently used first. Return how
        many were evicted."""
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
        """Add clean attributes of a segment, which were used now, and evict others beyond the
        bounds."""
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
        """Record that attributes of a segment were used now, as far as they are in the cache."""
        cached = attributes.cached
        self.add(attributes, [each for each in used if each in cached])

    def forget(self, attributes: SegmentAttributes) -> None:
        """Remove a segment with its cached attributes."""
        self.count -= len(attributes.cached)
        self._segments.pop(attributes, None)
        attributes.cached.clear()

    def clear(self) -> None:
        """Remove all segments."""
        self._segments.clear()
        self.count = 0

    def _evict(self, attributes: SegmentAttributes, count: int) -> None:
        if count > 0:
            self.count -= attributes.evict(count)
            if not attributes.cached:
                self._segments.pop(attributes, None)
