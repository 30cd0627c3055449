"""A segment container in memory: the model of the real one.

Owns: the plainest implementation of ``SegmentContainer``, in which "durable" means that ``commit``
has reached the operation.

Invariants:
1. Operations wait in one queue and take effect in queue order, at ``commit``; nothing shows before.
2. ``crash`` answers everything queued with ``ContainerOfflineError``, although a prefix of it may
   have become durable: exactly what a client of a store that died can observe.
3. With ``auto_commit`` the queue is committed in a later turn of the event loop, never inside the
   call that queued an operation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial

import trio

from segstore.api import (
    ContainerMeasures,
    FindSample,
    HasRoom,
    OnAppended,
    OnRead,
    ReadHandle,
    ReadResult,
    SegmentContainer,
    SegmentInfo,
    SegmentSample,
    Waiter,
)
from segstore.errors import (
    ContainerOfflineError,
    InvalidRequestError,
    SegmentStoreError,
    SegmentTruncatedError,
)
from segstore.model.attributes import (
    EVENT_COUNT,
    SCALE_POLICY_RATE,
    SCALE_POLICY_TYPE,
    AttributeId,
    AttributeUpdate,
)
from segstore.tiers.api import Buffer
from support.models.memory_segments import MemorySegment, MemorySegments, ParkedRead


class MemoryContainer(SegmentContainer):
    """See the module. ``now_ms`` gives the Unix time in milliseconds."""

    def __init__(
        self,
        container_id: int = 0,
        *,
        now_ms: Callable[[], int] = lambda: 0,
        auto_commit: bool = True,
        segments: MemorySegments | None = None,
    ) -> None:
        self._container_id = container_id
        self._now_ms = now_ms
        self.auto_commit = auto_commit
        self._state = MemorySegments(now_ms) if segments is None else segments
        self.segments = self._state.by_name
        self._queue: deque[tuple[Callable[[], int], OnAppended]] = deque()
        self._commit_scheduled = False
        self._offline = False
        self.delays: list[str] = []
        """The reasons of delays that the container tells."""

    @property
    def container_id(self) -> int:
        """Return the container's number."""
        return self._container_id

    def delay_reasons(self) -> list[str]:
        return self.delays

    @property
    def queued_count(self) -> int:
        """Return how many operations wait for ``commit``."""
        return len(self._queue)

    # ---- Durability ------------------------------------------------------------------------------

    def commit(self, count: int | None = None) -> None:
        """Make the first ``count`` queued operations durable (default: all there are now)."""
        for _ in range(len(self._queue) if count is None else count):
            apply, on_complete = self._queue.popleft()
            try:
                number = apply()
            except SegmentStoreError as error:
                on_complete(error, -1)
            else:
                on_complete(None, number)

    def crash(self, *, durable_count: int = 0) -> None:
        """Stop: the first ``durable_count`` queued operations take effect without an answer."""
        self._offline = True
        queue, self._queue = self._queue, deque()
        for apply, _ in list(queue)[:durable_count]:
            try:
                apply()
            except SegmentStoreError:
                continue
        for _, on_complete in queue:
            on_complete(ContainerOfflineError("crashed"), -1)
        for segment in self.segments.values():
            parked, segment.parked = segment.parked, []
            for read in parked:
                empty = ReadResult(read.offset, b"", at_tail=True, end_of_segment=False)
                read.on_complete(None, empty)

    def reopen(self) -> MemoryContainer:
        """Return the container that recovers what was durable when this one crashed."""
        assert self._offline
        return MemoryContainer(
            self._container_id,
            now_ms=self._now_ms,
            auto_commit=self.auto_commit,
            segments=self._state,
        )

    def _queue_operation(self, apply: Callable[[], int], on_complete: OnAppended) -> None:
        if self._offline:
            on_complete(ContainerOfflineError("offline"), -1)
            return
        self._queue.append((apply, on_complete))
        if self.auto_commit and not self._commit_scheduled:
            self._commit_scheduled = True
            trio.lowlevel.current_trio_token().run_sync_soon(self._commit_later)

    def _commit_later(self) -> None:
        self._commit_scheduled = False
        self.commit()

    async def _perform(self, apply: Callable[[], int]) -> int:
        waiter = Waiter()
        self._queue_operation(apply, waiter.complete)
        return await waiter.wait()

    def _find(self, name: str) -> MemorySegment:
        if self._offline:
            raise ContainerOfflineError("offline")
        return self._state.find(name)

    # ---- SegmentContainer ------------------------------------------------------------------------

    async def create_segment(
        self, name: str, *, attributes: Mapping[AttributeId, int] | None = None
    ) -> None:
        """Create an empty segment."""
        await self._perform(partial(self._state.create, name, dict(attributes or {})))

    async def delete_segment(self, name: str) -> None:
        """Delete a segment."""
        await self._perform(partial(self._state.delete, name))

    def append_nowait(
        self,
        name: str,
        data: Buffer,
        *,
        attribute_updates: Sequence[AttributeUpdate] = (),
        expected_offset: int | None = None,
        on_complete: OnAppended,
    ) -> None:
        """Queue an append."""
        updates = tuple(attribute_updates)
        apply = partial(self._state.append, name, bytes(data), updates, expected_offset)
        self._queue_operation(apply, on_complete)

    async def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        """Change attributes."""
        await self._perform(partial(self._state.update_attributes, name, tuple(updates)))

    async def seal_segment(self, name: str) -> int:
        """Seal."""
        return await self._perform(partial(self._state.seal, name))

    async def truncate_segment(self, name: str, *, offset: int) -> None:
        """Truncate."""
        await self._perform(partial(self._state.truncate, name, offset))

    def merge_nowait(
        self,
        target: str,
        source: str,
        *,
        attribute_updates: Sequence[AttributeUpdate] = (),
        on_complete: OnAppended,
    ) -> None:
        """Queue a merge."""
        updates = tuple(attribute_updates)
        self._queue_operation(partial(self._state.merge, target, source, updates), on_complete)

    async def activate(self, name: str) -> None:
        """Do nothing: all segments are in memory."""

    def segment_info(self, name: str) -> SegmentInfo:
        """Return the committed state."""
        self._find(name)
        return self._state.info(name)

    async def find_info(self, name: str) -> SegmentInfo:
        """Return the committed state."""
        await trio.lowlevel.checkpoint()
        return self.segment_info(name)

    async def get_attributes(
        self, name: str, attribute_ids: Sequence[AttributeId]
    ) -> dict[AttributeId, int]:
        """Return committed attribute values."""
        await trio.lowlevel.checkpoint()
        values = self._find(name).attributes
        return {key: values[key] for key in attribute_ids if key in values}

    def attribute_now(self, name: str, attribute_id: AttributeId) -> int | None:
        """Return None: nothing is known without waiting."""
        return None

    def bytes_now(self, name: str, *, offset: int, length_max: int) -> Buffer:
        """Return no bytes: nothing is known without waiting."""
        return b""

    async def attribute_iterator(
        self, name: str, *, first: AttributeId, last: AttributeId
    ) -> AsyncIterator[list[tuple[AttributeId, int]]]:
        """Yield committed extended attributes, in one page."""
        await trio.lowlevel.checkpoint()
        yield self._find(name).extended_attributes(first, last)

    def load_samples(self, find_last: FindSample) -> Iterator[SegmentSample]:
        """Yield the counts of the segments that differ from their last sample."""
        for segment in self.segments.values():
            sample = SegmentSample(
                segment.name,
                segment.segment_id,
                segment.attributes.get(SCALE_POLICY_TYPE, 0),
                segment.attributes.get(SCALE_POLICY_RATE, 0),
                segment.attributes.get(EVENT_COUNT, 0),
                len(segment.data),
                segment.sealed,
                segment.last_modified_ms,
            )
            last = find_last(segment.name)
            if (sample.scale_type > 0) if last is None else (sample != last):
                yield sample

    def measures(self) -> ContainerMeasures:
        segments = self.segments.values()
        unflushed = sum(len(each.data) for each in segments)
        return ContainerMeasures(len(segments), unflushed, 0, {}, {})

    @property
    def next_segment_id(self) -> int:
        return self._state.next_id

    def lengths(self) -> Iterator[tuple[str, int, int, int]]:
        for name, each in list(self.segments.items()):
            yield name, each.segment_id, len(each.data), each.attributes.get(EVENT_COUNT, 0)

    def unpersisted_attribute_count(self, name: str) -> int:
        """Return 0: there is no tier 2."""
        self._find(name)
        return 0

    async def wait_in_flight(self, name: str) -> None:
        """Wait for everything queued so far."""
        await self._perform(lambda: 0)

    async def plan_scan(
        self, name: str, *, start: int, end: int, lease_id: bytes, lease_seconds: float
    ) -> None:
        """Return an empty plan: there is no tier 2 which others could read."""
        self.segment_info(name)

    async def hold_chunks(
        self, name: str, *, lease_id: bytes, chunks: Sequence[str], lease_seconds: float
    ) -> bool:
        """Return that no chunk is held."""
        return not chunks

    def read_nowait(
        self,
        name: str,
        *,
        offset: int,
        length_max: int,
        on_complete: OnRead,
        has_room: HasRoom | None = None,
    ) -> ReadHandle | None:
        """Read, or park."""
        try:
            segment = self._find(name)
        except SegmentStoreError as error:
            on_complete(error, None)
            return None
        length = len(segment.data)
        if offset < segment.start_offset:
            on_complete(SegmentTruncatedError(name, start_offset=segment.start_offset), None)
        elif offset < length or (segment.sealed and offset == length):
            on_complete(None, segment.read(offset, length_max))
        elif segment.sealed:
            on_complete(InvalidRequestError(name, f"offset {offset} is beyond {length}"), None)
        else:
            read = ParkedRead(segment.parked, offset, length_max, on_complete, has_room)
            segment.parked.append(read)
            return read
        return None
