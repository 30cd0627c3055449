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
from collections.abc import Callable, Mapping, Sequence

import trio

from segstore.api import OnAppended, OnRead, ReadHandle, ReadResult, SegmentInfo
from segstore.attributes.updates import (
    ATTRIBUTE_SEGMENT_TYPE,
    EVENT_COUNT,
    NULL_ATTRIBUTE_VALUE,
    AttributeId,
    AttributeUpdate,
    AttributeUpdateType,
    SegmentType,
    is_core_attribute,
)
from segstore.errors import (
    BadAttributeUpdateError,
    BadOffsetError,
    ContainerOfflineError,
    InvalidRequestError,
    NoSuchSegmentError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentStoreError,
    SegmentTruncatedError,
)
from segstore.tiers.api import Buffer

TRANSIENT_ATTRIBUTE_COUNT_MAX = 16


class ParkedRead:
    """A read that waits for the tail of its segment."""

    def __init__(
        self, parked: list[ParkedRead], offset: int, length_max: int, on_complete: OnRead
    ) -> None:
        self._parked = parked
        self.offset = offset
        self.length_max = length_max
        self.on_complete = on_complete

    def cancel(self) -> None:
        """Forget the read."""
        if self in self._parked:
            self._parked.remove(self)


class MemorySegment:
    """One segment. ``data`` holds every byte from offset 0 on, truncated or not."""

    def __init__(self, name: str, attributes: Mapping[AttributeId, int], now_ms: int) -> None:
        self.name = name
        self.data = bytearray()
        self.attributes = dict(attributes)
        self.start_offset = 0
        self.sealed = False
        self.last_modified_ms = now_ms
        self.parked: list[ParkedRead] = []

    def resolve(self, updates: Sequence[AttributeUpdate]) -> dict[AttributeId, int]:
        """The attributes after ``updates``, else ``BadAttributeUpdateError``."""
        values = dict(self.attributes)
        for update in updates:
            present = values.get(update.attribute_id)
            if not _condition_holds(update, present):
                raise BadAttributeUpdateError(
                    self.name, update.attribute_id, previous_value_missing=present is None
                )
            value = update.value
            if update.update_type == AttributeUpdateType.ACCUMULATE:
                value += present or 0
            if not -(2**63) <= value < 2**63:
                raise InvalidRequestError(self.name, "an attribute value leaves 64 bits")
            if value == NULL_ATTRIBUTE_VALUE:
                values.pop(update.attribute_id, None)
            else:
                values[update.attribute_id] = value
        if self.attributes.get(ATTRIBUTE_SEGMENT_TYPE, 0) & SegmentType.TRANSIENT:
            extended = sum(not is_core_attribute(attribute_id) for attribute_id in values)
            if extended > TRANSIENT_ATTRIBUTE_COUNT_MAX:
                raise InvalidRequestError(self.name, "too many attributes")
        return values

    def extend(self, data: Buffer) -> None:
        """Append bytes and wake the reads that they serve."""
        self.data += data
        for read in [read for read in self.parked if read.offset < len(self.data)]:
            read.cancel()
            read.on_complete(None, self.read(read.offset, read.length_max))

    def read(self, offset: int, length_max: int) -> ReadResult:
        """The bytes there are at ``offset``."""
        data = bytes(self.data[offset : offset + length_max])
        at_end = offset + len(data) == len(self.data)
        return ReadResult(
            offset,
            data,
            at_tail=at_end and not self.sealed and len(data) < length_max,
            end_of_segment=at_end and self.sealed,
        )

    def fail_parked(self, error: SegmentStoreError) -> None:
        """Answer every parked read with ``error``."""
        parked, self.parked = self.parked, []
        for read in parked:
            read.on_complete(error, None)


def _condition_holds(update: AttributeUpdate, present: int | None) -> bool:
    match update.update_type:
        case AttributeUpdateType.NONE:
            return present is None
        case AttributeUpdateType.REPLACE_IF_GREATER:
            return present is None or update.value > present
        case AttributeUpdateType.REPLACE_IF_EQUALS:
            return (NULL_ATTRIBUTE_VALUE if present is None else present) == update.expected
        case _:
            return True


