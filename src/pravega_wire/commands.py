"""The command table: every message of the wire protocol, declared once.

Owns: the classes of the commands, their codes and their fields in wire order.

Fields are declared in wire order. The codec is generated from these classes alone. A field with a
default is one that older peers leave out; we always send all fields.

Invariants:
1. When the fields at the end of a command are missing, they take their defaults. Held by
   ``test_fields_left_out_at_the_end_take_their_defaults``.
2. ``COMMANDS`` maps each code to one class, and a second class with the same code is refused. Held
   by ``test_a_code_is_declared_once``.
3. Commands are immutable and compare by their values. Held by
   ``test_commands_cannot_be_changed_and_compare_by_value``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar, dataclass_transform

import msgspec

from pravega_wire.fields import I8, I32, I64, Bool, Bytes, FramedEvent, Raw, Text, Uuid

WIRE_VERSION = 16
OLDEST_COMPATIBLE_VERSION = 5

COMMAND_BYTES_MAX = 0xFF_FFFF
"""Maximum length of a frame, in bytes, with its header of 8 bytes."""
REQUEST_ITEMS_MAX = 4096
"""Maximum number of items in one list of a request. Official clients send at most 256 keys of a
table, and official controllers 100 segments to merge."""

INT64_MIN = -(2**63)

NULL_ATTRIBUTE_VALUE = INT64_MIN
"""Value of an attribute that is not set; also a new writer's last event number."""

NO_VERSION = INT64_MIN
"""Version of a table key that matches any stored version."""

NOT_EXISTS = -1
"""Version of a table key that matches only when the key is absent."""

UNSPECIFIED = -1
"""Code of an ``ErrorMessage`` about something that may pass."""
ILLEGAL_ARGUMENT = 0
"""Code of an ``ErrorMessage`` about a request that will never succeed."""


@dataclass_transform(frozen_default=True)
class Part(msgspec.Struct, frozen=True, gc=False):
    """A value inside commands."""


@dataclass_transform(frozen_default=True)
class Command(msgspec.Struct, frozen=True, gc=False):
    """A message of the wire protocol."""

    code: ClassVar[int]


class Request(Command):
    """A command that a client sends."""


class Reply(Command):
    """A command that a server sends."""


COMMANDS: dict[int, type[Command]] = {}

_CommandType = TypeVar("_CommandType", bound=type[Command])


def command(code: int) -> Callable[[_CommandType], _CommandType]:
    """Return a decorator that registers a class in ``COMMANDS`` under ``code``."""

    def declare(cls: _CommandType) -> _CommandType:
        assert code not in COMMANDS, f"code {code} is taken"
        cls.code = code
        COMMANDS[code] = cls
        return cls

    return declare


# ---- Parts of commands ---------------------------------------------------------------------------


class TableKey(Part):
    """A key of a table segment and the version it must have (or has).

    On the wire an empty key has no version: it decodes to ``NO_VERSION``.
    """

    key: Bytes
    version: I64 = NO_VERSION


class TableEntry(Part):
    """A key of a table segment with its value."""

    key: TableKey
    value: Bytes


class TableIteratorArgs(Part):
    """The begin and the end of a table iteration; empty if not given.

    ``prefix_filter`` is deprecated: it is always sent empty.
    """

    continuation_token: Bytes = b""
    prefix_filter: Bytes = b""
    from_key: Bytes = b""
    to_key: Bytes = b""


class AttributeUpdate(Part):
    """A conditional change of a segment attribute."""

    attribute_id: Uuid
    update_type: I8
    value: I64
    expected: I64


class MergedSource(Part):
    """One merged source segment of a batch, and the target's length after it."""

    source: Text
    new_target_write_offset: I64


class ChunkInfo(Part):
    """One chunk of a segment in tier 2."""

    length_in_metadata: I64
    length_in_storage: I64
    start_offset: I64
    chunk_name: Text
    exists_in_storage: Bool


