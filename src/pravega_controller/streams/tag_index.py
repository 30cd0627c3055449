"""The tag index of a scope: finds the streams with a tag by a range read of a sorted table.

Owns: the keys and values of the tables ``_system/_tables/controller/tags-<scope id>``.

    hash of the tag (16 bytes)  hash of the stream's name (16 bytes)  ->  TagRecord
    32 zeros: the index has every stream that has tags                ->  empty TagRecord

The first user of an index builds it from the records of the streams, and then writes the entry
under zeros. The workflow that adds a tag to a stream writes it into the index before it ends.

Invariants:
1. When an index was not built to its end, it is built again before it is used.
   Held by ``test_an_index_that_was_not_finished_is_not_believed``.
2. When a stream gets or loses tags, or is deleted, a listing has exactly the streams with the tag.
   Held by ``test_the_index_follows_what_becomes_of_streams``.
3. When the index has an entry of a tag that the stream has lost, a listing leaves the stream out.
   Held by ``test_an_entry_that_was_left_over_lists_nothing``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass

import msgspec
import structlog

from pravega_controller.background.late_segments import LateSegments
from pravega_controller.errors import (
    CorruptMetadataError,
    InvalidRequestError,
    NoSuchTableError,
    ScopeNotFoundError,
    VersionConflictError,
)
from pravega_controller.metadata.records import decode, encode
from pravega_controller.metadata.scope_records import Scope, decode_token, encode_token
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.store_client.segment_client import for_each
from pravega_controller.store_client.table_client import Entry

HASH_BYTES = 16
KEY_BYTES = 2 * HASH_BYTES
PAGE_ENTRIES = 500
RECORD_BYTES_MAX = 4096
"""Maximum length of a record, in bytes."""
_TOKEN = "tag-"
_FIRST = bytes(HASH_BYTES)
_LAST = b"\xff" * HASH_BYTES
_WHOLE_KEY = bytes(KEY_BYTES)

log = structlog.get_logger(__name__)


class TagRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """Says that a stream has the tag ``text``."""

    text: str
    stream: str


@dataclass(frozen=True, slots=True)
class TaggedPage:
    """Names of streams that may have a tag, and the start of the next page, or none at the end."""

    names: list[str]
    next_key: bytes


class TagIndex:
    """The tag indexes of all scopes."""

    def __init__(self, store: MetadataStore, late: LateSegments) -> None:
        self._tables = store.tables
        self._store = store
        self._late = late
        self._whole: set[str] = set()

    async def add(self, scope: Scope, stream: str, tags: Iterable[str]) -> None:
        """Record that a stream has these tags, too."""
        if not (wanted := list(tags)):
            return
        await self._make_whole(scope)
        await self._put(scope, stream, wanted)

    async def find_entries(self, scope: Scope, stream: str, tags: Iterable[str]) -> list[Entry]:
        """Return the entries of these tags of a stream; ``remove`` removes them later."""
        if not (keys := [_key(tag, stream) for tag in tags]):
            return []
        try:
            found = await self._tables.get_all(
                scope.tag_index, keys, value_bytes_max=RECORD_BYTES_MAX
            )
        except NoSuchTableError:
            return []
        return [entry for entry in found if entry is not None]

    async def remove(self, scope: Scope, entries: Iterable[Entry]) -> None:
        """Remove entries, except for those that were written again since they were read."""

        async def remove(entry: Entry) -> None:
            with suppress(VersionConflictError):
                await self._tables.remove(scope.tag_index, entry.key, version=entry.version)

        await for_each(entries, remove)

    async def find(self, scope: Scope, tag: str, *, from_key: bytes = b"") -> TaggedPage:
        """Return the next streams that may have a tag, in order; ``ScopeNotFoundError``."""
        tag_hash = _hash(tag)
        first = from_key if from_key.startswith(tag_hash) else tag_hash + _FIRST
        try:
            await self._make_whole(scope)
            entries = await self._tables.read_range(
                scope.tag_index, first, tag_hash + _LAST, count_max=PAGE_ENTRIES
            )
        except NoSuchTableError as error:
            raise ScopeNotFoundError("the scope does not exist any more") from error
        found: list[str] = []
        for entry in entries:
            try:
                record = decode(entry.value, TagRecord)
            except CorruptMetadataError as error:
                log.error(
                    "tag of a stream is damaged", scope=scope.name, tag=tag, reason=str(error)
                )
                continue
            if record.text == tag:
                found.append(record.stream)
        return TaggedPage(found, _next_key(entries[-1].key) if entries else b"")

    async def _make_whole(self, scope: Scope) -> None:
        """Build the index of a scope unless it is complete; two controllers may do so at once."""
        table = scope.tag_index
        if table in self._whole:
            return
        try:
            is_whole = await self._tables.get(table, _WHOLE_KEY) is not None
        except NoSuchTableError:
            is_whole = False
        if not is_whole:
            log.info("building the index of tags", scope=scope.name)
            # If this controller dies, its request may create the table after the scope was deleted.
            await self._late.promise(scope.tables_intent)
            try:
                await self._build(scope)
            except NoSuchTableError:
                # The scope is being deleted, and this request may have created the table after
                # that.
                await self._store.scopes.delete_unneeded_tables(scope.tables_intent)
                raise
        self._whole.add(table)

    async def _build(self, scope: Scope) -> None:
        await self._tables.create(scope.tag_index, key_length=KEY_BYTES)
        async with aclosing(self._store.names.tagged_streams(scope)) as streams:
            async for stream, tags in streams:
                await self._put(scope, stream, tags)
        await self._tables.put(scope.tag_index, _WHOLE_KEY, encode(TagRecord("", "")))

    async def _put(self, scope: Scope, stream: str, tags: Iterable[str]) -> None:
        async def put(tag: str) -> None:
            value = encode(TagRecord(tag, stream))
            await self._tables.put(scope.tag_index, _key(tag, stream), value)

        await for_each(tags, put)


def encode_position(key: bytes) -> str:
    """Return a continuation token that resumes at a key."""
    return encode_token(_TOKEN, key)


def decode_position(token: str) -> bytes:
    """Return the key in a continuation token. Raises ``InvalidRequestError`` for a foreign one."""
    key = decode_token(_TOKEN, token)
    if len(key) not in (0, KEY_BYTES):
        raise InvalidRequestError("the continuation token is not one of this controller")
    return key


def _key(tag: str, stream: str) -> bytes:
    return _hash(tag) + _hash(stream)


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=HASH_BYTES).digest()


def _next_key(key: bytes) -> bytes:
    """Return the first key after another one; none after the last key of a tag."""
    tag_hash, stream_hash = key[:HASH_BYTES], key[HASH_BYTES:]
    if stream_hash == _LAST:
        return b""
    return tag_hash + (int.from_bytes(stream_hash) + 1).to_bytes(HASH_BYTES)
