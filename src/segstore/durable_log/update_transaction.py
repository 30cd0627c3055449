"""Validation of operations against effects that are not durable yet.

Owns: the chain of metadata update transactions of the ingestion pipeline article. Each data frame
has one ``UpdateTransaction``, which takes effect when the frame is durable; ``PendingState`` is the
head of the chain: the container as it will be once everything in flight is durable.

Invariants:
1. A refused operation leaves no trace in the pending state.
2. Nothing pending is visible outside until its frame is durable; frames commit in order.
3. A failed log write stops the container, so the chain is never rolled back, only dropped whole.
4. An offset, a sequence number and a segment id are assigned here, once.
5. Storage is never asked here: an operation whose conditions need attributes that are only in the
   index is refused with ``AttributesNotLoadedError``, to be tried again when they are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import quote

from segstore.attributes.segment_attributes import ID_BYTES
from segstore.attributes.updates import (
    ATTRIBUTE_ID_LENGTH,
    EVENT_COUNT,
    NULL_ATTRIBUTE_VALUE,
    AttributeId,
    AttributeUpdate,
    AttributeUpdateType,
    is_core_attribute,
)
from segstore.errors import (
    BadAttributeUpdateError,
    BadOffsetError,
    InvalidRequestError,
    NoSuchSegmentError,
    SegmentError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentTruncatedError,
)
from segstore.metadata import ContainerMetadata, SegmentMetadata
from segstore.operations import (
    AppendOperation,
    AttributeValues,
    DeleteOperation,
    MapOperation,
    MergeOperation,
    Operation,
    SealOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)

TRANSIENT_ATTRIBUTE_COUNT_MAX = 16
"""Extended attributes that a transient segment may have (the original's limit)."""

NAME_BYTES_MAX: Final = 768
"""A name takes so much at most as tier 2 spells it, where all but letters, digits and a few marks
are three bytes long. Names that clients make of the longest scope and stream are shorter; a longer
one that tier 2 refuses would keep what is in the log behind it there for ever."""

CHANGES_COUNT_MAX: Final = 512
"""So many changed attributes of a segment are kept until nothing of it is in flight; not more."""

# Looking up a member of an enum costs a good part of what resolving an update does.
_REPLACE: Final = AttributeUpdateType.REPLACE
_REPLACE_IF_GREATER: Final = AttributeUpdateType.REPLACE_IF_GREATER
_ACCUMULATE: Final = AttributeUpdateType.ACCUMULATE
_REPLACE_IF_EQUALS: Final = AttributeUpdateType.REPLACE_IF_EQUALS
_NOTHING: Final[AttributeValues] = {}


class AttributesNotLoadedError(Exception):
    """An operation's conditions need attributes that only the index has; stays in the pipeline."""


class PendingSegment:
    """A segment as it will be when everything in flight is durable.

    ``attributes`` has changes, and ``older`` those before: all durable once the operation is that
    ``older_until`` tells.
    """

    __slots__ = (
        "attributes",
        "base",
        "in_flight",
        "length",
        "older",
        "older_until",
        "sealed",
        "start_offset",
    )

    def __init__(self, base: SegmentMetadata) -> None:
        self.base = base
        self.length = base.length
        self.start_offset = base.start_offset
        self.sealed = base.sealed
        self.attributes: AttributeValues = {}
        self.older: AttributeValues = _NOTHING
        self.older_until = 0
        self.in_flight = 0

    def value_of(self, attribute_id: AttributeId) -> int | None:
        """The pending value of an attribute, or the null value; None if only the index knows."""
        value = self.attributes.get(attribute_id)
        if value is None:
            if self.older is not _NOTHING:
                value = self.older.get(attribute_id)
            if value is None:
                value = self.base.attributes.get(attribute_id)
                if value is None:
                    return self._value_not_in_memory(attribute_id)
        return value

    @property
    def event_count(self) -> int:
        """The pending number of events."""
        value = self.value_of(EVENT_COUNT)
        return 0 if value is None or value == NULL_ATTRIBUTE_VALUE else value

    def _value_not_in_memory(self, attribute_id: AttributeId) -> int | None:
        memory = self.base.attribute_memory
        if is_core_attribute(attribute_id):
            return NULL_ATTRIBUTE_VALUE
        if len(attribute_id) != memory.id_bytes:
            raise _unfit(self.base.name, attribute_id, memory.id_bytes)
        return None if memory.is_indexed else NULL_ATTRIBUTE_VALUE

    def forget_durable(self, sequence_number: int, newest: int) -> None:
        """Let go of changes that the metadata has, now that an operation is durable."""
        if self.older is not _NOTHING:
            if sequence_number >= self.older_until:
                self.older = _NOTHING
        elif len(self.attributes) > CHANGES_COUNT_MAX:
            self.older, self.attributes = self.attributes, {}
            self.older_until = newest


class UpdateTransaction:
    """The operations that end in one data frame, and what their data takes of the cache."""

    __slots__ = ("block_bytes", "operations")

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.block_bytes = 0


class PendingState:
    """Validates operations in queue order against everything accepted before them."""

    def __init__(self, metadata: ContainerMetadata, now_ms: Callable[[], int]) -> None:
        self._metadata = metadata
        self._now_ms = now_ms
        self._segments: dict[int, PendingSegment] = {}
        self._names: dict[str, int | None] = {}
        self._next_sequence_number = metadata.sequence_number + 1
        self._next_segment_id = metadata.next_segment_id

    @property
    def last_sequence_number(self) -> int:
        """The newest sequence number given."""
        return self._next_sequence_number - 1

    def next_sequence_number(self) -> int:
        """Give out one sequence number."""
        number = self._next_sequence_number
        self._next_sequence_number = number + 1
        return number

    def accept(self, operation: Operation) -> None:
        """Validate and complete one operation, or raise a ``SegmentError``."""
        _ACCEPT[type(operation)](self, operation)
        operation.sequence_number = self.next_sequence_number()

    def committed(self, operation: Operation) -> None:
        """Note that an accepted operation became durable and was applied to the metadata."""
        segment_id = operation.segment_id
        self._release(segment_id, operation.sequence_number)
        if isinstance(operation, MergeOperation):
            self._release(operation.source_id, operation.sequence_number)
            self._settle_name(operation.source_name)
        elif isinstance(operation, MapOperation):
            if segment_id in self._segments:
                self._segments[segment_id].base = self._metadata.segments[segment_id]
            self._settle_name(operation.name)
        elif isinstance(operation, DeleteOperation):
            self._settle_name(operation.name)

    def missing_attributes(
        self, operation: Operation
    ) -> tuple[SegmentMetadata | None, set[AttributeId]]:
        """The attributes that have to be loaded, of which segment, before ``accept`` can tell."""
        if not isinstance(operation, AppendOperation | UpdateAttributesOperation | MergeOperation):
            return None, set()
        try:
            pending = self._find(operation.name)
            return pending.base, {
                update.attribute_id
                for update in operation.updates
                if update.update_type != _REPLACE and pending.value_of(update.attribute_id) is None
            }
        except SegmentError:
            return None, set()  # it will be refused

    def _release(self, segment_id: int, sequence_number: int) -> None:
        pending = self._segments.get(segment_id)
        if pending is not None:
            pending.in_flight -= 1
            if pending.in_flight == 0:
                del self._segments[segment_id]
            elif pending.older is not _NOTHING or len(pending.attributes) > CHANGES_COUNT_MAX:
                pending.forget_durable(sequence_number, self._next_sequence_number - 1)

    def _settle_name(self, name: str) -> None:
        # The overlay may go once the committed names say the same; a newer pending change stays.
        if name in self._names:
            committed = self._metadata.by_name.get(name)
            if self._names[name] == (committed.segment_id if committed else None):
                del self._names[name]

    def _find(self, name: str) -> PendingSegment:
        segment_id: int | None
        if name in self._names:
            segment_id = self._names[name]
            base = None
        else:
            base = self._metadata.by_name.get(name)
            segment_id = base.segment_id if base is not None else None
        if segment_id is None:
            raise NoSuchSegmentError(name)
        pending = self._segments.get(segment_id)
        if pending is None:
            pending = PendingSegment(base or self._metadata.segments[segment_id])
        return pending

    def _hold(self, pending: PendingSegment) -> int:
        """Keep the pending segment until the operation commits; returns the segment's id."""
        segment_id = pending.base.segment_id
        pending.in_flight += 1
        self._segments[segment_id] = pending
        return segment_id

    def _accept_append(self, operation: AppendOperation) -> None:
        name = operation.name
        pending = self._find(name)
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
        pending = self._find(operation.name)
        if pending.sealed:
            raise SegmentSealedError(operation.name)
        operation.segment_id = self._hold(pending)
        operation.length = pending.length
        pending.sealed = True

    def _accept_merge(self, operation: MergeOperation) -> None:
        source = self._find(operation.source_name)
        target = self._find(operation.name)
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
        exists = self._names[name] if name in self._names else self._metadata.by_name.get(name)
        if exists is not None:
            raise SegmentExistsError(name)
        _check_name(name)
        _check_ids(name, operation.attribute_values)
        operation.segment_id = self._next_segment_id
        operation.created_ms = self._now_ms()
        self._next_segment_id += 1
        base = SegmentMetadata(operation.segment_id, name)
        base.attribute_memory.start_with(operation.attribute_values, self._next_sequence_number)
        self._hold(PendingSegment(base))
        self._names[name] = operation.segment_id

    def _accept_attributes(self, operation: UpdateAttributesOperation) -> None:
        pending = self._find(operation.name)
        if operation.segment_id >= 0:
            # The container's own: it knows which segment it means, and may change a sealed one.
            if operation.segment_id != pending.base.segment_id:
                raise NoSuchSegmentError(operation.name)
        elif pending.sealed:
            raise SegmentSealedError(operation.name)
        values = resolve_updates(pending, operation.updates)
        operation.segment_id = self._hold(pending)
        operation.attribute_values = values
        pending.attributes.update(values)

    def _accept_truncate(self, operation: TruncateOperation) -> None:
        pending = self._find(operation.name)
        if not pending.start_offset <= operation.offset <= pending.length:
            raise SegmentTruncatedError(operation.name, start_offset=pending.start_offset)
        operation.segment_id = self._hold(pending)
        pending.start_offset = operation.offset

    def _accept_delete(self, operation: DeleteOperation) -> None:
        pending = self._find(operation.name)
        operation.segment_id = self._hold(pending)
        pending.sealed = True
        self._names[operation.name] = None


def _unfit(name: str, attribute_id: AttributeId, id_bytes: int) -> InvalidRequestError:
    return InvalidRequestError(
        name, f"attributes of {name} have ids of {id_bytes} bytes, not of {len(attribute_id)}"
    )


def _check_name(name: str) -> None:
    length = len(quote(name, safe="/#$", errors="surrogatepass"))
    if length > NAME_BYTES_MAX:
        raise InvalidRequestError(
            name, f"a segment's name takes at most {NAME_BYTES_MAX} bytes in tier 2, not {length}"
        )


def _check_ids(name: str, values: AttributeValues) -> None:
    id_bytes = values.get(ATTRIBUTE_ID_LENGTH, 0) or ID_BYTES
    for attribute_id in values:
        if len(attribute_id) != id_bytes and not is_core_attribute(attribute_id):
            raise _unfit(name, attribute_id, id_bytes)


def resolve_updates(pending: PendingSegment, updates: Sequence[AttributeUpdate]) -> AttributeValues:
    """Turn conditional updates into plain values, or raise ``BadAttributeUpdateError``.

    Raises ``AttributesNotLoadedError`` when a condition needs what only the index has.
    """
    values: AttributeValues = {}
    for update in updates:
        attribute_id, verb, value, expected = update
        present = values.get(attribute_id)
        if present is None:
            present = pending.value_of(attribute_id)
            if present is None:
                if verb != _REPLACE:
                    raise AttributesNotLoadedError
                present = NULL_ATTRIBUTE_VALUE  # whatever it is
        if verb == _REPLACE_IF_EQUALS:
            refused = present != expected
        elif verb == _REPLACE:
            refused = False
        elif verb == _ACCUMULATE:
            refused = False
            if present != NULL_ATTRIBUTE_VALUE:
                value += present
        elif verb == _REPLACE_IF_GREATER:
            refused = present != NULL_ATTRIBUTE_VALUE and value <= present
        else:
            refused = present != NULL_ATTRIBUTE_VALUE
        if refused:
            raise BadAttributeUpdateError(
                pending.base.name,
                attribute_id,
                previous_value_missing=present == NULL_ATTRIBUTE_VALUE,
            )
        if not -(2**63) <= value < 2**63:
            raise InvalidRequestError(pending.base.name, "an attribute value leaves 64 bits")
        values[attribute_id] = value
    if pending.base.attribute_memory.is_transient:
        _refuse_many_transient_attributes(pending, values)
    return values


def _refuse_many_transient_attributes(pending: PendingSegment, values: AttributeValues) -> None:
    present = pending.base.attributes | pending.older | pending.attributes | values
    count = sum(
        value != NULL_ATTRIBUTE_VALUE and not is_core_attribute(attribute_id)
        for attribute_id, value in present.items()
    )
    if count > TRANSIENT_ATTRIBUTE_COUNT_MAX:
        raise InvalidRequestError(
            pending.base.name,
            f"a transient segment has at most {TRANSIENT_ATTRIBUTE_COUNT_MAX} attributes",
        )


_ACCEPT: Final[dict[type[Operation], Callable[..., None]]] = {
    AppendOperation: PendingState._accept_append,
    SealOperation: PendingState._accept_seal,
    MergeOperation: PendingState._accept_merge,
    MapOperation: PendingState._accept_map,
    UpdateAttributesOperation: PendingState._accept_attributes,
    TruncateOperation: PendingState._accept_truncate,
    DeleteOperation: PendingState._accept_delete,
}