class PlannedObject(Part):
    """A file or object of tier 2 that has the bytes of a chunk from ``chunk_offset`` on."""

    chunk_offset: I64
    length: I64
    path: Text
    object_offset: I64


class PlannedChunk(Part):
    """A chunk with bytes of a segment, the places of these, and the checksums of its blocks."""

    start_offset: I64
    length: I64
    chunk_name: Text
    phase: I32
    checked_length: I64
    sums: Bytes
    objects: tuple[PlannedObject, ...]


# ---- Connection ----------------------------------------------------------------------------------


@command(-127)
class Hello(Request, Reply):
    """The first command each way: the versions the sender speaks. Ours is ``HELLO``."""

    high_version: I32
    low_version: I32

    @property
    def suits_us(self) -> bool:
        """Return whether the sender speaks a version that we speak, too."""
        return self.low_version <= WIRE_VERSION and self.high_version >= OLDEST_COMPATIBLE_VERSION


HELLO = Hello(WIRE_VERSION, OLDEST_COMPATIBLE_VERSION)


@command(100)
class KeepAlive(Request, Reply):
    """A sign of life of an idle client; the server echoes each one."""


# ---- Administration ------------------------------------------------------------------------------


@command(-3)
class FlushToStorage(Request):
    """Move a whole container to tier 2. -> ``StorageFlushed``"""

    container_id: I32
    delegation_token: Text
    request_id: I64


@command(-4)
class StorageFlushed(Reply):
    request_id: I64


@command(-5)
class ListStorageChunks(Request):
    """-> ``StorageChunksListed``"""

    segment: Text
    delegation_token: Text
    request_id: I64


@command(-6)
class StorageChunksListed(Reply):
    request_id: I64
    chunks: tuple[ChunkInfo, ...]


# ---- Scans of tier 2: our own, outside of the official codes -------------------------------------


@command(-64)
class PlanScan(Request):
    """Ask for the places in tier 2 of a range's bytes, which stay there while the lease lasts.
    -> ``ScanPlanned``"""

    request_id: I64
    segment: Text
    start_offset: I64
    end_offset: I64
    lease_id: Uuid
    lease_ms: I32
    delegation_token: Text


@command(-65)
class ScanPlanned(Reply):
    """``planned_end`` is the end of the chunks: later bytes need another request, or a read."""

    request_id: I64
    segment: Text
    planned_end: I64
    stored_end: I64
    lease_ms: I32
    store_id: Text
    location: Text
    endpoint: Text
    region: Text
    chunks: tuple[PlannedChunk, ...]


@command(-66)
class HoldChunks(Request):
    """Extend a lease on chunks, or end it: with 0 ms. -> ``ChunksHeld``"""

    request_id: I64
    segment: Text
    lease_id: Uuid
    lease_ms: I32
    chunk_names: tuple[Text, ...]
    delegation_token: Text


@command(-67)
class ChunksHeld(Reply):
    """``lease_ms`` is 0 when the lease is over."""

    request_id: I64
    segment: Text
    lease_ms: I32


@command(-68)
class AskDelays(Request):
    """Ask a store why requests wait, or are refused, now. -> ``DelaysTold``"""

    request_id: I64


@command(-69)
class DelaysTold(Reply):
    """A sentence about each reason, such as a full disk; none when nothing is known to delay."""

    request_id: I64
    reasons: tuple[Text, ...]


@command(-70)
class AskMetrics(Request):
    """Ask a store what it measures of itself. -> ``MetricsTold``"""

    request_id: I64
    delegation_token: Text


@command(-71)
class MetricsTold(Reply):
    """The readings of the store's metrics, as ``pravega_metrics`` encodes them."""

    request_id: I64
    readings: Raw


# ---- Appending -----------------------------------------------------------------------------------


@command(-1)
class Padding(Command):
    """Fills an append block that got less data than announced; ignored elsewhere."""

    zeros: Raw


