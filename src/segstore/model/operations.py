"""The operations that a container writes to its durable log, and their bytes.

Owns: one class per kind of operation and the codec of each (``docs/formats/operations.md``).

Invariants:
1. An operation that is read from the log is equal to the one that was written: it has the offsets
   and plain attribute values that it got when it was accepted, so it needs no validation. Held by
   ``test_an_operation_reads_back_as_it_was_written``.
2. The sequence numbers of a container grow by one with each operation, through refusals and
   restarts. Held by ``test_a_refused_operation_leaves_no_trace`` and
   ``test_a_container_that_crashes_equals_the_model_after_recovery``.
3. Any bytes are either decoded as an operation or refused with ``DataLogCorruptError``. Held by
   ``test_garbage_is_an_operation_or_damage``.

The type numbers are those of the original's log. A number must not be used again for another kind.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import _fast.log.operations
from _fast.log.operations import (
    AppendOperation,
    Operation,
    OperationDamagedError,
    decode_append,
    encode_attributes,
)
from segstore.errors import DataLogCorruptError, SegmentStoreError
from segstore.model.attributes import AttributeId, AttributeUpdate
from segstore.model.segment_record import (
    RecordDamagedError,
    SegmentRecord,
    decode_record,
    encode_record,
)
from segstore.tiers.api import Buffer

__all__ = [
    "ActivateOperation",
    "AppendOperation",
    "AttributeValues",
    "BarrierOperation",
    "CheckpointOperation",
    "DeleteOperation",
    "EvictOperation",
    "MapOperation",
    "MergeOperation",
    "OnComplete",
    "Operation",
    "RefusedOperation",
    "SealOperation",
    "TruncateOperation",
    "UpdateAttributesOperation",
    "decode_attributes",
    "decode_operation",
    "encode_attributes",
]

OnComplete = Callable[[SegmentStoreError | None, int], None]
"""Called when the operation is durable or refused, with the error or None, and a number that
depends on the kind of operation."""

_OPERATION_HEADER: Final = struct.Struct(">BQ")
_SEGMENT_OFFSET: Final = struct.Struct(">QQ")
_SEGMENT: Final = struct.Struct(">Q")
_MERGE: Final = struct.Struct(">QQQQ")
_COUNT: Final = struct.Struct(">I")
_TEXT_LENGTH: Final = struct.Struct(">H")
RECORD_BYTES_EXPECTED: Final = 1024
"""Maximum length, in bytes, that is expected of a record. Only the record of a segment with many
core attributes is longer."""
_APPEND_TYPE: Final = AppendOperation.operation_type

AttributeValues = dict[AttributeId, int]

_ignore: Final[OnComplete] = _fast.log.operations.ignore


def decode_attributes(data: Buffer, position: int, count: int) -> tuple[AttributeValues, int]:
    """Decode ``count`` attributes at ``position``; return them and the position after them.

    Raises ``DataLogCorruptError``.
    """
    try:
        return _fast.log.operations.decode_attributes(data, position, count)
    except (OperationDamagedError, OverflowError) as error:
        raise DataLogCorruptError(str(error)) from error


class StoredOperation(Operation):
    """An operation that is encoded and decoded in Python. Only appends have a faster codec."""

    __slots__ = ()

    def encode(self) -> tuple[bytes, Buffer]:
        """Return the operation's bytes in two parts, head and body, so that the body need not be
        copied."""
        head = _OPERATION_HEADER.pack(self.operation_type, self.sequence_number)
        return head + self.encode_body(), b""

    def encode_body(self) -> bytes:
        """Return the bytes after the type and the sequence number."""
        raise AssertionError(f"{type(self).__name__} is never written to the log")

    @classmethod
    def decode_body(cls, data: memoryview, position: int) -> StoredOperation:
        """Read back what ``encode_body`` wrote at ``position``."""
        raise AssertionError(f"{cls.__name__} is never read from the log")


class SealOperation(StoredOperation):
    """Seals a segment. Completes with its final length."""

    __slots__ = ("length",)

    operation_type = 2

    def __init__(self, name: str, on_complete: OnComplete = _ignore) -> None:
        super().__init__(name, on_complete)
        self.length = -1

    def encode_body(self) -> bytes:
        return _SEGMENT_OFFSET.pack(self.segment_id, self.length)

    @classmethod
    def decode_body(cls, data: memoryview, position: int) -> SealOperation:
        operation = cls("")
        operation.segment_id, operation.length = _SEGMENT_OFFSET.unpack_from(data, position)
        return operation


class MergeOperation(StoredOperation):
    """Appends all bytes of a source segment to the target, which is ``segment_id``.

    Completes with the target's length right after the merge.
    """

    __slots__ = ("attribute_values", "length", "offset", "source_id", "source_name", "updates")

    operation_type = 3

    def __init__(
        self,
        name: str,
        source_name: str,
        *,
        updates: Sequence[AttributeUpdate] = (),
        on_complete: OnComplete = _ignore,
    ) -> None:
        super().__init__(name, on_complete)
        self.source_name = source_name
        self.updates = updates
        self.source_id = -1
        self.offset = -1
        self.length = -1
        self.attribute_values: AttributeValues = {}

    def encode_body(self) -> bytes:
        numbers = _MERGE.pack(self.segment_id, self.source_id, self.offset, self.length)
        values = self.attribute_values
        return numbers + _COUNT.pack(len(values)) + encode_attributes(values)

    @classmethod
    def decode_body(cls, data: memoryview, position: int) -> MergeOperation:
        operation = cls("", "")
        (
            operation.segment_id,
            operation.source_id,
            operation.offset,
            operation.length,
        ) = _MERGE.unpack_from(data, position)
        (count,) = _COUNT.unpack_from(data, position + _MERGE.size)
        start = position + _MERGE.size + _COUNT.size
        operation.attribute_values, _ = decode_attributes(data, start, count)
        return operation


class MapOperation(StoredOperation):
    """Creates a segment with a name, an id and attributes. Completes with the id."""

    __slots__ = ("attribute_values", "created_ms")

    operation_type = 4

    def __init__(
        self,
        name: str,
        attribute_values: AttributeValues,
        *,
        created_ms: int = 0,
        on_complete: OnComplete = _ignore,
    ) -> None:
        super().__init__(name, on_complete)
        self.attribute_values = attribute_values
        self.created_ms = created_ms

    def encode_body(self) -> bytes:
        name = self.name.encode()
        return b"".join(
            (
                _SEGMENT_OFFSET.pack(self.segment_id, self.created_ms),
                _TEXT_LENGTH.pack(len(name)) + name,
                _COUNT.pack(len(self.attribute_values)),
                encode_attributes(self.attribute_values),
            )
        )

    @classmethod
    def decode_body(cls, data: memoryview, position: int) -> MapOperation:
        segment_id, created_ms = _SEGMENT_OFFSET.unpack_from(data, position)
        position += _SEGMENT_OFFSET.size
        (name_length,) = _TEXT_LENGTH.unpack_from(data, position)
        position += _TEXT_LENGTH.size
        name = str(data[position : position + name_length], "utf-8")
        position += name_length
        (count,) = _COUNT.unpack_from(data, position)
        values, _ = decode_attributes(data, position + _COUNT.size, count)
        operation = cls(name, values, created_ms=created_ms)
        operation.segment_id = segment_id
        return operation


class UpdateAttributesOperation(StoredOperation):
    """Updates attributes without appending data. Completes with 0."""

    __slots__ = ("attribute_values", "updates")

    operation_type = 6

    def __init__(
        self, name: str, updates: Sequence[AttributeUpdate], on_complete: OnComplete = _ignore
    ) -> None:
        super().__init__(name, on_complete)
        self.updates = updates
        self.attribute_values: AttributeValues = {}

    def encode_body(self) -> bytes:
        values = self.attribute_values
        head = _SEGMENT.pack(self.segment_id) + _COUNT.pack(len(values))
        return head + encode_attributes(values)

    @classmethod
    def decode_body(cls, data: memoryview, position: int) -> UpdateAttributesOperation:
        operation = cls("", ())
        (operation.segment_id,) = _SEGMENT.unpack_from(data, position)
        (count,) = _COUNT.unpack_from(data, position + _SEGMENT.size)
        start = position + _SEGMENT.size + _COUNT.size
        operation.attribute_values, _ = decode_attributes(data, start, count)
        return operation


class TruncateOperation(StoredOperation):
    """Truncates a segment. Completes with the new start offset."""

    __slots__ = ("offset",)

    operation_type = 7

    def __init__(self, name: str, offset: int, on_complete: OnComplete = _ignore) -> None:
        super().__init__(name, on_complete)
        self.offset = offset

    def encode_body(self) -> bytes:
        return _SEGMENT_OFFSET.pack(self.segment_id, self.offset)

    @classmethod
    def decode_body(cls, data: memoryview, position: int) -> TruncateOperation:
        segment_id, offset = _SEGMENT_OFFSET.unpack_from(data, position)
        operation = cls("", offset)
        operation.segment_id = segment_id
        return operation


class CheckpointOperation(StoredOperation):
    """A snapshot of the container's metadata. It is always the first operation of a data frame, at
    which the log may be truncated. Completes with its sequence number.
    """

    __slots__ = ("snapshot",)

    operation_type = 8

    def __init__(self, on_complete: OnComplete = _ignore) -> None:
        super().__init__("", on_complete)
        self.snapshot: Buffer = b""

    def encode(self) -> tuple[bytes, Buffer]:
        return _OPERATION_HEADER.pack(8, self.sequence_number), self.snapshot

    @classmethod
    def decode_body(cls, data: memoryview, position: int) -> CheckpointOperation:
        operation = cls()
        operation.snapshot = bytes(data[position:])
        return operation


class DeleteOperation(StoredOperation):
    """Deletes a segment. Completes with 0."""

    __slots__ = ()

    operation_type = 10

    def encode_body(self) -> bytes:
        return _SEGMENT.pack(self.segment_id)

    @classmethod
    def decode_body(cls, data: memoryview, position: int) -> DeleteOperation:
        operation = cls("")
        (operation.segment_id,) = _SEGMENT.unpack_from(data, position)
        return operation


class EvictOperation(StoredOperation):
    """Makes segments inactive: appends their records to the container's segment of records, which
    is ``segment_id``, and sets its attributes with the offsets of the records. Completes with 0.

    When the operation is accepted, ``choose`` returns those of the candidates that may be evicted.
    """

    __slots__ = ("candidates", "choose", "data", "offset", "records")

    operation_type = 64

    def __init__(
        self,
        name: str,
        candidates: Sequence[int],
        choose: Callable[[list[Any]], list[Any]],
        on_complete: OnComplete = _ignore,
    ) -> None:
        super().__init__(name, on_complete)
        self.candidates = candidates
        self.choose = choose
        self.offset = -1
        self.data = b""
        self.records: list[tuple[SegmentRecord, int, int]] = []
        """The records, each with the start and end of its bytes in ``data``."""

    @property
    def payload_bytes(self) -> int:
        """Return an estimate, in bytes, of the room that the records need in the cache, before they
        are known."""
        return len(self.candidates) * RECORD_BYTES_EXPECTED

    def set_records(self, records: Sequence[SegmentRecord]) -> None:
        """Set the records, in this order, and encode them into ``data``."""
        parts = [encode_record(record) for record in records]
        self.data = b"".join(parts)
        end = 0
        for record, part in zip(records, parts, strict=True):
            begin, end = end, end + len(part)
            self.records.append((record, begin, end))

    def encode_body(self) -> bytes:
        return _SEGMENT_OFFSET.pack(self.segment_id, self.offset) + self.data

    @classmethod
    def decode_body(cls, data: memoryview, position: int) -> EvictOperation:
        operation = cls("", (), list)
        operation.segment_id, operation.offset = _SEGMENT_OFFSET.unpack_from(data, position)
        operation.data = bytes(data[position + _SEGMENT_OFFSET.size :])
        end = 0
        while end < len(operation.data):
            begin = end
            record, end = decode_record(operation.data, begin)
            operation.records.append((record, begin, end))
        return operation


class ActivateOperation(StoredOperation):
    """Makes an inactive segment active, from its record. Completes with its id.

    ``offset`` is that of the record in the segment of records. ``unused``, which is not stored in
    the log, means that no client asked for the segment.
    """

    __slots__ = ("offset", "record", "record_bytes", "unused")

    operation_type = 65

    def __init__(
        self,
        record: SegmentRecord,
        *,
        offset: int,
        record_bytes: int,
        on_complete: OnComplete = _ignore,
    ) -> None:
        super().__init__(record.name, on_complete)
        self.record = record
        self.offset = offset
        self.record_bytes = record_bytes
        self.unused = False

    def encode_body(self) -> bytes:
        return _SEGMENT_OFFSET.pack(self.segment_id, self.offset) + encode_record(self.record)

    @classmethod
    def decode_body(cls, data: memoryview, position: int) -> ActivateOperation:
        segment_id, offset = _SEGMENT_OFFSET.unpack_from(data, position)
        begin = position + _SEGMENT_OFFSET.size
        record, end = decode_record(data, begin)
        operation = cls(record, offset=offset, record_bytes=end - begin)
        operation.segment_id = segment_id
        return operation


class BarrierOperation(Operation):
    """Completes when all operations that were queued before it have completed. It is not written to
    the log."""

    __slots__ = ()

    operation_type = 0


class RefusedOperation(BarrierOperation):
    """Completes a refused operation with its error, after all operations that were queued
    before."""

    __slots__ = ("refused",)

    def __init__(self, refused: Operation, error: SegmentStoreError) -> None:
        super().__init__(refused.name, partial(_refuse, refused, error))
        self.refused = refused


def _refuse(
    refused: Operation, reason: SegmentStoreError, error: SegmentStoreError | None, number: int
) -> None:
    refused.on_complete(error or reason, -1)


_KINDS: Final[dict[int, type[StoredOperation]]] = {
    kind.operation_type: kind
    for kind in (
        SealOperation,
        MergeOperation,
        MapOperation,
        UpdateAttributesOperation,
        TruncateOperation,
        CheckpointOperation,
        DeleteOperation,
        EvictOperation,
        ActivateOperation,
    )
}


def decode_operation(data: Buffer) -> Operation:
    """Return the operation that ``data`` encodes. Raises ``DataLogCorruptError`` if it encodes
    none.

    The bytes of a long append are a view of ``data``.
    """
    try:
        if len(data) and data[0] == _APPEND_TYPE:
            return decode_append(data)
        view = memoryview(data)
        operation_type, sequence_number = _OPERATION_HEADER.unpack_from(view, 0)
        kind = _KINDS[operation_type]
        operation = kind.decode_body(view, _OPERATION_HEADER.size)
        operation.sequence_number = sequence_number
    except (
        struct.error,
        IndexError,
        KeyError,
        OverflowError,  # A number does not fit into 64 signed bits.
        UnicodeDecodeError,
        OperationDamagedError,
        RecordDamagedError,
        DataLogCorruptError,
    ) as error:
        raise DataLogCorruptError(
            f"a log operation of {len(data)} bytes is damaged: {error}"
        ) from error
    return operation
