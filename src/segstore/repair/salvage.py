"""Saves the data of a container whose log or chunks are incomplete.

Owns: ``Salvage``, which makes new metadata of a container from the readable part of its log, the
last copy of its metadata in tier 2, and the chunks in tier 2, and which reports the losses. It
takes the same steps for a plan and for a recovery; only ``SegmentPieces`` knows whether bytes are
written.

Invariants:
1. When tier 2 lacks bytes that the log has, they are added; bytes in tier 2 stay where they are.
   Held by ``test_a_gap_in_tier_2_is_filled_from_the_journal``.
2. When bytes are neither in tier 2 nor in the log, they are reported and recorded as lost: reads of
   them fail, and events before and after them stay at their offsets. Held by
   ``test_events_on_both_sides_of_a_gap_are_kept_where_they_were``.
3. A segment does not end before a length that clients were told. Held by
   ``test_the_record_of_chunks_proves_an_end_without_the_last_chunk_and_the_journal``. Nor does it
   end before its start offset. Held by ``test_a_segment_never_ends_below_its_truncation``.
4. Missing bytes before the start offset are not reported. Held by
   ``test_a_gap_before_the_truncation_is_no_loss``.
5. When the segment of a transaction has lost bytes, it still begins at 0, because only such a
   segment can be merged. If it has lost all bytes, it is removed, and a commit takes it for merged.
   Held by ``test_what_is_left_of_a_transaction_can_be_merged``.
6. Inactive segments are active in the result, because their records may be damaged. Held by
   ``test_inactive_segments_come_back_without_a_journal``.

A segment has events of 100 bytes. Tier 2 is an old copy and has 5,000 bytes; the log has the
appends from 8,000 to 10,000 (``test_events_on_both_sides_of_a_gap_are_kept_where_they_were``).

    0 to 5,000        stay in their chunks
    5,000 to 8,000    are lost: a read of them fails, and names both offsets
    8,000 to 10,000   are added to tier 2, at these offsets; the length is 10,000
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from _fast.btree.tree import FOOTER_BYTES, Footer
from _fast.log.data_frame import DataFrame, FrameDamagedError, FrameReader
from pravega_wire.codec import HEADER as EVENT_HEADER
from pravega_wire.names import parent_segment_name
from segstore.attributes.attribute_index import attribute_segment_name
from segstore.chunks.chunk_metadata import ChunkMetadata
from segstore.errors import DataLogCorruptError
from segstore.model.attributes import (
    ATTRIBUTE_SEGMENT_PERSIST_SEQ_NO,
    ATTRIBUTE_SEGMENT_ROOT_POINTER,
    ATTRIBUTE_SEGMENT_TYPE,
    NULL_ATTRIBUTE_VALUE,
    TABLE_BUCKET_COUNT,
    TABLE_COMPACTION_OFFSET,
    TABLE_ENTRY_COUNT,
    TABLE_INDEX_OFFSET,
    TABLE_TOTAL_ENTRY_COUNT,
    SegmentType,
    is_core_attribute,
)
from segstore.model.metadata import ContainerMetadata, SegmentMetadata, records_name
from segstore.model.operations import (
    ActivateOperation,
    AppendOperation,
    CheckpointOperation,
    DeleteOperation,
    EvictOperation,
    MapOperation,
    MergeOperation,
    Operation,
    decode_operation,
)
from segstore.model.segment_record import RecordDamagedError, SegmentRecord, decode_record
from segstore.repair.pieces import Range, SegmentPieces, found_length
from segstore.tables.entries import (
    HEADER_BYTES,
    KEY_BYTES_MAX,
    EntryHead,
    TableDataError,
    encode_entry,
    parse_entries,
    parse_head,
)
from segstore.tiers.api import LOG_ENTRY_BYTES_MAX

READ_BYTES: Final = 4 * 1024 * 1024
SEARCHED_BYTES: Final = 9 * 1024 * 1024
"""Number of bytes after a gap in which the beginning of an event is searched; the longest event is
shorter."""
_HEAD_BYTES_MAX: Final = HEADER_BYTES + KEY_BYTES_MAX
_MAGIC: Final = b"SegBTree"
_INDEX_SUFFIX: Final = "$attributes.index"
_INDEX_STATE: Final = (
    TABLE_INDEX_OFFSET,
    TABLE_ENTRY_COUNT,
    TABLE_BUCKET_COUNT,
    TABLE_TOTAL_ENTRY_COUNT,
    TABLE_COMPACTION_OFFSET,
    ATTRIBUTE_SEGMENT_ROOT_POINTER,
    ATTRIBUTE_SEGMENT_PERSIST_SEQ_NO,
)
"""The attributes that say how far a table is indexed. Without them, the next use of the table
indexes all of its entries."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The loss or change of ``length`` bytes of one segment from ``offset`` on; ``what`` says
    which."""

    container_id: int
    segment: str
    what: str
    offset: int
    length: int


Entries = Callable[[], AsyncIterator[bytes]]
"""Reads the log from its beginning."""


def find_missing_chunks(
    container_id: int, metadata: ChunkMetadata, lengths: Mapping[str, int]
) -> list[Finding]:
    """Return the ranges of segments that are missing, because ``lengths``, by the names of existing
    chunks, lacks a recorded chunk or has a shorter one."""
    missing: list[Finding] = []
    for segment in metadata.segment_names():
        record = metadata.peek(segment)
        for chunk in record.chunks if record is not None and not record.is_moved else ():
            found = found_length(chunk, lengths)
            if found < chunk.length and not chunk.is_lost:
                lack = chunk.length - found
                missing.append(Finding(container_id, segment, "missing", chunk.start + found, lack))
    return missing


# ---- The log -------------------------------------------------------------------------------------


async def read_operations(entries: Entries) -> AsyncIterator[Operation]:
    """Yield the operations in a log. Raises ``DataLogCorruptError``."""
    reader = FrameReader()
    number = 0
    async for entry in entries():
        try:
            records = reader.feed(entry, number)
        except FrameDamagedError as error:
            raise DataLogCorruptError(f"a data frame is damaged: {error}") from error
        for _, record in records:
            yield decode_operation(record)
        number += 1


async def skip_to_checkpoint(entries: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the entries of a log whose beginning is lost, from the first checkpoint on."""
    reader, held, is_found = FrameReader(), list[bytes](), False
    async for entry in entries:
        if is_found:
            yield entry
            continue
        try:
            records = reader.feed(entry, 0)
        except FrameDamagedError:  # The entry begins within a record.
            reader, held = FrameReader(), []
            continue
        held.append(entry)
        if not records:
            continue
        # A checkpoint is always the first record of its frame.
        is_found = isinstance(decode_operation(records[0][1]), CheckpointOperation)
        if is_found:
            for each in held:
                yield each
        reader, held = FrameReader(), []


