"""The committed state of a container and of its segments.

Owns: ``ContainerMetadata`` and ``SegmentMetadata``, how an operation changes them, and the snapshot
that a checkpoint writes (``docs/formats/container-snapshot.md``).

Invariants:
1. At each moment, ``start_offset`` and ``storage_length`` are at most ``length``, and neither
   ``start_offset`` nor ``length`` decreases. Held by
   ``test_the_store_keeps_its_promises``.
2. A container gives each segment id once, also after deletions and restarts. Held by
   ``test_ids_are_never_given_twice``. As tier 2 knows a segment by name and id, a deleted segment
   and a later one of its name share no bytes. Held by
   ``test_a_segment_created_again_does_not_show_its_namesake_bytes``.
3. After a merge, the source cannot be found by name, and its bytes are read in the target, before
   tier 2 has merged them. Held by
   ``test_a_redirect_shows_a_merged_segments_bytes_until_they_have_moved``.
4. A snapshot and the attribute indexes that it points to have all attributes together: the snapshot
   contains those that an index lacks. Held by
   ``test_a_checkpoint_has_core_and_dirty_attributes_and_no_clean_ones``.
5. A snapshot contains active segments only; inactive ones are found by their records. Held by
   ``test_a_checkpoint_has_active_segments_only``.
6. Clients cannot reach the segment of records by its name. Held by
   ``test_records_have_no_name_that_clients_get_to``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from segstore.errors import DataLogCorruptError
from segstore.model.attributes import (
    ATTRIBUTE_ID_LENGTH,
    ATTRIBUTE_SEGMENT_PERSIST_SEQ_NO,
    ATTRIBUTE_SEGMENT_TYPE,
    NULL_ATTRIBUTE_VALUE,
    RECORDS_LIVE_BYTES,
    ROLLOVER_SIZE,
    SegmentType,
)
from segstore.model.operations import (
    ActivateOperation,
    AppendOperation,
    AttributeValues,
    DeleteOperation,
    EvictOperation,
    MapOperation,
    MergeOperation,
    Operation,
    SealOperation,
    TruncateOperation,
    UpdateAttributesOperation,
    decode_attributes,
    encode_attributes,
)
from segstore.model.segment_attributes import AttributeCache, SegmentAttributes
from segstore.model.segment_record import KEY_BYTES, SegmentRecord, core_number, record_key
from segstore.tiers.api import Buffer

SNAPSHOT_VERSION: Final = 3

RECORDS_CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Length, in bytes, of the chunks of records. Chunks at the head are deleted when all their records
are obsolete."""
RECORDS_PER_CHANGE: Final = 3
"""Number of evictions of segments that a recovery replays in the time of one creation."""


def storage_name(name: str, segment_id: int) -> str:
    """Return the name of a segment in tier 2."""
    return f"{name}.S-{segment_id}"


