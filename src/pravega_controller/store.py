"""The controller's memory: records in table segments, behind a cache that is checked at every use.

Owns: the table and key of each record, the records that change together, and the cache of streams.

    _system/_tables/controller/scopes           scope                       -> ScopeRecord
    _system/_tables/controller/intents          kind/scope[/name]           -> IntentRecord
    _system/_tables/controller/numbers          scope/stream                -> NumberRecord
    _system/_tables/controller/objects-<id>     s/<stream>                  -> NameRecord
                                                g/<group>                   -> ReaderGroupRecord
                                                t/<table>                   -> KeyValueTableRecord
    _system/_tables/controller/histories-<id>   <stream id>/state           -> StreamRecord
                                                <stream id>/configuration   -> ConfigurationRecord
                                                <stream id>/head            -> HeadRecord
                                                <stream id>/subscribers     -> SubscribersRecord
                                                <stream id>/subscriber/<g>  -> SubscriberRecord
                                                <stream id>/epoch/...       see ``stream_history``
    _system/_tables/controller/tags-<id>        see ``tag_index``

Invariants:
1. A record changes only by a conditional update on the version that was read; two controllers make
   each other read again, never overwrite each other's work.
2. All records of a stream are in one table, so that one update changes any of them together. Every
   such update writes the stream's state, whose version tells whether anything changed.
3. No answer is older than its question: a cached stream is used only after its state was read again
   and had the same version. Large records are read again only if they changed.
4. Everything that exists in a scope has a key in its objects table, so that deleting this table
   only if it is empty decides whether a scope may go. A name whose stream has no state is free.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections import OrderedDict
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import TypeVar

import structlog
import trio
from msgspec import structs

from pravega_controller import earlier_records
from pravega_controller.errors import (
    CorruptMetadataError,
    EpochDroppedError,
    InvalidRequestError,
    NoSuchTableError,
    ReaderGroupNotFoundError,
    ScopeNotFoundError,
    StreamNotFoundError,
    VersionConflictError,
)
from pravega_controller.history import Epoch, apply_epochs, undo_epochs
from pravega_controller.intents import INTENTS, Intents
from pravega_controller.records import (
    GONE,
    ConfigurationRecord,
    Create,
    Delete,
    EpochRecord,
    HeadRecord,
    IntentRecord,
    NameRecord,
    NumberRecord,
    ReaderGroupRecord,
    ScopeRecord,
    SizesRecord,
    StreamRecord,
    SubscriberRecord,
    SubscribersRecord,
    decode,
    encode,
)
from pravega_controller.segment_client import run_all
from pravega_controller.stream_history import StreamHistory, is_snapshot_due
from pravega_controller.streams import Segment, StreamConfiguration
from pravega_controller.table_client import (
    NO_VERSION,
    NOT_EXISTS,
    REMOVED_KEYS_MAX,
    UPDATED_KEYS_MAX,
    Change,
    Entry,
    TableClient,
)
from pravega_wire import names

log = structlog.get_logger(__name__)

CACHED_STREAMS_MAX = 10_000
CACHED_SCOPES_MAX = 10_000
READS_MAX = 20
"""Maximum number of reads of a stream that changes meanwhile, before that counts as damage."""
CATCH_UP_EPOCHS_MAX = 64
"""Maximum number of epochs by which a cached stream is updated; one further behind is computed from
its last snapshot."""

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")

SCOPE_TABLES_KIND = "scope-tables"
"""Kind of the intents to look for tables of a scope that a dead controller may create late."""
STREAM_KIND = "s"
GROUP_KIND = "g"

_TOKEN = "at-"
_END = "end"
"""Token after a listing's last page."""


def _table(name: str) -> str:
    return names.table_name(names.INTERNAL_SCOPE, "controller", name)