@dataclass(slots=True)
class Replayed:
    """The metadata of a container after the replay of its log, and the names of its segments."""

    metadata: ContainerMetadata
    names: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Storage name and maximum length of chunks, in bytes, of each segment in the log, by id."""
    deleted: set[int] = field(default_factory=set)
    """Ids of the segments that the log deletes."""
    problem: str = ""
    """The reason why the log could not be read to its end; empty when it was."""

    @property
    def is_empty(self) -> bool:
        """Return whether the log has no operation."""
        return self.metadata.sequence_number == 0


async def replay_metadata(container_id: int, entries: Entries | None) -> Replayed:
    """Replay a log as far as it can be read. Tier 2 is not asked."""
    replayed = Replayed(ContainerMetadata(container_id))
    if entries is None:
        return replayed
    try:
        async for operation in read_operations(entries):
            _apply(replayed, operation)
    except (DataLogCorruptError, KeyError) as error:
        replayed.problem = f"the log cannot be followed: {error}"
    return replayed


def _apply(replayed: Replayed, operation: Operation) -> None:
    metadata = replayed.metadata
    if isinstance(operation, CheckpointOperation):
        if replayed.is_empty:
            metadata.restore(operation.snapshot)
            for segment in metadata.segments.values():
                replayed.names[segment.segment_id] = segment.storage_name, segment.rollover_bytes
        metadata.sequence_number = operation.sequence_number
        return
    if replayed.is_empty:
        raise DataLogCorruptError("it begins without a checkpoint")
    metadata.apply(operation, 0)
    if isinstance(operation, DeleteOperation):
        replayed.deleted.add(operation.segment_id)
    elif isinstance(operation, MapOperation | ActivateOperation | EvictOperation):
        segment = metadata.segments[operation.segment_id]
        replayed.names[segment.segment_id] = segment.storage_name, segment.rollover_bytes


# ---- Putting it together -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequiredSegment:
    """A segment of a stream, as the controller's records describe it."""

    name: str
    head: int
    """Offset at which readers of the stream begin."""
    is_sealed: bool | None
    """True if the segment takes no more events; None while a workflow may be sealing it."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that was neither committed nor aborted, as the controller's records describe
    it."""

    called: str
    segments: tuple[str, ...]
    """The segments that have its events."""
    table: str
    key: bytes
    """The key of its record in the controller's table."""
    aborting: bytes
    """The value of this record with which an abort begins."""


