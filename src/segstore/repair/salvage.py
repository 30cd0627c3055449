"""Saves the data of a container whose log or chunks are incomplete.

Owns: ``Salvage``. It makes a container's metadata anew from the readable part of its log, the last
copy of its metadata in tier 2, and the chunks in tier 2; and it tells what was lost.

Invariants:
1. Bytes in tier 2 are kept. Bytes of the log are added where they follow without a gap.
2. A segment ends behind its last byte that still exists. Bytes behind a gap at the end are dropped,
   and this is told. A gap before existing chunks stays, and is told: reads there fail.
3. All segments are active in the result, so that no record elsewhere has to be right.
4. Planning and doing take the same steps: only the storage differs.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from _fast.btree.tree import FOOTER_BYTES, Footer
from _fast.log.data_frame import DataFrame, FrameDamagedError, FrameReader
from pravega_wire.codec import HEADER as EVENT_HEADER
from segstore.attributes.attribute_index import attribute_segment_name
from segstore.chunks.chunk_metadata import ChunkMetadata
from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.chunks.records import StoredSegment
from segstore.errors import ChunkNotFoundError, DataLogCorruptError, StorageError
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
    TruncateOperation,
    decode_operation,
)
from segstore.model.segment_record import RecordDamagedError, SegmentRecord, decode_record
from segstore.tables.entries import (
    HEADER_BYTES,
    KEY_BYTES_MAX,
    EntryHead,
    TableDataError,
    parse_head,
)
from segstore.tiers.api import LOG_ENTRY_BYTES_MAX, Buffer, ChunkStorage

READ_BYTES: Final = 4 * 1024 * 1024
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
"""The attributes that tell how far a table is indexed: without them the whole table is read again.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """The loss or change of ``length`` bytes of one segment from ``offset`` on."""

    container_id: int
    segment: str
    what: str
    offset: int
    length: int


Entries = Callable[[], AsyncIterator[bytes]]
"""Reads the log from its beginning."""


# ---- What is left of chunks ----------------------------------------------------------------------


@dataclass(slots=True)
class ChunkLosses:
    """The bytes that the metadata of chunks have and the chunks lack."""

    shortened: dict[str, StoredSegment] = field(default_factory=dict)
    """The records of segments that end earlier than they did."""
    findings: list[Finding] = field(default_factory=list)


def find_chunk_losses(
    container_id: int, metadata: ChunkMetadata, lengths: Mapping[str, int]
) -> ChunkLosses:
    """Compare chunk metadata with the lengths of the chunks that are there, by name."""
    losses = ChunkLosses()
    for segment in metadata.segment_names():
        record = metadata.get(segment)
        assert record is not None
        kept = list(record.chunks)
        while kept and kept[-1].length and not lengths.get(kept[-1].name):
            kept.pop()
        if kept and (found := lengths.get(kept[-1].name, 0)) < kept[-1].length:
            kept[-1] = kept[-1].cut(found)
        if kept != list(record.chunks):
            end = record.chunks[0].start
            shortened = replace(record, chunks=tuple(kept), end_without_chunks=end)
            losses.shortened[segment] = shortened
            losses.findings.append(
                Finding(
                    container_id, segment, "lost end", shortened.end, record.end - shortened.end
                )
            )
        for chunk in kept[:-1]:
            found = lengths.get(chunk.name, 0)
            if found < chunk.length:
                losses.findings.append(
                    Finding(container_id, segment, "gap", chunk.start + found, chunk.length - found)
                )
    return losses