@command(-2)
class PartialEvent(Command):
    """The head of an event that continues in the block's end."""

    data: Raw


@command(0)
class Event(Command):
    """One event, as clients frame it inside append blocks; never a frame of its own."""

    data: Raw


@command(1)
class SetupAppend(Request):
    """Announce a writer of a segment. -> ``AppendSetup``"""

    request_id: I64
    writer_id: Uuid
    segment: Text
    delegation_token: Text


@command(2)
class AppendSetup(Reply):
    """``last_event_number`` is durable; it is the least int64 for a new writer."""

    request_id: I64
    segment: Text
    writer_id: Uuid
    last_event_number: I64


@command(3)
class AppendBlock(Request):
    writer_id: Uuid
    data: Raw


@command(4)
class AppendBlockEnd(Request):
    """-> ``DataAppended``"""

    writer_id: Uuid
    size_of_whole_events: I32
    data: Bytes
    event_count: I32
    last_event_number: I64
    request_id: I64 = -1


@command(5)
class ConditionalAppend(Request):
    """-> ``DataAppended`` or ``ConditionalCheckFailed``"""

    writer_id: Uuid
    event_number: I64
    expected_offset: I64
    event: FramedEvent
    request_id: I64 = -1


@command(89)
class ConditionalBlockEnd(Request):
    """-> ``DataAppended`` or ``ConditionalCheckFailed``"""

    writer_id: Uuid
    event_number: I64
    expected_offset: I64
    data: Bytes
    request_id: I64


@command(7)
class DataAppended(Reply):
    """All events of this writer up to ``event_number`` are durable."""

    writer_id: Uuid
    event_number: I64
    previous_event_number: I64 = -1
    request_id: I64 = -1
    current_segment_write_offset: I64 = -1


@command(8)
class ConditionalCheckFailed(Reply):
    writer_id: Uuid
    event_number: I64
    request_id: I64 = -1


@command(55)
class InvalidEventNumber(Reply):
    writer_id: Uuid
    request_id: I64
    server_stack_trace: Text = ""
    event_number: I64 = -1


# ---- Reading -------------------------------------------------------------------------------------


@command(9)
class ReadSegment(Request):
    """-> ``SegmentRead``, possibly much later"""

    segment: Text
    offset: I64
    suggested_length: I32
    delegation_token: Text
    request_id: I64 = -1


@command(10)
class SegmentRead(Reply):
    segment: Text
    offset: I64
    at_tail: Bool
    end_of_segment: Bool
    data: Bytes
    request_id: I64 = -1


# ---- Segments ------------------------------------------------------------------------------------


@command(11)
class GetStreamSegmentInfo(Request):
    """-> ``StreamSegmentInfo``"""

    request_id: I64
    segment: Text
    delegation_token: Text


@command(12)
class StreamSegmentInfo(Reply):
    request_id: I64
    segment: Text
    exists: Bool
    is_sealed: Bool
    is_deleted: Bool
    last_modified: I64
    write_offset: I64
    start_offset: I64 = 0


@command(20)
class CreateSegment(Request):
    """-> ``SegmentCreated``"""

    request_id: I64
    segment: Text
    target_rate: I32
    scale_type: I8
    delegation_token: Text
    rollover_size_bytes: I64 = 0


@command(21)
class SegmentCreated(Reply):
    """For a transient segment ``segment`` is the generated name."""

    request_id: I64
    segment: Text


@command(28)
class SealSegment(Request):
    """-> ``SegmentSealed``"""

    request_id: I64
    segment: Text
    delegation_token: Text


@command(29)
class SegmentSealed(Reply):
    request_id: I64
    segment: Text


@command(30)
class DeleteSegment(Request):
    """-> ``SegmentDeleted``"""

    request_id: I64
    segment: Text
    delegation_token: Text


@command(31)
class SegmentDeleted(Reply):
    request_id: I64
    segment: Text