class _Waiter:
    """Awaits one operation; a cancelled waiter does not disturb it."""

    def __init__(self) -> None:
        self._done = trio.Event()
        self._error: SegmentStoreError | None = None
        self._number = -1

    def __call__(self, error: SegmentStoreError | None, number: int) -> None:
        self._error, self._number = error, number
        self._done.set()

    async def wait(self) -> int:
        await self._done.wait()
        if self._error is not None:
            raise self._error
        return self._number


class MemoryContainer:
    """See the module. ``now_ms`` gives the Unix time in milliseconds."""

    def __init__(
        self,
        container_id: int = 0,
        *,
        now_ms: Callable[[], int] = lambda: 0,
        auto_commit: bool = True,
        segments: dict[str, MemorySegment] | None = None,
    ) -> None:
        self._container_id = container_id
        self._now_ms = now_ms
        self.auto_commit = auto_commit
        self._segments: dict[str, MemorySegment] = {} if segments is None else segments
        self._queue: deque[tuple[Callable[[], int], OnAppended]] = deque()
        self._commit_scheduled = False
        self._offline = False

    @property
    def container_id(self) -> int:
        """The container's number."""
        return self._container_id

    @property
    def queued_count(self) -> int:
        """How many operations wait for ``commit``."""
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
        """Stop: the first ``durable_count`` queued operations take effect, nobody learns it."""
        self._offline = True
        queue, self._queue = self._queue, deque()
        for apply, _ in list(queue)[:durable_count]:
            try:
                apply()
            except SegmentStoreError:
                continue
        for _, on_complete in queue:
            on_complete(ContainerOfflineError("crashed"), -1)
        for segment in self._segments.values():
            parked, segment.parked = segment.parked, []
            for read in parked:
                empty = ReadResult(read.offset, b"", at_tail=True, end_of_segment=False)
                read.on_complete(None, empty)

    def reopen(self) -> MemoryContainer:
        """The container that recovers what was durable when this one crashed."""
        assert self._offline
        return MemoryContainer(
            self._container_id,
            now_ms=self._now_ms,
            auto_commit=self.auto_commit,
            segments=self._segments,
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
        waiter = _Waiter()
        self._queue_operation(apply, waiter)
        return await waiter.wait()

    def _find(self, name: str) -> MemorySegment:
        if self._offline:
            raise ContainerOfflineError("offline")
        return self._find_committed(name)

    def _find_committed(self, name: str) -> MemorySegment:
        segment = self._segments.get(name)
        if segment is None:
            raise NoSuchSegmentError(name)
        return segment

    # ---- SegmentContainer ------------------------------------------------------------------------

    async def create_segment(
        self, name: str, *, attributes: Mapping[AttributeId, int] | None = None
    ) -> None:
        """Create an empty segment."""
        values = dict(attributes or {})

        def apply() -> int:
            if name in self._segments:
                raise SegmentExistsError(name)
            self._segments[name] = MemorySegment(name, values, self._now_ms())
            return 0

        await self._perform(apply)

    async def delete_segment(self, name: str) -> None:
        """Delete a segment."""

        def apply() -> int:
            segment = self._find_committed(name)
            del self._segments[name]
            segment.fail_parked(NoSuchSegmentError(name))
            return 0

        await self._perform(apply)

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
        kept = bytes(data)

        def apply() -> int:
            segment = self._find_committed(name)
            if segment.sealed:
                raise SegmentSealedError(name)
            values = segment.resolve(attribute_updates)
            length = len(segment.data)
            if expected_offset is not None and expected_offset != length:
                raise BadOffsetError(name, expected=expected_offset, actual=length)
            segment.attributes = values
            segment.last_modified_ms = self._now_ms()
            segment.extend(kept)
            return length + len(kept)

        self._queue_operation(apply, on_complete)

    async def append(
        self,
        name: str,
        data: Buffer,
        *,
        attribute_updates: Sequence[AttributeUpdate] = (),
        expected_offset: int | None = None,
    ) -> int:
        """Append and wait."""
        waiter = _Waiter()
        self.append_nowait(
            name,
            data,
            attribute_updates=attribute_updates,
            expected_offset=expected_offset,
            on_complete=waiter,
        )
        return await waiter.wait()

    async def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        """Change attributes."""

        def apply() -> int:
            segment = self._find_committed(name)
            if segment.sealed:
                raise SegmentSealedError(name)
            segment.attributes = segment.resolve(updates)
            segment.last_modified_ms = self._now_ms()
            return 0

        await self._perform(apply)

    async def seal_segment(self, name: str) -> int:
        """Seal."""

        def apply() -> int:
            segment = self._find_committed(name)
            if segment.sealed:
                raise SegmentSealedError(name)
            segment.sealed = True
            segment.last_modified_ms = self._now_ms()
            segment.fail_parked(SegmentSealedError(name))
            return len(segment.data)

        return await self._perform(apply)

    async def truncate_segment(self, name: str, *, offset: int) -> None:
        """Truncate."""

        def apply() -> int:
            segment = self._find_committed(name)
            if not segment.start_offset <= offset <= len(segment.data):
                raise SegmentTruncatedError(name, start_offset=segment.start_offset)
            segment.start_offset = offset
            return offset

        await self._perform(apply)

    async def merge_segment(
        self, target: str, source: str, *, attribute_updates: Sequence[AttributeUpdate] = ()
    ) -> int:
        """Merge."""

        def apply() -> int:
            source_segment = self._find_committed(source)
            target_segment = self._find_committed(target)
            if source_segment is target_segment:
                raise InvalidRequestError(target)
            if target_segment.sealed:
                raise SegmentSealedError(target)
            if source_segment.start_offset:
                raise SegmentTruncatedError(source, start_offset=source_segment.start_offset)
            values = target_segment.resolve(attribute_updates)
            if events := source_segment.attributes.get(EVENT_COUNT, 0):
                values[EVENT_COUNT] = values.get(EVENT_COUNT, 0) + events
            target_segment.attributes = values
            target_segment.last_modified_ms = self._now_ms()
            del self._segments[source]
            source_segment.fail_parked(NoSuchSegmentError(source))
            target_segment.extend(source_segment.data)
            return len(target_segment.data)

        return await self._perform(apply)

    def segment_info(self, name: str) -> SegmentInfo:
        """The committed state."""
        segment = self._find(name)
        return SegmentInfo(
            name=name,
            segment_type=segment.attributes.get(ATTRIBUTE_SEGMENT_TYPE, 0),
            start_offset=segment.start_offset,
            length=len(segment.data),
            storage_length=0,
            sealed=segment.sealed,
            last_modified_ms=segment.last_modified_ms,
        )

    async def get_attributes(
        self, name: str, attribute_ids: Sequence[AttributeId]
    ) -> dict[AttributeId, int]:
        """Committed attribute values."""
        await trio.lowlevel.checkpoint()
        values = self._find(name).attributes
        return {key: values[key] for key in attribute_ids if key in values}

    async def wait_in_flight(self, name: str) -> None:
        """Wait for everything queued so far."""
        await self._perform(lambda: 0)

    def read_nowait(
        self, name: str, *, offset: int, length_max: int, on_complete: OnRead
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
            on_complete(InvalidRequestError(name, f"offset {offset} lies beyond {length}"), None)
        else:
            read = ParkedRead(segment.parked, offset, length_max, on_complete)
            segment.parked.append(read)
            return read
        return None

    async def read(self, name: str, *, offset: int, length_max: int) -> ReadResult:
        """Read and wait."""
        done = trio.Event()
        outcome: list[SegmentStoreError | ReadResult] = []

        def on_complete(error: SegmentStoreError | None, result: ReadResult | None) -> None:
            answer = error or result
            assert answer is not None
            outcome.append(answer)
            done.set()

        handle = self.read_nowait(
            name, offset=offset, length_max=length_max, on_complete=on_complete
        )
        try:
            await done.wait()
        finally:
            if handle is not None:
                handle.cancel()
        answer = outcome[0]
        if isinstance(answer, SegmentStoreError):
            raise answer
        return answer