class PlannedStorage:
    """Plans changes of a storage, and answers as if they were made."""

    def __init__(
        self, chunks: ChunkStorage, metadata: ChunkMetadata, lengths: Mapping[str, int]
    ) -> None:
        self._chunks = chunks
        self._metadata = metadata
        self._lengths = lengths
        self._ends: dict[str, int] = {}
        self._written: dict[str, list[tuple[int, bytes]]] = {}

    async def stored_length(self, segment: str, *, certain: int | None = None) -> int:
        """Return the end that the segment would have."""
        if segment in self._ends:
            return self._ends[segment]
        record = self._metadata.get(segment)
        if record is None:
            return 0
        if record.chunks and record.chunks[-1].is_open:
            last = record.chunks[-1]
            return last.start + self._lengths.get(last.name, 0)
        return record.end

    async def write(
        self, segment: str, *, offset: int, data: Sequence[Buffer], rollover_bytes: int
    ) -> None:
        """Record the end; the bytes of records are kept, since they are read."""
        joined = b"".join(data)
        self._ends[segment] = max(await self.stored_length(segment), offset + len(joined))
        if segment.startswith(records_name(0).rpartition("_")[0]):
            self._written.setdefault(segment, []).append((offset, joined))

    async def read(self, segment: str, *, offset: int, length: int) -> Buffer:
        """Read bytes that are stored, or would be."""
        for start, data in self._written.get(segment, ()):
            if start <= offset < start + len(data):
                return data[offset - start : offset - start + length]
        record = self._metadata.get(segment)
        for chunk in record.chunks if record is not None else ():
            end = chunk.start + self._lengths.get(chunk.name, 0)
            if not chunk.is_open:
                end = min(end, chunk.end)
            if chunk.start <= offset < end:
                return await self._chunks.read(
                    chunk.name, offset=offset - chunk.start, length=min(length, end - offset)
                )
        raise ChunkNotFoundError(f"segment {segment} has no stored byte at {offset}")

    async def truncate(self, segment: str, *, offset: int) -> None:
        """Do nothing: a truncation changes no end."""

    async def concat(
        self, target: str, *, offset: int, source: str, length: int, rollover_bytes: int
    ) -> None:
        """Record the end."""
        self._ends[target] = max(await self.stored_length(target), offset + length)

    async def delete(self, segment: str, *, merged_into: str | None = None) -> None:
        """Record that nothing is left."""
        self._ends[segment] = 0

    async def shorten(self, ends: Mapping[str, int]) -> None:
        """Record the ends."""
        self._ends.update(ends)


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
    """Yield the entries of a log whose beginning is gone, from the first checkpoint on."""
    reader, held, is_found = FrameReader(), list[bytes](), False
    async for entry in entries:
        if is_found:
            yield entry
            continue
        try:
            records = reader.feed(entry, 0)
        except FrameDamagedError:  # it goes on with a record that began before
            reader, held = FrameReader(), []
            continue
        held.append(entry)
        if not records:
            continue
        # A checkpoint opens a data frame.
        is_found = isinstance(decode_operation(records[0][1]), CheckpointOperation)
        if is_found:
            for each in held:
                yield each
        reader, held = FrameReader(), []