@dataclass(frozen=True, slots=True)
class BegunCommit:
    """A transaction whose commit was accepted, as the controller's records describe it."""

    called: str
    segments: tuple[str, ...]
    """The segments that had its events; a segment that was merged is gone."""


@dataclass(frozen=True, slots=True)
class StreamHead:
    """The beginning of a stream, as the controller's records describe it."""

    called: str
    offsets: Mapping[str, int]
    """The first offset in each segment, by the segments' names."""
    table: str
    """The name of the controller's table with its records."""
    move: Callable[[Mapping[str, int]], list[tuple[bytes, bytes]]]
    """Returns, for new offsets of some of these segments, the keys and values of the records with
    which the stream begins there."""


@dataclass(slots=True)
class Required:
    """The segments, heads and transactions of streams, as the controller's records describe
    them."""

    segments: list[RequiredSegment] = field(default_factory=list)
    transactions: list[OpenTransaction] = field(default_factory=list)
    commits: list[BegunCommit] = field(default_factory=list)
    heads: list[StreamHead] = field(default_factory=list)


class Borders:
    """Offsets of one segment at which an event, or an entry of a table, certainly begins or
    ends."""

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._grows = False

    def add_run(self, start: int, end: int) -> None:
        """Add both ends of an append. If it begins where the last one ended, only the new end is
        kept."""
        if self._grows and self._offsets[-1] == start:
            self._offsets[-1] = end
        else:
            self._offsets += (start, end)
        self._grows = True

    def add(self, *offsets: int) -> None:
        """Add offsets, in any order. Bytes between them may be missing."""
        self._grows = False
        self._offsets = sorted({*self._offsets, *offsets})

    def last_before(self, offset: int, *, first: int) -> int | None:
        """Return the last of these offsets that is at or before ``offset``; None when it lies
        before ``first``."""
        found = bisect_right(self._offsets, offset)
        return self._offsets[found - 1] if found and self._offsets[found - 1] >= first else None

    def first_from(self, offset: int) -> int | None:
        """Return the first of these offsets that is at or after ``offset``."""
        found = bisect_left(self._offsets, offset)
        return self._offsets[found] if found < len(self._offsets) else None