SCOPES = _table("scopes")
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
        """Return the name of the table of all records of the scope's streams."""
        return _table(f"histories-{self.record.scope_id}")

    @property
    def tag_index(self) -> str:
        """Return the name of the table that ``tag_index`` keeps."""
        return _table(f"tags-{self.record.scope_id}")

    @property
    def tables_intent(self) -> IntentRecord:
        """Return the intent to delete the scope's tables later, if the scope is gone by then."""
        return IntentRecord(SCOPE_TABLES_KIND, self.name, self.record.scope_id)


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream as last read: its small records, and the segments of its active epoch.

    ``history`` reads earlier epochs as needed. Records of other subjects that belong to the stream
    are filed under ``key`` in ``table``.
    """

    scope: Scope
    name: str
    stream_id: str
    name_version: int
    version: int
    record: StreamRecord
    configurations: ConfigurationRecord
    head_record: HeadRecord | None
    active: tuple[Segment, ...]
    """The segments of the active epoch, by key range."""
    latest: tuple[Segment, ...]
    """The segments of the last epoch on record: other ones while a scale is pending."""
    history: StreamHistory

    @property
    def table(self) -> str:
        return self.scope.histories

    @property
    def configuration(self) -> StreamConfiguration:
        return self.configurations.configuration

    @property
    def head(self) -> dict[int, int]:
        """Return the cut at which the stream begins; empty before the first truncation."""
        return {} if self.head_record is None else self.head_record.cut

    @property
    def last_epoch(self) -> int:
        """Return the number of the last epoch on record."""
        return self.record.epoch_count - 1

    def key(self, *parts: str) -> bytes:
        """Return the key of a record that belongs to the stream."""
        return _key(self.stream_id, *parts)

    def segment_name(self, segment_id: int) -> str:
        return names.segment_name(self.scope.name, self.name, segment_id)


@dataclass(frozen=True, slots=True)
class NewStream:
    """A stream that will be made, under a free name."""

    name: str
    stream_id: str
    name_version: int
    configuration: StreamConfiguration
    first: Epoch
    owner: str
    """The controller that makes it."""


@dataclass(frozen=True, slots=True)
class StreamWrite:
    """A change of a stream: its new record, and the records that change with it.

    ``epochs`` are appended to the history; ``sizes`` are those of the segments that each of these
    epochs sealed.
    """

    stream: Stream
    record: StreamRecord
    configuration: ConfigurationRecord | None = None
    head: HeadRecord | None = None
    epochs: Sequence[Epoch] = ()
    sizes: Mapping[int, dict[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """The place for a new stream: whether its name is free, and its first segment number."""

    name_version: int
    is_taken: bool
    next_number: int


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

    def __init__(self, tables: TableClient, intents: Intents, *, random: Random) -> None:
        self.tables = tables
        """The client of the tables, for records of other subjects in the same tables, too."""
        self._random = random
        self.intents = intents
        self._streams: OrderedDict[tuple[str, str], Stream] = OrderedDict()
        self._seen_at: OrderedDict[tuple[str, str], float] = OrderedDict()
        """Time at which the cached stream was last known to be right."""
        self._scopes: OrderedDict[str, Scope] = OrderedDict()

    async def open(self, *, wait_seconds_max: float) -> None:
        """Make the fixed tables, waiting up to this time for the segment stores to answer."""
        for table in (SCOPES, INTENTS, NUMBERS):
            await self.tables.create(table, retry_seconds_max=wait_seconds_max)

    # ---- Scopes ----------------------------------------------------------------------------------

    async def find_scope(self, name: str) -> Scope | None:
        """Return a scope in any phase, or None; it is read now."""
        entry = await self.tables.get(SCOPES, name.encode())
        if entry is None:
            self._scopes.pop(name, None)
            return None
        scope = Scope(name, entry.version, decode(entry.value, ScopeRecord))
        _remember(self._scopes, name, scope, CACHED_SCOPES_MAX)
        return scope

    async def active_scope(self, name: str) -> Scope:
        """Return a scope in which objects may be made, or raise ``ScopeNotFoundError``."""
        scope = await self.find_scope(name)
        if scope is None or scope.record.phase != "active":
            raise ScopeNotFoundError(f"scope {name} does not exist")
        return scope

    async def write_scope(self, name: str, record: ScopeRecord, *, version: int) -> Scope:
        """Write a scope's record: insert it (``NOT_EXISTS``), or replace it."""
        self._scopes.pop(name, None)
        version = await self.tables.put(SCOPES, name.encode(), encode(record), version=version)
        scope = Scope(name, version, record)
        _remember(self._scopes, name, scope, CACHED_SCOPES_MAX)
        return scope

    async def insert_scope(self, name: str) -> Scope:
        """Write a new scope, without tables yet, in the phase ``creating``, and return it."""
        record = ScopeRecord(self.new_id(), "creating")
        return await self.write_scope(name, record, version=NOT_EXISTS)

    async def remove_scope(self, scope: Scope) -> None:
        self._scopes.pop(scope.name, None)
        await self.tables.remove(SCOPES, scope.name.encode(), version=scope.version)

    async def create_scope_tables(self, scope: Scope) -> None:
        await run_all(
            lambda: self.tables.create(scope.objects),
            lambda: self.tables.create(scope.histories),
        )

    async def delete_scope_tables(self, scope: Scope) -> None:
        """Delete a scope's tables, or raise ``TableNotEmptyError`` if the scope has objects."""
        await self.tables.delete(scope.objects, must_be_empty=True)
        await self.tables.delete(scope.histories, must_be_empty=False)
        await self.tables.delete(scope.tag_index, must_be_empty=False)

    async def delete_unneeded_tables(self, intent: IntentRecord) -> None:
        """Delete the tables of a scope, whatever they hold, if it is gone: they were made late."""
        current = await self.find_scope(intent.scope)
        if current is not None and current.record.scope_id == intent.name:
            return
        gone = Scope(intent.scope, NOT_EXISTS, ScopeRecord(intent.name, "deleting"))
        for table in (gone.objects, gone.histories, gone.tag_index):
            await self.tables.delete(table, must_be_empty=False)

    async def list_scopes(self, token: str) -> Listing:
        """Return a page of scopes, the system's own last: clients look into the first one."""

        def shown(entry: Entry) -> str | None:
            name = entry.key.decode()
            if name == names.INTERNAL_SCOPE:
                return None
            try:
                is_there = decode(entry.value, ScopeRecord).phase != "creating"
            except CorruptMetadataError as error:
                log.error("scope is damaged", scope=name, reason=str(error))
                is_there = True
            return name if is_there else None

        listing = await self._list(SCOPES, token, shown)
        if token != _END and listing.token == _END:
            return Listing([*listing.names, names.INTERNAL_SCOPE], _END)
        return listing

    # ---- Streams ---------------------------------------------------------------------------------

    def new_id(self) -> str:
        """Return an id that nothing had before."""
        return f"{self._random.getrandbits(64):016x}"

    async def stream(self, scope: str, name: str) -> Stream:
        """Return a stream as it is now; ``StreamNotFoundError`` or ``ScopeNotFoundError``."""
        key = (scope, name)
        if (cached := self._streams.get(key)) is not None:
            self._streams.move_to_end(key)
            if (current := await self._current(cached)) is not None:
                return current
            self._forget(cached)
        return await self._in_tables_of(scope, lambda found: self._load(found, name))

    def known(self, scope: str, name: str, *, age_seconds_max: float = math.inf) -> Stream | None:
        """Return a stream as it was last seen, or None; for uses that check it later.

        Returns None, too, if it was seen longer ago than ``age_seconds_max``.
        """
        seen_at = self._seen_at.get((scope, name), -math.inf)
        if trio.current_time() - seen_at > age_seconds_max:
            return None
        return self._streams.get((scope, name))

    async def find_places(
        self, scope: str, names_: Sequence[str]
    ) -> tuple[Scope | None, list[Place]]:
        """Return the state that is needed to make streams of these names, all read at once."""
        known = self._scopes.get(scope) or await self.find_scope(scope)
        if known is None:
            return None, []
        keys = [_stream_key(name) for name in names_]
        try:
            found, taken, numbers = await run_all(
                partial(self.find_scope, scope),
                partial(self.tables.get_all, known.objects, keys),
                partial(self.next_numbers, scope, names_),
            )
        except NoSuchTableError:
            return await self.find_scope(scope), []
        if found is not None and found.record.scope_id != known.record.scope_id:
            return await self.find_places(scope, names_)
        places = []
        for entry, number in zip(taken, numbers, strict=True):
            is_taken = entry is not None and not await self._is_free(known, entry)
            places.append(Place(NOT_EXISTS if entry is None else entry.version, is_taken, number))
        return found, places

    async def insert_streams(self, scope: Scope, new: Sequence[NewStream]) -> list[Stream]:
        """Record new streams that are being made, all or none; ``VersionConflictError``."""
        return (await self._insert_streams(scope, new))[0]

    async def insert_streams_of_group(
        self, group: ReaderGroup, new: Sequence[NewStream]
    ) -> tuple[list[Stream], ReaderGroup]:
        """Record streams like ``insert_streams`` for a reader group; return the group with them.

        The update of their names writes the group's record again as it is: it fails if the group
        has changed, or is gone.
        """
        same = Change(_group_key(group.name), encode(group.record), group.version)
        streams, version = await self._insert_streams(group.scope, new, same_object=same)
        return streams, replace(group, version=version)

    async def insert_mark_stream(
        self, stream: Stream, new: Sequence[NewStream]
    ) -> tuple[list[Stream], Stream]:
        """Record a stream's mark stream like ``insert_streams``; return the stream with it.

        The update of the mark stream's records writes the stream's state again as it is: it fails
        if the stream has changed, or is gone.
        """
        same = Change(stream.key("state"), encode(stream.record), stream.version)
        marks, version = await self._insert_streams(stream.scope, new, same_state=same)
        return marks, self._keep(replace(stream, version=version))

    async def _insert_streams(
        self,
        scope: Scope,
        new: Sequence[NewStream],
        *,
        same_object: Change | None = None,
        same_state: Change | None = None,
    ) -> tuple[list[Stream], int]:
        """Record new streams if what they belong to is unchanged; return its new version, too."""
        changes: list[Change] = []
        streams: list[Stream] = []
        for one in new:
            stream = self._new_stream(scope, one)
            first, _ = stream.history.changes_for(EpochRecord(one.first, base=0), None)
            changes += [
                Change(stream.key("state"), encode(stream.record), NOT_EXISTS),
                Change(stream.key("configuration"), encode(stream.configurations)),
                *first,
            ]
            streams.append(stream)
        named = [
            Change(_stream_key(one.name), encode(NameRecord(one.stream_id)), one.name_version)
            for one in new
        ]
        keys = [change.key for change in named]
        if same_object is not None:
            named.append(same_object)
        if same_state is not None:
            changes.append(same_state)
        versions: list[int] = []
        name_versions: list[int] = []

        async def write_records() -> None:
            versions.extend(await self.tables.update(scope.histories, changes))

        async def write_names() -> None:
            name_versions.extend(await self.tables.update(scope.objects, named))

        try:
            if same_state is None:
                await run_all(write_records, write_names)
            else:
                # The records decide, so they come last: a name that came after them could come
                # when the stream is gone. If another controller has taken the name, which had no
                # records yet, the update of the records fails.
                await write_names()
                await write_records()
        except NoSuchTableError as error:
            raise ScopeNotFoundError(f"scope {scope.name} does not exist") from error
        except VersionConflictError:
            if versions:
                first_keys = [key for one in new for key in _first_keys(one.stream_id)]
                await self.tables.remove_all(scope.histories, first_keys)
            if name_versions:
                # Nothing may come back to these names, and they keep the scope from being empty.
                with suppress(VersionConflictError, NoSuchTableError):
                    left = list(zip(keys, name_versions, strict=False))
                    await self.tables.remove_if(scope.objects, left)
            raise
        by_key = dict(zip((change.key for change in changes), versions, strict=True))
        by_name = dict(zip((change.key for change in named), name_versions, strict=True))
        made = [
            self._keep(
                replace(stream, version=by_key[stream.key("state")], name_version=by_name[key])
            )
            for stream, key in zip(streams, keys, strict=True)
        ]
        same = same_object or same_state
        return made, NO_VERSION if same is None else {**by_key, **by_name}[same.key]

    async def write_stream(
        self,
        stream: Stream,
        record: StreamRecord,
        *,
        configuration: ConfigurationRecord | None = None,
        head: HeadRecord | None = None,
        epochs: Sequence[Epoch] = (),
        sizes: Mapping[int, dict[int, int]] | None = None,
    ) -> Stream:
        """Replace a stream's record and change other keys with it, all or nothing.

        Raises ``VersionConflictError`` if the stream has changed.
        """
        write = StreamWrite(stream, record, configuration, head, epochs, sizes or {})
        return (await self.write_streams([write]))[0]

    async def write_streams(self, writes: Sequence[StreamWrite]) -> list[Stream]:
        """Change several streams of one scope, all or none. Raises ``VersionConflictError``."""
        changes: list[Change] = []
        streams: list[Stream] = []
        appended: list[tuple[StreamHistory, EpochRecord]] = []
        for write in writes:
            made, stream = self._changes_of(write, appended)
            changes += made
            streams.append(stream)
        table = writes[0].stream.table
        try:
            if len(changes) > UPDATED_KEYS_MAX:
                changes = await self._write_seals(writes, changes)
            versions = await self.tables.update(table, changes)
        except NoSuchTableError as error:
            raise StreamNotFoundError("the scope of the stream does not exist any more") from error
        # Not before: another controller's epoch of the same number may have been first.
        for history, record in appended:
            history.keep(record)
        by_key = dict(zip((change.key for change in changes), versions, strict=True))
        return [
            self._keep(replace(stream, version=by_key[stream.key("state")])) for stream in streams
        ]

    async def _write_seals(
        self, writes: Sequence[StreamWrite], changes: Sequence[Change]
    ) -> list[Change]:
        """Write which epochs seal segments before the epochs themselves; return the other changes.

        An epoch's record decides whether the epoch seals a segment; the keys only lead to it. Every
        update also writes the unchanged states of the streams, if these have the versions that were
        read: a controller with stale knowledge overwrites no key, and one whose keys another
        controller overwrites cannot write its epoch any more. The states get their new owner, so
        that two controllers never write equal values.
        """
        seals = [change for change in changes if b"/sealed/" in change.key]
        states: dict[bytes, Change] = {}
        for write in writes:
            key = write.stream.key("state")
            unchanged = structs.replace(write.stream.record, owner=write.record.owner)
            states[key] = Change(key, encode(unchanged), write.stream.version)
        step = UPDATED_KEYS_MAX - len(states)
        for start in range(0, len(seals), step):
            made = [*states.values(), *seals[start : start + step]]
            versions = await self.tables.update(writes[0].stream.table, made)
            for key, version in zip(list(states), versions, strict=False):
                states[key] = replace(states[key], version=version)
        return [
            replace(change, version=states[change.key].version) if change.key in states else change
            for change in changes
            if b"/sealed/" not in change.key
        ]

    async def remove_streams(self, streams: Sequence[Stream]) -> None:
        """Remove the records of streams of one scope, then their names.

        A crash in between leaves the stream to be removed, or a name without a stream. Raises
        ``VersionConflictError`` if a name is another stream's by now, whose records stay.
        """
        keys_max = (REMOVED_KEYS_MAX - 100) // len(streams)
        removed: list[bytes] = []
        last: list[bytes] = []

        async def remove_epochs(stream: Stream) -> None:
            removed.extend(await stream.history.remove(keys_max=keys_max))

        async def find_subscribers(stream: Stream) -> None:
            found = await self.subscriber_names(stream)
            removed.extend(stream.key("subscriber", name) for name in found)

        await run_all(
            *(partial(remove_epochs, stream) for stream in streams),
            *(partial(find_subscribers, stream) for stream in streams),
        )
        for stream in streams:
            last += [stream.key(kind) for kind in ("subscribers", "configuration", "head", "state")]
        if len(removed) + len(last) > REMOVED_KEYS_MAX:
            await self.tables.remove_all(streams[0].table, removed)
            removed = []
        await self.tables.remove_all(streams[0].table, [*removed, *last])
        for stream in streams:
            self._forget(stream)
        named = [(_stream_key(stream.name), stream.name_version) for stream in streams]
        await self.tables.remove_if(streams[0].scope.objects, named)

    async def discard_unnamed(
        self, scope: str, names_: Sequence[str], stream_ids: Iterable[str]
    ) -> None:
        """Remove the records of those streams to which none of the names leads.

        A stream stays whose creator lives after all, and makes it meanwhile: it has another state.
        """
        found = await self._scope(scope)
        wanted = list(stream_ids)
        keys = [_key(one, "state") for one in wanted]
        states = await self.tables.get_all(found.histories, keys)
        entries = await self.tables.get_all(found.objects, [_stream_key(n) for n in names_])
        leading = {
            decode(entry.value, NameRecord).stream_id
            for entry in entries
            if entry is not None and not earlier_records.is_earlier(entry.value)
        }
        for one, state in zip(wanted, states, strict=True):
            if one in leading or state is None:
                continue
            first, *rest = [(key, NO_VERSION) for key in _first_keys(one)]
            try:
                await self.tables.remove_if(found.histories, [(first[0], state.version), *rest])
            except VersionConflictError:
                log.info("the creator of a stream lives", scope=scope, stream_id=one)

    async def remove_dead_name(self, scope: str, name: str) -> None:
        """Remove a name whose stream has no state, and make sure that it never gets one."""
        await self.remove_dead_name_of(await self._scope(scope), name)

    async def remove_dead_name_of(self, scope: Scope, name: str) -> None:
        """Remove a name like ``remove_dead_name``, of this very scope and none made since."""
        entry = await self.tables.get(scope.objects, _stream_key(name))
        if entry is None or earlier_records.is_earlier(entry.value):
            return
        key = _key(decode(entry.value, NameRecord).stream_id, "state")
        try:
            await self.tables.put(scope.histories, key, GONE, version=NOT_EXISTS)
        except VersionConflictError:
            return
        await self.tables.remove(scope.objects, _stream_key(name), version=entry.version)

    async def list_streams(self, scope: str, token: str) -> Listing:
        """Return the streams of a scope, internal ones too."""
        return await self.list_objects(scope, STREAM_KIND, token)

    async def tagged_streams(
        self, scope: Scope
    ) -> AsyncGenerator[tuple[str, tuple[str, ...]], None]:
        """Yield each stream of a scope that has tags, with its tags; log and skip damaged ones."""
        async with aclosing(self.tables.pages(scope.objects)) as pages:
            async for entries in pages:
                streams = [entry for entry in entries if entry.key.startswith(b"s/")]
                for entry, tags in zip(streams, await self._tags_of(scope, streams), strict=True):
                    if tags:
                        yield entry.key.decode().removeprefix("s/"), tags

    async def next_number(self, scope: str, name: str) -> int:
        """Return the first segment number that no stream of this name used before."""
        return (await self.next_numbers(scope, [name]))[0]

    async def next_numbers(self, scope: str, names_: Sequence[str]) -> list[int]:
        """Return the first segment numbers that no earlier streams of these names used."""
        keys = [f"{scope}/{name}".encode() for name in names_]
        found = await self.tables.get_all(NUMBERS, keys)
        return [
            0 if entry is None else decode(entry.value, NumberRecord).next_number for entry in found
        ]

    async def write_next_numbers(self, scope: str, numbers: dict[str, int]) -> None:
        """Reserve all numbers below these for earlier streams of the names."""
        keys = [f"{scope}/{name}".encode() for name in numbers]
        for _ in range(READS_MAX):
            found = await self.tables.get_all(NUMBERS, keys)
            changes = [
                Change(key, encode(NumberRecord(number)), entry.version if entry else NOT_EXISTS)
                for key, number, entry in zip(keys, numbers.values(), found, strict=True)
                if entry is None or decode(entry.value, NumberRecord).next_number < number
            ]
            if not changes:
                return
            try:
                await self.tables.update(NUMBERS, changes)
            except VersionConflictError as error:
                log.info("reading again", scope=scope, names=list(numbers), reason=str(error))
            else:
                return
        raise VersionConflictError(f"others reserve numbers of {scope}/{next(iter(numbers))}")

    # ---- Subscribers -----------------------------------------------------------------------------

    async def subscriber_names(self, stream: Stream) -> list[str]:
        """Return the reader groups, as ``scope/name``, that a stream's retention waits for."""
        return sorted(_names_in(await self.tables.get(stream.table, stream.key("subscribers"))))

    async def subscriber(self, stream: Stream, name: str) -> tuple[SubscriberRecord, int] | None:
        """Return the cut that a reader group has released, with the version for changes."""
        entry = await self.tables.get(stream.table, stream.key("subscriber", name))
        return None if entry is None else (decode(entry.value, SubscriberRecord), entry.version)

    async def write_subscriber(
        self, stream: Stream, name: str, record: SubscriberRecord, *, version: int
    ) -> None:
        """Replace the record of a subscriber. Raises ``VersionConflictError``."""
        key = stream.key("subscriber", name)
        await self.tables.put(stream.table, key, encode(record), version=version)

    async def add_subscriber(
        self,
        stream: Stream,
        name: str,
        *,
        generation: int,
        is_wanted: Callable[[], Awaitable[bool]],
    ) -> None:
        """Make a reader group a subscriber; one that is keeps its cut; ``VersionConflictError``.

        Whether ``is_wanted`` is asked once the subscribers are read.
        """
        keys = [stream.key("subscribers"), stream.key("subscriber", name)]
        known, current = await self.tables.get_all(stream.table, keys)
        if not await is_wanted():
            return
        cut = {} if current is None else decode(current.value, SubscriberRecord).cut
        record = SubscriberRecord(generation, cut)
        changes = [Change(keys[1], encode(record), current.version if current else NOT_EXISTS)]
        if name not in _names_in(known):
            together = SubscribersRecord(tuple(sorted({*_names_in(known), name})))
            version = known.version if known else NOT_EXISTS
            changes.append(Change(keys[0], encode(together), version))
        await self.tables.update(stream.table, changes)

    async def remove_subscriber(
        self, stream: Stream, name: str, *, is_wanted: Callable[[], Awaitable[bool]]
    ) -> None:
        """Remove a reader group from the subscribers; it need not be one.

        Whether ``is_wanted`` is asked once they are read. Raises ``VersionConflictError`` if the
        group has subscribed since.
        """
        keys = [stream.key("subscribers"), stream.key("subscriber", name)]
        known, current = await self.tables.get_all(stream.table, keys)
        if (current is None and name not in _names_in(known)) or not await is_wanted():
            return
        if known is not None and name in _names_in(known):
            left = tuple(one for one in _names_in(known) if one != name)
            value = encode(SubscribersRecord(left))
            await self.tables.put(stream.table, keys[0], value, version=known.version)
        if current is not None:
            await self.tables.remove(stream.table, keys[1], version=current.version)

    # ---- Reader groups ---------------------------------------------------------------------------

    async def group(self, scope: str, name: str) -> ReaderGroup:
        """Return a reader group; ``ReaderGroupNotFoundError`` or ``ScopeNotFoundError``."""
        found, entry = await self.get_object(scope, GROUP_KIND, name)
        if entry is None:
            raise ReaderGroupNotFoundError(f"reader group {scope}/{name} does not exist")
        return ReaderGroup(found, name, entry.version, decode(entry.value, ReaderGroupRecord))

    async def write_group(self, group: ReaderGroup, record: ReaderGroupRecord) -> ReaderGroup:
        """Replace a reader group's record."""
        version = await self.tables.put(
            group.scope.objects, _group_key(group.name), encode(record), version=group.version
        )
        return replace(group, version=version, record=record)

    async def is_unchanged(self, group: ReaderGroup) -> bool:
        """Return whether a reader group is there now as it was read.

        It may have been written again as it is, with a stream of its own.
        """
        try:
            entry = await self.tables.get(group.scope.objects, _group_key(group.name))
        except NoSuchTableError:
            return False
        if entry is None:
            return False
        return entry.version == group.version or entry.value == encode(group.record)

    async def remove_group(self, group: ReaderGroup) -> None:
        """Remove a reader group's record; fine if it is gone, also with its scope."""
        with suppress(NoSuchTableError):
            await self.tables.remove(
                group.scope.objects, _group_key(group.name), version=group.version
            )

    # ---- Other objects of a scope ----------------------------------------------------------------

    async def get_object(self, scope: str, kind: str, name: str) -> tuple[Scope, Entry | None]:
        """Return the entry of an object of a scope, or None. Raises ``ScopeNotFoundError``."""
        key = f"{kind}/{name}".encode()

        async def get(found: Scope) -> tuple[Scope, Entry | None]:
            return found, await self.tables.get(found.objects, key)

        return await self._in_tables_of(scope, get)

    async def put_object(
        self, scope: Scope, kind: str, name: str, value: bytes, *, version: int
    ) -> int:
        """Write an object of a scope if it has this version. Raises ``ScopeNotFoundError``."""
        key = f"{kind}/{name}".encode()
        try:
            return await self.tables.put(scope.objects, key, value, version=version)
        except NoSuchTableError as error:
            raise ScopeNotFoundError(f"scope {scope.name} does not exist") from error

    async def remove_object(self, scope: Scope, kind: str, name: str, *, version: int) -> None:
        """Remove an object of a scope; fine if it is gone."""
        await self.tables.remove(scope.objects, f"{kind}/{name}".encode(), version=version)

    async def list_objects(self, scope: str, kind: str, token: str) -> Listing:
        """Return a page of the names of a scope's objects of a kind; ``ScopeNotFoundError``."""
        return await self.list_objects_of(await self._scope(scope), kind, token)

    async def list_objects_of(self, scope: Scope, kind: str, token: str) -> Listing:
        """Return a page like ``list_objects``, of this very scope and none made since."""

        def shown(entry: Entry) -> str | None:
            found_kind, _, name = entry.key.decode().partition("/")
            return name if found_kind == kind else None

        return await self._list(scope.objects, token, shown)

    # ---- Reading and writing streams -------------------------------------------------------------

    async def _current(self, cached: Stream) -> Stream | None:
        """Return a stream that is in memory as it is now, or None if it is gone."""
        key = cached.key("state")
        try:
            entry = await self.tables.get(cached.table, key)
            if entry is None or entry.value == GONE:
                return None
            if entry.version == cached.version:
                self._seen_at[cached.scope.name, cached.name] = trio.current_time()
                return cached
            return await self._read(
                cached.scope, cached.name, cached.stream_id, cached.name_version
            )
        except (NoSuchTableError, StreamNotFoundError):
            return None

    async def _load(self, scope: Scope, name: str) -> Stream:
        """Return a stream by its name. Raises ``StreamNotFoundError``."""
        missing = StreamNotFoundError(f"stream {scope.name}/{name} does not exist")
        entry = await self.tables.get(scope.objects, _stream_key(name))
        if entry is None:
            raise missing
        if earlier_records.is_earlier(entry.value):
            entry = await earlier_records.carry_over(
                self.tables, scope.objects, scope.histories, name, entry
            )
        stream_id = decode(entry.value, NameRecord).stream_id
        return await self._read(scope, name, stream_id, entry.version)

    async def _read(self, scope: Scope, name: str, stream_id: str, name_version: int) -> Stream:
        """Return a stream by its id: all records as of one version of its state."""
        kinds = ("state", "configuration", "head")
        keys = [_key(stream_id, kind) for kind in kinds]
        for _ in range(READS_MAX):
            state, settings, start = await self.tables.get_all(scope.histories, keys)
            if state is None or state.value == GONE:
                raise StreamNotFoundError(f"stream {scope.name}/{name} does not exist")
            record = decode(state.value, StreamRecord)
            configurations = (
                None if settings is None else decode(settings.value, ConfigurationRecord)
            )
            head = None if start is None else decode(start.value, HeadRecord)
            is_whole = (
                configurations is not None
                and configurations.revision == record.configuration_revision
                and (head.revision if head else 0) == record.head_revision
            )
            if is_whole:
                assert configurations is not None
                stream = Stream(
                    scope,
                    name,
                    stream_id,
                    name_version,
                    state.version,
                    record,
                    configurations,
                    head,
                    (),
                    (),
                    self._history(scope, name, stream_id),
                )
                try:
                    return await self._complete(stream)
                except (CorruptMetadataError, EpochDroppedError):
                    # Another controller may have removed an epoch, because it deletes the stream,
                    # or because it drops old epochs after a later one has got a snapshot.
                    current = await self.tables.get(scope.histories, keys[0])
                    if current is not None and current.version == state.version:
                        raise
        raise CorruptMetadataError(f"the records of {scope.name}/{name} do not belong together")

    async def _complete(self, stream: Stream) -> Stream:
        """Return a stream with its segments, computed from those that were known."""
        record, history = stream.record, stream.history
        history.update(record)
        if isinstance(record.pending, Delete) and not record.pending.has_segments:
            return stream
        known = self._streams.get((stream.scope.name, stream.name))
        numbers = range(known.record.epoch_count if known else 0, record.epoch_count)
        is_near = 0 <= record.epoch_count - numbers.start <= CATCH_UP_EPOCHS_MAX
        is_near = is_near and numbers.start >= record.first_epoch
        if known is not None and known.history is history and is_near:
            found = await history.epochs(numbers)
            latest = apply_epochs(known.latest, (found[number] for number in numbers))
        else:
            latest = await history.segments_since(record.base, stream.last_epoch)
        return self._keep(await self._with_segments(stream, latest))

    async def _with_segments(self, stream: Stream, latest: tuple[Segment, ...]) -> Stream:
        later = range(stream.record.epoch + 1, stream.record.epoch_count)
        if not later:
            return replace(stream, active=latest, latest=latest)
        found = await stream.history.epochs(later)
        active = undo_epochs(latest, [found[number] for number in later])
        return replace(stream, active=active, latest=latest)

    def _history(self, scope: Scope, name: str, stream_id: str) -> StreamHistory:
        known = self._streams.get((scope.name, name))
        if known is not None and known.stream_id == stream_id and known.table == scope.histories:
            return known.history
        label = f"{scope.name}/{name}"
        return StreamHistory(self.tables, scope.histories, stream_id, stream=label)

    def _new_stream(self, scope: Scope, new: NewStream) -> Stream:
        size = len(encode(EpochRecord(new.first, base=0)))
        record = StreamRecord(
            created_ms=new.first.created_ms,
            epoch=0,
            epoch_count=1,
            next_number=1 + max(segment.number for segment in new.first.created),
            changed_since_base=0,
            epoch_bytes_max=size,
            pending=Create(),
            owner=new.owner,
        )
        history = self._history(scope, new.name, new.stream_id)
        history.update(record)
        history.keep(EpochRecord(new.first, base=0))
        return Stream(
            scope,
            new.name,
            new.stream_id,
            new.name_version,
            NOT_EXISTS,
            record,
            ConfigurationRecord(0, new.configuration),
            None,
            new.first.created,
            new.first.created,
            history,
        )

    def _changes_of(
        self, write: StreamWrite, appended: list[tuple[StreamHistory, EpochRecord]]
    ) -> tuple[list[Change], Stream]:
        """Return the changes of keys that make up a write, and the stream after it."""
        stream, record = write.stream, write.record
        changes: list[Change] = []
        if write.configuration is not None:
            revision = record.configuration_revision + 1
            configuration = structs.replace(write.configuration, revision=revision)
            record = structs.replace(record, configuration_revision=revision)
            stream = replace(stream, configurations=configuration)
            changes.append(Change(stream.key("configuration"), encode(configuration)))
        if write.head is not None:
            revision = record.head_revision + 1
            head = structs.replace(write.head, revision=revision)
            record = structs.replace(record, head_revision=revision)
            stream = replace(stream, head_record=head)
            changes.append(Change(stream.key("head"), encode(head)))
        for epoch in write.epochs:
            record, written, latest = _append_epoch(record, stream.latest, epoch)
            is_base = written.base == epoch.number
            made, size = stream.history.changes_for(written, latest if is_base else None)
            record = structs.replace(record, epoch_bytes_max=max(record.epoch_bytes_max, size))
            stream = replace(stream, latest=latest)
            changes += made
            appended.append((stream.history, written))
        for number, sizes in write.sizes.items():
            value = encode(SizesRecord(sizes))
            changes.append(Change(stream.history.sizes_key(number), value))
        if record.epoch == record.epoch_count - 1:
            stream = replace(stream, active=stream.latest)
        elif record.epoch != write.stream.record.epoch:
            raise AssertionError("an epoch becomes active as the last one")
        state = Change(stream.key("state"), encode(record), stream.version)
        return [state, *changes], replace(stream, record=record)

    def _keep(self, stream: Stream) -> Stream:
        key = (stream.scope.name, stream.name)
        known = self._streams.get(key)
        stream.history.update(stream.record)
        if known is None or known.stream_id != stream.stream_id or known.version <= stream.version:
            _remember(self._streams, key, stream, CACHED_STREAMS_MAX)
            _remember(self._seen_at, key, trio.current_time(), CACHED_STREAMS_MAX)
        return stream

    def _forget(self, stream: Stream) -> None:
        key = (stream.scope.name, stream.name)
        known = self._streams.get(key)
        if known is not None and known.stream_id == stream.stream_id:
            del self._streams[key]
            self._seen_at.pop(key, None)

    async def _is_free(self, scope: Scope, entry: Entry) -> bool:
        """Return whether a name's stream was removed, or never recorded."""
        if earlier_records.is_earlier(entry.value):
            return False
        key = _key(decode(entry.value, NameRecord).stream_id, "state")
        state = await self.tables.get(scope.histories, key)
        if state is None:
            # A controller that is about to write the stream fails then.
            try:
                await self.tables.put(scope.histories, key, GONE, version=NOT_EXISTS)
            except VersionConflictError:
                return False
            return True
        return state.value == GONE

    async def _tags_of(self, scope: Scope, entries: Sequence[Entry]) -> list[tuple[str, ...]]:
        """Return the tags of the streams with these names; log a damaged stream and return none."""
        keys: list[bytes] = []
        found: list[tuple[str, ...]] = []
        for entry in entries:
            found.append(())
            keys.append(b"-")
            with self._logging_damage(scope, entry):
                if earlier_records.is_earlier(entry.value):
                    found[-1] = earlier_records.tags_of(entry.value)
                else:
                    keys[-1] = _key(decode(entry.value, NameRecord).stream_id, "configuration")
        values = await self.tables.get_all(scope.histories, keys)
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

    # ---- Helpers ---------------------------------------------------------------------------------

    async def _in_tables_of(self, name: str, action: Callable[[Scope], Awaitable[T]]) -> T:
        """Call ``action`` with a scope that may be cached. Raises ``ScopeNotFoundError``.

        The tables are deleted with their scope, so their answers are never about an earlier scope.
        """
        known = self._scopes.get(name)
        if known is not None and known.record.phase != "creating":
            self._scopes.move_to_end(name)
            try:
                return await action(known)
            except NoSuchTableError:
                log.debug("the scope was deleted", scope=name)
        found = await self._scope(name)
        try:
            return await action(found)
        except NoSuchTableError as error:
            raise ScopeNotFoundError(f"scope {name} does not exist any more") from error

    async def _scope(self, name: str) -> Scope:
        scope = await self.find_scope(name)
        if scope is None or scope.record.phase == "creating":
            raise ScopeNotFoundError(f"scope {name} does not exist")
        return scope

    async def _list(self, table: str, token: str, shown: Callable[[Entry], str | None]) -> Listing:
        """Return the next page with at least one name to show, or the empty page at the end."""
        if token == _END:
            return Listing([], _END)
        position = decode_token(_TOKEN, token)
        while True:
            try:
                page = await self.tables.page(table, position)
            except NoSuchTableError as error:
                raise ScopeNotFoundError("the scope does not exist any more") from error
            found = sorted(name for entry in page.entries if (name := shown(entry)) is not None)
            is_last = not page.entries or not page.token
            if found or is_last:
                return Listing(found, _END if is_last else encode_token(_TOKEN, page.token))
            position = page.token


