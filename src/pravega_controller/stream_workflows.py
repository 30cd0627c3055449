"""Multi-step work on one stream: each step may be repeated, and the remaining steps are recorded.

Owns: the steps that take a stream with a pending workflow to the state without one.

    request -> intent -> StreamRecord.pending -> steps -> pending = None -> (later) no intent

A controller that was killed finds the intent at its next start, and the pending workflow in the
stream's record. It then repeats the steps: creating, sealing, truncating or deleting a segment
twice is the same as once. The update that makes a workflow pending also writes its subject (an
epoch, a head, a configuration), so that neither is ever seen without the other.

Invariants:
1. One workflow at a time: a stream's lock is held from the check of a request to its record, and
   the first task that takes the lock finishes what is pending.
2. A scale records the epoch, then creates the new segments, then seals the old segments, then makes
   the epoch active: no client can see a sealed segment whose successors are not yet known.
3. A truncation moves the head before it drops bytes: no client is sent to bytes that may be gone.
4. A deleted stream leaves the number after its last segment behind, so that no segment name is ever
   used twice.
5. A stream and its mark stream are made and removed by the same updates. A mark stream that is
   missing is made by an update that writes its stream's state, too.
6. A deletion is about one stream, by its id: it deletes nothing of one that was made under the name
   since. So what a stream's name leads to, its mark stream and its tags, is deleted only as it was
   read while the stream was there.
7. Transactions are ended before a stream's segments are sealed for good. Rolling, which merges
   those of an earlier epoch, comes before the pending workflow: sealing may need it, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, Protocol, TypeAlias, TypeVar

import structlog
import trio
from msgspec import structs

from pravega_controller import stream_cuts
from pravega_controller.conflicts import Target, until_unchanged
from pravega_controller.errors import (
    ControllerError,
    IllegalStateError,
    InvalidRequestError,
    NoSuchTableError,
    NotFoundError,
    OwnedElsewhereError,
    ScalePreconditionError,
    ScopeNotFoundError,
    StoreAnswerError,
    StoreUnavailableError,
    StreamNotFoundError,
    StreamNotSealedError,
    StreamSealedError,
    VersionConflictError,
)
from pravega_controller.history import Epoch, first_epoch, scaled_epoch
from pravega_controller.late_segments import LateSegments
from pravega_controller.locks import KeyedLocks
from pravega_controller.members import Members
from pravega_controller.records import (
    ConfigurationRecord,
    Create,
    Delete,
    HeadRecord,
    IntentRecord,
    Rolling,
    Scale,
    Seal,
    StreamWorkflow,
    Truncate,
    Update,
)
from pravega_controller.segment_client import NewSegment, SegmentClient, for_each, run_all
from pravega_controller.store import (
    MetadataStore,
    NewStream,
    ReaderGroup,
    Scope,
    Stream,
    StreamWrite,
)
from pravega_controller.streams import (
    ScaleType,
    Segment,
    StreamConfiguration,
    even_ranges,
    fixed_configuration,
)
from pravega_controller.table_client import Entry
from pravega_controller.tag_index import TagIndex
from pravega_wire import names

OWNER_POLL_SECONDS = 0.2
"""Interval, in seconds, at which this controller checks whether another has finished its work."""
OWNER_SECONDS_MAX = 30.0
"""Maximum time, in seconds, of that wait; then the caller is told to try again later."""
REFUSALS = (
    NotFoundError,
    InvalidRequestError,
    IllegalStateError,
    ScalePreconditionError,
    StreamNotSealedError,
    StreamSealedError,
)
"""Errors after which nothing has been begun."""
MARK_CONFIGURATION = fixed_configuration(1)
LATE_KIND = "stream-segments"
"""Kind of the intents to look for segments that a dead controller may create late."""
FIXED_POLICY = (int(ScaleType.FIXED), 0)
"""The scale type and target rate of a segment that never requests to be scaled."""
ANY_PHASE = ("active", "clearing", "deleting")
"""The phases of a scope in which workflows that have begun go on."""

log = structlog.get_logger(__name__)

Owner = TypeVar("Owner", ReaderGroup, Stream)
T = TypeVar("T")


RegisterTruncation: TypeAlias = Callable[[Stream], Awaitable[None]]
"""Called with a stream whose head has moved, before the truncation counts as finished."""

InsertStreams: TypeAlias = Callable[[Scope, Sequence[NewStream]], Awaitable[list[Stream]]]
"""Records new streams of a scope, all or none."""


@dataclass(frozen=True, slots=True)
class _Belongings:
    """The things that only a stream's name leads to: its mark stream, and its tags in the index.

    They were read while the stream was there, so that they are not those of a later one.
    """

    marks: list[Stream]
    tags: list[Entry]


class TransactionSteps(Protocol):
    """The steps of transactions that a stream's workflows need."""

    async def end_all(self, stream: Stream) -> Stream:
        """End every transaction; the stream is being sealed."""

    async def forget_all(self, stream: Stream) -> None:
        """Remove the stored records of transactions; the stream is being deleted."""

    async def finish_roll(self, stream: Stream, rolling: Rolling) -> Stream:
        """Merge transactions of an earlier epoch into a stream."""