@command(32)
class UpdateSegmentPolicy(Request):
    """-> ``SegmentPolicyUpdated``"""

    request_id: I64
    segment: Text
    target_rate: I32
    scale_type: I8
    delegation_token: Text


@command(33)
class SegmentPolicyUpdated(Reply):
    request_id: I64
    segment: Text


@command(34)
class GetSegmentAttribute(Request):
    """-> ``SegmentAttribute``"""

    request_id: I64
    segment: Text
    attribute_id: Uuid
    delegation_token: Text


@command(35)
class SegmentAttribute(Reply):
    request_id: I64
    value: I64


@command(36)
class UpdateSegmentAttribute(Request):
    """-> ``SegmentAttributeUpdated``"""

    request_id: I64
    segment: Text
    attribute_id: Uuid
    new_value: I64
    expected_value: I64
    delegation_token: Text


@command(37)
class SegmentAttributeUpdated(Reply):
    request_id: I64
    success: Bool


@command(38)
class TruncateSegment(Request):
    """-> ``SegmentTruncated``"""

    request_id: I64
    segment: Text
    truncation_offset: I64
    delegation_token: Text


@command(39)
class SegmentTruncated(Reply):
    request_id: I64
    segment: Text


@command(40)
class CreateTransientSegment(Request):
    """-> ``SegmentCreated``"""

    request_id: I64
    writer_id: Uuid
    parent_segment: Text
    delegation_token: Text


@command(41)
class LocateOffset(Request):
    """-> ``OffsetLocated``; only for peers that speak version 17"""

    request_id: I64
    segment: Text
    target_offset: I64
    delegation_token: Text


@command(42)
class OffsetLocated(Reply):
    request_id: I64
    segment: Text
    offset: I64


@command(58)
class MergeSegments(Request):
    """-> ``SegmentsMerged``, or ``SegmentAttributeUpdated(success=False)``"""

    request_id: I64
    target: Text
    source: Text
    delegation_token: Text
    attribute_updates: tuple[AttributeUpdate, ...] = ()


@command(59)
class SegmentsMerged(Reply):
    request_id: I64
    target: Text
    source: Text
    new_target_write_offset: I64 = -1


@command(90)
class MergeSegmentsBatch(Request):
    """-> ``SegmentsBatchMerged``"""

    request_id: I64
    target: Text
    sources: tuple[Text, ...]
    delegation_token: Text


@command(91)
class SegmentsBatchMerged(Reply):
    request_id: I64
    target: Text
    sources: tuple[MergedSource, ...]


# ---- Refusals ------------------------------------------------------------------------------------


@command(50)
class WrongHost(Reply):
    request_id: I64
    segment: Text
    correct_host: Text
    server_stack_trace: Text = ""


@command(51)
class SegmentIsSealed(Reply):
    request_id: I64
    segment: Text
    server_stack_trace: Text = ""
    offset: I64 = -1


@command(52)
class SegmentAlreadyExists(Reply):
    request_id: I64
    segment: Text
    server_stack_trace: Text = ""


@command(53)
class NoSuchSegment(Reply):
    request_id: I64
    segment: Text
    server_stack_trace: Text = ""
    offset: I64 = -1


@command(56)
class SegmentIsTruncated(Reply):
    request_id: I64
    segment: Text
    start_offset: I64
    server_stack_trace: Text = ""
    offset: I64 = -1


@command(57)
class OperationUnsupported(Reply):
    request_id: I64
    operation_name: Text
    server_stack_trace: Text = ""


@command(60)
class AuthTokenCheckFailed(Reply):
    """``error_code``: -1 unspecified, 0 the check failed, 1 the token has expired."""

    request_id: I64
    server_stack_trace: Text = ""
    error_code: I32 = -1


@command(61)
class ErrorMessage(Reply):
    """``error_code`` is ``UNSPECIFIED`` or ``ILLEGAL_ARGUMENT``."""

    request_id: I64
    segment: Text
    message: Text
    error_code: I32