@dataclass(slots=True)
class Replayed:
    """A container's metadata by its log, and how its segments were called."""

    metadata: ContainerMetadata
    names: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Storage name and longest chunk of every segment that the log speaks of."""
    problem: str = ""
    """The reason why the log cannot be read further; empty when it was read to its end."""

    @property
    def is_empty(self) -> bool:
        """Return whether the log has nothing."""
        return self.metadata.sequence_number == 0


async def replay_metadata(container_id: int, entries: Entries | None) -> Replayed:
    """Replay a log as far as it can be read, without tier 2."""
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
    if isinstance(operation, MapOperation | ActivateOperation | EvictOperation):
        segment = metadata.segments[operation.segment_id]
        replayed.names[segment.segment_id] = segment.storage_name, segment.rollover_bytes


# ---- Putting it together -------------------------------------------------------------------------


class Salvage:
    """Saves one container; ``findings`` tells what was lost and what was found.

    ``keeps_indexes`` means that the log is the last owner's, and so has the places of the attribute
    indexes; otherwise the newest ones are searched. ``is_cut`` means that the log ends at damage:
    even where the copy of the metadata is later, the log's bytes still count.
    """

    def __init__(
        self,
        container_id: int,
        storage: PlannedStorage | ChunkedSegmentStorage,
        stored: ChunkMetadata,
        copy: bytes | None,
        *,
        keeps_indexes: bool,
        is_cut: bool = False,
    ) -> None:
        self._is_cut = is_cut
        self._container_id = container_id
        self._storage = storage
        self._stored = stored
        self._copy = copy
        self._keeps_indexes = keeps_indexes
        self.findings: list[Finding] = []

    async def run(
        self, replayed: Replayed, entries: Entries | None, last_operation: int
    ) -> tuple[bytes, int]:
        """Return the snapshot with which the container's new log begins, and its sequence
        number."""
        metadata = self._latest(replayed)
        if entries is not None and metadata is replayed.metadata:
            await self._add_logged(replayed, entries)
        elif entries is not None and self._is_cut:
            await self._add_appends(replayed, entries, metadata)
        await self._add_inactive(metadata)
        self._add_unknown(metadata, replayed)
        for segment in list(metadata.segments.values()):
            if segment.merged or segment is metadata.records:
                del metadata.segments[segment.segment_id]
        metadata.records = None
        ends: dict[str, int] = {}
        for segment in metadata.segments.values():
            await self._settle(segment, ends)
        if ends:
            await self._storage.shorten(ends)
        metadata.sequence_number = max(metadata.sequence_number, last_operation) + 1
        return metadata.snapshot(metadata.sequence_number), metadata.sequence_number

    def _latest(self, replayed: Replayed) -> ContainerMetadata:
        """Return the metadata from the log, or from the copy in tier 2 if that is later."""
        if self._copy is None:
            return replayed.metadata
        copied = ContainerMetadata(self._container_id)
        copied.restore(self._copy)
        is_later = copied.sequence_number > replayed.metadata.sequence_number
        return copied if is_later else replayed.metadata

    def _report(self, segment: str, what: str, offset: int, length: int) -> None:
        self.findings.append(Finding(self._container_id, segment, what, offset, length))

    async def _add_logged(self, replayed: Replayed, entries: Entries) -> None:
        """Write to tier 2 what only the log has."""
        try:
            async for operation in read_operations(entries):
                await self._store(replayed, operation)
        except DataLogCorruptError:
            pass  # it was told when the metadata were read

    async def _add_appends(
        self, replayed: Replayed, entries: Entries, metadata: ContainerMetadata
    ) -> None:
        """Append what tier 2 lacks at the ends of segments that still exist in the later
        metadata."""
        try:
            async for operation in read_operations(entries):
                if isinstance(operation, AppendOperation) and (
                    (segment := metadata.segments.get(operation.segment_id)) is not None
                    and operation.segment_id in replayed.names
                    and operation.offset <= await self._storage.stored_length(segment.storage_name)
                ):
                    await self._append(
                        segment.storage_name,
                        operation.offset,
                        operation.data,
                        segment.rollover_bytes,
                        start_offset=segment.start_offset,
                    )
        except DataLogCorruptError:
            pass  # it was told when the metadata were read

    async def _store(self, replayed: Replayed, operation: Operation) -> None:
        name, rollover_bytes = replayed.names.get(operation.segment_id, ("", 0))
        if not name:
            return
        if isinstance(operation, AppendOperation | EvictOperation):
            segment = replayed.metadata.segments.get(operation.segment_id)
            await self._append(
                name,
                operation.offset,
                operation.data,
                rollover_bytes,
                start_offset=segment.start_offset if segment is not None else 0,
            )
        elif isinstance(operation, MergeOperation):
            await self._merge(replayed, operation)
        elif isinstance(operation, TruncateOperation):
            await self._storage.truncate(name, offset=operation.offset)
        elif isinstance(operation, DeleteOperation):
            await self._storage.delete(name)
            await self._storage.delete(attribute_segment_name(name))

    async def _append(
        self, name: str, offset: int, data: Buffer, rollover_bytes: int, *, start_offset: int
    ) -> None:
        """Add what tier 2 lacks of an append, unless bytes before it are missing.

        A segment that tier 2 never had begins where it was truncated.
        """
        stored = await self._storage.stored_length(name)
        begins = not stored and self._stored.get(name) is None and offset <= start_offset
        if offset + len(data) > stored and (offset <= stored or begins):
            await self._storage.write(
                name, offset=offset, data=[data], rollover_bytes=rollover_bytes
            )

    async def _merge(self, replayed: Replayed, operation: MergeOperation) -> None:
        target, rollover_bytes = replayed.names[operation.segment_id]
        source, _ = replayed.names.get(operation.source_id, ("", 0))
        end = operation.offset + operation.length
        if await self._storage.stored_length(target) < end and source:
            if await self._storage.stored_length(source) < operation.length:
                return
            await self._storage.concat(
                target,
                offset=operation.offset,
                source=source,
                length=operation.length,
                rollover_bytes=rollover_bytes,
            )
        await self._storage.delete(source, merged_into=target)
        await self._storage.delete(attribute_segment_name(source))

    # ---- Segments that the log does not know -----------------------------------------------------

    async def _add_inactive(self, metadata: ContainerMetadata) -> None:
        """Make the inactive segments active, by the records that tier 2 has of them."""
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
            is_known = record.name in metadata.by_name or record.segment_id in metadata.segments
            if not is_known and (not record.length or segment.storage_name in names):
                metadata.add_active(segment)

    async def _records_in(self, name: str) -> AsyncIterator[SegmentRecord]:
        """Yield the complete records in a segment of records; damaged ones are skipped."""
        record = self._stored.get(name)
        start = record.chunks[0].start if record is not None and record.chunks else 0
        data = await self._read_until(name, start, await self._storage.stored_length(name))
        position = 0
        while position < len(data):
            try:
                found, position = decode_record(data, position)
            except RecordDamagedError:
                position += 1
            else:
                yield found

    async def _read_until(self, name: str, start: int, end: int) -> bytes:
        data = bytearray()
        while (offset := start + len(data)) < end:
            try:
                data += await self._storage.read(
                    name, offset=offset, length=min(READ_BYTES, end - offset)
                )
            except StorageError:
                break  # a chunk is missing: what comes behind it cannot be placed
        return bytes(data)

    def _add_unknown(self, metadata: ContainerMetadata, replayed: Replayed) -> None:
        """Make segments of chunks that no metadata describe: they were made last."""
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

    # ---- Lengths and attributes ------------------------------------------------------------------

    async def _settle(self, segment: SegmentMetadata, ends: dict[str, int]) -> None:
        """Set a segment's end to where tier 2 ends, and its attributes to where tier 2 has them."""
        end = await self._storage.stored_length(segment.storage_name)
        record = self._stored.get(segment.storage_name)
        start = record.chunks[0].start if record is not None and record.chunks else 0
        if start > segment.start_offset and segment.segment_type & SegmentType.TABLE:
            self._report(segment.name, "table without a beginning", segment.start_offset, start)
        segment.start_offset = min(max(segment.start_offset, start), end)
        if end < segment.length or (end > segment.length and not self._keeps_indexes):
            whole = await self._whole_end(segment, end)
            if whole < end:
                ends[segment.storage_name] = end = whole
        if end < segment.length:
            self._report(segment.name, "lost end", end, segment.length - end)
        elif end > segment.length and not self._keeps_indexes:
            self._report(segment.name, "found", segment.length, end - segment.length)
        segment.length = segment.storage_length = end
        segment.record_bytes = 0
        if not segment.is_transient:
            await self._settle_attributes(segment)

    async def _whole_end(self, segment: SegmentMetadata, end: int) -> int:
        """Return where the last complete event or table entry ends that begins before ``end``.

        Who appends behind a part of one makes everything behind it unreadable. A segment that has
        neither, such as a byte stream's, keeps its end.
        """
        is_table = bool(segment.segment_type & SegmentType.TABLE)
        length_of = _entry_length if is_table else _event_length
        position = segment.start_offset
        if is_table:
            index_offset = segment.attributes.get(TABLE_INDEX_OFFSET, 0)
            position = index_offset if position < index_offset <= end else position
        name = segment.storage_name
        while position < end:
            data = await self._read_until(name, position, min(end, position + READ_BYTES))
            if not data:
                return end
            place = 0
            while (length := length_of(data, place)) and place + length <= len(data):
                place += length
            if length is None:  # there are no events in it
                return end
            if place == 0:
                if not length or position + length > end:
                    return position
                place = length
            position += place
        return position

    async def _settle_attributes(self, segment: SegmentMetadata) -> None:
        memory = segment.attribute_memory
        name = attribute_segment_name(segment.storage_name)
        root = memory.root_pointer
        end = await self._storage.stored_length(name)
        is_whole = root == NULL_ATTRIBUTE_VALUE or root + FOOTER_BYTES <= end
        if self._keeps_indexes and is_whole:
            return
        if not is_whole:
            self._report(name, "lost end", end, root + FOOTER_BYTES - end)
        changed_by = memory.changed_by
        values = dict(memory.values)
        core = {each: value for each, value in values.items() if is_core_attribute(each)}
        if segment.segment_type & SegmentType.TABLE:
            values = {each: value for each, value in core.items() if each not in _INDEX_STATE}
        elif (found := await self._find_root(name)) != root:
            # A newer index has the values of the metadata's copy, or newer ones.
            values = values if self._keeps_indexes else core
            values.pop(ATTRIBUTE_SEGMENT_ROOT_POINTER, None)
            if found != NULL_ATTRIBUTE_VALUE:
                values[ATTRIBUTE_SEGMENT_ROOT_POINTER] = found
        memory.values.clear()
        memory.dirty.clear()
        memory.cached.clear()
        memory.start_with(values, changed_by)

    async def _find_root(self, name: str) -> int:
        """Return the place of the last complete footer of an attribute index; the null value
        without one."""
        record = self._stored.get(name)
        if record is None or not record.chunks:
            return NULL_ATTRIBUTE_VALUE
        start = record.chunks[0].start
        data = await self._read_until(name, start, await self._storage.stored_length(name))
        place = data.rfind(_MAGIC)
        while place >= 0:
            try:
                footer = Footer.parse(data[place : place + FOOTER_BYTES], offset=start + place)
            except ValueError:
                footer = None
            if footer is not None and footer.min_offset >= start:
                return start + place
            place = data.rfind(_MAGIC, 0, place)
        return NULL_ATTRIBUTE_VALUE


def _event_length(data: bytes, place: int) -> int | None:
    """Return the length of the event that begins at ``place``; 0 when it is incomplete, None when
    there is no event."""
    if place + EVENT_HEADER.size > len(data):
        return 0
    kind, length = EVENT_HEADER.unpack_from(data, place)
    return EVENT_HEADER.size + length if kind == 0 and length >= 0 else None


def _entry_length(data: bytes, place: int) -> int | None:
    """Return the length of the table's entry at a place; None for damage, 0 for a cut off head."""
    try:
        head = parse_head("", memoryview(data)[place : place + _HEAD_BYTES_MAX], offset=0)
    except TableDataError:
        return None
    return head.length if isinstance(head, EntryHead) else 0


def _default_attributes(name: str) -> dict[bytes, int]:
    """Return the attributes of a segment of which only the name is known."""
    return {ATTRIBUTE_SEGMENT_TYPE: int(SegmentType.TABLE)} if "/_tables/" in name else {}


def encode_log(snapshot: bytes, sequence_number: int) -> list[bytes]:
    """Return the entries of a log that begins with a checkpoint and has nothing else."""
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
