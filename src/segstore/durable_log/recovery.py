"""Rebuilds a container from its log and from tier 2.

Owns: the replay of the log. A log begins with a checkpoint, which has a snapshot of the container;
an empty log is that of a new container.

Invariants:
1. When the log begins with a checkpoint, its snapshot and the operations after it give the state of
   the container before the crash. Held by
   ``test_a_container_that_crashes_equals_the_model_after_recovery``.
2. When tier 2 has bytes that the log still has, the recovery does not load them, and the storage
   writer does not write them again. Held by ``test_tier_2_gets_from_the_log_what_is_only_there``.
3. When bytes are neither in tier 2 nor in the log, the container does not start, and the error
   names the segment and the range. Held by
   ``test_bytes_missing_from_both_tiers_stop_the_container_with_their_place``.
4. The bytes of long appends are not read from the log before a reader or the storage writer needs
   them. Held by ``test_long_appends_are_left_in_the_log_until_they_are_read``.
5. When the log has more bytes than the cache holds, the recovery flushes some to tier 2. Held by
   ``test_room_is_made_while_a_frame_of_short_appends_is_replayed``. If tier 2 does not take them,
   they stay in the log. Held by ``test_more_than_the_cache_takes_is_recovered_without_tier_2``.
6. After a power cut, tier 2 may have lost bytes that it had acknowledged but not synced. So the
   recovery tells tier 2, for each segment, the length up to which the log does not have the bytes
   any more. Held by ``test_tier_2_is_told_where_each_segment_ended_before_the_log``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final

import structlog
import trio

from _fast.log.logged_pieces import Piece
from _fast.log.replay import AppendBatch, EntryNeededError, ShortPiece, logged_pieces
from segstore.cache.manager import ROOM_RETRY_SECONDS, CacheManager, block_bytes
from segstore.chunks.api import SegmentStorage
from segstore.durable_log.committed_state import CommittedState
from segstore.durable_log.data_frame import FrameReplay
from segstore.errors import (
    ChunkNotFoundError,
    DataLogCorruptError,
    InvalidChunkOffsetError,
    LogBehindError,
)
from segstore.model.metadata import ContainerMetadata, SegmentMetadata
from segstore.model.operations import (
    ActivateOperation,
    CheckpointOperation,
    DeleteOperation,
    EvictOperation,
    MergeOperation,
    Operation,
    decode_operation,
)
from segstore.tiers.api import DurableDataLog, LogAddress

ROOM_ATTEMPTS_MAX: Final = 500
"""Maximum count of attempts to make room for records."""
LEFT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Number of bytes that are left in the log, after a flush made no room in the cache, before the
next flush is tried."""

logger = structlog.get_logger(__name__)