@command(80)
class TableSegmentNotEmpty(Reply):
    request_id: I64
    segment: Text
    server_stack_trace: Text


@command(81)
class TableKeyDoesNotExist(Reply):
    request_id: I64
    segment: Text
    server_stack_trace: Text


@command(82)
class TableKeyBadVersion(Reply):
    request_id: I64
    segment: Text
    server_stack_trace: Text


# ---- Table segments ------------------------------------------------------------------------------


@command(68)
class GetTableSegmentInfo(Request):
    """-> ``TableSegmentInfo``"""

    request_id: I64
    segment: Text
    delegation_token: Text


@command(69)
class TableSegmentInfo(Reply):
    """``key_length`` is 0 for a hash table."""

    request_id: I64
    segment: Text
    start_offset: I64
    length: I64
    entry_count: I64
    key_length: I32


@command(70)
class CreateTableSegment(Request):
    """-> ``SegmentCreated``; ``key_length`` > 0 asks for the fixed-key layout"""

    request_id: I64
    segment: Text
    delegation_token: Text
    sorted_deprecated: Bool = False
    key_length: I32 = 0
    rollover_size_bytes: I64 = 0


@command(71)
class DeleteTableSegment(Request):
    """-> ``SegmentDeleted`` or ``TableSegmentNotEmpty``"""

    request_id: I64
    segment: Text
    must_be_empty: Bool
    delegation_token: Text


@command(74)
class UpdateTableEntries(Request):
    """-> ``TableEntriesUpdated``"""

    request_id: I64
    segment: Text
    delegation_token: Text
    table_entries: tuple[TableEntry, ...]
    table_segment_offset: I64 = -1


@command(75)
class TableEntriesUpdated(Reply):
    request_id: I64
    updated_versions: tuple[I64, ...]


@command(76)
class RemoveTableKeys(Request):
    """-> ``TableKeysRemoved``"""

    request_id: I64
    segment: Text
    delegation_token: Text
    keys: tuple[TableKey, ...]
    table_segment_offset: I64 = -1


@command(77)
class TableKeysRemoved(Reply):
    request_id: I64
    segment: Text


@command(78)
class ReadTable(Request):
    """-> ``TableRead``"""

    request_id: I64
    segment: Text
    delegation_token: Text
    keys: tuple[TableKey, ...]


@command(79)
class TableRead(Reply):
    """One entry for each requested key, in order; version ``NOT_EXISTS`` marks an absent one."""

    request_id: I64
    segment: Text
    entries: tuple[TableEntry, ...]


@command(83)
class ReadTableKeys(Request):
    """-> ``TableKeysRead``"""

    request_id: I64
    segment: Text
    delegation_token: Text
    suggested_key_count: I32
    args: TableIteratorArgs = TableIteratorArgs()


@command(84)
class TableKeysRead(Reply):
    request_id: I64
    segment: Text
    keys: tuple[TableKey, ...]
    continuation_token: Bytes


@command(85)
class ReadTableEntries(Request):
    """-> ``TableEntriesRead``"""

    request_id: I64
    segment: Text
    delegation_token: Text
    suggested_entry_count: I32
    args: TableIteratorArgs = TableIteratorArgs()


@command(86)
class TableEntriesRead(Reply):
    request_id: I64
    segment: Text
    entries: tuple[TableEntry, ...]
    continuation_token: Bytes


@command(88)
class ReadTableEntriesDelta(Request):
    """-> ``TableEntriesDeltaRead``"""

    request_id: I64
    segment: Text
    delegation_token: Text
    from_position: I64
    suggested_entry_count: I32


@command(87)
class TableEntriesDeltaRead(Reply):
    request_id: I64
    segment: Text
    entries: tuple[TableEntry, ...]
    should_clear: Bool
    reached_end: Bool
    last_position: I64
