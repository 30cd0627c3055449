"""Creates, seals and deletes the segments of streams, also those that late requests create.

Owns: ``StreamSegments``. Each request may be repeated: creating, sealing or deleting a segment
twice is the same as once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from pravega_controller.background.late_segments import LateSegments
from pravega_controller.errors import NotFoundError
from pravega_controller.metadata.records import Create, Delete, IntentRecord
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.rules import stream_cuts
from pravega_controller.rules.streams import ScaleType, Segment, StreamConfiguration
from pravega_controller.store_client.segment_client import NewSegment, SegmentClient
from pravega_wire import names

LATE_KIND = "stream-segments"
"""Kind of the intents to delete segments that late requests of a dead controller create."""
FIXED_POLICY = (int(ScaleType.FIXED), 0)
"""The scale type and target rate of a segment that never requests to be scaled."""


class StreamSegments:
    """The segments of streams in the segment stores."""

    def __init__(self, store: MetadataStore, segments: SegmentClient, late: LateSegments) -> None:
        self._store = store
        self._segments = segments
        self._late = late
        late.register(LATE_KIND, self._delete_late)

    async def create(
        self, wanted: Sequence[tuple[Stream, Segment]], *, is_fixed: bool = False
    ) -> None:
        """Create segments with the scaling policies of their streams.

        With ``is_fixed`` the segments never request to be scaled.
        """

        def describe(stream: Stream, segment: Segment) -> NewSegment:
            policy = FIXED_POLICY if is_fixed else segment_policy(stream.configuration)
            scale_type, rate = policy
            return NewSegment(
                stream.segment_name(segment.segment_id),
                scale_type=scale_type,
                target_rate=rate,
                rollover_bytes=stream.configuration.rollover_bytes,
            )

        await self._segments.create_segments(describe(*one) for one in wanted)

    async def seal(self, stream: Stream, identifiers: Iterable[int]) -> dict[int, int]:
        """Seal segments; return the lengths of those that exist."""
        sealed = list(identifiers)
        names = [stream.segment_name(identifier) for identifier in sealed]
        await self._segments.seal_segments(names)
        infos = await self._segments.segment_infos(names)
        return {
            identifier: info.length
            for identifier, info in zip(sealed, infos, strict=True)
            if info is not None
        }

    async def delete(self, stream: Stream, segments: Iterable[Segment]) -> None:
        await self._segments.delete_segments(
            stream.segment_name(segment.segment_id) for segment in segments
        )

    async def delete_all(self, stream: Stream) -> None:
        """Delete every segment from the head on."""
        end = stream_cuts.cut_at(stream.latest, offset=stream_cuts.END_OFFSET)
        await self.delete(stream, await stream.history.segments_between(stream.head, end))

    async def delete_strays(self, stream: Stream) -> None:
        """Delete segments that a step of this controller may have created too late.

        While this controller was slow, another may have done the same step, and then truncated or
        deleted the stream. No later stream uses these names, because a deletion stores the numbers
        that were used. There is one exception: a stream that was discarded before its name led to
        it. Another stream may use its names, so its segments are kept.
        """
        scope, name = stream.scope.name, stream.name
        await self._delete_unneeded(scope, name, stream.stream_id, await being_created(stream))

    async def promise_search(self, stream: Stream) -> None:
        """Record that segments which an earlier owner of pending work may create late are deleted.

        Other controllers may have created these segments meanwhile, and deleted them again.
        """
        identifiers = await being_created(stream)
        if identifiers:
            name = f"{stream.name}/{stream.stream_id}/{stream.last_epoch}"
            await self._late.promise(
                IntentRecord(LATE_KIND, stream.scope.name, name, segment_ids=tuple(identifiers))
            )

    async def _delete_late(self, intent: IntentRecord) -> None:
        """Delete those segments of an intent that their stream does not need any more."""
        name, stream_id, _ = intent.name.split("/")
        await self._delete_unneeded(intent.scope, name, stream_id, intent.segment_ids)

    async def _delete_unneeded(
        self, scope: str, name: str, stream_id: str, identifiers: Sequence[int]
    ) -> None:
        """Delete those of a stream's segments that it does not have any more, or all if it is gone.

        Such segments lie before the stream's head, or in a withdrawn epoch.
        """
        try:
            found = await self._store.streams.read(scope, name)
        except NotFoundError:
            found = None
        unneeded: Sequence[int] = ()
        if found is None or found.stream_id != stream_id:
            reserved = await self._store.names.next_number(scope, name)
            unneeded = [one for one in identifiers if names.segment_number(one) < reserved]
        elif isinstance(found.record.pending, Delete):
            unneeded = identifiers
        else:
            unneeded = await _unneeded_in(found, identifiers)
        await self._segments.delete_segments(
            names.segment_name(scope, name, identifier) for identifier in unneeded
        )


def segment_policy(configuration: StreamConfiguration) -> tuple[int, int]:
    """Return the scale type and the target rate in the attributes of a stream's segments."""
    scaling = configuration.scaling
    if scaling.scale_type is ScaleType.FIXED:
        return FIXED_POLICY
    return int(scaling.scale_type), scaling.target_rate


async def being_created(stream: Stream) -> list[int]:
    """Return the ids of the segments that unfinished work on a stream creates."""
    created: list[int] = []
    if isinstance(stream.record.pending, Create):
        created += [segment.segment_id for segment in stream.active]
    for number in range(stream.record.epoch + 1, stream.record.epoch_count):
        with suppress(NotFoundError):
            epoch = await stream.history.epoch(number)
            created += [segment.segment_id for segment in epoch.created]
    return created


async def _unneeded_in(stream: Stream, identifiers: Iterable[int]) -> list[int]:
    """Return those of these segments that a stream has had, and will not have again."""
    head = await stream.history.pieces(stream.head) if stream.head else ()
    segments = await stream.history.segments(identifiers)
    unneeded = []
    for identifier in identifiers:
        segment = segments.get(identifier)
        if segment is None:
            # The segment was sealed before the first recorded epoch, or its epoch was withdrawn: no
            # other segment gets a number that was used before.
            is_unneeded = names.segment_number(identifier) < stream.record.next_number
        else:
            is_unneeded = bool(head) and stream_cuts.is_before(segment, head)
        if is_unneeded:
            unneeded.append(identifier)
    return unneeded
