"""The state that one segment will have when all operations in flight are durable.

Owns: ``PendingSegment``, and the conversion of conditional attribute updates to plain values.

Invariants:
1. When a condition needs an attribute that memory does not have, the update raises
   ``AttributesNotLoadedError`` and changes nothing; the caller loads the attribute and tries again.
   Held by ``test_an_operation_that_needs_what_only_the_index_has_leaves_no_trace``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from segstore.errors import BadAttributeUpdateError, InvalidRequestError
from segstore.model.attributes import (
    EVENT_COUNT,
    NULL_ATTRIBUTE_VALUE,
    AttributeId,
    AttributeUpdate,
    AttributeUpdateType,
    is_core_attribute,
)
from segstore.model.metadata import SegmentMetadata
from segstore.model.operations import AttributeValues

TRANSIENT_ATTRIBUTE_COUNT_MAX: Final = 16
"""Maximum number of extended attributes of a transient segment (the original's limit)."""
CHANGES_COUNT_MAX: Final = 512
"""Maximum count of changed attributes that are kept while operations on a segment are in flight."""

# Looking up a member of an enum takes a large part of the time of an update.
_REPLACE: Final = AttributeUpdateType.REPLACE
_REPLACE_IF_GREATER: Final = AttributeUpdateType.REPLACE_IF_GREATER
_ACCUMULATE: Final = AttributeUpdateType.ACCUMULATE
_REPLACE_IF_EQUALS: Final = AttributeUpdateType.REPLACE_IF_EQUALS
NOTHING: Final[AttributeValues] = {}


class AttributesNotLoadedError(Exception):
    """Raised when the conditions of an operation need attributes that only the index in tier 2 has.
    Callers of the container never get it: the attributes are loaded, and the operation is tried
    again."""


class SegmentNotLoadedError(AttributesNotLoadedError):
    """Raised when the segment of an operation is, or may be, inactive. Callers of the container
    never get it: the segment is activated, and the operation is tried again."""


class PendingSegment:
    """A segment as it will be when all operations in flight are durable. ``base`` has its committed
    metadata.

    ``attributes`` has the values that operations in flight change. ``older`` has earlier ones,
    which are all durable once the operation with the sequence number ``older_until`` is.
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
        self.older: AttributeValues = NOTHING
        self.older_until = 0
        self.in_flight = 0

    def value_of(self, attribute_id: AttributeId) -> int | None:
        """Return the pending value of an attribute, ``NULL_ATTRIBUTE_VALUE`` if it is absent, and
        None if memory cannot tell."""
        value = self.attributes.get(attribute_id)
        if value is None:
            if self.older is not NOTHING:
                value = self.older.get(attribute_id)
            if value is None:
                value = self.base.attributes.get(attribute_id)
                if value is None:
                    return self._value_not_in_memory(attribute_id)
        return value

    @property
    def event_count(self) -> int:
        """Return the pending number of events."""
        value = self.value_of(EVENT_COUNT)
        return 0 if value is None or value == NULL_ATTRIBUTE_VALUE else value

    def _value_not_in_memory(self, attribute_id: AttributeId) -> int | None:
        memory = self.base.attribute_memory
        if is_core_attribute(attribute_id):
            return NULL_ATTRIBUTE_VALUE
        if len(attribute_id) != memory.id_bytes:
            raise unfit(self.base.name, attribute_id, memory.id_bytes)
        return None if memory.is_indexed else NULL_ATTRIBUTE_VALUE

    def forget_durable(self, sequence_number: int, newest: int) -> None:
        """Forget attribute changes that the metadata have, because the operation with this sequence
        number is durable. ``newest`` is the last sequence number that was given."""
        if self.older is not NOTHING:
            if sequence_number >= self.older_until:
                self.older = NOTHING
        elif len(self.attributes) > CHANGES_COUNT_MAX:
            self.older, self.attributes = self.attributes, {}
            self.older_until = newest


def unfit(name: str, attribute_id: AttributeId, id_bytes: int) -> InvalidRequestError:
    """Return the error for an attribute id whose length does not fit the segment."""
    return InvalidRequestError(
        name, f"attributes of {name} have ids of {id_bytes} bytes, not of {len(attribute_id)}"
    )


def check_value(pending: PendingSegment, value: int) -> None:
    """Raise ``InvalidRequestError`` for a value that does not fit into 64 bits."""
    if not -(2**63) <= value < 2**63:
        raise InvalidRequestError(pending.base.name, "an attribute value leaves 64 bits")


def resolve_updates(pending: PendingSegment, updates: Sequence[AttributeUpdate]) -> AttributeValues:
    """Return the plain values that conditional updates set.

    Raises ``BadAttributeUpdateError`` when a condition fails, and ``AttributesNotLoadedError`` when
    a condition needs a value that only the index has.
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
                present = NULL_ATTRIBUTE_VALUE  # The new value does not depend on it.
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
        check_value(pending, value)
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
