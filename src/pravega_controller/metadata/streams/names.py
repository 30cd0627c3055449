"""The names of streams: which are free, and which segment numbers earlier streams have used.

Owns: ``StreamNames``.

A name leads to a stream's id. If no state is stored under the id, the name is free: the stream was
deleted, or its creator died. Before another stream gets the name, a value is stored in place of
that state, so that a slow creator cannot write it any more.

Invariants:
1. When a creator that was taken for dead continues, either its stream exists completely, or another
   stream has the name. Held by ``test_records_stay_of_a_stream_whose_creator_lives``.
2. When a stream is deleted and created again, no segment name is used twice: the number after the
   last segment is stored.
   Held by ``test_no_segment_name_is_used_twice_by_a_creation_that_a_deletion_passes``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial

import structlog

from pravega_controller.errors import (
    CorruptMetadataError,
    NoSuchTableError,
    VersionConflictError,
)
from pravega_controller.metadata.records import (
    GONE,
    ConfigurationRecord,
    NameRecord,
    NumberRecord,
    decode,
    encode,
)
from pravega_controller.metadata.scope_records import (
    Listing,
    Scope,
    ScopeRecords,
)
from pravega_controller.metadata.streams.known import READS_MAX, first_keys, record_key, stream_key
from pravega_controller.metadata.streams.used_numbers import NUMBERS, read_used_numbers
from pravega_controller.store_client.segment_client import run_all
from pravega_controller.store_client.table_client import (
    NO_VERSION,
    NOT_EXISTS,
    Change,
    Entry,
    TableClient,
)

STREAM_KIND = "s"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """The place for a new stream: whether its name is free, and its first segment number."""

    name_version: int
    is_taken: bool
    next_number: int


class StreamNames:
    """Reads and writes the names of streams, and the segment numbers that they have used."""

    def __init__(self, tables: TableClient, scopes: ScopeRecords) -> None:
        self._tables = tables
        self._scopes = scopes

    async def find_places(
        self, scope: str, names_: Sequence[str]
    ) -> tuple[Scope | None, list[Place]]:
        """Return for each name whether it is free, and its first free segment number."""
        known = self._scopes.known(scope) or await self._scopes.find(scope)
        if known is None:
            return None, []
        keys = [stream_key(name) for name in names_]
        try:
            found, taken, numbers = await run_all(
                partial(self._scopes.find, scope),
                partial(self._tables.get_all, known.objects, keys),
                partial(self.next_numbers, scope, names_),
            )
        except NoSuchTableError:
            found = await self._scopes.find(scope)
            if found is None or found.record.scope_id == known.record.scope_id:
                return found, []
        if found is not None and found.record.scope_id != known.record.scope_id:
            return await self.find_places(scope, names_)
        places = []
        for entry, number in zip(taken, numbers, strict=True):
            is_taken = entry is not None and not await self._is_free(known, entry)
            places.append(Place(NOT_EXISTS if entry is None else entry.version, is_taken, number))
        return found, places

    async def _is_free(self, scope: Scope, entry: Entry) -> bool:
        """Return whether a name's stream was removed, or never recorded."""
        key = record_key(decode(entry.value, NameRecord).stream_id, "state")
        state = await self._tables.get(scope.histories, key)
        if state is None:
            # A controller that is about to write the stream's state will fail.
            try:
                await self._tables.update(scope.histories, [_tombstone(key)])
            except VersionConflictError:
                return False
            return True
        return state.value == GONE

    async def discard_unnamed(
        self, scope: str, names_: Sequence[str], stream_ids: Iterable[str]
    ) -> None:
        """Remove the records of those streams to which none of the names leads.

        If the creator of a stream lives, and writes the stream meanwhile, the stream is kept: its
        state has another version.
        """
        found = await self._scopes.find_made(scope)
        wanted = list(stream_ids)
        keys = [record_key(one, "state") for one in wanted]
        states = await self._tables.get_all(found.histories, keys)
        entries = await self._tables.get_all(found.objects, [stream_key(n) for n in names_])
        leading = {
            decode(entry.value, NameRecord).stream_id for entry in entries if entry is not None
        }
        for one, state in zip(wanted, states, strict=True):
            if one in leading or state is None:
                continue
            first, *rest = [(key, NO_VERSION) for key in first_keys(one)]
            try:
                await self._tables.remove_if(found.histories, [(first[0], state.version), *rest])
            except VersionConflictError:
                log.info("the creator of a stream lives", scope=scope, stream_id=one)

    async def remove_dead(self, scope: str, name: str) -> None:
        """Remove a name whose stream has no state, and make sure that it never gets one."""
        await self.remove_dead_of(await self._scopes.find_made(scope), name)

    async def remove_dead_of(self, scope: Scope, name: str) -> None:
        """Remove a name like ``remove_dead``, in the scope with this id."""
        entry = await self._tables.get(scope.objects, stream_key(name))
        if entry is None:
            return
        key = record_key(decode(entry.value, NameRecord).stream_id, "state")
        try:
            await self._tables.update(scope.histories, [_tombstone(key)])
        except VersionConflictError:
            return
        await self._tables.remove(scope.objects, stream_key(name), version=entry.version)

    async def list_page(self, scope: str, token: str) -> Listing:
        """Return the streams of a scope, internal ones too."""
        return await self._scopes.list_objects(scope, STREAM_KIND, token)

    async def tagged_streams(
        self, scope: Scope
    ) -> AsyncGenerator[tuple[str, tuple[str, ...]], None]:
        """Yield each stream of a scope that has tags, with its tags; log and skip damaged ones."""
        async with aclosing(self._tables.pages(scope.objects)) as pages:
            async for entries in pages:
                streams = [entry for entry in entries if entry.key.startswith(b"s/")]
                for entry, tags in zip(streams, await self._tags_of(scope, streams), strict=True):
                    if tags:
                        yield entry.key.decode().removeprefix("s/"), tags

    async def _tags_of(self, scope: Scope, entries: Sequence[Entry]) -> list[tuple[str, ...]]:
        """Return the tags of the streams with these names; log a damaged stream and return none."""
        keys: list[bytes] = []
        found: list[tuple[str, ...]] = []
        for entry in entries:
            found.append(())
            keys.append(b"-")
            with self._logging_damage(scope, entry):
                stream_id = decode(entry.value, NameRecord).stream_id
                keys[-1] = record_key(stream_id, "configuration")
        values = await self._tables.get_all(scope.histories, keys)
        for index, (entry, value) in enumerate(zip(entries, values, strict=True)):
            if value is not None:
                with self._logging_damage(scope, entry):
                    record = decode(value.value, ConfigurationRecord)
                    found[index] = record.configuration.tags
        return found

    @contextmanager
    def _logging_damage(self, scope: Scope, entry: Entry) -> Iterator[None]:
        try:
            yield
        except CorruptMetadataError as error:
            log.error("stream is damaged", scope=scope.name, key=entry.key, why=str(error))

    async def next_number(self, scope: str, name: str) -> int:
        """Return the first segment number that no stream of this name used before."""
        return (await self.next_numbers(scope, [name]))[0]

    async def next_numbers(self, scope: str, names_: Sequence[str]) -> list[int]:
        """Return the first segment numbers that no earlier streams of these names used."""
        return await read_used_numbers(self._tables, [f"{scope}/{name}" for name in names_])

    async def write_next_numbers(self, scope: str, numbers: dict[str, int]) -> None:
        """Record that earlier streams of the names have used all numbers below these."""
        keys = [f"{scope}/{name}".encode() for name in numbers]
        for _ in range(READS_MAX):
            found = await self._tables.get_all(NUMBERS, keys)
            changes = [
                Change(key, encode(NumberRecord(number)), entry.version if entry else NOT_EXISTS)
                for key, number, entry in zip(keys, numbers.values(), found, strict=True)
                if entry is None or decode(entry.value, NumberRecord).next_number < number
            ]
            if not changes:
                return
            try:
                await self._tables.update(NUMBERS, changes)
            except VersionConflictError as error:
                log.info("reading again", scope=scope, names=list(numbers), reason=str(error))
            else:
                return
        raise VersionConflictError(f"others reserve numbers of {scope}/{next(iter(numbers))}")


def _tombstone(key: bytes) -> Change:
    """Return the change that keeps a state from being written; it may be another controller's."""
    return Change(key, GONE, NOT_EXISTS, is_shared=True)
