"""The present state of streams: their records, and a cache that is checked at every use.

Owns: ``Stream``, and ``KnownStreams``, which reads them.

    _system/_tables/controller/histories-<id>   <stream id>/state           -> StreamRecord
                                                <stream id>/configuration   -> ConfigurationRecord
                                                <stream id>/head            -> HeadRecord
                                                <stream id>/epoch/...       see ``streams.epochs``

All records of a stream are in one table, so that one atomic update can change several of them. Each
such update writes the stream's state, whose version tells whether anything has changed.

Invariants:
1. When another controller has changed a stream, the next query sees the change: a cached stream is
   used only after its state was read again and had the same version. Held by
   ``test_no_answer_is_older_than_its_question``.
2. When a cached stream has not changed, a query takes one small read. Held by
   ``test_a_known_stream_is_answered_for_by_one_small_read``.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, replace

import trio

from pravega_controller.errors import (
    CorruptMetadataError,
    EpochDroppedError,
    NoSuchTableError,
    StreamNotFoundError,
)
from pravega_controller.metadata.records import (
    GONE,
    ConfigurationRecord,
    Delete,
    HeadRecord,
    NameRecord,
    StreamRecord,
    decode,
)
from pravega_controller.metadata.scope_records import Scope, ScopeRecords, remember
from pravega_controller.metadata.streams.history import StreamHistory
from pravega_controller.rules.history import apply_epochs, undo_epochs
from pravega_controller.rules.streams import Segment, StreamConfiguration
from pravega_controller.store_client.table_client import TableClient
from pravega_wire import names

CACHED_STREAMS_MAX = 10_000
READS_MAX = 20
"""Maximum number of attempts to read a stream's records while it changes. After these, the records
count as damaged."""
CATCH_UP_EPOCHS_MAX = 64
"""Maximum number of epochs from which a cached stream is updated. If it is older, it is computed
from its last snapshot."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream as it was read last: its small records, and the segments of its active epoch.

    ``history`` reads earlier epochs when they are needed. ``table`` has all records of the stream;
    ``key`` makes the key of a record.
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
    """The segments of the last recorded epoch, which is not active while a scale is pending."""
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
        """Return the number of the last recorded epoch."""
        return self.record.epoch_count - 1

    def key(self, *parts: str) -> bytes:
        """Return the key of a record that belongs to the stream."""
        return record_key(self.stream_id, *parts)

    def segment_name(self, segment_id: int) -> str:
        return names.segment_name(self.scope.name, self.name, segment_id)