class Recovery:
    """One replay of one container's log."""

    def __init__(
        self,
        state: CommittedState,
        storage: SegmentStorage,
        on_checkpoint: Callable[[int, LogAddress], None],
        cache_manager: CacheManager,
        make_room: Callable[[], Awaitable[None]],
    ) -> None:
        self._state = state
        self._storage = storage
        self._on_checkpoint = on_checkpoint
        self._cache_manager = cache_manager
        self._make_room = make_room
        self._asked: set[int] = set()
        self._certain: dict[int, int] = {}
        self._left_behind: dict[int, str] = {}
        self._left_bytes: int | None = None
        """Number of bytes left in the log since a flush made no room; None if the last flush made
        some."""
        self.operation_count = 0

    @property
    def _metadata(self) -> ContainerMetadata:
        return self._state.metadata

    async def run(self, log: DurableDataLog) -> None:
        """Replay the whole log, and verify the result.

        Raises ``DataLogCorruptError`` and ``LogBehindError``.
        """
        frames = FrameReplay()
        async with aclosing(log.read_digests()) as batches:
            async for entries in batches:
                for entry in entries:
                    try:
                        replayed = frames.feed(entry)
                    except EntryNeededError:
                        data = entry.data or await log.read_entry(entry.address)
                        replayed = frames.feed_whole(data, entry.address.position)
                    await self._replay_all(replayed)
                # Let the other containers recover at the same time, in this thread.
                await trio.lowlevel.checkpoint()
        for segment in self._metadata.segments.values():
            if segment.storage_length != segment.length or segment.merged:
                await self._verify(segment)
        for name in self._left_behind.values():
            raise DataLogCorruptError(
                f"{name} became inactive, and tier 2 can get neither all of its bytes nor its end"
            )
        await self._storage.recovered(
            last_operation=self._metadata.sequence_number,
            next_segment_id=self._metadata.next_segment_id,
            needed={
                segment.storage_name: segment.storage_length
                for segment in self._metadata.segments.values()
                if segment.storage_length > segment.start_offset and not segment.merged
            },
            ends={
                segment.storage_name: segment.length
                for segment in self._metadata.segments.values()
                if not segment.merged
            },
        )

    async def _replay_all(self, replayed: list[AppendBatch | tuple[int, bytes]]) -> None:
        for item in replayed:
            if isinstance(item, AppendBatch):
                await self._replay_appends(item)
                self.operation_count += item.last_sequence_number + 1 - item.first_sequence_number
            else:
                position, record = item
                await self._replay(decode_operation(record), LogAddress(position))
                self.operation_count += 1

    async def _replay_appends(self, batch: AppendBatch) -> None:
        self._check_order(batch.first_sequence_number)
        metadata, state = self._metadata, self._state
        now_ms = state.now_ms()
        for run in batch.runs:
            last = run.last
            segment = metadata.segments.get(last.segment_id)
            if segment is None:
                raise DataLogCorruptError(
                    f"the log of container {metadata.container_id} has an append to segment"
                    f" {last.segment_id}, which it does not have"
                )
            await self._ask_storage(segment)
            metadata.apply(last, now_ms)
            for piece in run.pieces:
                offset, length = await self._replay_piece(segment, piece)
                # Add the range after its bytes are readable, because making room for the next piece
                # flushes all ranges in the memory log.
                state.memory_log.add_range(
                    last.segment_id, offset, offset + length, run.first_sequence_number
                )
        metadata.sequence_number = batch.last_sequence_number

    async def _replay_piece(
        self, segment: SegmentMetadata, piece: ShortPiece | Piece
    ) -> tuple[int, int]:
        """Make the bytes of a piece readable from the cache or the log, unless tier 2 has them.
        Return their offset and length."""
        if len(piece) == 5:
            if piece[0] + piece[1] > segment.storage_length:
                self._state.read_index.append_logged(segment, piece)
            return piece[0], piece[1]
        offset, data, places = piece
        if offset + len(data) > segment.storage_length:
            if await self._make_room_for(len(data)):
                self._state.read_index.append(segment, offset, data)
            else:
                for each in logged_pieces(offset, data, places):
                    self._state.read_index.append_logged(segment, each)
        return offset, len(data)

    async def _make_room_for(self, length: int) -> bool:
        """Return whether the cache has room for ``length`` bytes, after a flush if necessary.

        The flush of a segment may fail: a merge, deletion or truncation that comes later in the log
        may have removed the chunks before its bytes from tier 2. So it is possible that no room can
        be made.
        """
        wanted = block_bytes(length)
        if self._cache_manager.has_room(wanted):
            return True
        if self._left_bytes is None or self._left_bytes > LEFT_BYTES_MAX:
            self._left_bytes = 0
            await self._flush()
            if self._cache_manager.has_room(wanted):
                self._left_bytes = None
                return True
        self._left_bytes += length
        return False

    def _check_order(self, sequence_number: int) -> None:
        """Raise ``DataLogCorruptError`` unless the operation follows the last replayed one."""
        metadata = self._metadata
        if self.operation_count == 0:
            raise DataLogCorruptError(
                f"the log of container {metadata.container_id} begins without a checkpoint"
            )
        expected = metadata.sequence_number + 1
        if sequence_number != expected:
            raise DataLogCorruptError(
                f"the log of container {metadata.container_id} has operation {sequence_number}"
                f" where {expected} must be"
            )

    async def _replay(self, operation: Operation, address: LogAddress) -> None:
        metadata = self._metadata
        if isinstance(operation, CheckpointOperation):
            if self.operation_count == 0:
                metadata.restore(operation.snapshot)
            else:
                self._check_order(operation.sequence_number)
            metadata.sequence_number = operation.sequence_number
            self._on_checkpoint(operation.sequence_number, address)
            return
        self._check_order(operation.sequence_number)
        await self._prepare(operation)
        self._state.apply(operation)

    async def _prepare(self, operation: Operation) -> None:
        if isinstance(operation, EvictOperation):
            await self._prepare_evict(operation)
        elif isinstance(operation, ActivateOperation):
            # Tier 2 may have got more bytes of the segment after it became inactive.
            self._asked.discard(operation.segment_id)
        elif isinstance(operation, DeleteOperation):
            self._left_behind.pop(operation.segment_id, None)
        elif isinstance(operation, MergeOperation):
            self._left_behind.pop(operation.source_id, None)
        segment = self._metadata.segments.get(operation.segment_id)
        if segment is None:
            return
        await self._ask_storage(segment)
        if isinstance(operation, DeleteOperation):
            operation.name = segment.name
        elif isinstance(operation, MergeOperation):
            source = self._metadata.segments[operation.source_id]
            operation.source_name = source.name
            await self._ask_storage(source)
            if operation.offset + operation.length <= segment.storage_length:
                # Tier 2 did the merge before the crash, and has no bytes under the source's name.
                source.storage_length = max(source.storage_length, source.length)

    async def _prepare_evict(self, operation: EvictOperation) -> None:
        metadata = self._metadata
        if operation.segment_id not in metadata.segments:
            self._certain[operation.segment_id] = 0  # The segment of records begins here.
        leaving = [metadata.segments[record.segment_id] for record, _, _ in operation.records]
        behind = [each for each in leaving if each.segment_id in self._asked and _is_behind(each)]
        if behind:
            # Tier 2 had all bytes of these segments, but may have lost some in a power cut. Flush
            # them now, because the bytes of inactive segments are not flushed.
            await self._flush()
            # If a flush fails, a later operation in the log must delete the segment; otherwise its
            # bytes are lost.
            self._left_behind |= {each.segment_id: each.name for each in behind if _is_behind(each)}
        await self._wait_for_room(block_bytes(len(operation.data)))

    async def _wait_for_room(self, bytes_wanted: int) -> None:
        """Flush replayed bytes until the cache has room for the records of inactive segments, which
        may use more of it than appends."""
        for _ in range(ROOM_ATTEMPTS_MAX):
            if self._cache_manager.has_room(bytes_wanted, system=True):
                return
            await self._flush()
            if not self._cache_manager.has_room(bytes_wanted, system=True):
                # Other containers use the rest of the cache, and will make room themselves.
                await trio.sleep(ROOM_RETRY_SECONDS)

    async def _flush(self) -> None:
        """Flush the replayed operations.

        An error because of a missing chunk is ignored: the chunk belonged to a segment that is
        deleted by a later operation in the log, after another segment was merged into it.
        """
        try:
            await self._make_room()
        except (ChunkNotFoundError, InvalidChunkOffsetError) as error:
            logger.info("something is no longer in tier 2", error=str(error))

    async def _ask_storage(self, segment: SegmentMetadata) -> None:
        if segment.segment_id not in self._asked:
            self._asked.add(segment.segment_id)
            certain = self._certain.get(segment.segment_id, segment.length)
            stored = await self._storage.stored_length(segment.storage_name, certain=certain)
            segment.storage_length = max(segment.storage_length, stored)

    async def _verify(self, segment: SegmentMetadata) -> None:
        if segment.storage_length < segment.length:
            await self._ask_storage(segment)
        if segment.storage_length > segment.length:
            raise LogBehindError(
                f"tier 2 has {segment.storage_length} bytes of {segment.name}, and the log only"
                f" {segment.length}: the journal is an older copy"
            )
        if segment.merged:
            return
        index = self._state.read_index.index_of(segment)
        offset = segment.storage_length
        while offset < segment.length:
            redirect = index.redirect_at(offset)
            end = (
                redirect.offset + redirect.length if redirect else index.entries.cached_end(offset)
            )
            end = max(end, index.logged_end(offset))
            if end <= offset < segment.start_offset:
                # Bytes before a truncation need not have reached tier 2.
                end = segment.storage_length = segment.start_offset
            if end <= offset:
                raise DataLogCorruptError(
                    f"{segment.name}: bytes from {offset} to {segment.length} "
                    f"are in neither the log nor tier 2"
                )
            offset = end


def _is_behind(segment: SegmentMetadata) -> bool:
    # Bytes before a truncation need not have reached tier 2.
    return max(segment.storage_length, segment.start_offset) < segment.length