class SegmentMetadata:
    """The state of one segment after all durable operations.

    ``attributes`` are the values in ``attribute_memory``. ``leaving`` is true while the operation
    that makes the segment inactive is not durable; afterwards ``has_left`` is true, and this object
    is obsolete. ``record_bytes`` is the length of the record with which the segment was last
    activated; 0 if it never was.

    ``was_used`` and ``idle_since`` are for the search for idle segments. ``user_count`` is the
    number of tasks for which the segment has to stay in memory.
    """

    __slots__ = (
        "attribute_memory",
        "attributes",
        "deleted",
        "has_left",
        "idle_since",
        "last_modified_ms",
        "leaving",
        "length",
        "merged",
        "name",
        "record_bytes",
        "sealed",
        "segment_id",
        "start_offset",
        "storage_length",
        "user_count",
        "was_used",
    )

    def __init__(self, segment_id: int, name: str) -> None:
        self.segment_id = segment_id
        self.name = name
        self.length = 0
        self.start_offset = 0
        self.storage_length = 0
        self.sealed = False
        self.merged = False
        self.deleted = False
        self.leaving = False
        self.has_left = False
        self.record_bytes = 0
        self.was_used = True
        self.idle_since = 0.0
        self.user_count = 0
        self.last_modified_ms = 0
        self.attribute_memory = SegmentAttributes()
        self.attributes = self.attribute_memory.values

    def record_change(self, now_ms: int) -> None:
        """Record that the segment changes now. The time of the last change never decreases, even if
        the wall clock was set back."""
        self.was_used = True
        if now_ms > self.last_modified_ms:
            self.last_modified_ms = now_ms

    @property
    def storage_name(self) -> str:
        """Return the segment's name in tier 2."""
        return storage_name(self.name, self.segment_id)

    @property
    def segment_type(self) -> int:
        """Return the bits of ``SegmentType``."""
        return self.attributes.get(ATTRIBUTE_SEGMENT_TYPE, 0)

    @property
    def rollover_bytes(self) -> int:
        """Return the maximum length of the segment's chunks, in bytes, as its creator asked for; 0
        for the default."""
        return max(0, self.attributes.get(ROLLOVER_SIZE, 0))

    @property
    def is_gone(self) -> bool:
        """Return whether this object is obsolete: the segment was deleted, merged, or became
        inactive."""
        return self.deleted or self.merged or self.has_left

    @property
    def is_transient(self) -> bool:
        """Return whether the segment is deleted when its connection ends. Its attributes are never
        written to an index."""
        return self.attribute_memory.is_transient

    @property
    def record(self) -> SegmentRecord:
        """Return the record with which the segment can become inactive."""
        memory = self.attribute_memory
        return SegmentRecord(
            self.segment_id,
            self.name,
            self.length,
            self.start_offset,
            self.sealed,
            self.last_modified_ms,
            {core_number(each): memory.values[each] for each in memory.core},
        )

    @classmethod
    def from_record(cls, record: SegmentRecord, record_bytes: int) -> SegmentMetadata:
        """Return the metadata of a segment that becomes active, from its record, which has
        ``record_bytes`` bytes."""
        segment = cls(record.segment_id, record.name)
        segment.length = segment.storage_length = record.length
        segment.start_offset = record.start_offset
        segment.sealed = record.sealed
        segment.last_modified_ms = record.last_modified_ms
        segment.record_bytes = record_bytes
        segment.attribute_memory.start_with(record.attributes, 0)
        return segment


def records_name(container_id: int) -> str:
    """Return the name of the segment that has a container's records (the original's name)."""
    return f"_system/containers/metadata_{container_id}"


def new_records_segment(container_id: int, segment_id: int) -> SegmentMetadata:
    """Return the metadata of a new, empty segment of records."""
    segment = SegmentMetadata(segment_id, records_name(container_id))
    segment.attribute_memory.start_with(
        {
            ATTRIBUTE_SEGMENT_TYPE: int(SegmentType.SYSTEM),
            ATTRIBUTE_ID_LENGTH: KEY_BYTES,
            ROLLOVER_SIZE: RECORDS_CHUNK_BYTES,
            RECORDS_LIVE_BYTES: 0,
        },
        0,
    )
    return segment


class _SegmentSnapshot(msgspec.Struct, array_like=True):
    """A segment in a snapshot. ``attributes`` has the encoded core attributes and those that the
    segment's index lacks.

    ``changed_by`` is the number of the last operation that changed one of these; 0 if that is
    unknown.
    """

    segment_id: int
    name: str
    length: int
    start_offset: int
    storage_length: int
    sealed: bool
    last_modified_ms: int
    attribute_count: int
    attributes: bytes
    record_bytes: int = 0
    changed_by: int = 0


class _ContainerSnapshot(msgspec.Struct, array_like=True):
    version: int
    container_id: int
    sequence_number: int
    next_segment_id: int
    segments: list[_SegmentSnapshot]
    records_segment_id: int = 0