class Salvage:
    """Saves one container. ``findings`` has the losses and changes.

    ``keeps_indexes`` means that the log is that of the last owner, so that its root pointers of
    attribute indexes are right; otherwise the newest indexes in tier 2 are searched. ``required``
    has the segments that streams need. ``updates`` has keys and values to append to tables, by
    name.
    """

    def __init__(
        self,
        container_id: int,
        pieces: SegmentPieces,
        stored: ChunkMetadata,
        lengths: Mapping[str, int],
        copy: bytes | None,
        *,
        keeps_indexes: bool,
        required: Iterable[RequiredSegment] = (),
        updates: Mapping[str, Sequence[tuple[bytes, bytes]]] = MappingProxyType({}),
    ) -> None:
        self._container_id = container_id
        self._pieces = pieces
        self._stored = stored
        self._lengths = lengths
        self._copy = copy
        self._keeps_indexes = keeps_indexes
        self._required = {each.name: each for each in required}
        self._updates = updates
        self._borders: defaultdict[str, Borders] = defaultdict(Borders)
        self.findings: list[Finding] = []
        self.metadata = ContainerMetadata(container_id)
        """The metadata of the container after the recovery."""

    async def run(
        self, replayed: Replayed, entries: Entries | None, last_operation: int
    ) -> tuple[bytes, int]:
        """Return the snapshot with which the container's new log begins, and its sequence
        number."""
        metadata = self.metadata = self._latest(replayed)
        if entries is not None:
            await self._add_logged(replayed, entries)
        await self._add_inactive(metadata, replayed)
        self._add_unknown(metadata, replayed)
        for segment in list(metadata.segments.values()):
            if segment.merged or segment is metadata.records:
                del metadata.segments[segment.segment_id]
        metadata.records = None
        self._add_required(metadata)
        for segment in list(metadata.segments.values()):
            await self._settle(segment)
        self._settle_others()
        await self._pieces.write_all()
        metadata.sequence_number = max(metadata.sequence_number, last_operation) + 1
        return metadata.snapshot(metadata.sequence_number), metadata.sequence_number

    def _latest(self, replayed: Replayed) -> ContainerMetadata:
        """Return the metadata from the log, or from the copy in tier 2 if that is later. Lengths
        and start offsets are the greater ones of both."""
        if self._copy is None:
            return replayed.metadata
        copied = ContainerMetadata(self._container_id)
        copied.restore(self._copy)
        earlier, later = copied, replayed.metadata
        if copied.sequence_number > replayed.metadata.sequence_number:
            earlier, later = replayed.metadata, copied
        for segment_id, segment in later.segments.items():
            known = earlier.segments.get(segment_id)
            if known is not None and known.name == segment.name:
                segment.length = max(segment.length, known.length)
                segment.start_offset = max(segment.start_offset, known.start_offset)
        return later

    def _report(self, segment: str, what: str, offset: int, length: int) -> None:
        self.findings.append(Finding(self._container_id, segment, what, offset, length))

    # ---- Bytes in the log ------------------------------------------------------------------------

    async def _add_logged(self, replayed: Replayed, entries: Entries) -> None:
        """Add the bytes that only the log has."""
        try:
            async for operation in read_operations(entries):
                await self._store(replayed, operation)
        except DataLogCorruptError:
            pass  # The damage was reported when the metadata were replayed.

    async def _store(self, replayed: Replayed, operation: Operation) -> None:
        name, rollover_bytes = replayed.names.get(operation.segment_id, ("", 0))
        if not name or operation.segment_id in replayed.deleted:
            return
        if isinstance(operation, AppendOperation | EvictOperation):
            segment = self.metadata.segments.get(operation.segment_id)
            end = operation.offset + len(operation.data)
            if isinstance(operation, AppendOperation):
                self._borders[name].add_run(operation.offset, end)
            await self._pieces.add(
                name,
                operation.offset,
                operation.data,
                rollover_bytes=rollover_bytes,
                start=segment.start_offset if segment is not None else 0,
            )
        elif isinstance(operation, MergeOperation):
            end = operation.offset + operation.length
            self._borders[name].add(operation.offset, end)
            source, _ = replayed.names.get(operation.source_id, ("", 0))
            if source:
                await self._pieces.copy(
                    source,
                    name,
                    offset=operation.offset,
                    length=operation.length,
                    rollover_bytes=rollover_bytes,
                )
                self._forget(source)

    def _forget(self, name: str) -> None:
        self._pieces.forget(name)
        self._pieces.forget(attribute_segment_name(name))

    # ---- Segments that the log does not know -----------------------------------------------------

    async def _add_inactive(self, metadata: ContainerMetadata, replayed: Replayed) -> None:
        """Make the inactive segments active, from their records in tier 2 and in the log."""
        names = set(self._stored.segment_names())
        latest: dict[str, SegmentRecord] = {}
        prefix = f"{records_name(self._container_id)}.S-"
        for name in sorted(name for name in names if name.startswith(prefix)):
            if not name.endswith(_INDEX_SUFFIX):
                async for record in self._records_in(name):
                    latest[record.name] = record
        if metadata.records is not None and metadata.records.storage_name not in names:
            async for record in self._records_in(metadata.records.storage_name):
                latest[record.name] = record
        for record in latest.values():
            segment = SegmentMetadata.from_record(record, 0)
            is_known = (
                record.name in metadata.by_name
                or record.segment_id in metadata.segments
                or record.segment_id in replayed.deleted
            )
            # The record may be of a segment that was deleted afterwards.
            is_there = (
                not record.length
                or record.name in self._required
                or bool(self._pieces.of(segment.storage_name))
            )
            if not is_known and (is_there or segment.storage_name in names):
                metadata.add_active(segment)

    async def _records_in(self, name: str) -> AsyncIterator[SegmentRecord]:
        """Yield the undamaged records in a segment of records."""
        for start, end in self._pieces.ranges(name, 0, self._pieces.end(name)):
            data = await self._pieces.read_until(name, start, end)
            position = 0
            while position < len(data):
                try:
                    found, position = decode_record(data, position)
                except RecordDamagedError:
                    position += 1
                else:
                    yield found

    def _add_unknown(self, metadata: ContainerMetadata, replayed: Replayed) -> None:
        """Make segments from the chunks whose segment no metadata have: these segments were created
        last."""
        unknown: dict[str, int] = {}
        first_new = metadata.next_segment_id
        for stored_name in self._stored.segment_names():
            name, mark, digits = stored_name.rpartition(".S-")
            record = self._stored.get(stored_name)
            if not mark or not digits.isdecimal() or record is None:
                continue
            number = int(digits)
            metadata.next_segment_id = max(metadata.next_segment_id, number + 1)
            is_described = number in metadata.segments or number in replayed.names
            if is_described or record.is_moved or (number < first_new and self._keeps_indexes):
                continue
            unknown[name] = max(unknown.get(name, 0), number)
        unknown.pop(records_name(self._container_id), None)
        for name, number in unknown.items():
            if (older := metadata.by_name.get(name)) is not None:
                if older.segment_id > number:
                    continue
                del metadata.segments[older.segment_id]
            segment = SegmentMetadata(number, name)
            segment.attribute_memory.start_with(_default_attributes(name), 0)
            metadata.add_active(segment)
            self._report(name, "attributes lost", 0, 0)

    def _add_required(self, metadata: ContainerMetadata) -> None:
        """Make the segments that streams need and that were not found, and seal or unseal segments
        as streams need them."""
        for required in self._required.values():
            segment = metadata.by_name.get(required.name)
            if segment is None:
                segment = self._make_required(metadata, required.name)
                self._report(required.name, "attributes lost", 0, 0)
            segment.start_offset = max(segment.start_offset, required.head)
            if required.is_sealed is not None and segment.sealed != required.is_sealed:
                self._report(required.name, "sealed" if required.is_sealed else "unsealed", 0, 0)
                segment.sealed = required.is_sealed

    def _make_required(self, metadata: ContainerMetadata, name: str) -> SegmentMetadata:
        prefix = f"{name}.S-"
        digits = [
            each[len(prefix) :]
            for each in self._stored.segment_names()
            if each.startswith(prefix) and each[len(prefix) :].isdecimal()
        ]
        number = max(map(int, digits), default=metadata.next_segment_id)
        if number in metadata.segments:
            number = metadata.next_segment_id
        metadata.next_segment_id = max(metadata.next_segment_id, number + 1)
        segment = SegmentMetadata(number, name)
        segment.attribute_memory.start_with(_default_attributes(name), 0)
        metadata.add_active(segment)
        return segment

    # ---- Lengths and attributes ------------------------------------------------------------------

    async def _settle(self, segment: SegmentMetadata) -> None:
        """Set the start offset, length and attributes of a segment, and report the bytes that are
        lost between the two offsets."""
        name, pieces = segment.storage_name, self._pieces
        recorded_start, recorded_end = pieces.recorded(name)
        is_merged_later = parent_segment_name(segment.name) is not None
        segment.start_offset = max(segment.start_offset, recorded_start)
        if is_merged_later:
            segment.start_offset = 0
        end = max(segment.length, segment.start_offset)
        if recorded_end > pieces.end(name):
            end = max(end, recorded_end)
        borders = self._borders[name]
        borders.add(segment.start_offset, segment.length)
        if segment.segment_type & SegmentType.TABLE:
            borders.add(segment.attributes.get(TABLE_INDEX_OFFSET, 0))
        if (stored_end := pieces.end(name)) > end:
            # Only the last range can end with an incomplete event. Gaps are treated below.
            run = pieces.ranges(name, end, stored_end)[-1][0]
            if run > end:
                begin = await self._next_begin(segment, run, stored_end)
                if begin is not None and begin < stored_end:
                    borders.add(begin)
            whole = max(end, await self._whole_end(segment, run, stored_end))
            await pieces.drop(name, whole, stored_end)
            if not self._keeps_indexes and whole > end:
                self._report(segment.name, "found", end, whole - end)
            end = whole
        if segment.segment_type & SegmentType.TABLE:
            await self._begin_earlier(segment, end)
        has_losses = await self._settle_gaps(segment, end)
        if is_merged_later and end and not pieces.ranges(name, 0, end):
            self._forget(name)
            del self.metadata.segments[segment.segment_id]
            del self.metadata.by_name[segment.name]
            return
        for key, value in self._updates.get(segment.name, ()):
            entry = encode_entry(key, value)
            await pieces.add(name, end, entry, rollover_bytes=segment.rollover_bytes)
            end += len(entry)
        pieces.settle(name, start=segment.start_offset, end=end)
        segment.length = segment.storage_length = end
        segment.record_bytes = 0
        if not segment.is_transient:
            await self._settle_attributes(segment, has_losses)

    async def _begin_earlier(self, segment: SegmentMetadata, end: int) -> None:
        """Move the start offset of a table with losses back to the first entry in tier 2.

        A compaction copies entries to the end of the table and truncates their old places. If the
        copies are lost, an older state of tier 2 may still have the old places.
        """
        name, pieces = segment.storage_name, self._pieces
        found = pieces.of(name)
        gaps = pieces.gaps(name, segment.start_offset, end)
        if not found or all(pieces.was_lost(name, *gap) for gap in gaps):
            return
        if found[0].start >= segment.start_offset:
            return
        begin = await self._next_begin(segment, found[0].start, end)
        if begin is not None and begin < segment.start_offset:
            segment.start_offset = begin
            self._borders[name].add(begin)

    async def _settle_gaps(self, segment: SegmentMetadata, end: int) -> bool:
        """Drop the incomplete events or entries at both ends of each gap, and report the gaps.
        Return whether there are any. If the first bytes of a segment are lost, it begins with the
        first complete event after them."""
        name, pieces = segment.storage_name, self._pieces
        borders = self._borders[name]
        position = segment.start_offset
        has_losses = False
        while gap := next(pieces.gaps(name, position, end), None):
            lost_from, lost_until = gap
            if pieces.was_lost(name, *gap):  # An earlier recovery reported it.
                if await self._has_begin(segment, lost_until):
                    borders.add(lost_until)
                position = lost_until
                continue
            has_losses = True
            if lost_from > position:
                lost_from = await self._whole_end(segment, position, lost_from)
            first: int | None = lost_until
            if lost_until < end and borders.first_from(lost_until) != lost_until:
                first = await self._next_begin(segment, lost_until, end)
                lost_until = lost_until if first is None else first
            await pieces.drop(name, lost_from, lost_until)
            self._report(segment.name, "lost", lost_from, lost_until - lost_from)
            if first is not None:
                borders.add(lost_until)
                if lost_from == segment.start_offset and parent_segment_name(segment.name) is None:
                    segment.start_offset = lost_until
            position = lost_until
        return has_losses

    async def _has_begin(self, segment: SegmentMetadata, offset: int) -> bool:
        """Return whether an event or entry begins at ``offset``, where a range ends that an earlier
        recovery reported as lost."""
        if segment.segment_type & SegmentType.TABLE:
            return True
        head = await self._pieces.read_until(
            segment.storage_name, offset, offset + EVENT_HEADER.size, with_added=False
        )
        return bool(_event_length(head, 0))

    async def _next_begin(self, segment: SegmentMetadata, start: int, end: int) -> int | None:
        """Return the first offset from ``start`` on at which an event or entry seems to begin: from
        there, each ends where the next one begins.

        If there is none, return None for a stream, which may be one of bytes without events; for a
        table, return the next offset at which an entry certainly begins.
        """
        name, is_table = segment.storage_name, bool(segment.segment_type & SegmentType.TABLE)
        length_of = _entry_length if is_table else _event_length
        [(_, stop), *_] = self._pieces.ranges(name, start, end)
        border = self._borders[name].first_from(start)
        stop = stop if border is None else min(stop, border)
        data = await self._pieces.read_until(
            name, start, min(stop, start + SEARCHED_BYTES), with_added=False
        )
        is_all = start + len(data) == stop and stop in (border, end)
        for place in range(len(data)):
            if not is_table and data[place : place + 4] != b"\0\0\0\0"[: len(data) - place]:
                continue
            position, length = place, length_of(data, place)
            if length == EVENT_HEADER.size:  # Zeros within an event look like an empty event.
                continue
            while length and position + length <= len(data):
                position += length
                length = length_of(data, position) if position < len(data) else 0
            if position == len(data) or (position > place and length is not None and not is_all):
                return start + place
        return stop if is_table or border == stop else None

    async def _whole_end(self, segment: SegmentMetadata, start: int, end: int) -> int:
        """Return the offset at which the last complete event or entry between ``start`` and ``end``
        ends; ``end`` if the segment has neither, as that of a byte stream.

        Readers could not find the events that are appended after an incomplete one.
        """
        is_table = bool(segment.segment_type & SegmentType.TABLE)
        length_of = _entry_length if is_table else _event_length
        name = segment.storage_name
        position = self._borders[name].last_before(end, first=start)
        if position is None:
            return end
        while position < end:
            data = await self._pieces.read_until(
                name, position, min(end, position + READ_BYTES), with_added=False
            )
            if not data:
                return end
            place = 0
            while (length := length_of(data, place)) and place + length <= len(data):
                place += length
            if length is None:  # The bytes are no events.
                return end
            if place == 0:
                if not length or position + length > end:
                    return position
                place = length
            position += place
        return position

    async def _settle_attributes(self, segment: SegmentMetadata, has_losses: bool) -> None:
        memory = segment.attribute_memory
        name = attribute_segment_name(segment.storage_name)
        root, is_table = memory.root_pointer, bool(segment.segment_type & SegmentType.TABLE)
        end = self._pieces.end(name)
        ranges = self._pieces.ranges(name, 0, end)
        is_whole = root == NULL_ATTRIBUTE_VALUE or root + FOOTER_BYTES <= end
        if self._keeps_indexes and is_whole and len(ranges) < 2 and not (is_table and has_losses):
            return
        found = await self._find_root(name, ranges)
        if is_table and self._keeps_indexes and not has_losses:
            self._report(segment.name, "index made anew", 0, 0)
        elif not is_table and root not in (found, NULL_ATTRIBUTE_VALUE) and found < root:
            self._report(segment.name, "attributes older", 0, 0)
        changed_by = memory.changed_by
        values = dict(memory.values)
        core = {each: value for each, value in values.items() if is_core_attribute(each)}
        if is_table:
            values = {each: value for each, value in core.items() if each not in _INDEX_STATE}
        elif found != root:
            # The index that was found is newer than the copy of the metadata: drop the copy's
            # values.
            values = values if self._keeps_indexes else core
            values.pop(ATTRIBUTE_SEGMENT_ROOT_POINTER, None)
            if found != NULL_ATTRIBUTE_VALUE:
                values[ATTRIBUTE_SEGMENT_ROOT_POINTER] = found
        memory.values.clear()
        memory.dirty.clear()
        memory.cached.clear()
        memory.start_with(values, changed_by)

    async def _find_root(self, name: str, ranges: Sequence[Range]) -> int:
        """Return the offset of the last complete footer of an attribute index, or
        ``NULL_ATTRIBUTE_VALUE`` if there is none. The index then begins after the last gap before
        the footer."""
        for start, end in reversed(ranges):
            data = await self._pieces.read_until(name, start, end)
            place = data.rfind(_MAGIC)
            while place >= 0:
                try:
                    footer = Footer.parse(data[place : place + FOOTER_BYTES], offset=start + place)
                except ValueError:
                    footer = None
                if footer is not None and footer.min_offset >= start:
                    self._pieces.settle(name, start=start, end=self._pieces.end(name))
                    return start + place
                place = data.rfind(_MAGIC, 0, place)
        return NULL_ATTRIBUTE_VALUE

    # ---- What was settled ------------------------------------------------------------------------

    def _settle_others(self) -> None:
        """Record the missing bytes of unused segments as lost."""
        for finding in find_missing_chunks(self._container_id, self._stored, self._lengths):
            name = finding.segment
            if name not in self._pieces.records and name not in self._pieces.forgotten:
                pieces = self._pieces.of(name)
                end = self._pieces.end(name)
                self._pieces.settle(name, start=pieces[0].start if pieces else end, end=end)

    async def read_table(self, name: str) -> dict[bytes, bytes]:
        """Return the keys and values that a table will have after the recovery."""
        found: dict[bytes, bytes] = {}
        segment = self.metadata.by_name[name]
        stored_name = segment.storage_name
        for start, end in self._pieces.ranges(stored_name, segment.start_offset, segment.length):
            position, rest = start, b""
            while position + len(rest) < end:
                begin = position + len(rest)
                rest += await self._pieces.read_until(
                    stored_name, begin, min(end, begin + READ_BYTES)
                )
                used = 0
                for entry in parse_entries(name, rest, offset=position):
                    if entry.value is None:
                        found.pop(entry.key, None)
                    else:
                        found[entry.key] = entry.value
                    used = entry.offset + entry.length - position
                if not used and begin + READ_BYTES >= end:
                    break
                rest = rest[used:]
                position += used
        return found