class StreamWorkflows:
    """Starts and finishes the multi-step work on streams."""

    def __init__(
        self,
        store: MetadataStore,
        segments: SegmentClient,
        tags: TagIndex,
        members: Members,
        late: LateSegments,
        *,
        now_ms: Callable[[], int],
        finish_later: Callable[[IntentRecord], None],
        register_truncation: RegisterTruncation,
    ) -> None:
        self._register_truncation = register_truncation
        self._store = store
        self._segments = segments
        self._tags = tags
        self._members = members
        self._me = members.instance_id
        self._late = late
        late.register(LATE_KIND, self._delete_late)
        self._now_ms = now_ms
        self._finish_later = finish_later
        self._locks = KeyedLocks()
        self._transactions: TransactionSteps

    def set_transactions(self, transactions: TransactionSteps) -> None:
        """Set the object that carries out the steps of transactions."""
        self._transactions = transactions

    @asynccontextmanager
    async def exclusive(self, scope: str, name: str) -> AsyncIterator[None]:
        """Hold a stream exclusively for the block; finish later what the loss of a store stops.

        Work that fails for good is handed back, so that no controller waits for this one.
        """
        async with self._locks.hold((scope, name)):
            try:
                yield
            except (OwnedElsewhereError, VersionConflictError):
                raise
            except (StoreUnavailableError, StoreAnswerError):
                self._finish_later(stream_intent(scope, name))
                raise
            except Exception:
                await self._hand_back(scope, name)
                raise

    async def _hand_back(self, scope: str, name: str) -> None:
        """Allow any controller to finish this one's work on a stream, if it has not ended."""
        stream = self._store.known(scope, name)
        if stream is None or _is_settled(stream) or stream.record.owner != self._me:
            return
        try:
            await self._store.write_stream(stream, structs.replace(stream.record, owner=""))
        except ControllerError as error:
            log.warning("work not handed back", scope=scope, stream=name, reason=str(error))

    async def change(self, scope: str, name: str, action: Callable[[], Awaitable[T]]) -> T:
        """Call ``action`` with the stream held; repeat it if another controller has written."""

        return await until_unchanged(partial(self._change_once, scope, name, action))

    async def _change_once(self, scope: str, name: str, action: Callable[[], Awaitable[T]]) -> T:
        async with self.exclusive(scope, name):
            try:
                return await action()
            except REFUSALS:
                self._store.intents.remove(stream_intent(scope, name))
                raise

    async def settled(
        self, scope: str, name: str, *, is_wanted: Callable[[Stream], bool] | None = None
    ) -> Stream:
        """Return a stream without pending work; the caller holds it exclusively.

        Raises ``StreamNotFoundError``, also for a stream that ``is_wanted`` refuses.
        """
        missing = StreamNotFoundError(f"stream {scope}/{name} does not exist")
        stream = await self._store.stream(scope, name)
        if is_wanted is not None and not is_wanted(stream):
            raise missing
        stream = await self._acquire(stream)
        if is_wanted is not None and not is_wanted(stream):
            # It was deleted while its owner was waited for.
            raise missing
        if _is_settled(stream):
            return stream
        settled = await self._settle(stream)
        if settled is None:
            raise missing
        return settled

    async def _acquire(self, stream: Stream) -> Stream:
        """Return a stream whose pending work, if it still has any, is this controller's.

        A living controller finishes its work. A conditional write takes over the work of a dead
        one, or work that was handed back, so that no write of the earlier owner succeeds any more.
        Raises ``OwnedElsewhereError`` if a living owner takes too long.
        """
        deadline = trio.current_time() + OWNER_SECONDS_MAX
        scope, name = stream.scope.name, stream.name
        while not _is_settled(stream) and stream.record.owner != self._me:
            record = stream.record
            if not record.owner or await self._members.is_dead(record.owner):
                log.info("taking over", stream=name, owner=record.owner)
                await self._promise_to_look(stream)
                taken = structs.replace(record, owner=self._me)
                return await self._store.write_stream(stream, taken)
            if trio.current_time() >= deadline:
                raise OwnedElsewhereError(
                    f"another controller has been changing {scope}/{name} for more than "
                    f"{OWNER_SECONDS_MAX:.0f} s: try again later"
                )
            await trio.sleep(OWNER_POLL_SECONDS)
            stream = await self._store.stream(scope, name)
        return stream

    async def begin(
        self, scope: str, name: str, *, is_wanted: Callable[[Stream], bool] | None = None
    ) -> Stream:
        """Return a stream without pending work, which the caller will change.

        The intent is written while the stream is read. After a refusal it stays for a while.
        """
        intent = stream_intent(scope, name)
        try:
            stream, _ = await run_all(
                partial(self.settled, scope, name, is_wanted=is_wanted),
                partial(self._store.intents.put, intent),
            )
        except NotFoundError:
            self._store.intents.remove(intent)
            raise
        return stream

    async def settled_as_known(self, scope: str, name: str) -> Stream:
        """Return a stream like ``settled``, maybe as it was before another controller changed it.

        For steps that fail after such a change, and that may then be repeated.
        """
        known = self._store.known(scope, name)
        if known is not None and _is_settled(known):
            return known
        return await self.settled(scope, name)

    async def start(
        self,
        stream: Stream,
        pending: StreamWorkflow,
        *,
        configuration: ConfigurationRecord | None = None,
        head: HeadRecord | None = None,
        epochs: Sequence[Epoch] = (),
    ) -> Stream:
        """Record a workflow with its subject, and with it the duty to finish it."""
        assert stream.record.pending is None
        await self._store.intents.put(stream_intent(stream.scope.name, stream.name))
        record = structs.replace(stream.record, pending=pending, owner=self._me)
        return await self._store.write_stream(
            stream, record, configuration=configuration, head=head, epochs=epochs
        )

    async def run(
        self,
        stream: Stream,
        pending: StreamWorkflow,
        *,
        configuration: ConfigurationRecord | None = None,
        head: HeadRecord | None = None,
    ) -> Stream | None:
        """Record a workflow and finish it; return None when the stream is gone."""
        return await self._settle(
            await self.start(stream, pending, configuration=configuration, head=head)
        )

    async def start_roll(self, stream: Stream, rolling: Rolling, epochs: Sequence[Epoch]) -> Stream:
        """Record that transactions of an earlier epoch are merged, and the duty to do it."""
        assert stream.record.rolling is None
        await self._store.intents.put(stream_intent(stream.scope.name, stream.name))
        record = structs.replace(stream.record, rolling=rolling, owner=self._me)
        return await self._store.write_stream(stream, record, epochs=epochs)

    async def end_roll(
        self, stream: Stream, epoch: int, sizes: Mapping[int, dict[int, int]]
    ) -> Stream:
        """Make the last of the epochs active; the duty is over, unless a workflow is pending."""
        record = structs.replace(stream.record, epoch=epoch, rolling=None)
        stream = await self._store.write_stream(stream, record, sizes=sizes)
        if record.pending is None:
            self._store.intents.remove(stream_intent(stream.scope.name, stream.name))
        return stream

    async def finish(self, scope: str, name: str) -> None:
        """Finish the pending workflow of a stream, if it exists."""
        async with self.exclusive(scope, name):
            intent = await self._store.intents.find(stream_intent(scope, name))
            try:
                await self._finish(intent)
            except (ScopeNotFoundError, NoSuchTableError):
                log.debug("the scope does not exist", scope=scope, stream=name)
            self._store.intents.remove(intent)

    async def _finish(self, intent: IntentRecord) -> None:
        scope, name = intent.scope, intent.name
        is_there = await self._exists(scope, name)
        if intent.stream_ids:
            # A stream that was being made may have records to which no name leads.
            await self._store.discard_unnamed(scope, _with_mark(name), intent.stream_ids)
        if not is_there:
            for dead in _with_mark(name):
                await self._store.remove_dead_name(scope, dead)

    async def create(self, scope: str, name: str, configuration: StreamConfiguration) -> bool:
        """Make a stream and its mark stream; False if it existed. Raises ``ScopeNotFoundError``."""
        insert = self._store.insert_streams
        return await self.change(
            scope, name, partial(self._create_in, scope, name, configuration, ("active",), insert)
        )

    async def create_for_group(
        self, group: ReaderGroup, name: str, configuration: StreamConfiguration
    ) -> ReaderGroup:
        """Make a stream of a reader group if there is none; return the group as it is then.

        The steps of a workflow must not depend on the scope's phase, because the workflow must end
        before the scope can. Raises ``VersionConflictError`` if the group has changed, after which
        nothing is made: it may be gone, and nothing would ever delete its stream.
        """
        insert = self._store.insert_streams_of_group
        return await self._create_of(group, name, configuration, insert)

    async def _create_mark(self, stream: Stream, mark: str) -> Stream:
        """Make the mark stream of a stream if there is none; return the stream as it is then.

        Raises ``VersionConflictError`` like ``create_for_group``.
        """
        insert = self._store.insert_mark_stream
        return await self._create_of(stream, mark, MARK_CONFIGURATION, insert)

    async def _create_of(
        self,
        owner: Owner,
        name: str,
        configuration: StreamConfiguration,
        insert_of: Callable[[Owner, Sequence[NewStream]], Awaitable[tuple[list[Stream], Owner]]],
    ) -> Owner:
        """Make a stream of a group or stream, as the functions above; return the owner as then."""
        current = owner

        async def insert(scope: Scope, new: Sequence[NewStream]) -> list[Stream]:
            nonlocal current
            if scope.record.scope_id != owner.scope.record.scope_id:
                raise ScopeNotFoundError(f"scope {scope.name} does not exist any more")
            streams, current = await insert_of(current, new)
            return streams

        scope = owner.scope.name
        create = partial(self._create_in, scope, name, configuration, ANY_PHASE, insert)
        # After a conflict, the caller reads the owner again.
        await self._change_once(scope, name, create)
        return current

    async def delete(self, scope: str, name: str) -> None:
        """Delete a sealed stream. Raises ``StreamNotSealedError`` for another.

        A stream that was made under the name since the request came stays.
        """
        target = Target()

        def is_wanted(stream: Stream) -> bool:
            return target.includes(stream.stream_id)

        delete = partial(self._delete_target, scope, name, target, is_wanted, seals=False)
        await self.change(scope, name, delete)

    async def delete_internal(self, scope: Scope, name: str, *, stream_id: str = "") -> None:
        """Seal and delete a stream of this very scope, that of an id if one is given.

        A missing stream is fine, and one that was made under the name since stays.
        """
        target = Target(stream_id)

        def is_wanted(stream: Stream) -> bool:
            is_in_scope = stream.scope.record.scope_id == scope.record.scope_id
            return is_in_scope and target.includes(stream.stream_id)

        async def delete() -> None:
            try:
                await self._delete_target(scope.name, name, target, is_wanted, seals=True)
            except NotFoundError:
                log.debug("nothing to delete", scope=scope.name, stream=name)
                # An earlier deletion may have left names, and with them the scope is not empty.
                with suppress(NotFoundError):
                    for dead in _with_mark(name):
                        await self._store.remove_dead_name_of(scope, dead)

        await self.change(scope.name, name, delete)

    async def _delete_target(
        self,
        scope: str,
        name: str,
        target: Target,
        is_wanted: Callable[[Stream], bool],
        *,
        seals: bool,
    ) -> None:
        """Delete the stream that a deletion is about, first sealing it if ``seals``."""
        try:
            stream, belongings = await self._begin_deletion(scope, name, is_wanted)
            if not stream.record.is_sealed:
                if not seals:
                    raise StreamNotSealedError(f"stream {scope}/{name} is not sealed")
                sealed = await self.run(stream, Seal())
                assert sealed is not None
                stream = sealed
            pending = Delete()
            # As this succeeds, the stream was there when its belongings were read.
            stream = await self.start(stream, pending)
            target.is_begun = True
            await self._step(stream, pending, partial(self._delete_with, belongings))
        except NotFoundError:
            if not target.is_begun:
                raise
            log.info("another controller has deleted it", scope=scope, stream=name)
        self._store.intents.remove(stream_intent(scope, name))

    async def _begin_deletion(
        self, scope: str, name: str, is_wanted: Callable[[Stream], bool]
    ) -> tuple[Stream, _Belongings]:
        """Return a stream without pending work, and what is deleted with it.

        That is read at the same time if the stream is known, and otherwise once it is found.
        """
        known = self._store.known(scope, name)

        async def find_belongings() -> _Belongings | None:
            if known is None or not _is_settled(known):
                return None
            return await self._find_belongings(known)

        stream, belongings = await run_all(
            partial(self.begin, scope, name, is_wanted=is_wanted), find_belongings
        )
        if (
            belongings is None
            or known is None
            or known.stream_id != stream.stream_id
            or known.configuration.tags != stream.configuration.tags
        ):
            belongings = await self._find_belongings(stream)
        return stream, belongings

    async def _create_in(
        self,
        scope: str,
        name: str,
        configuration: StreamConfiguration,
        phases: Sequence[str],
        insert: InsertStreams,
    ) -> bool:
        """Make a stream, which ``insert`` records; the caller holds it exclusively."""
        if self._store.known(scope, name) is not None and await self._exists(scope, name):
            return False
        wanted = _with_mark(name)
        ids = {one: self._store.new_id() for one in wanted}
        intent = IntentRecord("stream", scope, name, tuple(ids.values()))
        (owner, places), _ = await run_all(
            partial(self._store.find_places, scope, wanted),
            partial(self._store.intents.put, intent),
        )
        if owner is None or owner.record.phase not in phases or not places:
            self._store.intents.remove(intent)
            raise ScopeNotFoundError(f"scope {scope} does not exist")
        if places[0].is_taken:
            if not await self._exists(scope, name):
                raise VersionConflictError(f"{scope}/{name} was deleted meanwhile")
            self._store.intents.remove(intent)
            return False
        now = self._now_ms()
        new = [
            NewStream(
                one,
                ids[one],
                place.name_version,
                settings,
                first_epoch(
                    even_ranges(settings.scaling.segment_count_min),
                    first_number=place.next_number,
                    created_ms=now,
                ),
                self._me,
            )
            for one, place, settings in zip(
                wanted, places, (configuration, MARK_CONFIGURATION), strict=False
            )
            if not place.is_taken
        ]
        streams = await insert(owner, new)
        try:
            await self._finish_creating(streams)
        except VersionConflictError:
            # The controller that took this one for dead finishes the work.
            for one in streams:
                await self.delete_strays(one)
            found: Stream | None = None
            with suppress(StreamNotFoundError):
                found = await self.settled(scope, name)
            if found is None or found.stream_id != streams[0].stream_id:
                raise
        self._store.intents.remove(intent)
        return True

    async def _exists(self, scope: str, name: str) -> bool:
        """Return whether a stream exists, once its pending work is finished."""
        try:
            await self.settled(scope, name)
        except StreamNotFoundError:
            return False
        return True

    async def _settle(self, stream: Stream) -> Stream | None:
        current: Stream | None = stream
        while current is not None:
            work = current.record.rolling or current.record.pending
            if work is None:
                break
            log.info(
                "workflow step",
                scope=stream.scope.name,
                stream=stream.name,
                workflow=type(work).__name__,
            )
            current = await self._step(current, work)
        self._store.intents.remove(stream_intent(stream.scope.name, stream.name))
        return current

    async def delete_strays(self, stream: Stream) -> None:
        """Delete segments that a step on a stream may have created too late.

        While this controller was slow, another may have done the same step, and then moved the head
        beyond the segments, or deleted the stream. Nothing else uses their names once the deletion
        has reserved their numbers. But the names of a stream that was discarded before its name led
        to it may be another stream's by now: these stay.
        """
        scope, name = stream.scope.name, stream.name
        await self._delete_unneeded(scope, name, stream.stream_id, await _being_created(stream))

    async def _promise_to_look(self, stream: Stream) -> None:
        """Promise to look later for segments that an earlier owner of pending work creates late.

        These were made by others in the meantime, and may have been deleted again.
        """
        identifiers = await _being_created(stream)
        if identifiers:
            name = f"{stream.name}/{stream.stream_id}/{stream.last_epoch}"
            await self._late.promise(
                IntentRecord(LATE_KIND, stream.scope.name, name, segment_ids=tuple(identifiers))
            )

    async def _delete_late(self, intent: IntentRecord) -> None:
        """Delete the segments of an intent that their stream does not need any more."""
        name, stream_id, _ = intent.name.split("/")
        await self._delete_unneeded(intent.scope, name, stream_id, intent.segment_ids)

    async def _delete_unneeded(
        self, scope: str, name: str, stream_id: str, identifiers: Sequence[int]
    ) -> None:
        """Delete those of a stream's segments that lie before its head, or all if it is gone."""
        try:
            found = await self._store.stream(scope, name)
        except NotFoundError:
            found = None
        unneeded: Sequence[int] = ()
        if found is None or found.stream_id != stream_id:
            reserved = await self._store.next_number(scope, name)
            unneeded = [one for one in identifiers if names.segment_number(one) < reserved]
        elif isinstance(found.record.pending, Delete):
            unneeded = identifiers
        elif found.head:
            unneeded = await _before_head(found, identifiers)
        await self._segments.delete_segments(
            names.segment_name(scope, name, identifier) for identifier in unneeded
        )

    async def _step(
        self,
        stream: Stream,
        work: StreamWorkflow | Rolling,
        step: Callable[..., Awaitable[Stream | None]] | None = None,
    ) -> Stream | None:
        """Carry out a step of pending work, the one of its kind unless ``step`` is given."""
        try:
            if isinstance(work, Rolling):
                return await self._transactions.finish_roll(stream, work)
            return await (step or partial(_STEPS[type(work)], self))(stream, work)
        except VersionConflictError:
            await self.delete_strays(stream)
            raise

    # ---- The steps -------------------------------------------------------------------------------

    async def _create(self, stream: Stream, pending: Create) -> Stream:
        streams = [stream]
        for mark in _with_mark(stream.name)[1:]:
            try:
                found = await self._store.stream(stream.scope.name, mark)
            except StreamNotFoundError:
                streams[0] = await self._create_mark(stream, mark)
            else:
                if isinstance(found.record.pending, Create):
                    if found.record.owner != self._me:
                        await self._promise_to_look(found)
                    streams.append(found)
        try:
            return (await self._finish_creating(streams))[0]
        except VersionConflictError:
            for one in streams[1:]:
                await self.delete_strays(one)
            raise

    async def _finish_creating(self, streams: Sequence[Stream]) -> list[Stream]:
        """Make the segments of new streams, and then the streams, together.

        Deletes the first of them, which takes its mark stream along, and raises
        ``VersionConflictError`` if a stream of this name was deleted since their numbers were read.
        """
        for_all = [(stream, segment) for stream in streams for segment in stream.active]
        reserved: list[int] = []

        async def read_numbers() -> None:
            names = [stream.name for stream in streams]
            reserved.extend(await self._store.next_numbers(streams[0].scope.name, names))

        await run_all(
            partial(self.create_segments, for_all),
            read_numbers,
            *(partial(self._tags.add, s.scope, s.name, s.configuration.tags) for s in streams),
        )
        if any(
            min(segment.number for segment in stream.active) < number
            for stream, number in zip(streams, reserved, strict=True)
        ):
            await self._delete_unfinished(streams[0])
        return await self._store.write_streams(
            [StreamWrite(one, structs.replace(one.record, pending=None)) for one in streams]
        )

    async def _delete_unfinished(self, stream: Stream) -> NoReturn:
        """Delete a stream whose segments have used names, and raise ``VersionConflictError``."""
        record = structs.replace(stream.record, pending=Delete())
        await self._settle(await self._store.write_stream(stream, record))
        raise VersionConflictError(f"{stream.scope.name}/{stream.name} was deleted meanwhile")

    async def _scale(self, stream: Stream, pending: Scale) -> Stream:
        epoch = await stream.history.epoch(stream.last_epoch)
        await self.create_segments([(stream, segment) for segment in epoch.created])
        sizes = await self.seal_segments(stream, epoch.sealed_ids)
        record = structs.replace(stream.record, epoch=epoch.number, pending=None)
        return await self._store.write_stream(stream, record, sizes={epoch.number: sizes})

    async def _truncate(self, stream: Stream, pending: Truncate) -> Stream:
        assert stream.head_record is not None
        cut, previous = stream.head_record.cut, stream.head_record.previous
        deleted = await stream.history.segments_before(cut, since=previous)

        async def truncate(position: tuple[int, int]) -> None:
            segment_id, offset = position
            await self._segments.truncate_segment(stream.segment_name(segment_id), offset=offset)

        await for_each([position for position in cut.items() if position[1] > 0], truncate)
        await self._delete_segments(stream, deleted)
        await self._register_truncation(stream)
        return await self._store.write_stream(stream, structs.replace(stream.record, pending=None))

    async def _update(self, stream: Stream, pending: Update) -> Stream:
        configuration = stream.configurations.next
        assert configuration is not None
        scaling = configuration.scaling
        scale_type, rate = segment_policy(configuration)

        async def update(segment: Segment) -> None:
            await self._segments.update_policy(
                stream.segment_name(segment.segment_id), scale_type=scale_type, target_rate=rate
            )

        await for_each(stream.active, update)
        before, after = set(stream.configuration.tags), set(configuration.tags)
        await self._tags.add(stream.scope, stream.name, after - before)
        unwanted = await self._tags.find_entries(stream.scope, stream.name, before - after)
        if unwanted:
            # While this controller was slow, a later update or stream may have got the tag.
            stream = await self._store.write_stream(stream, stream.record)
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
                    created_ms=self._now_ms(),
                )
            )
        # One write ends the update and begins the scale: neither can be lost without the other.
        return await self._store.write_stream(
            stream,
            structs.replace(stream.record, pending=Scale() if epochs else None),
            configuration=ConfigurationRecord(0, configuration),
            epochs=epochs,
        )

    async def _seal(self, stream: Stream, pending: Seal) -> Stream:
        stream = await self._transactions.end_all(stream)
        sizes = await self.seal_segments(stream, [s.segment_id for s in stream.active])
        record = structs.replace(stream.record, is_sealed=True, pending=None)
        # No epoch seals them: the number after the last one stands for the stream's end.
        return await self._store.write_stream(
            stream, record, sizes={stream.record.epoch_count: sizes}
        )

    async def _delete(self, stream: Stream, pending: Delete) -> None:
        belongings = await self._find_belongings(stream)
        # If another controller has removed the stream, these are another one's: then this fails.
        stream = await self._store.write_stream(stream, stream.record)
        await self._delete_with(belongings, stream, pending)

    async def _delete_with(self, belongings: _Belongings, stream: Stream, pending: Delete) -> None:
        """Delete a stream, which has a record of that, and its belongings.

        Everything is deleted by names or versions that nothing else ever has: if others finish the
        deletion meanwhile, what is made after it stays.
        """
        streams = [stream, *belongings.marks]
        if pending.has_segments:
            numbers = {one.name: one.record.next_number for one in streams}
            await run_all(
                partial(self._store.write_next_numbers, stream.scope.name, numbers),
                *(partial(self._delete_all, one) for one in streams),
                partial(self._tags.remove, stream.scope, belongings.tags),
                partial(self._transactions.forget_all, stream),
            )
            if not stream.history.fits_one_removal:
                # The epochs are removed now: no later task may ask them for segments.
                record = structs.replace(stream.record, pending=Delete(has_segments=False))
                streams[0] = await self._store.write_stream(stream, record)
        await self._store.remove_streams(streams)

    async def _find_belongings(self, stream: Stream) -> _Belongings:
        """Return what belongs to a stream, if the stream turns out to be there afterwards."""
        marks, tags = await run_all(
            partial(self._mark_of, stream),
            partial(self._tags.find_entries, stream.scope, stream.name, stream.configuration.tags),
        )
        return _Belongings(marks, tags)

    async def _mark_of(self, stream: Stream) -> list[Stream]:
        """Return a stream's mark stream, if there is one."""
        found = []
        for mark in _with_mark(stream.name)[1:]:
            try:
                found.append(await self._store.stream(stream.scope.name, mark))
            except StreamNotFoundError:
                log.debug("no mark stream", stream=stream.name)
        return found

    async def _delete_all(self, stream: Stream) -> None:
        """Delete every segment from the head on."""
        end = stream_cuts.cut_at(stream.latest, offset=stream_cuts.END_OFFSET)
        await self._delete_segments(stream, await stream.history.segments_between(stream.head, end))

    # ---- Parts of steps --------------------------------------------------------------------------

    async def create_segments(
        self, wanted: Sequence[tuple[Stream, Segment]], *, is_fixed: bool = False
    ) -> None:
        """Create segments by their streams' policies, or segments that never request a scale."""

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

    async def seal_segments(self, stream: Stream, identifiers: Iterable[int]) -> dict[int, int]:
        """Seal segments and return their lengths, as far as they exist."""
        sealed = list(identifiers)
        names = [stream.segment_name(identifier) for identifier in sealed]
        await self._segments.seal_segments(names)
        infos = await self._segments.segment_infos(names)
        return {
            identifier: info.length
            for identifier, info in zip(sealed, infos, strict=True)
            if info is not None
        }

    async def _delete_segments(self, stream: Stream, segments: Iterable[Segment]) -> None:
        await self._segments.delete_segments(
            stream.segment_name(segment.segment_id) for segment in segments
        )