class KnownStreams:
    """Reads streams, and keeps them in memory."""

    def __init__(self, tables: TableClient, scopes: ScopeRecords) -> None:
        self._tables = tables
        self._scopes = scopes
        self._known: OrderedDict[tuple[str, str], Stream] = OrderedDict()
        self._seen_at: OrderedDict[tuple[str, str], float] = OrderedDict()
        """Time, by trio's clock, at which each cached stream was last known to be current."""

    async def read(self, scope: str, name: str) -> Stream:
        """Return a stream as it is now; ``StreamNotFoundError`` or ``ScopeNotFoundError``."""
        key = (scope, name)
        if (cached := self._known.get(key)) is not None:
            self._known.move_to_end(key)
            if (current := await self._current(cached)) is not None:
                return current
            self.forget(cached)
        return await self._scopes.call_in(scope, lambda found: self._load(found, name))

    def known(self, scope: str, name: str, *, age_seconds_max: float = math.inf) -> Stream | None:
        """Return a stream from memory without reading anything; the caller checks it later.

        Returns None if it is not in memory, or was known to be current longer ago than
        ``age_seconds_max``.
        """
        seen_at = self._seen_at.get((scope, name), -math.inf)
        if trio.current_time() - seen_at > age_seconds_max:
            return None
        return self._known.get((scope, name))

    async def _current(self, cached: Stream) -> Stream | None:
        """Return the present state of a stream that is in memory; None if the stream is gone."""
        key = cached.key("state")
        try:
            entry = await self._tables.get(cached.table, key)
            if entry is None or entry.value == GONE:
                return None
            if entry.version == cached.version:
                self._seen_at[cached.scope.name, cached.name] = trio.current_time()
                return cached
            return await self._read_records(
                cached.scope, cached.name, cached.stream_id, cached.name_version
            )
        except (NoSuchTableError, StreamNotFoundError):
            return None

    async def _load(self, scope: Scope, name: str) -> Stream:
        """Return a stream by its name. Raises ``StreamNotFoundError``."""
        missing = StreamNotFoundError(f"stream {scope.name}/{name} does not exist")
        entry = await self._tables.get(scope.objects, stream_key(name))
        if entry is None:
            raise missing
        stream_id = decode(entry.value, NameRecord).stream_id
        return await self._read_records(scope, name, stream_id, entry.version)

    async def _read_records(
        self, scope: Scope, name: str, stream_id: str, name_version: int
    ) -> Stream:
        """Return a stream by its id: all records as of one version of its state."""
        kinds = ("state", "configuration", "head")
        keys = [record_key(stream_id, kind) for kind in kinds]
        for _ in range(READS_MAX):
            state, settings, start = await self._tables.get_all(scope.histories, keys)
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
                    self.history_of(scope, name, stream_id),
                )
                try:
                    return await self._complete(stream)
                except (CorruptMetadataError, EpochDroppedError):
                    # Another controller may have removed an epoch, because it deletes the stream,
                    # or because it drops old epochs after a later one has got a snapshot.
                    current = await self._tables.get(scope.histories, keys[0])
                    if current is not None and current.version == state.version:
                        raise
        raise CorruptMetadataError(f"the records of {scope.name}/{name} do not belong together")

    async def _complete(self, stream: Stream) -> Stream:
        """Return a stream with its segments, computed from those in memory if possible."""
        record, history = stream.record, stream.history
        history.update(record)
        if isinstance(record.pending, Delete) and not record.pending.has_segments:
            return stream
        known = self._known.get((stream.scope.name, stream.name))
        numbers = range(known.record.epoch_count if known else 0, record.epoch_count)
        is_near = 0 <= record.epoch_count - numbers.start <= CATCH_UP_EPOCHS_MAX
        is_near = is_near and numbers.start >= record.first_epoch
        is_near = is_near and (known is None or known.record.withdrawn == record.withdrawn)
        if known is not None and known.history is history and is_near:
            found = await history.epochs(numbers)
            latest = apply_epochs(known.latest, (found[number] for number in numbers))
        else:
            latest = await history.segments_since(record.base, stream.last_epoch)
        return self.keep(await self._with_segments(stream, latest))

    async def _with_segments(self, stream: Stream, latest: tuple[Segment, ...]) -> Stream:
        later = range(stream.record.epoch + 1, stream.record.epoch_count)
        if not later:
            return replace(stream, active=latest, latest=latest)
        found = await stream.history.epochs(later)
        active = undo_epochs(latest, [found[number] for number in later])
        return replace(stream, active=active, latest=latest)

    def history_of(self, scope: Scope, name: str, stream_id: str) -> StreamHistory:
        """Return the reader of a stream's epochs: that in memory if it belongs to this stream."""
        known = self._known.get((scope.name, name))
        if known is not None and known.stream_id == stream_id and known.table == scope.histories:
            return known.history
        label = f"{scope.name}/{name}"
        return StreamHistory(self._tables, scope.histories, stream_id, stream=label)

    def keep(self, stream: Stream) -> Stream:
        """Keep a stream in memory, unless a later state of it is in memory."""
        key = (stream.scope.name, stream.name)
        known = self._known.get(key)
        stream.history.update(stream.record)
        if known is None or known.stream_id != stream.stream_id or known.version <= stream.version:
            remember(self._known, key, stream, CACHED_STREAMS_MAX)
            remember(self._seen_at, key, trio.current_time(), CACHED_STREAMS_MAX)
        return stream

    def forget(self, stream: Stream) -> None:
        """Remove a stream from memory."""
        key = (stream.scope.name, stream.name)
        known = self._known.get(key)
        if known is not None and known.stream_id == stream.stream_id:
            del self._known[key]
            self._seen_at.pop(key, None)


def stream_key(name: str) -> bytes:
    """Return the key of a stream's name in its scope's objects."""
    return f"s/{name}".encode()


def first_keys(stream_id: str) -> list[bytes]:
    """Return the keys of the records with which a stream begins, that of its state first."""
    return [record_key(stream_id, *p) for p in (("state",), ("configuration",), ("epoch", "0"))]


def record_key(stream_id: str, *parts: str) -> bytes:
    """Return the key of a record of a stream."""
    return "/".join((stream_id, *parts)).encode()
