"""Requests about streams: their checks, refusals and answers.

Owns: the checks before a workflow, and all questions that only read.

Invariants:
1. A question is answered from one snapshot of the stream; it never waits for a workflow.
2. A change is checked and recorded under the stream's lock, with nothing else pending.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import structlog

from pravega_controller import stream_cuts
from pravega_controller.conflicts import Target
from pravega_controller.errors import (
    CorruptMetadataError,
    EpochDroppedError,
    IllegalStateError,
    InvalidRequestError,
    InvalidStreamCutError,
    NotFoundError,
    ScalePreconditionError,
    ScopeNotFoundError,
    StreamNotFoundError,
    StreamSealedError,
)
from pravega_controller.history import Successor, scaled_epoch
from pravega_controller.records import (
    ConfigurationRecord,
    Create,
    HeadRecord,
    Scale,
    Seal,
    Truncate,
    Update,
)
from pravega_controller.segment_client import SegmentClient, for_each
from pravega_controller.store import Listing, MetadataStore, Stream
from pravega_controller.stream_workflows import StreamWorkflows, stream_intent
from pravega_controller.streams import (
    Segment,
    StreamConfiguration,
    StreamCut,
    validate_configuration,
)
from pravega_controller.tag_index import TagIndex, decode_position, encode_position
from pravega_controller.transactions import generalize
from pravega_wire import names

RegisterPolicies: TypeAlias = Callable[[str, str, StreamConfiguration], Awaitable[None]]
"""Called with a scope, a stream's name, and a configuration before the stream gets it."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StartedScale:
    """A scale that will be carried out: the epoch that it replaces, and the segments it creates."""

    epoch: int
    created: tuple[Segment, ...]


