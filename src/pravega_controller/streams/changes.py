"""The steps that change a stream: scale, truncate, update, seal.

| pending  | steps, each of which may be repeated                                             |
|----------|----------------------------------------------------------------------------------|
| Scale    | new segments are created, the old ones sealed, the epoch becomes active          |
| Truncate | (the head has moved) segments are truncated, those before the head deleted        |
| Update   | segments and the tag index learn the configuration; a Scale may follow           |
| Seal     | transactions are ended, segments sealed, the stream is sealed                    |

A scale records the epoch, creates the new segments, seals the old ones, and then makes the epoch
active.

Invariants:
1. When a client finds a segment sealed, its successors are recorded and exist, even if a controller
   was killed during the scale.
   Held by ``test_a_controller_killed_anywhere_is_finished_by_the_next_or_another``.
2. When a stream is truncated, the head moves before bytes are deleted: no client is sent to deleted
   bytes. Held by ``test_a_truncation_moves_the_head_before_it_drops_bytes``.
3. When a stream is sealed, its transactions are ended first: recorded commits are merged, and open
   transactions are aborted.
   Held by ``test_sealing_aborts_what_is_open_and_commits_what_is_decided``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from msgspec import structs

from pravega_controller.errors import StepRefusedError
from pravega_controller.metadata.records import ConfigurationRecord, Scale, Seal, Truncate, Update
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.rules.history import Epoch, scaled_epoch
from pravega_controller.rules.streams import ScaleType, Segment, even_ranges
from pravega_controller.store_client.segment_client import SegmentClient, for_each
from pravega_controller.streams.stream_segments import StreamSegments, segment_policy
from pravega_controller.streams.tag_index import TagIndex

RegisterTruncation: TypeAlias = Callable[[Stream], Awaitable[None]]
"""Called with a stream whose head has moved, before the truncation counts as finished."""


class Changes:
    """Does the steps. ``end_transactions`` ends all transactions of a stream that is sealed."""

    def __init__(
        self,
        store: MetadataStore,
        segments: StreamSegments,
        client: SegmentClient,
        tags: TagIndex,
        *,
        now_ms: Callable[[], int],
        register_truncation: RegisterTruncation,
        end_transactions: Callable[[Stream], Awaitable[Stream]],
    ) -> None:
        self._store = store
        self._segments = segments
        self._client = client
        self._tags = tags
        self._now_ms = now_ms
        self._register_truncation = register_truncation
        self._end_transactions = end_transactions

    async def scale(self, stream: Stream, pending: Scale) -> Stream:
        """Create the segments of the recorded epoch, seal those before, and make it active."""
        epoch = await stream.history.epoch(stream.last_epoch)
        await self._segments.create([(stream, segment) for segment in epoch.created])
        sizes = await self._segments.seal(stream, epoch.sealed_ids)
        record = structs.replace(stream.record, epoch=epoch.number, pending=None)
        return await self._store.writes.write(stream, record, sizes={epoch.number: sizes})

    async def truncate(self, stream: Stream, pending: Truncate) -> Stream:
        """Drop the data before the recorded head."""
        assert stream.head_record is not None
        cut, previous = stream.head_record.cut, stream.head_record.previous
        deleted = await stream.history.segments_before(cut, since=previous)

        async def truncate(position: tuple[int, int]) -> None:
            segment_id, offset = position
            await self._client.truncate_segment(stream.segment_name(segment_id), offset=offset)

        refusal: StepRefusedError | None = None
        try:
            await for_each([position for position in cut.items() if position[1] > 0], truncate)
        except StepRefusedError as error:
            refusal = error
        await self._segments.delete(stream, deleted)
        await self._register_truncation(stream)
        if refusal is not None:
            raise refusal
        return await self._store.writes.write(stream, structs.replace(stream.record, pending=None))

    async def update(self, stream: Stream, pending: Update) -> Stream:
        """Send the pending configuration to the segments, and make it the stream's present one."""
        configuration = stream.configurations.next
        assert configuration is not None
        scaling = configuration.scaling
        scale_type, rate = segment_policy(configuration)

        async def update(segment: Segment) -> None:
            await self._client.update_policy(
                stream.segment_name(segment.segment_id), scale_type=scale_type, target_rate=rate
            )

        await for_each(stream.active, update)
        before, after = set(stream.configuration.tags), set(configuration.tags)
        await self._tags.add(stream.scope, stream.name, after - before)
        unwanted = await self._tags.find_entries(stream.scope, stream.name, before - after)
        if unwanted:
            # Read the entries again: a later update, or a later stream, may have got the tag while
            # this controller was slow.
            stream = await self._store.writes.write(stream, stream.record)
            await self._tags.remove(stream.scope, unwanted)
        count = len(stream.active)
        is_fixed = scaling.scale_type is ScaleType.FIXED
        epochs: list[Epoch] = []
        if count < scaling.segment_count_min or (is_fixed and count != scaling.segment_count_min):
            epochs.append(
                scaled_epoch(
                    stream.latest,
                    [segment.segment_id for segment in stream.latest],
                    even_ranges(scaling.segment_count_min),
                    number=stream.record.epoch_count,
                    first_number=stream.record.next_number,
                    created_ms=self._now_ms(),
                )
            )
        # One write ends the update and begins the scale, so that a crash cannot lose the scale.
        return await self._store.writes.write(
            stream,
            structs.replace(stream.record, pending=Scale() if epochs else None),
            configuration=ConfigurationRecord(0, configuration),
            epochs=epochs,
        )

    async def seal(self, stream: Stream, pending: Seal) -> Stream:
        """End all transactions, and seal every segment permanently."""
        stream = await self._end_transactions(stream)
        sizes = await self._segments.seal(stream, [s.segment_id for s in stream.active])
        record = structs.replace(stream.record, is_sealed=True, pending=None)
        # The sizes of sealed segments are stored under the number of the epoch that seals them. No
        # epoch seals these: theirs are under the number after the last epoch's.
        return await self._store.writes.write(
            stream, record, sizes={stream.record.epoch_count: sizes}
        )
