"""Creates streams, each with its mark stream.

    intent -> records (pending: Create) -> names -> segments, tags -> pending = None

The same updates record a stream and its mark stream. If a mark stream is missing, the update that
records it also writes its stream's state.

Invariants:
1. When a creator dies at any step, the stream and its mark stream are created completely, or
   nothing of them remains.
   Held by ``test_a_controller_killed_anywhere_is_finished_by_the_next_or_another``.
2. When a stream is created after one of the same name was deleted, no segment name is used twice.
   Held by ``test_no_segment_name_is_used_twice_by_a_creation_that_a_deletion_passes``.
3. When several clients create the same stream, it is created once.
   Held by ``test_many_who_create_one_stream_make_it_once``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn, TypeAlias, TypeVar

from msgspec import structs

from pravega_controller.background.members import Members
from pravega_controller.errors import (
    ScopeNotFoundError,
    StepRefusedError,
    StreamNotFoundError,
    UncertainConflictError,
    VersionConflictError,
)
from pravega_controller.metadata.group_records import ReaderGroup
from pravega_controller.metadata.records import Create, Delete, IntentRecord
from pravega_controller.metadata.scope_records import OPEN_PHASES, Scope
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.metadata.streams.writes import NewStream, StreamWrite
from pravega_controller.rules.history import first_epoch
from pravega_controller.rules.streams import StreamConfiguration, even_ranges, fixed_configuration
from pravega_controller.store_client.segment_client import run_all
from pravega_controller.streams.pending_work import PendingWork, with_mark
from pravega_controller.streams.stream_segments import StreamSegments
from pravega_controller.streams.tag_index import TagIndex

MARK_CONFIGURATION = fixed_configuration(1)
ANY_PHASE = ("active", "clearing", "deleting")
"""The phases of a scope in which workflows that have begun continue."""

Owner = TypeVar("Owner", ReaderGroup, Stream)
InsertStreams: TypeAlias = Callable[[Scope, Sequence[NewStream]], Awaitable[list[Stream]]]
"""Records new streams of a scope, all or none."""


class Creation:
    """Makes streams."""

    def __init__(
        self,
        work: PendingWork,
        store: MetadataStore,
        segments: StreamSegments,
        tags: TagIndex,
        members: Members,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._work = work
        self._store = store
        self._segments = segments
        self._tags = tags
        self._me = members.instance_id
        self._now_ms = now_ms

    async def create(self, scope: str, name: str, configuration: StreamConfiguration) -> bool:
        """Create a stream and its mark stream; return False if it existed.

        Raises ``ScopeNotFoundError``, ``StepRefusedError`` if a segment store refuses it, and
        ``OutcomeUnknownError`` if another controller went on with the stream, and it is gone.
        """
        insert = self._store.writes.insert
        return await self._work.change(
            scope, name, partial(self._create_in, scope, name, configuration, OPEN_PHASES, insert)
        )

    async def create_for_group(
        self, group: ReaderGroup, name: str, configuration: StreamConfiguration
    ) -> ReaderGroup:
        """Create a reader group's stream if it is missing; return the group as read then.

        This works in any phase of the scope, because the workflow of the group must end before the
        scope can be deleted. Raises ``VersionConflictError``, and creates nothing, if the group has
        changed: it may be deleted, and then nothing would ever delete its stream.
        """
        insert = self._store.groups.insert_streams
        return await self._create_of(group, name, configuration, insert)

    async def _create_mark(self, stream: Stream, mark: str) -> Stream:
        """Create a stream's mark stream if it is missing; return the stream as read then.

        Raises ``VersionConflictError`` like ``create_for_group``.
        """
        insert = self._store.writes.insert_mark
        return await self._create_of(stream, mark, MARK_CONFIGURATION, insert)

    async def _create_of(
        self,
        owner: Owner,
        name: str,
        configuration: StreamConfiguration,
        insert_of: Callable[[Owner, Sequence[NewStream]], Awaitable[tuple[list[Stream], Owner]]],
    ) -> Owner:
        """Create a stream that belongs to an owner; return the owner as read then."""
        current = owner

        async def insert(scope: Scope, new: Sequence[NewStream]) -> list[Stream]:
            nonlocal current
            if scope.record.scope_id != owner.scope.record.scope_id:
                raise ScopeNotFoundError(f"scope {scope.name} does not exist any more")
            streams, current = await insert_of(current, new)
            return streams

        scope = owner.scope.name
        create = partial(self._create_in, scope, name, configuration, ANY_PHASE, insert)
        try:
            await self._work.change_once(scope, name, create)
        except UncertainConflictError as error:
            # The caller reads the owner again, and finds out what is missing.
            raise VersionConflictError(str(error)) from error
        # The owner has changed, so the caller must read it again.
        return current

    async def _create_in(
        self,
        scope: str,
        name: str,
        configuration: StreamConfiguration,
        phases: Sequence[str],
        insert: InsertStreams,
    ) -> bool:
        """Create a stream, which ``insert`` records. The caller holds the stream exclusively."""
        known = self._store.streams.known(scope, name)
        if known is not None and await self._work.exists_once_finished(scope, name):
            return False
        wanted = with_mark(name)
        ids = {one: self._store.new_id() for one in wanted}
        intent = IntentRecord("stream", scope, name, tuple(ids.values()))
        (owner, places), _ = await run_all(
            partial(self._store.names.find_places, scope, wanted),
            partial(self._store.intents.put, intent),
        )
        if owner is None or owner.record.phase not in phases or not places:
            self._store.intents.remove(intent)
            raise ScopeNotFoundError(f"scope {scope} does not exist")
        if places[0].is_taken:
            if not await self._work.exists_once_finished(scope, name):
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
        except StepRefusedError:
            await self._work.give_up(streams[0], Create())
            raise
        except _UsedNumbersError:
            raise
        except VersionConflictError as error:
            # Another controller has taken this one for dead, and finishes the work.
            for one in streams:
                await self._segments.delete_strays(one)
            found: Stream | None = None
            with suppress(StreamNotFoundError):
                found = await self._work.finish_and_read(scope, name)
            if found is None or found.stream_id != streams[0].stream_id:
                # To create it again could do twice what was asked once: a client may have deleted
                # it.
                raise UncertainConflictError(str(error)) from error
        self._store.intents.remove(intent)
        return True

    async def step(self, stream: Stream, pending: Create) -> Stream:
        """Create the segments of a stream and of its mark stream, and end the workflow."""
        streams = [stream]
        for mark in with_mark(stream.name)[1:]:
            try:
                found = await self._store.streams.read(stream.scope.name, mark)
            except StreamNotFoundError:
                streams[0] = await self._create_mark(stream, mark)
            else:
                if isinstance(found.record.pending, Create):
                    if found.record.owner != self._me:
                        await self._segments.promise_search(found)
                    streams.append(found)
        try:
            return (await self._finish_creating(streams))[0]
        except VersionConflictError:
            for one in streams[1:]:
                await self._segments.delete_strays(one)
            raise

    async def _finish_creating(self, streams: Sequence[Stream]) -> list[Stream]:
        """Create the segments of new streams, and end their workflows together.

        If a stream of the name was deleted since the segment numbers were read, deletes the first
        new stream with its mark stream, and raises ``VersionConflictError``.
        """
        for_all = [(stream, segment) for stream in streams for segment in stream.active]
        reserved: list[int] = []

        async def read_numbers() -> None:
            names = [stream.name for stream in streams]
            reserved.extend(await self._store.names.next_numbers(streams[0].scope.name, names))

        await run_all(
            partial(self._segments.create, for_all),
            read_numbers,
            *(partial(self._tags.add, s.scope, s.name, s.configuration.tags) for s in streams),
        )
        if any(
            min(segment.number for segment in stream.active) < number
            for stream, number in zip(streams, reserved, strict=True)
        ):
            await self._delete_unfinished(streams[0])
        return await self._store.writes.write_all(
            [StreamWrite(one, structs.replace(one.record, pending=None)) for one in streams]
        )

    async def _delete_unfinished(self, stream: Stream) -> NoReturn:
        """Delete a stream whose segments have names that were used before.

        Raises ``VersionConflictError``.
        """
        record = structs.replace(stream.record, pending=Delete())
        await self._work.do_steps(await self._store.writes.write(stream, record))
        raise _UsedNumbersError(f"{stream.scope.name}/{stream.name} was deleted meanwhile")


class _UsedNumbersError(VersionConflictError):
    """A stream was deleted before it was ready: its segments had names that were used before."""