def _event_length(data: bytes, place: int) -> int | None:
    """Return the length of the event that begins at ``place``, with its header; 0 when the header
    is incomplete, None when it is not that of an event."""
    if place + EVENT_HEADER.size > len(data):
        return 0
    kind, length = EVENT_HEADER.unpack_from(data, place)
    return EVENT_HEADER.size + length if kind == 0 and length >= 0 else None


def _entry_length(data: bytes, place: int) -> int | None:
    """Return the length of the table entry that begins at ``place``; 0 when its header or key is
    incomplete, None when it is malformed."""
    try:
        head = parse_head("", memoryview(data)[place : place + _HEAD_BYTES_MAX], offset=0)
    except TableDataError:
        return None
    return head.length if isinstance(head, EntryHead) else 0


def _default_attributes(name: str) -> dict[bytes, int]:
    """Return the attributes of a segment whose own attributes are lost, by its name."""
    return {ATTRIBUTE_SEGMENT_TYPE: int(SegmentType.TABLE)} if "/_tables/" in name else {}


def encode_log(snapshot: bytes, sequence_number: int) -> list[bytes]:
    """Return the entries of a log that has only a checkpoint with this snapshot."""
    checkpoint = CheckpointOperation()
    checkpoint.sequence_number = sequence_number
    checkpoint.snapshot = snapshot
    head, body = checkpoint.encode()
    entries = []
    position, length = 0, len(head) + len(body)
    while position < length:
        frame = DataFrame(LOG_ENTRY_BYTES_MAX)
        position = frame.put_part(head, body, position)
        entries.append(bytes(frame.seal()))
    return entries