_STEPS: dict[type[StreamWorkflow], Callable[..., Awaitable[Stream | None]]] = {
    Create: StreamWorkflows._create,
    Scale: StreamWorkflows._scale,
    Truncate: StreamWorkflows._truncate,
    Update: StreamWorkflows._update,
    Seal: StreamWorkflows._seal,
    Delete: StreamWorkflows._delete,
}


def _is_settled(stream: Stream) -> bool:
    return stream.record.pending is None and stream.record.rolling is None


async def _before_head(stream: Stream, identifiers: Iterable[int]) -> list[int]:
    """Return those of a stream's segments that lie before its head."""
    head = await stream.history.pieces(stream.head)
    segments = await stream.history.segments(identifiers)
    before = []
    for identifier in identifiers:
        segment = segments.get(identifier)
        if segment is None:
            # Segments that were sealed before the first epoch on record are before the head.
            is_before = names.segment_epoch(identifier) < stream.history.first
        else:
            is_before = stream_cuts.is_before(segment, head)
        if is_before:
            before.append(identifier)
    return before


async def _being_created(stream: Stream) -> list[int]:
    """Return the ids of the segments that unfinished work on a stream creates."""
    created: list[int] = []
    if isinstance(stream.record.pending, Create):
        created += [segment.segment_id for segment in stream.active]
    for number in range(stream.record.epoch + 1, stream.record.epoch_count):
        with suppress(NotFoundError):
            epoch = await stream.history.epoch(number)
            created += [segment.segment_id for segment in epoch.created]
    return created


def _with_mark(name: str) -> list[str]:
    """Return a stream's name, and that of its mark stream if it has one."""
    return [name] if name.startswith(names.MARK_PREFIX) else [name, names.mark_stream(name)]


def stream_intent(scope: str, name: str) -> IntentRecord:
    """Return the intent that covers every workflow of a stream."""
    return IntentRecord("stream", scope, name)


def segment_policy(configuration: StreamConfiguration) -> tuple[int, int]:
    """Return the scale type and target rate that a stream's segments carry."""
    scaling = configuration.scaling
    if scaling.scale_type is ScaleType.FIXED:
        return FIXED_POLICY
    return int(scaling.scale_type), scaling.target_rate