def _append_epoch(
    record: StreamRecord, latest: tuple[Segment, ...], epoch: Epoch
) -> tuple[StreamRecord, EpochRecord, tuple[Segment, ...]]:
    """Return a stream's record with one more epoch, the epoch's record, and its segments."""
    assert epoch.number == record.epoch_count, "epochs are consecutive"
    latest = apply_epochs(latest, [epoch])
    changed = record.changed_since_base + len(epoch.created) + len(epoch.sealed)
    is_base = is_snapshot_due(
        epochs=epoch.number - record.base, changed=changed, segments=len(latest)
    )
    next_number = 1 + max(segment.number for segment in epoch.created)
    record = structs.replace(
        record,
        epoch_count=epoch.number + 1,
        next_number=max(record.next_number, next_number),
        base=epoch.number if is_base else record.base,
        changed_since_base=0 if is_base else changed,
    )
    return record, EpochRecord(epoch, record.base), latest


def _remember(cache: OrderedDict[K, V], key: K, value: V, count_max: int) -> None:
    """Cache a value as the latest used one, and evict those that were not used for longest."""
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > count_max:
        cache.popitem(last=False)


def encode_token(prefix: str, position: bytes) -> str:
    """Return a continuation token that resumes at a position; ``prefix`` tells its kind."""
    return prefix + base64.urlsafe_b64encode(position).decode()


def decode_token(prefix: str, token: str) -> bytes:
    """Return the position in a token. Raises ``InvalidRequestError`` for one of another kind."""
    if not token:
        return b""
    try:
        if not token.startswith(prefix):
            raise ValueError("no such prefix")
        return base64.b64decode(token.removeprefix(prefix), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error) as error:
        raise InvalidRequestError("the continuation token is not one of this controller") from error


def _names_in(entry: Entry | None) -> tuple[str, ...]:
    return () if entry is None else decode(entry.value, SubscribersRecord).names


def _stream_key(name: str) -> bytes:
    return f"s/{name}".encode()


def _group_key(name: str) -> bytes:
    return f"g/{name}".encode()


def _first_keys(stream_id: str) -> list[bytes]:
    """Return the keys of the records with which a stream begins, that of its state first."""
    return [_key(stream_id, *p) for p in (("state",), ("configuration",), ("epoch", "0"))]


def _key(stream_id: str, *parts: str) -> bytes:
    return "/".join((stream_id, *parts)).encode()