class StreamOperations:
    """Answers requests about streams."""

    def __init__(
        self,
        store: MetadataStore,
        segments: SegmentClient,
        workflows: StreamWorkflows,
        tags: TagIndex,
        register_policies: RegisterPolicies,
    ) -> None:
        self._register_policies = register_policies
        self._store = store
        self._segments = segments
        self._workflows = workflows
        self._tags = tags

    # ---- Changes ---------------------------------------------------------------------------------

    async def create(self, scope: str, name: str, configuration: StreamConfiguration) -> bool:
        """Make a stream; False if it existed. ``InvalidNameError``, ``ScopeNotFoundError``."""
        names.validate_stream_name(name)
        validate_configuration(configuration)
        await self._register_policies(scope, name, configuration)
        return await self._workflows.create(scope, name, configuration)

    async def update(self, scope: str, name: str, configuration: StreamConfiguration) -> None:
        """Change a stream's configuration, and its number of segments if the policy requires it."""
        validate_configuration(configuration)

        async def change() -> None:
            stream = await self._unsealed(scope, name)
            await self._register_policies(scope, name, configuration)
            both = ConfigurationRecord(0, stream.configuration, configuration)
            await self._workflows.run(stream, Update(), configuration=both)

        await self._workflows.change(scope, name, change)

    async def scale(
        self,
        scope: str,
        name: str,
        sealed: Sequence[int],
        ranges: Sequence[tuple[float, float]],
        *,
        now_ms: int,
    ) -> StartedScale:
        """Record that segments are replaced, and return; the caller finishes that by ``finish``.

        Raises ``InvalidRequestError``, and ``ScalePreconditionError``, also when the policy
        requires more segments.
        """

        async def change() -> StartedScale:
            stream = await self._unsealed(scope, name)
            number = stream.record.epoch_count
            epoch = scaled_epoch(stream.latest, sealed, ranges, number=number, created_ms=now_ms)
            count = len(stream.latest) - len(epoch.sealed) + len(epoch.created)
            if count < stream.configuration.scaling.segment_count_min:
                raise ScalePreconditionError(f"the scaling policy requires more than {count}")
            await self._workflows.start(stream, Scale(), epochs=[epoch])
            return StartedScale(stream.record.epoch, epoch.created)

        return await self._workflows.change(scope, name, change)

    async def seal(self, scope: str, name: str) -> None:
        """Seal a stream for good; fine if it is sealed.

        A stream that was made under the name since the request came stays as it is.
        """
        target = Target()

        def is_wanted(stream: Stream) -> bool:
            return target.includes(stream.stream_id)

        async def change() -> None:
            try:
                stream = await self._workflows.begin(scope, name, is_wanted=is_wanted)
            except StreamNotFoundError:
                if target.identity:
                    # It was deleted since, and so it was sealed.
                    return
                raise
            if stream.record.is_sealed:
                self._store.intents.remove(stream_intent(scope, name))
            else:
                await self._workflows.run(stream, Seal())

        await self._workflows.change(scope, name, change)

    async def truncate(self, scope: str, name: str, cut: StreamCut) -> None:
        """Truncate a stream at a cut. Raises ``InvalidStreamCutError`` or ``StreamSealedError``."""

        async def change() -> None:
            stream = await self._unsealed(scope, name)
            head = stream.head
            try:
                await stream.history.pieces(cut)
            except EpochDroppedError as error:
                raise InvalidStreamCutError(f"the stream cut is too old: {error}") from error
            if head and not await stream.history.is_at_or_after(cut, head):
                raise InvalidStreamCutError("the stream cut lies before the stream's head")
            await self._check_offsets(stream, cut)
            await self._workflows.run(stream, Truncate(), head=HeadRecord(0, dict(cut), head))

        await self._workflows.change(scope, name, change)

    async def delete(self, scope: str, name: str) -> None:
        """Delete a sealed stream. Raises ``StreamNotSealedError`` for another."""

        await self._workflows.delete(scope, name)

    # ---- Questions -------------------------------------------------------------------------------

    async def exists(self, scope: str, name: str) -> bool:
        try:
            await self._store.stream(scope, name)
        except NotFoundError:
            return False
        return True

    async def configuration(self, scope: str, name: str) -> StreamConfiguration:
        return (await self._store.stream(scope, name)).configuration

    async def list_with_tag(self, scope: str, tag: str, token: str) -> Listing:
        """Return a page of the streams that have a tag; a page without names ends the listing.

        Raises ``ScopeNotFoundError``, and ``InvalidRequestError`` for a foreign token.
        """
        position = decode_position(token)
        owner = await self._store.find_scope(scope)
        if owner is None or owner.record.phase == "creating":
            raise ScopeNotFoundError(f"scope {scope} does not exist")
        while True:
            page = await self._tags.find(owner, tag, from_key=position)
            found: list[str] = []

            async def check(name: str, found: list[str] = found) -> None:
                try:
                    if tag in (await self.configuration(scope, name)).tags:
                        found.append(name)
                except (NotFoundError, CorruptMetadataError) as error:
                    log.info("not listed", scope=scope, stream=name, reason=str(error))

            await for_each(page.names, check)
            if found or not page.next_key:
                return Listing(sorted(found), encode_position(page.next_key))
            position = page.next_key

    async def active_segments(self, scope: str, name: str) -> tuple[Segment, ...]:
        """Return the segments to write to, by key range; none when the stream is sealed."""
        stream = await self._existing(scope, name)
        return () if stream.record.is_sealed else stream.active

    async def epoch_segments(self, scope: str, name: str, epoch: int) -> tuple[Segment, ...]:
        """Return the segments of an epoch, by key range, under ids that carry this epoch.

        Raises ``NotFoundError``, also for an epoch that is not on record any more. Clients ask when
        they resume a transaction, whose segments are named after its own epoch.
        """
        stream = await self._existing(scope, name)
        return generalize(await stream.history.segments_in(epoch), epoch)

    async def head(self, scope: str, name: str) -> dict[int, int]:
        """Return the stream cut at which the stream begins."""
        stream = await self._existing(scope, name)
        return dict(stream.head) or stream_cuts.cut_at((await stream.history.epoch(0)).created)

    async def successors(self, scope: str, name: str, segment_id: int) -> tuple[Successor, ...]:
        """Return the successors of a segment; none while it is not sealed, or if the stream is.

        Raises ``EpochDroppedError`` if they are not on record any more.
        """
        stream = await self._store.stream(scope, name)
        return await stream.history.successors(segment_id)

    async def segments_between(
        self, scope: str, name: str, start: StreamCut, end: StreamCut
    ) -> list[Segment]:
        """Return the segments between two cuts; empty ones stand for the first epoch and the end.

        Raises ``EpochDroppedError`` if one of them is not on record any more.
        """
        stream = await self._existing(scope, name)
        if not start and not end:
            raise InvalidRequestError("at least one of the two stream cuts must be given")
        last = end or stream_cuts.cut_at(stream.active, offset=stream_cuts.END_OFFSET)
        return await stream.history.segments_between(start, last)

    async def is_segment_active(self, scope: str, name: str, segment_id: int) -> bool:
        segments = await self.active_segments(scope, name)
        return any(segment.segment_id == segment_id for segment in segments)

    async def is_cut_valid(self, scope: str, name: str, cut: StreamCut) -> bool:
        stream = await self._existing(scope, name)
        return await stream.history.is_valid(cut)

    async def has_left_epoch(self, scope: str, name: str, epoch: int) -> bool:
        """Return whether the stream has scaled beyond an epoch; ``NotFoundError`` if later."""
        stream = await self._existing(scope, name)
        if epoch < 0:
            raise InvalidRequestError(f"there is no epoch {epoch}")
        if epoch > stream.record.epoch:
            raise NotFoundError(f"epoch {epoch} does not exist")
        active = stream.record.epoch
        # An epoch that repeats another was made for transactions: the stream has not scaled.
        return epoch not in (active, (await stream.history.epoch(active)).reference)

    # ---- Checks ----------------------------------------------------------------------------------

    async def _unsealed(self, scope: str, name: str) -> Stream:
        stream = await self._workflows.begin(scope, name)
        if stream.record.is_sealed:
            raise StreamSealedError(f"stream {scope}/{name} is sealed")
        return stream

    async def _existing(self, scope: str, name: str) -> Stream:
        stream = await self._store.stream(scope, name)
        if isinstance(stream.record.pending, Create):
            raise IllegalStateError(f"stream {scope}/{name} is still being created")
        return stream

    async def _check_offsets(self, stream: Stream, cut: StreamCut) -> None:
        """Raise ``InvalidStreamCutError`` for a cut that lies after the end of a segment."""

        async def check(position: tuple[int, int]) -> None:
            segment_id, offset = position
            info = await self._segments.segment_info(stream.segment_name(segment_id))
            if info is not None and offset > info.length:
                raise InvalidStreamCutError(
                    f"offset {offset} lies beyond the {info.length} bytes of segment {segment_id}"
                )

        await for_each([position for position in cut.items() if position[1] > 0], check)
