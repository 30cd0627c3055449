"""The controller's memory: records in table segments, behind a cache that is never ahead or behind.

Owns: which table and key a record lives under, the caches, and the history that goes with a stream.

    _system/_tables/controller/scopes           scope                 -> ScopeRecord
    _system/_tables/controller/intents          kind/scope[/name]     -> IntentRecord
    _system/_tables/controller/numbers          scope/stream          -> NumberRecord
    _system/_tables/controller/objects-<id>     s/<stream>            -> StreamRecord
                                                g/<group>             -> ReaderGroupRecord
                                                t/<table>             -> KeyValueTableRecord
    _system/_tables/controller/histories-<id>   epoch/<stream>/<n>    -> EpochRecord
                                                subscribers/<stream>  -> SubscribersRecord
    _system/_tables/controller/tags-<id>        see ``tag_index``

Invariants:
1. A record changes only by a conditional update on the version that was read; two controllers that
   run by mistake make each other fail, never overwrite each other's work.
2. A cached value is the last one written or read: whoever loads or writes a key holds its access
   lock, and a write whose outcome is unknown leaves nothing in the cache.
3. A stream's epoch record is written before the stream's record counts it; epochs not counted are
   never read.
4. Everything that exists in a scope has a key in its objects table, so that deleting this table
   only if it is empty decides whether a scope may go.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from random import Random
from typing import TypeVar

import structlog
from msgspec import structs

from pravega_controller.errors import (
    CorruptMetadataError,
    InvalidRequestError,
    NoSuchTableError,
    ReaderGroupNotFoundError,
    ScopeNotFoundError,
    StreamNotFoundError,
)
from pravega_controller.history import Epoch, StreamHistory, history_of
from pravega_controller.locks import KeyedLocks
from pravega_controller.records import (
    Create,
    Delete,
    EpochRecord,
    IntentRecord,
    NumberRecord,
    ReaderGroupRecord,
    ScopeRecord,
    StreamRecord,
    SubscribersRecord,
    decode,
    encode,
)
from pravega_controller.streams import Segment
from pravega_controller.table_client import NOT_EXISTS, Entry, TableClient
from pravega_wire import names

log = structlog.get_logger(__name__)

CACHED_STREAMS_MAX = 10_000
CACHED_SCOPES_MAX = 10_000

K = TypeVar("K")
V = TypeVar("V")

_END = "end"
"""The token after a listing's last page."""


def _table(name: str) -> str:
    return names.table_name(names.INTERNAL_SCOPE, "controller", name)


SCOPES = _table("scopes")
INTENTS = _table("intents")
NUMBERS = _table("numbers")


@dataclass(frozen=True, slots=True)
class Scope:
    """A scope as last read."""

    name: str
    version: int
    record: ScopeRecord

    @property
    def objects(self) -> str:
        return _table(f"objects-{self.record.scope_id}")

    @property
    def histories(self) -> str:
        return _table(f"histories-{self.record.scope_id}")

    @property
    def tag_index(self) -> str:
        """The table that ``tag_index`` keeps."""
        return _table(f"tags-{self.record.scope_id}")


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream as last read: its record, and every epoch the record counts."""

    scope: Scope
    name: str
    version: int
    record: StreamRecord
    history: StreamHistory

    @property
    def active(self) -> tuple[Segment, ...]:
        """The segments of the active epoch, by key range."""
        return self.history.segments_in(self.record.epoch)

    def segment_name(self, segment_id: int) -> str:
        return names.segment_name(self.scope.name, self.name, segment_id)


@dataclass(frozen=True, slots=True)
class ReaderGroup:
    """A reader group as last read."""

    scope: Scope
    name: str
    version: int
    record: ReaderGroupRecord


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of names, and the token for the next one; without names the listing has ended."""

    names: list[str]
    token: str


