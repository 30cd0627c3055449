"""Every operation of a container in its plainest form: the model of all others.

Owns: ``MemorySegments``, segments in a dictionary on which operations take effect at once.

Invariants:
1. An operation takes effect whole and returns its number, or raises and leaves no trace.
2. A segment keeps all its bytes from offset 0 on, truncated or not, even after its deletion: who
   holds a ``MemorySegment`` can tell for ever what was in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from segstore.api import HasRoom, OnRead, ReadResult, SegmentInfo, ask_again
from segstore.errors import (
    BadAttributeUpdateError,
    BadOffsetError,
    InvalidRequestError,
    NoSuchSegmentError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentStoreError,
    SegmentTruncatedError,
)
from segstore.model.attributes import (
    ATTRIBUTE_SEGMENT_TYPE,
    EVENT_COUNT,
    NULL_ATTRIBUTE_VALUE,
    AttributeId,
    AttributeUpdate,
    AttributeUpdateType,
    SegmentType,
    attribute_id_bytes,
    is_core_attribute,
)
from segstore.tiers.api import Buffer

TRANSIENT_ATTRIBUTE_COUNT_MAX = 16


class ParkedRead:
    """A read that waits for the tail of its segment."""

    def __init__(
        self,
        parked: list[ParkedRead],
        offset: int,
        length_max: int,
        on_complete: OnRead,
        has_room: HasRoom | None,
    ) -> None:
        self.has_room = has_room
        self._parked = parked
        self.offset = offset
        self.length_max = length_max
        self.on_complete = on_complete

    def cancel(self) -> None:
        """Forget the read."""
        if self in self._parked:
            self._parked.remove(self)


class MemorySegment:
    """One segment. ``data`` holds every byte from offset 0 on, truncated or not."""

    def __init__(
        self, name: str, segment_id: int, attributes: Mapping[AttributeId, int], now_ms: int
    ) -> None:
        self.name = name
        self.segment_id = segment_id
        self.data = bytearray()
        self.attributes = dict(attributes)
        self.start_offset = 0
        self.sealed = False
        self.last_modified_ms = now_ms
        self.parked: list[ParkedRead] = []

    @property
    def segment_type(self) -> int:
        """Return the bits of ``SegmentType``."""
        return self.attributes.get(ATTRIBUTE_SEGMENT_TYPE, 0)

    def resolve(self, updates: Sequence[AttributeUpdate]) -> dict[AttributeId, int]:
        """Return the attributes after ``updates``. Raises ``BadAttributeUpdateError``."""
        values = dict(self.attributes)
        for update in updates:
            self.check_id(update.attribute_id)
            present = values.get(update.attribute_id)
            if not _condition_holds(update, present):
                raise BadAttributeUpdateError(
                    self.name, update.attribute_id, previous_value_missing=present is None
                )
            value = update.value
            if update.update_type == AttributeUpdateType.ACCUMULATE:
                value += present or 0
            if not -(2**63) <= value < 2**63:
                raise InvalidRequestError(self.name, "an attribute value leaves 64 bits")
            if value == NULL_ATTRIBUTE_VALUE:
                values.pop(update.attribute_id, None)
            else:
                values[update.attribute_id] = value
        if self.segment_type & SegmentType.TRANSIENT:
            extended = sum(not is_core_attribute(attribute_id) for attribute_id in values)
            if extended > TRANSIENT_ATTRIBUTE_COUNT_MAX:
                raise InvalidRequestError(self.name, "too many attributes")
        return values

    def extended_attributes(
        self, first: AttributeId, last: AttributeId
    ) -> list[tuple[AttributeId, int]]:
        """Return the extended attributes in a range, by id."""
        for end in (first, last):
            self.check_id(end)
        return sorted(
            item
            for item in self.attributes.items()
            if first <= item[0] <= last and not is_core_attribute(item[0])
        )

    def check_id(self, attribute_id: AttributeId) -> None:
        """Raise unless ids of extended attributes have this length here."""
        id_bytes = attribute_id_bytes(self.attributes)
        if len(attribute_id) != id_bytes and not is_core_attribute(attribute_id):
            raise InvalidRequestError(self.name, f"{self.name} has ids of {id_bytes} bytes")

    def extend(self, data: Buffer) -> None:
        """Append bytes and wake the reads that they serve."""
        self.data += data
        for read in [read for read in self.parked if read.offset < len(self.data)]:
            read.cancel()
            if read.has_room is None or read.has_room():
                read.on_complete(None, self.read(read.offset, read.length_max))
            else:
                read.on_complete(None, ask_again(read.offset))

    def read(self, offset: int, length_max: int) -> ReadResult:
        """Return the bytes at ``offset``."""
        data = bytes(self.data[offset : offset + length_max])
        at_end = offset + len(data) == len(self.data)
        return ReadResult(
            offset,
            data,
            at_tail=at_end and not self.sealed and len(data) < length_max,
            end_of_segment=at_end and self.sealed,
            is_last=at_end,
        )

    def fail_parked(self, error: SegmentStoreError) -> None:
        """Answer every parked read with ``error``."""
        parked, self.parked = self.parked, []
        for read in parked:
            read.on_complete(error, None)


def _condition_holds(update: AttributeUpdate, present: int | None) -> bool:
    match update.update_type:
        case AttributeUpdateType.NONE:
            return present is None
        case AttributeUpdateType.REPLACE_IF_GREATER:
            return present is None or update.value > present
        case AttributeUpdateType.REPLACE_IF_EQUALS:
            return (NULL_ATTRIBUTE_VALUE if present is None else present) == update.expected
        case _:
            return True


class MemorySegments:
    """All segments of a container. ``now_ms`` gives the Unix time in milliseconds."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self._now_ms = now_ms
        self.by_name: dict[str, MemorySegment] = {}
        self._last_id = 0

    def find(self, name: str) -> MemorySegment:
        """Return the segment. Raises ``NoSuchSegmentError``."""
        segment = self.by_name.get(name)
        if segment is None:
            raise NoSuchSegmentError(name)
        return segment

    @property
    def next_id(self) -> int:
        """Return the id of the next segment."""
        return self._last_id + 1

    def create(self, name: str, attributes: Mapping[AttributeId, int]) -> int:
        """Create an empty segment."""
        if name in self.by_name:
            raise SegmentExistsError(name)
        self._last_id += 1
        segment = MemorySegment(name, self._last_id, attributes, self._now_ms())
        for attribute_id in attributes:
            segment.check_id(attribute_id)
        self.by_name[name] = segment
        return 0

    def delete(self, name: str) -> int:
        """Delete a segment."""
        segment = self.find(name)
        del self.by_name[name]
        segment.fail_parked(NoSuchSegmentError(name))
        return 0

    def append(
        self,
        name: str,
        data: bytes,
        updates: Sequence[AttributeUpdate],
        expected_offset: int | None,
    ) -> int:
        """Append; the segment's length right after it."""
        segment = self.find(name)
        if segment.sealed:
            raise SegmentSealedError(name)
        values = segment.resolve(updates)
        length = len(segment.data)
        if expected_offset is not None and expected_offset != length:
            raise BadOffsetError(name, expected=expected_offset, actual=length)
        segment.attributes = values
        segment.last_modified_ms = self._now_ms()
        segment.extend(data)
        return length + len(data)

    def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> int:
        """Change attributes."""
        segment = self.find(name)
        if segment.sealed:
            raise SegmentSealedError(name)
        segment.attributes = segment.resolve(updates)
        segment.last_modified_ms = self._now_ms()
        return 0

    def seal(self, name: str) -> int:
        """Seal; the final length."""
        segment = self.find(name)
        if segment.sealed:
            raise SegmentSealedError(name)
        segment.sealed = True
        segment.last_modified_ms = self._now_ms()
        segment.fail_parked(SegmentSealedError(name))
        return len(segment.data)

    def truncate(self, name: str, offset: int) -> int:
        """Move the start offset up."""
        segment = self.find(name)
        if not segment.start_offset <= offset <= len(segment.data):
            raise SegmentTruncatedError(name, start_offset=segment.start_offset)
        segment.start_offset = offset
        return offset

    def merge(self, target: str, source: str, updates: Sequence[AttributeUpdate]) -> int:
        """Append all of ``source`` to ``target``; the target's length right after it."""
        source_segment = self.find(source)
        target_segment = self.find(target)
        if source_segment is target_segment:
            raise InvalidRequestError(target)
        if target_segment.sealed:
            raise SegmentSealedError(target)
        if source_segment.start_offset:
            raise SegmentTruncatedError(source, start_offset=source_segment.start_offset)
        values = target_segment.resolve(updates)
        if events := source_segment.attributes.get(EVENT_COUNT, 0):
            values[EVENT_COUNT] = values.get(EVENT_COUNT, 0) + events
        target_segment.attributes = values
        target_segment.last_modified_ms = self._now_ms()
        del self.by_name[source]
        source_segment.sealed = True  # so that a read that began before tells where it ends
        source_segment.fail_parked(NoSuchSegmentError(source))
        target_segment.extend(source_segment.data)
        return len(target_segment.data)

    def info(self, name: str) -> SegmentInfo:
        """Return the committed state."""
        segment = self.find(name)
        return SegmentInfo(
            name=name,
            segment_id=segment.segment_id,
            segment_type=segment.segment_type,
            start_offset=segment.start_offset,
            length=len(segment.data),
            storage_length=0,
            sealed=segment.sealed,
            last_modified_ms=segment.last_modified_ms,
        )