def _segment_snapshot(segment: SegmentMetadata) -> _SegmentSnapshot:
    attributes = segment.attribute_memory.checkpointed()
    return _SegmentSnapshot(
        segment.segment_id,
        segment.name,
        segment.length,
        segment.start_offset,
        segment.storage_length,
        segment.sealed,
        segment.last_modified_ms,
        len(attributes),
        encode_attributes(attributes),
        segment.record_bytes,
        segment.attribute_memory.changed_by,
    )


class ContainerMetadata:
    """All active segments of one container, by id and by name.

    ``records`` is the segment with the records of inactive segments, which is not in ``by_name``;
    None before the first record. ``change_count`` is the number of operations other than appends
    that a recovery would replay; ``RECORDS_PER_CHANGE`` evicted segments count as one.

    ``unpersisted`` has the segments with attributes that their indexes may lack. ``dirty_count`` is
    the number of these attributes, or a little more.
    """

    def __init__(self, container_id: int, attribute_cache: AttributeCache | None = None) -> None:
        self.container_id = container_id
        self.attribute_cache = attribute_cache or AttributeCache()
        self.unpersisted: dict[int, SegmentMetadata] = {}
        self.dirty_count = 0
        self._dirty_counts: dict[int, int] = {}
        self.sequence_number = 0
        self.next_segment_id = 1
        self.segments: dict[int, SegmentMetadata] = {}
        self.by_name: dict[str, SegmentMetadata] = {}
        self.records: SegmentMetadata | None = None
        self.change_count = 0

    def apply(self, operation: Operation, now_ms: int) -> None:
        """Apply one durable operation to the metadata."""
        self.sequence_number = operation.sequence_number
        _APPLY[type(operation)](self, operation, now_ms)

    def snapshot(self, sequence_number: int) -> bytes:
        """Return the snapshot for a checkpoint with this sequence number. With it, a recovery needs
        no earlier operations."""
        self.change_count = 0
        return self.encode(sequence_number)

    def encode(self, sequence_number: int) -> bytes:
        """Return the bytes of a snapshot, which need not be a checkpoint's."""
        return msgspec.msgpack.encode(
            _ContainerSnapshot(
                SNAPSHOT_VERSION,
                self.container_id,
                sequence_number,
                self.next_segment_id,
                # Merged segments are left out. The log is truncated at this checkpoint only when
                # tier 2 has their bytes in their targets.
                [
                    _segment_snapshot(segment)
                    for segment in self.segments.values()
                    if not segment.merged
                ],
                0 if self.records is None else self.records.segment_id,
            )
        )

    def restore(self, data: Buffer) -> None:
        """Replace all metadata by those of a snapshot. Storage lengths that are known already are
        kept if they are greater."""
        try:
            snapshot = msgspec.msgpack.decode(data, type=_ContainerSnapshot)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DataLogCorruptError(f"a container snapshot is damaged: {error}") from error
        if snapshot.version != SNAPSHOT_VERSION or snapshot.container_id != self.container_id:
            raise DataLogCorruptError(
                f"snapshot of version {snapshot.version} for container {snapshot.container_id} "
                f"found in the log of container {self.container_id}"
            )
        self.sequence_number = snapshot.sequence_number
        self.next_segment_id = snapshot.next_segment_id
        self.segments.clear()
        self.by_name.clear()
        self.unpersisted.clear()
        self._dirty_counts.clear()
        self.dirty_count = 0
        self.attribute_cache.clear()
        self.records = None
        self.change_count = 0
        for entry in snapshot.segments:
            segment = SegmentMetadata(entry.segment_id, entry.name)
            segment.length = entry.length
            segment.start_offset = entry.start_offset
            segment.storage_length = entry.storage_length
            segment.sealed = entry.sealed
            segment.last_modified_ms = entry.last_modified_ms
            values, _ = decode_attributes(entry.attributes, 0, entry.attribute_count)
            changed_by = entry.changed_by or snapshot.sequence_number
            segment.attribute_memory.start_with(values, changed_by)
            segment.record_bytes = entry.record_bytes
            is_records = entry.segment_id == snapshot.records_segment_id
            self.add_active(segment, has_name=not is_records)
            if is_records:
                self.records = segment
        if snapshot.records_segment_id and self.records is None:
            raise DataLogCorruptError("a container snapshot lacks the segment of its records")

    def forget(self, segment_id: int) -> None:
        """Remove a merged segment that was deleted from tier 2."""
        self.segments.pop(segment_id, None)

    def add_active(self, segment: SegmentMetadata, *, has_name: bool = True) -> None:
        """Add an active segment. Without ``has_name``, for the segment of records, it cannot be
        found by name."""
        self.segments[segment.segment_id] = segment
        if has_name:
            self.by_name[segment.name] = segment
        if segment.attribute_memory.dirty:
            self.unpersisted[segment.segment_id] = segment
            self._count_dirty(segment)

    def _count_dirty(self, segment: SegmentMetadata) -> None:
        number, count = segment.segment_id, len(segment.attribute_memory.dirty)
        self.dirty_count += count - self._dirty_counts.get(number, 0)
        self._dirty_counts[number] = count

    def _remove_attributes(self, segment: SegmentMetadata) -> None:
        self.unpersisted.pop(segment.segment_id, None)
        self.dirty_count -= self._dirty_counts.pop(segment.segment_id, 0)
        self.attribute_cache.forget(segment.attribute_memory)

    def _change_attributes(
        self, segment: SegmentMetadata, values: AttributeValues, sequence_number: int
    ) -> None:
        memory = segment.attribute_memory
        if not memory.dirty and not memory.is_transient:
            self.unpersisted[segment.segment_id] = segment
        memory.apply(values, sequence_number)
        if not memory.is_transient:
            # This repeats ``_count_dirty`` instead of calling it, because every append runs this
            # line.
            number, count = segment.segment_id, len(memory.dirty)
            self.dirty_count += count - self._dirty_counts.get(number, 0)
            self._dirty_counts[number] = count

    def apply_append(self, operation: AppendOperation, now_ms: int) -> None:
        """Apply an append, or one that stands for several: it has the values of all."""
        segment = self.segments[operation.segment_id]
        segment.length = operation.offset + operation.length
        # This repeats ``record_change`` instead of calling it, because every append runs this line.
        segment.was_used = True
        if now_ms > segment.last_modified_ms:
            segment.last_modified_ms = now_ms
        if operation.attribute_values:
            self._change_attributes(segment, operation.attribute_values, operation.sequence_number)

    def _apply_evict(self, operation: EvictOperation, now_ms: int) -> None:
        self.change_count += 1 + len(operation.records) // RECORDS_PER_CHANGE
        records = self.records
        if records is None:
            records = new_records_segment(self.container_id, operation.segment_id)
            self.add_active(records, has_name=False)
            self.records = records
            self.next_segment_id = max(self.next_segment_id, records.segment_id + 1)
        records.length = operation.offset + len(operation.data)
        live_bytes = records.attributes[RECORDS_LIVE_BYTES]
        values: AttributeValues = {}
        for record, begin, end in operation.records:
            segment = self.segments.pop(record.segment_id)
            del self.by_name[segment.name]
            segment.has_left = True
            self._remove_attributes(segment)
            live_bytes += end - begin - segment.record_bytes
            values[record_key(record.name)] = operation.offset + begin
        self._change_attributes(records, values, operation.sequence_number)
        records.attribute_memory.pin({RECORDS_LIVE_BYTES: live_bytes})

    def _apply_activate(self, operation: ActivateOperation, now_ms: int) -> None:
        self.change_count += 1
        segment = SegmentMetadata.from_record(operation.record, operation.record_bytes)
        segment.was_used = not operation.unused
        self.add_active(segment)

    def _remove_record(self, segment: SegmentMetadata, sequence_number: int) -> None:
        """Remove the attribute with the offset of a segment's record, because the segment is active
        or deleted."""
        if segment.record_bytes and self.records is not None:
            live_bytes = self.records.attributes[RECORDS_LIVE_BYTES] - segment.record_bytes
            key = record_key(segment.name)
            self._change_attributes(self.records, {key: NULL_ATTRIBUTE_VALUE}, sequence_number)
            self.records.attribute_memory.pin({RECORDS_LIVE_BYTES: live_bytes})

    def _apply_seal(self, operation: SealOperation, now_ms: int) -> None:
        segment = self.segments[operation.segment_id]
        segment.sealed = True
        segment.record_change(now_ms)

    def _apply_merge(self, operation: MergeOperation, now_ms: int) -> None:
        target = self.segments[operation.segment_id]
        source = self.segments[operation.source_id]
        source.sealed = source.merged = True
        self.by_name.pop(source.name, None)
        self._remove_attributes(source)
        self._remove_record(source, operation.sequence_number)
        self.change_count += 1
        target.length = operation.offset + operation.length
        target.record_change(now_ms)
        if operation.attribute_values:
            self._change_attributes(target, operation.attribute_values, operation.sequence_number)

    def _apply_map(self, operation: MapOperation, now_ms: int) -> None:
        segment = SegmentMetadata(operation.segment_id, operation.name)
        segment.last_modified_ms = operation.created_ms
        segment.attribute_memory.start_with(operation.attribute_values, operation.sequence_number)
        self.add_active(segment)
        self.change_count += 1
        self.next_segment_id = max(self.next_segment_id, segment.segment_id + 1)

    def _apply_attributes(self, operation: UpdateAttributesOperation, now_ms: int) -> None:
        segment = self.segments[operation.segment_id]
        values = operation.attribute_values
        if ATTRIBUTE_SEGMENT_PERSIST_SEQ_NO in values:
            self.mark_persisted(segment, values, values[ATTRIBUTE_SEGMENT_PERSIST_SEQ_NO])
            return
        self._change_attributes(segment, values, operation.sequence_number)
        segment.record_change(now_ms)

    def mark_persisted(
        self, segment: SegmentMetadata, pointers: AttributeValues, sequence_number: int
    ) -> None:
        """Record that the segment's index has all changes up to the operation with this number.
        ``pointers`` has the core attributes that lead to the index."""
        if segment.is_gone:
            return
        memory = segment.attribute_memory
        memory.pin(pointers)
        self.attribute_cache.add(memory, memory.persisted(sequence_number))
        self._count_dirty(segment)
        if not memory.dirty:
            self.unpersisted.pop(segment.segment_id, None)
            self._dirty_counts.pop(segment.segment_id, None)

    def _apply_truncate(self, operation: TruncateOperation, now_ms: int) -> None:
        segment = self.segments[operation.segment_id]
        segment.start_offset = max(segment.start_offset, operation.offset)

    def _apply_delete(self, operation: DeleteOperation, now_ms: int) -> None:
        segment = self.segments.pop(operation.segment_id)
        segment.deleted = True
        self.by_name.pop(segment.name, None)
        self._remove_attributes(segment)
        self._remove_record(segment, operation.sequence_number)
        self.change_count += 1


_APPLY: Final[dict[type[Operation], Callable[..., None]]] = {
    AppendOperation: ContainerMetadata.apply_append,
    SealOperation: ContainerMetadata._apply_seal,
    MergeOperation: ContainerMetadata._apply_merge,
    MapOperation: ContainerMetadata._apply_map,
    UpdateAttributesOperation: ContainerMetadata._apply_attributes,
    TruncateOperation: ContainerMetadata._apply_truncate,
    DeleteOperation: ContainerMetadata._apply_delete,
    EvictOperation: ContainerMetadata._apply_evict,
    ActivateOperation: ContainerMetadata._apply_activate,
}
