"""Validates operations against the effects of earlier operations, durable or not.

Owns: ``PendingState``, the container as it will be when all accepted operations are durable, and
``UpdateTransaction``, the operations of one data frame, which take effect when the frame is
durable. The ingestion pipeline article calls them metadata update transactions.

Invariants:
1. A refused operation changes neither the pending state nor the sequence numbers. Held by
   ``test_a_refused_operation_leaves_no_trace``.
2. While the frame of an operation is not durable, the metadata do not show the operation. Held by
   ``test_nothing_pending_shows_in_the_metadata``.
3. When the log fails, all that is pending is dropped, and the container goes back to what is
   durable. Held by
   ``test_a_failed_log_write_fails_everything_in_order_and_ends_the_container``.
4. Accepted operations get ascending sequence numbers, and appends get offsets without gaps. Held by
   ``test_appends_get_offsets_in_order``.
5. When a condition needs an attribute that memory does not have, ``accept`` raises
   ``AttributesNotLoadedError`` and changes nothing; it never reads tier 2. Held by
   ``test_an_operation_that_needs_what_only_the_index_has_leaves_no_trace``.

Segment ``s`` has 10 bytes and an attribute a = 1; the last sequence number is 2. In one frame come:

    append 5 bytes if a = 1, then a = 2     number 3, offset 10; pending: length 15, a = 2
    append 1 byte if the length is 10       BadOffsetError (the length is 15); no number
    seal                                    number 4, length 15; pending: sealed
    append 1 byte                           SegmentSealedError; no number

Until the frame is durable, the metadata have length 10 and a = 1; then length 15, a = 2, sealed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from segstore.durable_log.pending_segment import (
    CHANGES_COUNT_MAX,
    NOTHING,
    AttributesNotLoadedError,
    PendingSegment,
    SegmentNotLoadedError,
    check_value,
    resolve_updates,
    unfit,
)
from segstore.errors import (
    BadOffsetError,
    InvalidRequestError,
    NoSuchSegmentError,
    SegmentError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentTruncatedError,
)
from segstore.model.attributes import (
    ATTRIBUTE_ID_LENGTH,
    EVENT_COUNT,
    NULL_ATTRIBUTE_VALUE,
    AttributeId,
    AttributeUpdateType,
    is_core_attribute,
)
from segstore.model.metadata import ContainerMetadata, SegmentMetadata, new_records_segment
from segstore.model.operations import (
    ActivateOperation,
    AppendOperation,
    AttributeValues,
    BarrierOperation,
    DeleteOperation,
    EvictOperation,
    MapOperation,
    MergeOperation,
    Operation,
    SealOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)
from segstore.model.segment_attributes import ID_BYTES

NAME_BYTES_MAX: Final = 692
"""Maximum length, in bytes, of a segment's name as a part of an S3 key, where all characters but
letters, digits and a few marks take three bytes. With the longest prefix and suffix, the key is as
long as S3 allows; clients' names are shorter. A longer name must be refused here: tier 2 would
refuse its chunks, so the log could never be truncated."""
_SPELLED_LONG: Final = re.compile(rb"[^A-Za-z0-9_$./-]|(?:^|(?<=/))[./]")

_REPLACE: Final = AttributeUpdateType.REPLACE
LEAVING: Final = 0
"""Value in place of a segment id while an operation that makes the segment inactive is in flight.
"""


class NothingIdleError(SegmentError):
    """Raised when all segments that were chosen to become inactive are in use again."""


__all__ = [
    "AttributesNotLoadedError",
    "NothingIdleError",
    "PendingSegment",
    "PendingState",
    "SegmentNotLoadedError",
    "UpdateTransaction",
    "resolve_updates",
]

OffsetNow = Callable[[str], int | None]
"""Returns the offset of an inactive segment's record by the segment's name: ``NO_RECORD`` when no
inactive segment has the name, None when memory cannot tell."""
NO_RECORD: Final = -1


class UpdateTransaction:
    """The operations whose records end in one data frame. ``block_bytes`` is the size of their data
    in the cache, which uses whole blocks."""

    __slots__ = ("answered_count", "block_bytes", "operations")

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.block_bytes = 0
        self.answered_count = 0
        """Count of the first operations that were completed. Appends after them whose data were
        freed were completed, too."""

    @property
    def unanswered(self) -> list[Operation]:
        """Return the operations that were not completed yet."""
        operations = self.operations[self.answered_count :]
        count = 0
        for position, each in enumerate(operations, 1):
            if type(each) is AppendOperation and each.length and not each.data:
                count = position
        return operations[count:]


class PendingState:
    """Validates operations in queue order, each against all operations that were accepted before.

    ``_fast.log.operation_pipeline`` does the same for the usual appends, all at once. ``segments``
    has the segments with operations in flight by their ids, ``next_number`` is the sequence number
    of the next operation.
    """

    def __init__(
        self,
        metadata: ContainerMetadata,
        now_ms: Callable[[], int],
        offset_now: OffsetNow,
    ) -> None:
        self._metadata = metadata
        self._now_ms = now_ms
        self._offset_now = offset_now
        self.segments: dict[int, PendingSegment] = {}
        self._names: dict[str, int | None] = {}
        self.begin()

    def begin(self) -> None:
        """Copy the counters from the metadata; call this again after a recovery."""
        metadata = self._metadata
        self._records_id = 0 if metadata.records is None else metadata.records.segment_id
        self.next_number = metadata.sequence_number + 1
        self._next_segment_id = metadata.next_segment_id

    @property
    def last_sequence_number(self) -> int:
        """Return the last sequence number that was given to an operation."""
        return self.next_number - 1

    def next_sequence_number(self) -> int:
        """Return a new sequence number, one higher than the last."""
        number = self.next_number
        self.next_number = number + 1
        return number

    def accept(self, operation: Operation) -> None:
        """Validate one operation, and set its sequence number, segment id, offset and attribute
        values. Raises a ``SegmentError``, or ``AttributesNotLoadedError``, and changes nothing."""
        _ACCEPT[type(operation)](self, operation)
        operation.sequence_number = self.next_sequence_number()

    def committed(self, operation: Operation) -> None:
        """Record that an accepted operation is durable and applied to the metadata."""
        segment_id = operation.segment_id
        self.release(segment_id, operation.sequence_number)
        is_new = isinstance(operation, MapOperation | ActivateOperation | EvictOperation)
        if is_new and segment_id in self.segments:
            self.segments[segment_id].base = self._metadata.segments[segment_id]
        if isinstance(operation, MergeOperation):
            self.release(operation.source_id, operation.sequence_number)
            self._settle_name(operation.source_name)
        elif isinstance(operation, MapOperation | DeleteOperation | ActivateOperation):
            self._settle_name(operation.name)
        elif isinstance(operation, EvictOperation):
            for record, _, _ in operation.records:
                # A new segment may have the name now: remove the entry only if it is still that of
                # this operation.
                if self._names.get(record.name) == LEAVING:
                    del self._names[record.name]

    def missing_attributes(
        self, operation: Operation
    ) -> tuple[SegmentMetadata | None, set[AttributeId]]:
        """Return the attributes that ``accept`` needs and that are not in memory, and their
        segment."""
        if not isinstance(operation, AppendOperation | UpdateAttributesOperation | MergeOperation):
            return None, set()
        try:
            pending = self.find(operation.name)
            return pending.base, {
                update.attribute_id
                for update in operation.updates
                if update.update_type != _REPLACE and pending.value_of(update.attribute_id) is None
            }
        except (SegmentError, SegmentNotLoadedError):
            return None, set()  # ``accept`` will raise the error.

    def missing_names(self, operation: Operation) -> list[str]:
        """Return the names of segments that ``accept`` needs and that may be inactive."""
        if isinstance(operation, BarrierOperation | EvictOperation | ActivateOperation):
            return []
        names = [operation.name]
        if isinstance(operation, MergeOperation):
            names.append(operation.source_name)
        return [name for name in names if self.may_be_inactive(name)]

    def exists_in_memory(self, name: str) -> bool:
        """Return whether an active segment has the name, after all accepted operations."""
        if name in self._names:
            return self._names[name] not in (None, LEAVING)
        return name in self._metadata.by_name

    def may_be_inactive(self, name: str) -> bool:
        """Return whether an inactive segment has the name, or memory cannot tell."""
        if name in self._names:
            return self._names[name] == LEAVING
        return name not in self._metadata.by_name and self._offset_now(name) != NO_RECORD

    def release(self, segment_id: int, sequence_number: int) -> None:
        """Forget an operation in flight, and its segment when it was the last one."""
        pending = self.segments.get(segment_id)
        if pending is not None:
            pending.in_flight -= 1
            if pending.in_flight == 0:
                del self.segments[segment_id]
            elif pending.older is not NOTHING or len(pending.attributes) > CHANGES_COUNT_MAX:
                pending.forget_durable(sequence_number, self.next_number - 1)

    def _settle_name(self, name: str) -> None:
        # Remove the pending name once the committed names are the same. A newer pending change of
        # the name stays.
        if name in self._names:
            committed = self._metadata.by_name.get(name)
            if self._names[name] == (committed.segment_id if committed else None):
                del self._names[name]

    def find(self, name: str) -> PendingSegment:
        """Return the state of a segment after all accepted operations. Raises
        ``NoSuchSegmentError``, and ``SegmentNotLoadedError`` for one that may be inactive."""
        segment_id: int | None
        if name in self._names:
            segment_id = self._names[name]
            base = None
            if segment_id == LEAVING:
                raise SegmentNotLoadedError(name)
        else:
            base = self._metadata.by_name.get(name)
            if base is None and self._offset_now(name) != NO_RECORD:
                raise SegmentNotLoadedError(name)
            segment_id = base.segment_id if base is not None else None
        if segment_id is None:
            raise NoSuchSegmentError(name)
        pending = self.segments.get(segment_id)
        if pending is None:
            pending = PendingSegment(base or self._metadata.segments[segment_id])
        return pending

    def _hold(self, pending: PendingSegment) -> int:
        """Keep the pending segment until the operation commits; return the segment's id."""
        segment_id = pending.base.segment_id
        pending.in_flight += 1
        self.segments[segment_id] = pending
        return segment_id

    def _accept_append(self, operation: AppendOperation) -> None:
        name = operation.name
        pending = self.find(name)
        if pending.sealed:
            raise SegmentSealedError(name)
        values = resolve_updates(pending, operation.updates) if operation.updates else {}
        expected = operation.expected_offset
        if expected is not None and expected != pending.length:
            raise BadOffsetError(name, expected=expected, actual=pending.length)
        operation.segment_id = self._hold(pending)
        operation.offset = pending.length
        operation.attribute_values = values
        pending.length += operation.length
        pending.attributes.update(values)

    def _accept_seal(self, operation: SealOperation) -> None:
        pending = self.find(operation.name)
        if pending.sealed:
            raise SegmentSealedError(operation.name)
        operation.segment_id = self._hold(pending)
        operation.length = pending.length
        pending.sealed = True

    def _accept_merge(self, operation: MergeOperation) -> None:
        source = self.find(operation.source_name)
        target = self.find(operation.name)
        if source.base is target.base:
            raise InvalidRequestError(operation.name, f"{operation.name} merged into itself")
        if target.sealed:
            raise SegmentSealedError(operation.name)
        if source.start_offset:
            raise SegmentTruncatedError(operation.source_name, start_offset=source.start_offset)
        values = resolve_updates(target, operation.updates)
        if events := source.event_count:
            before = values.get(EVENT_COUNT, target.event_count)
            values[EVENT_COUNT] = events + (0 if before == NULL_ATTRIBUTE_VALUE else before)
            check_value(target, values[EVENT_COUNT])
        operation.segment_id = self._hold(target)
        operation.source_id = self._hold(source)
        operation.offset, operation.length = target.length, source.length
        operation.attribute_values = values
        target.length += source.length
        target.attributes.update(values)
        source.sealed = True
        self._names[operation.source_name] = None

    def _accept_map(self, operation: MapOperation) -> None:
        name = operation.name
        if self._exists(name):
            raise SegmentExistsError(name)
        _check_name(name)
        _check_ids(name, operation.attribute_values)
        operation.segment_id = self._next_segment_id
        operation.created_ms = self._now_ms()
        self._next_segment_id += 1
        base = SegmentMetadata(operation.segment_id, name)
        base.attribute_memory.start_with(operation.attribute_values, self.next_number)
        self._hold(PendingSegment(base))
        self._names[name] = operation.segment_id

    def _exists(self, name: str) -> bool:
        if name in self._names:
            return self._names[name] is not None
        if name in self._metadata.by_name:
            return True
        offset = self._offset_now(name)
        if offset is None:
            raise SegmentNotLoadedError(name)
        return offset != NO_RECORD

    def _find_records(self) -> PendingSegment:
        if not self._records_id:
            self._records_id = self._next_segment_id
            self._next_segment_id += 1
            return PendingSegment(
                new_records_segment(self._metadata.container_id, self._records_id)
            )
        pending = self.segments.get(self._records_id)
        return pending or PendingSegment(self._metadata.segments[self._records_id])

    def _accept_evict(self, operation: EvictOperation) -> None:
        segments = self._metadata.segments
        leaving = operation.choose(
            [
                segment
                for number in operation.candidates
                if number not in self.segments
                and (segment := segments.get(number)) is not None
                and segment.name not in self._names
            ]
        )
        if not leaving:
            raise NothingIdleError(operation.name)
        pending = self._find_records()
        operation.segment_id = self._hold(pending)
        operation.offset = pending.length
        operation.set_records([segment.record for segment in leaving])
        pending.length += len(operation.data)
        for segment in leaving:
            segment.leaving = True
            self._names[segment.name] = LEAVING

    def _accept_activate(self, operation: ActivateOperation) -> None:
        name = operation.name
        if name in self._names or name in self._metadata.by_name:
            raise SegmentExistsError(name)
        if self._offset_now(name) != operation.offset:
            raise NoSuchSegmentError(name)  # The record that was read is obsolete.
        base = SegmentMetadata.from_record(operation.record, operation.record_bytes)
        operation.segment_id = self._hold(PendingSegment(base))
        self._names[name] = operation.segment_id

    def _accept_attributes(self, operation: UpdateAttributesOperation) -> None:
        if operation.segment_id == self._records_id:
            pending = self._find_records()
        else:
            pending = self.find(operation.name)
        if operation.segment_id >= 0:
            # The container itself sends this, for a segment of a certain id, which may be sealed.
            if operation.segment_id != pending.base.segment_id:
                raise NoSuchSegmentError(operation.name)
        elif pending.sealed:
            raise SegmentSealedError(operation.name)
        values = resolve_updates(pending, operation.updates)
        operation.segment_id = self._hold(pending)
        operation.attribute_values = values
        pending.attributes.update(values)

    def _accept_truncate(self, operation: TruncateOperation) -> None:
        if operation.segment_id == self._records_id:
            pending = self._find_records()
        else:
            pending = self.find(operation.name)
        if not pending.start_offset <= operation.offset <= pending.length:
            raise SegmentTruncatedError(operation.name, start_offset=pending.start_offset)
        operation.segment_id = self._hold(pending)
        pending.start_offset = operation.offset

    def _accept_delete(self, operation: DeleteOperation) -> None:
        pending = self.find(operation.name)
        operation.segment_id = self._hold(pending)
        pending.sealed = True
        self._names[operation.name] = None


def _check_name(name: str) -> None:
    data = name.encode("utf-8", "surrogatepass")
    length = len(data) + 2 * len(_SPELLED_LONG.findall(data))
    if length > NAME_BYTES_MAX:
        raise InvalidRequestError(
            name, f"a segment's name takes at most {NAME_BYTES_MAX} bytes in tier 2, not {length}"
        )


def _check_ids(name: str, values: AttributeValues) -> None:
    id_bytes = values.get(ATTRIBUTE_ID_LENGTH, 0) or ID_BYTES
    for attribute_id in values:
        if len(attribute_id) != id_bytes and not is_core_attribute(attribute_id):
            raise unfit(name, attribute_id, id_bytes)


_ACCEPT: Final[dict[type[Operation], Callable[..., None]]] = {
    AppendOperation: PendingState._accept_append,
    SealOperation: PendingState._accept_seal,
    MergeOperation: PendingState._accept_merge,
    MapOperation: PendingState._accept_map,
    UpdateAttributesOperation: PendingState._accept_attributes,
    TruncateOperation: PendingState._accept_truncate,
    DeleteOperation: PendingState._accept_delete,
    EvictOperation: PendingState._accept_evict,
    ActivateOperation: PendingState._accept_activate,
}
