"""Deletes streams, each with its mark stream, its tags and the records of its transactions.

    intent -> (Seal) -> pending: Delete -> numbers left behind, segments and belongings deleted
           -> records removed

A stream's mark stream and tags are found by the stream's name. So a deletion reads them while the
stream exists, and deletes them only at the ids and versions that were read.

Invariants:
1. When another controller finishes a deletion, and a client creates a stream of the name, the first
   deletion deletes nothing of the new stream. Held by ``test_what_is_made_after_a_deletion_stays``.
2. When a stream is deleted, the number after its last segment is stored, so that a later stream of
   the name uses no segment name again.
   Held by ``test_no_segment_name_is_used_twice_by_a_creation_that_a_deletion_passes``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import structlog
from msgspec import structs

from pravega_controller.errors import (
    NotFoundError,
    StreamNotFoundError,
    StreamNotSealedError,
    StreamWithdrawnError,
)
from pravega_controller.metadata.conflicts import Target
from pravega_controller.metadata.records import Delete, Seal
from pravega_controller.metadata.scope_records import Scope
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.store_client.segment_client import run_all
from pravega_controller.store_client.table_client import Entry
from pravega_controller.streams.pending_work import (
    PendingWork,
    is_without_work,
    stream_intent,
    with_mark,
)
from pravega_controller.streams.stream_segments import StreamSegments
from pravega_controller.streams.tag_index import TagIndex

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Belongings:
    """The objects that are found by a stream's name: its mark stream, and its tags in the index.

    They were read while the stream existed, so they do not belong to a later stream.
    """

    marks: list[Stream]
    tags: list[Entry]


class Deletion:
    """Deletes streams. ``forget_transactions`` removes the records of a stream's transactions."""

    def __init__(
        self,
        work: PendingWork,
        store: MetadataStore,
        segments: StreamSegments,
        tags: TagIndex,
        forget_transactions: Callable[[Stream], Awaitable[None]],
    ) -> None:
        self._work = work
        self._store = store
        self._segments = segments
        self._tags = tags
        self._forget_transactions = forget_transactions

    async def delete(self, scope: str, name: str) -> None:
        """Delete a sealed stream. Raises ``StreamNotSealedError`` for a stream that is not sealed.

        A stream that was created under the name after the request is kept. If another request
        deletes the stream first, this one finds none. If the stream was being created, and a
        segment store has refused that, it counts as deleted.
        """
        target = Target()

        def is_wanted(stream: Stream) -> bool:
            return target.includes(stream.stream_id)

        delete = partial(self._delete_target, scope, name, target, is_wanted, seals=False)
        try:
            await self._work.change(scope, name, delete)
        except StreamWithdrawnError:
            log.info("it was gone before its deletion", scope=scope, stream=name)

    async def delete_internal(self, scope: Scope, name: str, *, stream_id: str = "") -> None:
        """Seal and delete a stream of the scope with this id; with ``stream_id`` only that stream.

        It is no error if the stream is missing. A later stream of the name is kept.
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
                # An earlier deletion may have left names, with which the scope counts as not empty.
                with suppress(NotFoundError):
                    for dead in with_mark(name):
                        await self._store.names.remove_dead_of(scope, dead)

        await self._work.change(scope.name, name, delete)

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
                sealed = await self._work.run(stream, Seal())
                assert sealed is not None
                stream = sealed
            pending = Delete()
            # This write succeeds only if the stream existed when its belongings were read.
            stream = await self._work.start(stream, pending)
            target.is_begun = True
            await self._work.step(stream, pending, partial(self._delete_with, belongings))
        except NotFoundError:
            if not target.is_begun:
                raise
            log.info("another controller has deleted it", scope=scope, stream=name)
        self._store.intents.remove(stream_intent(scope, name))

    async def _begin_deletion(
        self, scope: str, name: str, is_wanted: Callable[[Stream], bool]
    ) -> tuple[Stream, Belongings]:
        """Return a stream without pending work, and its belongings.

        These are read at the same time as the stream if it is in memory, and otherwise after it.
        """
        known = self._store.streams.known(scope, name)

        async def find_belongings() -> Belongings | None:
            if known is None or not is_without_work(known):
                return None
            return await self._find_belongings(known)

        stream, belongings = await run_all(
            partial(self._work.begin, scope, name, is_wanted=is_wanted), find_belongings
        )
        if (
            belongings is None
            or known is None
            or known.stream_id != stream.stream_id
            or known.configuration.tags != stream.configuration.tags
        ):
            belongings = await self._find_belongings(stream)
        return stream, belongings

    async def step(self, stream: Stream, pending: Delete) -> None:
        """Delete the segments of a stream, what belongs to it, and its records."""
        belongings = await self._find_belongings(stream)
        # If another controller has removed the stream, the belongings may be those of a later
        # stream. In that case this call fails.
        stream = await self._store.writes.write(stream, stream.record)
        await self._delete_with(belongings, stream, pending)

    async def _delete_with(self, belongings: Belongings, stream: Stream, pending: Delete) -> None:
        """Delete a stream whose deletion is recorded, and its belongings.

        Each deletion names an id or a version that no later object has. So if another controller
        finishes the deletion meanwhile, objects that are created after it are kept.
        """
        streams = [stream, *belongings.marks]
        if pending.has_segments:
            numbers = {one.name: one.record.next_number for one in streams}
            await run_all(
                partial(self._store.names.write_next_numbers, stream.scope.name, numbers),
                *(partial(self._segments.delete_all, one) for one in streams),
                partial(self._tags.remove, stream.scope, belongings.tags),
                partial(self._forget_transactions, stream),
            )
            if not stream.history.fits_one_removal:
                # The records of epochs are removed now, so no later step can look up segments in
                # them.
                record = structs.replace(stream.record, pending=Delete(has_segments=False))
                streams[0] = await self._store.writes.write(stream, record)
        await self._store.writes.remove(streams)

    async def _find_belongings(self, stream: Stream) -> Belongings:
        """Return a stream's belongings. They count only if the stream still exists afterwards."""
        marks, tags = await run_all(
            partial(self._mark_of, stream),
            partial(self._tags.find_entries, stream.scope, stream.name, stream.configuration.tags),
        )
        return Belongings(marks, tags)

    async def _mark_of(self, stream: Stream) -> list[Stream]:
        """Return a stream's mark stream, if there is one."""
        found = []
        for mark in with_mark(stream.name)[1:]:
            try:
                found.append(await self._store.streams.read(stream.scope.name, mark))
            except StreamNotFoundError:
                log.debug("no mark stream", stream=stream.name)
        return found
