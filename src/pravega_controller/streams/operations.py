"""Requests about streams: their checks, refusals and answers.

Owns: the checks before a workflow, and the answers to queries.

Invariants:
1. When a workflow is under way, queries about the stream are answered at once from its records.
   Held by ``test_a_truncation_moves_the_head_before_it_drops_bytes``.
2. When several changes of one stream are requested, they are checked and recorded one after the
   other, each when no other is pending. Held by ``test_changes_of_one_stream_take_turns``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import structlog

from pravega_controller.errors import (
    CorruptMetadataError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    ScalePreconditionError,
    ScopeNotFoundError,
    StepRefusedError,
    StreamNotFoundError,
    StreamSealedError,
)
from pravega_controller.metadata.conflicts import Target
from pravega_controller.metadata.records import (
    ConfigurationRecord,
    Create,
    HeadRecord,
    Scale,
    Seal,
    Truncate,
    Update,
)
from pravega_controller.metadata.scope_records import Listing
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.rules import stream_cuts
from pravega_controller.rules.history import Epoch, Successor, apply_epochs, scaled_epoch
from pravega_controller.rules.streams import (
    Segment,
    StreamConfiguration,
    StreamCut,
    validate_configuration,
)
from pravega_controller.rules.transactions import generalize
from pravega_controller.store_client.segment_client import for_each
from pravega_controller.streams.cut_checks import CutChecks
from pravega_controller.streams.pending_work import stream_intent
from pravega_controller.streams.tag_index import TagIndex, decode_position, encode_position
from pravega_controller.streams.workflows import StreamWorkflows
from pravega_wire import names

RegisterPolicies: TypeAlias = Callable[[str, str, StreamConfiguration], Awaitable[None]]
"""Called with a scope, a stream's name, and a configuration before the stream gets it."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StartedScale:
    """A recorded scale: the epoch that it replaces, and the segments that it creates."""

    epoch: int
    created: tuple[Segment, ...]


