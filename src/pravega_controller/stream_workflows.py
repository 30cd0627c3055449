"""Multi-step work on one stream: each step may be repeated, and what is left to do is recorded.

Owns: the steps that take a stream with a pending workflow to the state without one.

    request -> intent record -> StreamRecord.pending -> steps -> pending = None -> no intent

Killed anywhere, the controller finds the intent at its next start, the pending workflow in the
stream's record, and repeats the steps: creating, sealing, truncating or deleting a segment twice is
the same as once, and so is writing an epoch's record.

Invariants:
1. One workflow at a time: a stream's lock is held from the check of a request to its record, and
   whoever takes the lock first finishes what is pending.
2. A scale creates the new segments, then records the epoch, then seals the old segments, then makes
   the epoch active: nobody can see a sealed segment whose successors are not yet resolvable.
3. A truncation moves the head before it drops bytes: nobody is sent to bytes that may be gone.
4. A deleted stream leaves the number after its last segment behind, so that no segment name is ever
   used twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import structlog
from msgspec import structs

from pravega_controller import stream_cuts
from pravega_controller.errors import (
    NotFoundError,
    SegmentStoreError,
    StoreUnavailableError,
    StreamNotFoundError,
)
from pravega_controller.history import Epoch, first_epoch, scaled_epoch
from pravega_controller.locks import KeyedLocks
from pravega_controller.records import (
    Create,
    Delete,
    IntentRecord,
    Scale,
    Seal,
    StreamRecord,
    StreamWorkflow,
    Truncate,
    Update,
)
from pravega_controller.segment_client import SegmentClient, for_each
from pravega_controller.store import MetadataStore, Scope, Stream
from pravega_controller.streams import (
    ScaleType,
    Segment,
    StreamConfiguration,
    even_ranges,
    fixed_configuration,
)
from pravega_controller.tag_index import TagIndex
from pravega_wire import names

log = structlog.get_logger(__name__)


class StreamWorkflows:
    """Starts and finishes the multi-step work on streams."""

    def __init__(
        self,
        store: MetadataStore,
        segments: SegmentClient,
        tags: TagIndex,
        *,
        now_ms: Callable[[], int],
        finish_later: Callable[[IntentRecord], None],
    ) -> None:
        self._store = store
        self._segments = segments
        self._tags = tags
        self._now_ms = now_ms
        self._finish_later = finish_later
        self._locks = KeyedLocks()

    @asynccontextmanager
    async def exclusive(self, scope: str, name: str) -> AsyncIterator[None]:
        """Be the only one to work on a stream. What fails for want of a store goes on later."""
        async with self._locks.hold((scope, name)):
            try:
                yield
            except (StoreUnavailableError, SegmentStoreError):
                self._finish_later(stream_intent(scope, name))
                raise

    async def settled(self, scope: str, name: str) -> Stream:
        """A stream without pending work, for whoever holds it exclusively."""
        stream = await self._store.stream(scope, name)
        if stream.record.pending is None:
            return stream
        settled = await self._settle(stream)
        if settled is None:
            raise StreamNotFoundError(f"stream {scope}/{name} does not exist")
        return settled

    async def start(self, stream: Stream, record: StreamRecord) -> Stream:
        """Record a workflow, and with it the duty to finish it."""
        assert record.pending is not None
        assert stream.record.pending is None
        await self._store.put_intent(stream_intent(stream.scope.name, stream.name))
        return await self._store.write_stream(stream, record)

    async def run(self, stream: Stream, record: StreamRecord) -> Stream | None:
        """Record a workflow and finish it; returns None when the stream is gone."""
        return await self._settle(await self.start(stream, record))

    async def finish(self, scope: str, name: str) -> None:
        """Finish whatever is pending on a stream, if it exists."""
        async with self.exclusive(scope, name):
            try:
                await self.settled(scope, name)
            except NotFoundError:
                log.debug("nothing to finish", scope=scope, stream=name)
            await self._store.remove_intent(stream_intent(scope, name))

    async def create(self, scope: str, name: str, configuration: StreamConfiguration) -> bool:
        """Make a stream and its mark stream; False if it existed. ``ScopeNotFoundError``."""
        owner = await self._store.active_scope(scope)
        return await self.create_internal(owner, name, configuration)

    async def create_internal(
        self, owner: Scope, name: str, configuration: StreamConfiguration
    ) -> bool:
        """Make a stream even if its scope is being cleared; False if it existed.

        What a workflow was promised to make must not depend on the scope's phase: the workflow has
        to end before the scope can.
        """
        scope = owner.name
        async with self.exclusive(scope, name):
            try:
                await self.settled(scope, name)
            except StreamNotFoundError:
                log.debug("creating stream", scope=scope, stream=name)
            else:
                return False
            now = self._now_ms()
            first = first_epoch(
                even_ranges(configuration.scaling.segment_count_min),
                first_number=await self._store.next_number(scope, name),
                created_ms=now,
            )
            record = StreamRecord(
                configuration, created_ms=now, epoch=0, epoch_count=0, pending=Create(first)
            )
            await self._store.put_intent(stream_intent(scope, name))
            await self._settle(await self._store.insert_stream(owner, name, record))
            return True

    async def delete_internal(self, scope: str, name: str) -> None:
        """Seal and delete a stream that the controller itself made; fine if there is none."""
        async with self.exclusive(scope, name):
            try:
                stream = await self.settled(scope, name)
            except StreamNotFoundError:
                return
            if not stream.record.is_sealed:
                sealed = await self.run(stream, structs.replace(stream.record, pending=Seal()))
                assert sealed is not None
                stream = sealed
            await self.run(stream, structs.replace(stream.record, pending=Delete()))

    async def _settle(self, stream: Stream) -> Stream | None:
        current: Stream | None = stream
        while current is not None and (pending := current.record.pending) is not None:
            log.info(
                "workflow step",
                scope=stream.scope.name,
                stream=stream.name,
                workflow=type(pending).__name__,
            )
            current = await self._step(current, pending)
        await self._store.remove_intent(stream_intent(stream.scope.name, stream.name))
        return current

    async def _step(self, stream: Stream, pending: StreamWorkflow) -> Stream | None:
        step: Callable[..., Awaitable[Stream | None]] = _STEPS[type(pending)]
        return await step(self, stream, pending)

    # ---- The steps -------------------------------------------------------------------------------

    async def _create(self, stream: Stream, pending: Create) -> Stream:
        if not stream.name.startswith(names.MARK_PREFIX):
            mark = names.mark_stream(stream.name)
            await self.create_internal(stream.scope, mark, fixed_configuration(1))
        await self._tags.add(stream.scope, stream.name, stream.record.configuration.tags)
        await self._create_segments(stream, pending.first)
        await self._store.write_epoch(stream, pending.first)
        return await self._store.write_stream(
            stream, structs.replace(stream.record, epoch_count=1, pending=None)
        )

    async def _scale(self, stream: Stream, pending: Scale) -> Stream:
        epoch = pending.epoch
        if stream.record.epoch_count == epoch.number:
            await self._create_segments(stream, epoch)
            stream = await self._store.append_epoch(stream, epoch)
        await self._seal_segments(stream, epoch.sealed)
        return await self._store.write_stream(
            stream, structs.replace(stream.record, epoch=epoch.number, pending=None)
        )

    async def _truncate(self, stream: Stream, pending: Truncate) -> Stream:
        async def truncate(cut: tuple[int, int]) -> None:
            segment_id, offset = cut
            await self._segments.truncate_segment(stream.segment_name(segment_id), offset=offset)

        await for_each([cut for cut in stream.record.head.items() if cut[1] > 0], truncate)
        await self._delete_segments(stream, pending.deleted)
        return await self._store.write_stream(stream, structs.replace(stream.record, pending=None))

    async def _update(self, stream: Stream, pending: Update) -> Stream:
        scaling = pending.configuration.scaling
        scale_type, rate = segment_policy(pending.configuration)

        async def update(segment: Segment) -> None:
            await self._segments.update_policy(
                stream.segment_name(segment.segment_id), scale_type=scale_type, target_rate=rate
            )

        await for_each(stream.active, update)
        before, after = stream.record.configuration.tags, pending.configuration.tags
        await self._tags.add(stream.scope, stream.name, set(after) - set(before))
        await self._tags.remove(stream.scope, stream.name, set(before) - set(after))
        count = len(stream.active)
        is_fixed = scaling.scale_type is ScaleType.FIXED
        rescale: Scale | None = None
        if count < scaling.segment_count_min or (is_fixed and count != scaling.segment_count_min):
            epoch = scaled_epoch(
                stream.history,
                [segment.segment_id for segment in stream.active],
                even_ranges(scaling.segment_count_min),
                created_ms=self._now_ms(),
            )
            rescale = Scale(epoch)
        # One write ends the update and begins the scale: neither can be lost without the other.
        return await self._store.write_stream(
            stream,
            structs.replace(stream.record, configuration=pending.configuration, pending=rescale),
        )

    async def _seal(self, stream: Stream, pending: Seal) -> Stream:
        await self._seal_segments(stream, [segment.segment_id for segment in stream.active])
        return await self._store.write_stream(
            stream, structs.replace(stream.record, is_sealed=True, pending=None)
        )

    async def _delete(self, stream: Stream, pending: Delete) -> None:
        head = stream.record.head
        gone = (
            {s.segment_id for s in stream_cuts.segments_before(stream.history, head, since={})}
            if head
            else set()
        )
        await self._delete_segments(stream, [i for i in stream.history.segments if i not in gone])
        if not stream.name.startswith(names.MARK_PREFIX):
            await self.delete_internal(stream.scope.name, names.mark_stream(stream.name))
        await self._tags.remove(stream.scope, stream.name, stream.record.configuration.tags)
        # Begun again after a crash, only the first epochs may be left: the number never goes back.
        scope = stream.scope.name
        reserved = await self._store.next_number(scope, stream.name)
        number = max(reserved, stream.history.number_after_last())
        await self._store.write_next_number(scope, stream.name, number)
        await self._store.remove_stream(stream)

    # ---- What steps are made of ------------------------------------------------------------------

    async def _create_segments(self, stream: Stream, epoch: Epoch) -> None:
        configuration = stream.record.configuration
        scale_type, rate = segment_policy(configuration)

        async def create(segment: Segment) -> None:
            await self._segments.create_segment(
                stream.segment_name(segment.segment_id),
                scale_type=scale_type,
                target_rate=rate,
                rollover_bytes=configuration.rollover_bytes,
            )

        await for_each(epoch.created, create)

    async def _seal_segments(self, stream: Stream, identifiers: Iterable[int]) -> None:
        async def seal(identifier: int) -> None:
            await self._segments.seal_segment(stream.segment_name(identifier))

        await for_each(identifiers, seal)

    async def _delete_segments(self, stream: Stream, identifiers: Iterable[int]) -> None:
        async def delete(identifier: int) -> None:
            await self._segments.delete_segment(stream.segment_name(identifier))

        await for_each(identifiers, delete)


_STEPS: dict[type[StreamWorkflow], Callable[..., Awaitable[Stream | None]]] = {
    Create: StreamWorkflows._create,
    Scale: StreamWorkflows._scale,
    Truncate: StreamWorkflows._truncate,
    Update: StreamWorkflows._update,
    Seal: StreamWorkflows._seal,
    Delete: StreamWorkflows._delete,
}


def stream_intent(scope: str, name: str) -> IntentRecord:
    """The intent that covers every workflow of a stream."""
    return IntentRecord("stream", scope, name)


def segment_policy(configuration: StreamConfiguration) -> tuple[int, int]:
    """The scale type and target rate that a stream's segments carry."""
    scaling = configuration.scaling
    if scaling.scale_type is ScaleType.FIXED:
        return int(ScaleType.FIXED), 0
    return int(scaling.scale_type), scaling.target_rate