class MetadataStore:
    """Reads and writes the controller's records."""

    def __init__(self, tables: TableClient, *, random: Random) -> None:
        self._tables = tables
        self._random = random
        self._access = KeyedLocks()
        self._streams: OrderedDict[tuple[str, str], Stream] = OrderedDict()
        self._scopes: OrderedDict[str, Scope] = OrderedDict()

    async def open(self, *, wait_seconds_max: float) -> None:
        """Make the fixed tables, waiting so long for the segment stores to answer."""
        for table in (SCOPES, INTENTS, NUMBERS):
            await self._tables.create(table, retry_seconds_max=wait_seconds_max)

    # ---- Scopes ----------------------------------------------------------------------------------

    async def find_scope(self, name: str) -> Scope | None:
        """A scope in any phase, or None."""
        if (cached := self._scopes.get(name)) is not None:
            self._scopes.move_to_end(name)
            return cached
        async with self._access.hold(name):
            entry = await self._tables.get(SCOPES, name.encode())
            if entry is None:
                return None
            scope = Scope(name, entry.version, decode(entry.value, ScopeRecord))
            _remember(self._scopes, name, scope, CACHED_SCOPES_MAX)
            return scope

    async def active_scope(self, name: str) -> Scope:
        """A scope in which something may be made, else ``ScopeNotFoundError``."""
        scope = await self.find_scope(name)
        if scope is None or scope.record.phase != "active":
            raise ScopeNotFoundError(f"scope {name} does not exist")
        return scope

    async def write_scope(self, name: str, record: ScopeRecord, *, version: int) -> Scope:
        """Insert (``NOT_EXISTS``) or replace a scope's record."""
        async with self._access.hold(name):
            self._scopes.pop(name, None)
            version = await self._tables.put(SCOPES, name.encode(), encode(record), version=version)
            scope = Scope(name, version, record)
            _remember(self._scopes, name, scope, CACHED_SCOPES_MAX)
            return scope

    async def insert_scope(self, name: str) -> Scope:
        """A new scope in the phase ``creating``, with tables of its own to be made."""
        scope_id = f"{self._random.getrandbits(64):016x}"
        return await self.write_scope(name, ScopeRecord(scope_id, "creating"), version=NOT_EXISTS)

    async def remove_scope(self, scope: Scope) -> None:
        async with self._access.hold(scope.name):
            self._scopes.pop(scope.name, None)
            await self._tables.remove(SCOPES, scope.name.encode(), version=scope.version)

    async def create_scope_tables(self, scope: Scope) -> None:
        await self._tables.create(scope.objects)
        await self._tables.create(scope.histories)

    async def delete_scope_tables(self, scope: Scope) -> None:
        """Raises ``TableNotEmptyError``, and deletes nothing, while the scope holds anything."""
        await self._tables.delete(scope.objects, must_be_empty=True)
        await self._tables.delete(scope.histories, must_be_empty=False)
        await self._tables.delete(scope.tag_index, must_be_empty=False)

    async def list_scopes(self, token: str) -> Listing:
        """A page of scopes. The system's own comes last: clients look into the first one."""

        def shown(entry: Entry) -> str | None:
            is_shown = entry.key.decode() != names.INTERNAL_SCOPE
            is_there = decode(entry.value, ScopeRecord).phase != "creating"
            return entry.key.decode() if is_shown and is_there else None

        listing = await self._list(SCOPES, token, shown)
        if token != _END and listing.token == _END:
            return Listing([*listing.names, names.INTERNAL_SCOPE], _END)
        return listing

    # ---- Streams ---------------------------------------------------------------------------------

    async def stream(self, scope: str, name: str) -> Stream:
        """A stream, else ``StreamNotFoundError`` or ``ScopeNotFoundError``."""
        key = (scope, name)
        if (cached := self._streams.get(key)) is not None:
            self._streams.move_to_end(key)
            return cached
        found = await self.find_scope(scope)
        if found is None:
            raise ScopeNotFoundError(f"scope {scope} does not exist")
        async with self._access.hold(key):
            stream = self._streams.get(key) or await self._load_stream(found, name)
            _remember(self._streams, key, stream, CACHED_STREAMS_MAX)
            return stream

    async def insert_stream(self, scope: Scope, name: str, record: StreamRecord) -> Stream:
        """A new stream, on its way to be made."""
        assert isinstance(record.pending, Create)
        return await self._put_stream(
            Stream(scope, name, NOT_EXISTS, record, history_of([record.pending.first]))
        )

    async def write_stream(self, stream: Stream, record: StreamRecord) -> Stream:
        """Replace a stream's record."""
        return await self._put_stream(replace(stream, record=record))

    async def write_epoch(self, stream: Stream, epoch: Epoch) -> None:
        """Write an epoch's record; it counts for nothing before the stream's record counts it."""
        await self._tables.put(
            stream.scope.histories,
            _epoch_key(stream.name, epoch.number),
            encode(EpochRecord(epoch)),
        )

    async def append_epoch(self, stream: Stream, epoch: Epoch) -> Stream:
        """Make an epoch part of a stream's history; the active epoch stays."""
        await self.write_epoch(stream, epoch)
        count = epoch.number + 1
        history = stream.history.extended(epoch)
        record = structs.replace(stream.record, epoch_count=count)
        return await self._put_stream(replace(stream, record=record, history=history))

    async def remove_stream(self, stream: Stream) -> None:
        """Remove a stream's records, so that a crash between any two leaves it to be removed."""
        table = stream.scope.histories
        await self._tables.remove(table, _subscribers_key(stream.name))
        for number in range(stream.record.epoch_count - 1, 0, -1):
            await self._tables.remove(table, _epoch_key(stream.name, number))
        key = (stream.scope.name, stream.name)
        async with self._access.hold(key):
            self._streams.pop(key, None)
            await self._tables.remove(
                stream.scope.objects, _stream_key(stream.name), version=stream.version
            )
        await self._tables.remove(table, _epoch_key(stream.name, 0))

    async def list_streams(self, scope: str, token: str) -> Listing:
        """The streams of a scope, internal ones too."""
        return await self.list_objects(scope, "s", token)

    async def tagged_streams(self, scope: Scope) -> AsyncIterator[tuple[str, tuple[str, ...]]]:
        """Every stream of a scope that has tags, with them, as far as its record can be read."""
        async for entries in self._tables.pages(scope.objects):
            for entry in entries:
                kind, _, name = entry.key.decode().partition("/")
                if kind != "s":
                    continue
                try:
                    tags = decode(entry.value, StreamRecord).configuration.tags
                except CorruptMetadataError as error:
                    log.error("stream is damaged", scope=scope.name, stream=name, why=str(error))
                    continue
                if tags:
                    yield name, tags

    async def list_groups(self, scope: str, token: str) -> Listing:
        """The reader groups of a scope."""
        return await self.list_objects(scope, "g", token)

    async def next_number(self, scope: str, stream: str) -> int:
        """The first segment number that no earlier stream of this name used."""
        entry = await self._tables.get(NUMBERS, f"{scope}/{stream}".encode())
        return 0 if entry is None else decode(entry.value, NumberRecord).next_number

    async def write_next_number(self, scope: str, stream: str, number: int) -> None:
        await self._tables.put(NUMBERS, f"{scope}/{stream}".encode(), encode(NumberRecord(number)))

    # ---- Subscribers -----------------------------------------------------------------------------

    async def subscribers(self, stream: Stream) -> tuple[SubscribersRecord, int]:
        """A stream's subscribers, and the version to write them back with."""
        entry = await self._tables.get(stream.scope.histories, _subscribers_key(stream.name))
        if entry is None:
            return SubscribersRecord({}), NOT_EXISTS
        return decode(entry.value, SubscribersRecord), entry.version

    async def write_subscribers(
        self, stream: Stream, record: SubscribersRecord, *, version: int
    ) -> None:
        await self._tables.put(
            stream.scope.histories, _subscribers_key(stream.name), encode(record), version=version
        )

    # ---- Reader groups ---------------------------------------------------------------------------

    async def group(self, scope: str, name: str) -> ReaderGroup:
        """A reader group, else ``ReaderGroupNotFoundError`` or ``ScopeNotFoundError``."""
        found = await self._scope(scope)
        entry = await self._get(found.objects, f"g/{name}".encode())
        if entry is None:
            raise ReaderGroupNotFoundError(f"reader group {scope}/{name} does not exist")
        return ReaderGroup(found, name, entry.version, decode(entry.value, ReaderGroupRecord))

    async def insert_group(self, scope: Scope, name: str, record: ReaderGroupRecord) -> ReaderGroup:
        return await self.write_group(ReaderGroup(scope, name, NOT_EXISTS, record), record)

    async def write_group(self, group: ReaderGroup, record: ReaderGroupRecord) -> ReaderGroup:
        """Replace a reader group's record."""
        version = await self._tables.put(
            group.scope.objects, f"g/{group.name}".encode(), encode(record), version=group.version
        )
        return replace(group, version=version, record=record)

    async def remove_group(self, group: ReaderGroup) -> None:
        await self._tables.remove(
            group.scope.objects, f"g/{group.name}".encode(), version=group.version
        )

    # ---- Other objects of a scope ----------------------------------------------------------------

    async def get_object(self, scope: str, kind: str, name: str) -> tuple[Scope, Entry | None]:
        """The entry of an object of a scope, or None. ``ScopeNotFoundError``."""
        found = await self._scope(scope)
        return found, await self._get(found.objects, f"{kind}/{name}".encode())

    async def put_object(
        self, scope: Scope, kind: str, name: str, value: bytes, *, version: int
    ) -> int:
        """Write an object of a scope if it has this version. ``ScopeNotFoundError``."""
        key = f"{kind}/{name}".encode()
        try:
            return await self._tables.put(scope.objects, key, value, version=version)
        except NoSuchTableError as error:
            raise ScopeNotFoundError(f"scope {scope.name} does not exist") from error

    async def remove_object(self, scope: Scope, kind: str, name: str, *, version: int) -> None:
        """Remove an object of a scope; fine if it is gone."""
        await self._tables.remove(scope.objects, f"{kind}/{name}".encode(), version=version)

    async def list_objects(self, scope: str, kind: str, token: str) -> Listing:
        """A page of the names of a scope's objects of a kind. ``ScopeNotFoundError``."""
        found = await self._scope(scope)

        def shown(entry: Entry) -> str | None:
            found_kind, _, name = entry.key.decode().partition("/")
            return name if found_kind == kind else None

        return await self._list(found.objects, token, shown)

    # ---- Intents ---------------------------------------------------------------------------------

    async def put_intent(self, intent: IntentRecord) -> None:
        """Record that a workflow may be in progress, before it is."""
        await self._tables.put(INTENTS, _intent_key(intent), encode(intent))

    async def remove_intent(self, intent: IntentRecord) -> None:
        await self._tables.remove(INTENTS, _intent_key(intent))

    async def intents(self) -> AsyncIterator[IntentRecord]:
        """Everything that may have a workflow to finish."""
        async for entries in self._tables.pages(INTENTS):
            for entry in entries:
                yield decode(entry.value, IntentRecord)

    # ---- Within ----------------------------------------------------------------------------------

    async def _scope(self, name: str) -> Scope:
        scope = await self.find_scope(name)
        if scope is None or scope.record.phase == "creating":
            raise ScopeNotFoundError(f"scope {name} does not exist")
        return scope

    async def _get(self, table: str, key: bytes) -> Entry | None:
        """A key of a scope's table; a table that is gone went with its scope."""
        try:
            return await self._tables.get(table, key)
        except NoSuchTableError as error:
            raise ScopeNotFoundError("the scope does not exist any more") from error

    async def _load_stream(self, scope: Scope, name: str) -> Stream:
        entry = await self._get(scope.objects, _stream_key(name))
        if entry is None:
            raise StreamNotFoundError(f"stream {scope.name}/{name} does not exist")
        record = decode(entry.value, StreamRecord)
        if isinstance(record.pending, Create):
            history = history_of([record.pending.first])
        else:
            history = await self._load_history(scope, name, record)
        return Stream(scope, name, entry.version, record, history)

    async def _load_history(self, scope: Scope, name: str, record: StreamRecord) -> StreamHistory:
        keys = [_epoch_key(name, number) for number in range(record.epoch_count)]
        found = await self._tables.get_all(scope.histories, keys)
        epochs: list[Epoch] = []
        for number, entry in enumerate(found):
            if entry is not None:
                epochs.append(decode(entry.value, EpochRecord).epoch)
            elif number > 0 and isinstance(record.pending, Delete):
                # Removal goes from the last epoch down: what is left is still a history.
                break
            else:
                raise CorruptMetadataError(f"epoch {number} of {scope.name}/{name} is missing")
        return history_of(epochs)

    async def _put_stream(self, stream: Stream) -> Stream:
        key = (stream.scope.name, stream.name)
        async with self._access.hold(key):
            self._streams.pop(key, None)
            try:
                version = await self._tables.put(
                    stream.scope.objects,
                    _stream_key(stream.name),
                    encode(stream.record),
                    version=stream.version,
                )
            except NoSuchTableError as error:
                raise ScopeNotFoundError(f"scope {stream.scope.name} does not exist") from error
            written = replace(stream, version=version)
            _remember(self._streams, key, written, CACHED_STREAMS_MAX)
            return written

    async def _list(self, table: str, token: str, shown: Callable[[Entry], str | None]) -> Listing:
        """The next page with at least one name to show, or the empty page at the end."""
        if token == _END:
            return Listing([], _END)
        position = _decode_token(token)
        while True:
            try:
                page = await self._tables.page(table, position)
            except NoSuchTableError as error:
                raise ScopeNotFoundError("the scope does not exist any more") from error
            found = sorted(name for entry in page.entries if (name := shown(entry)) is not None)
            is_last = not page.entries or not page.token
            if found or is_last:
                return Listing(found, _END if is_last else _encode_token(page.token))
            position = page.token


def _remember(cache: OrderedDict[K, V], key: K, value: V, count_max: int) -> None:
    """Cache a value as the latest used one, dropping the ones not used for longest."""
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > count_max:
        cache.popitem(last=False)


def _encode_token(token: bytes) -> str:
    return "at-" + base64.urlsafe_b64encode(token).decode()


def _decode_token(token: str) -> bytes:
    if not token:
        return b""
    try:
        if not token.startswith("at-"):
            raise ValueError("no such prefix")
        return base64.b64decode(token[3:], altchars=b"-_", validate=True)
    except (ValueError, binascii.Error) as error:
        raise InvalidRequestError("the continuation token is none of ours") from error


def _stream_key(name: str) -> bytes:
    return f"s/{name}".encode()


def _epoch_key(stream: str, number: int) -> bytes:
    return f"epoch/{stream}/{number}".encode()


def _subscribers_key(stream: str) -> bytes:
    return f"subscribers/{stream}".encode()


def _intent_key(intent: IntentRecord) -> bytes:
    return f"{intent.kind}/{intent.scope}/{intent.name}".encode()