class StreamOperations:
    """Answers requests about streams."""

    def __init__(
        self,
        store: MetadataStore,
        cuts: CutChecks,
        workflows: StreamWorkflows,
        tags: TagIndex,
        register_policies: RegisterPolicies,
    ) -> None:
        self._register_policies = register_policies
        self._store = store
        self._cuts = cuts
        self.workflows = workflows
        self._tags = tags

    # ---- Changes ---------------------------------------------------------------------------------

    async def create(self, scope: str, name: str, configuration: StreamConfiguration) -> bool:
        """Create a stream; return False if it existed.

        Raises ``InvalidNameError`` and ``ScopeNotFoundError``.
        """
        names.validate_name(name)
        validate_configuration(configuration)
        await self._register_policies(scope, name, configuration)
        return await self.workflows.creation.create(scope, name, configuration)

    async def update(self, scope: str, name: str, configuration: StreamConfiguration) -> None:
        """Change a stream's configuration, and its number of segments if the policy requires it."""
        validate_configuration(configuration)

        async def change() -> None:
            stream = await self._unsealed(scope, name)
            await self._register_policies(scope, name, configuration)
            both = ConfigurationRecord(0, stream.configuration, configuration)
            await self.workflows.work.run_once(stream, Update(), configuration=both)

        await self.workflows.work.change(scope, name, change)

    async def scale(
        self,
        scope: str,
        name: str,
        sealed: Sequence[int],
        ranges: Sequence[tuple[float, float]],
        *,
        now_ms: int,
    ) -> StartedScale:
        """Record a scale, and return; the caller finishes it by ``finish``.

        Raises ``InvalidRequestError`` for invalid ranges. Raises ``ScalePreconditionError`` if a
        segment is not active, or if the policy requires more segments.
        """

        async def change() -> StartedScale:
            stream = await self._unsealed(scope, name)
            number = stream.record.epoch_count
            epoch = scaled_epoch(
                stream.latest,
                sealed,
                ranges,
                number=number,
                first_number=stream.record.next_number,
                created_ms=now_ms,
            )
            count = len(stream.latest) - len(epoch.sealed) + len(epoch.created)
            if count < stream.configuration.scaling.segment_count_min:
                raise ScalePreconditionError(f"the scaling policy requires more than {count}")
            await self.workflows.work.start(stream, Scale(), epochs=[epoch])
            return StartedScale(stream.record.epoch, epoch.created)

        return await self.workflows.work.change(scope, name, change)

    async def seal(self, scope: str, name: str) -> None:
        """Seal a stream permanently, unless it is sealed.

        A stream that was created under the name after the request is not sealed.
        """
        target = Target()

        def is_wanted(stream: Stream) -> bool:
            return target.includes(stream.stream_id)

        async def change() -> None:
            try:
                stream = await self.workflows.work.begin(scope, name, is_wanted=is_wanted)
            except StreamNotFoundError:
                if target.identity:
                    # The stream was deleted since then, and before that it was sealed.
                    return
                raise
            if stream.record.is_sealed:
                self._store.intents.remove(stream_intent(scope, name))
            else:
                await self.workflows.work.run(stream, Seal())

        await self.workflows.work.change(scope, name, change)

    async def truncate(self, scope: str, name: str, cut: StreamCut) -> None:
        """Truncate a stream at a cut. Raises ``InvalidStreamCutError`` or ``StreamSealedError``."""

        async def change() -> None:
            stream = await self._unsealed(scope, name)
            head = stream.head
            new = await self._cuts.check_at_or_after(stream, cut, head, "the stream's head")
            await self.workflows.work.run_once(stream, Truncate(), head=HeadRecord(0, new, head))

        await self.workflows.work.change(scope, name, change)

    async def delete(self, scope: str, name: str) -> None:
        """Delete a sealed stream. Raises ``StreamNotSealedError`` if it is not sealed."""

        await self.workflows.deletion.delete(scope, name)

    # ---- Questions -------------------------------------------------------------------------------

    async def exists(self, scope: str, name: str) -> bool:
        try:
            await self._store.streams.read(scope, name)
        except NotFoundError:
            return False
        return True

    async def configuration(self, scope: str, name: str) -> StreamConfiguration:
        return (await self._store.streams.read(scope, name)).configuration

    async def list_with_tag(self, scope: str, tag: str, token: str) -> Listing:
        """Return a page of the streams that have a tag; a page without names ends the listing.

        Raises ``ScopeNotFoundError``, and ``InvalidRequestError`` for a foreign token.
        """
        position = decode_position(token)
        owner = await self._store.scopes.find(scope)
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

        Raises ``NotFoundError``, also for a dropped epoch. Clients call this to resume a
        transaction, whose segments are named after its epoch.
        """
        stream = await self._existing(scope, name)
        return generalize(await stream.history.segments_in(epoch), epoch)

    async def last_epochs(
        self, scope: str, name: str, count_max: int
    ) -> list[tuple[Epoch, tuple[Segment, ...]]]:
        """Return the last epochs, at most ``count_max``, in order, each with its segments."""
        stream = await self._existing(scope, name)
        first = max(stream.history.first, stream.last_epoch + 1 - count_max)
        epochs = await stream.history.epochs(range(first, stream.last_epoch + 1))
        found = []
        segments = await stream.history.segments_in(first)
        for number in range(first, stream.last_epoch + 1):
            if number > first:
                segments = apply_epochs(segments, [epochs[number]])
            found.append((epochs[number], segments))
        return found

    async def head(self, scope: str, name: str) -> dict[int, int]:
        """Return the stream cut at which the stream begins."""
        stream = await self._existing(scope, name)
        if not stream.head:
            return stream_cuts.cut_at((await stream.history.epoch(0)).created)
        return dict(stream.head)

    async def successors(self, scope: str, name: str, segment_id: int) -> tuple[Successor, ...]:
        """Return the successors of a segment; none while it is not sealed, or if the stream is.

        Raises ``EpochDroppedError`` if their records were dropped, and ``EarlierStreamError`` for a
        segment of an earlier stream of the name.
        """
        stream = await self._store.streams.read(scope, name)
        return await stream.history.successors(segment_id)

    async def segments_between(
        self, scope: str, name: str, start: StreamCut, end: StreamCut
    ) -> list[Segment]:
        """Return the segments between two cuts; empty ones stand for the first epoch and the end.

        Offsets are not compared with the segments' lengths: clients name the end of a segment by
        -1 or by the maximum offset. Raises ``EpochDroppedError`` if records of a segment were
        dropped.
        """
        stream = await self._existing(scope, name)
        if not start and not end:
            raise InvalidRequestError("at least one of the two stream cuts must be given")
        last = end or stream_cuts.cut_at(stream.active, offset=stream_cuts.END_OFFSET)
        return await stream.history.segments_between(
            stream_cuts.replace_ends(start), stream_cuts.replace_ends(last)
        )

    async def is_segment_active(self, scope: str, name: str, segment_id: int) -> bool:
        segments = await self.active_segments(scope, name)
        return any(segment.segment_id == segment_id for segment in segments)

    async def check_cut(self, scope: str, name: str, cut: StreamCut) -> dict[int, int]:
        """Return the cut as it would be recorded.

        Raises ``InvalidStreamCutError`` for an invalid cut, and ``EpochDroppedError`` if records of
        its segments were dropped.
        """
        return await self._cuts.check(await self._existing(scope, name), cut)

    async def has_left_epoch(self, scope: str, name: str, epoch: int) -> bool:
        """Return whether the stream has scaled since an epoch was active.

        Raises ``NotFoundError`` for an epoch that does not exist yet. Raises ``StepRefusedError``
        if the epoch is active and no scale is pending: the scale about which the client asks has
        failed.
        """
        stream = await self._existing(scope, name)
        if epoch < 0:
            raise InvalidRequestError(f"there is no epoch {epoch}")
        if epoch > stream.record.epoch:
            raise NotFoundError(f"epoch {epoch} does not exist")
        active = stream.record.epoch
        # An epoch that repeats another one was made by a roll, and not by a scale.
        if epoch not in (active, (await stream.history.epoch(active)).reference):
            return True
        if not isinstance(stream.record.pending, Scale | Update) and stream.record.withdrawn:
            raise StepRefusedError(f"the scale of {scope}/{name} was refused")
        return False

    # ---- Checks ----------------------------------------------------------------------------------

    async def _unsealed(self, scope: str, name: str) -> Stream:
        stream = await self.workflows.work.begin(scope, name)
        if stream.record.is_sealed:
            raise StreamSealedError(f"stream {scope}/{name} is sealed")
        return stream

    async def _existing(self, scope: str, name: str) -> Stream:
        stream = await self._store.streams.read(scope, name)
        if isinstance(stream.record.pending, Create):
            raise IllegalStateError(f"stream {scope}/{name} is still being created")
        return stream
