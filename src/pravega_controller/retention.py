"""Truncates streams by their retention policies, as far as their subscribers allow.

Owns: the register of streams with a policy, the cuts at their tails that were recorded in the past,
and the rounds that visit each stream once in a period.

    _system/_tables/controller/retention    scope/stream           -> RetentionRecord
                                            scope/stream/<time>    -> RetainedCutRecord

A stream is registered before it gets a policy, and removed by a round that finds it without one.
The record names a cut before the cut is written, and a cut is removed before its name: a name
without a cut means nothing, and there is no cut without a name.

Invariants:
1. Data that subscribers still need are deleted only when the policy's maximum requires it.
2. A stream has at most ``CUTS_MAX`` cuts: when there are more, every second one of the older half
   is removed, so that the age of the kept data is right to a few parts in a thousand.
3. A round may be repeated, or run on two controllers: truncating twice is the same as once, and of
   two that change a record one fails, and does nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TypeAlias

import msgspec
import structlog
import trio
from msgspec import structs

from pravega_controller import stream_cuts
from pravega_controller.errors import (
    ControllerError,
    CorruptMetadataError,
    EpochDroppedError,
    InvalidStreamCutError,
    NoSuchTableError,
    NotFoundError,
    StreamSealedError,
    VersionConflictError,
)
from pravega_controller.records import Create, decode, encode
from pravega_controller.retention_rules import (
    Released,
    StoredCut,
    choose_truncation,
    count_bytes,
    lower_bound,
)
from pravega_controller.segment_client import SegmentClient, for_each
from pravega_controller.store import Listing, MetadataStore, Stream
from pravega_controller.stream_operations import StreamOperations
from pravega_controller.streams import StreamConfiguration, StreamCut
from pravega_controller.table_client import NOT_EXISTS, TableClient
from pravega_wire import names

RETENTION = names.table_name(names.INTERNAL_SCOPE, "controller", "retention")

CUTS_MAX = 512
ATTEMPTS_MAX = 10
"""Maximum number of attempts to change a record that others change meanwhile."""
UNUSED_SECONDS_MAX = 600.0
"""Maximum age, in seconds, of a registration before its stream or its policy exists."""
DUE_SHARE = 0.9
"""Part of a period after which the next cut is due, because rounds are not exact."""
QUIET_PERIODS_MAX = 3
"""Maximum number of rounds that omit a stream that stays empty: a visit takes several requests."""
_SCANNED = b"scanned"

StreamName: TypeAlias = tuple[str, str]

log = structlog.get_logger(__name__)


class RetentionRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """A stream that may have a retention policy, and the cuts that were recorded for it."""

    registered_ms: int
    stream_id: str = ""
    """Id of the stream that the cuts belong to: another stream may have its name."""
    times_ms: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    """Number of bytes before each cut, counted from the first one's head."""


class RetainedCutRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """A cut at a stream's tail."""

    cut: dict[int, int]


class _Quiet(msgspec.Struct, frozen=True):
    """A stream that keeps nothing, and is not visited for some periods."""

    version: int
    """Version of its record at the last visit: a stream with another version is visited."""
    periods: int
    periods_left: int


class _LostCutError(ControllerError):
    """A cut in the record was never written, or was removed, or lies long before the head."""

    def __init__(self, time_ms: int) -> None:
        super().__init__(f"there is no cut of {time_ms}")
        self.time_ms = time_ms


class RetentionRegistry:
    """The streams that may have a retention policy."""

    def __init__(self, tables: TableClient, *, now_ms: Callable[[], int]) -> None:
        self._tables = tables
        self._now_ms = now_ms

    async def register(self, scope: str, name: str, configuration: StreamConfiguration) -> None:
        """Register a stream that will have a configuration; call this before it has."""
        if configuration.retention is None:
            return
        try:
            await self._put(_key(scope, name))
        except NoSuchTableError:
            await self._tables.create(RETENTION)
            await self._put(_key(scope, name))

    async def _put(self, key: bytes) -> None:
        for _ in range(ATTEMPTS_MAX):
            entry = await self._tables.get(RETENTION, key)
            record = RetentionRecord(0) if entry is None else decode(entry.value, RetentionRecord)
            record = structs.replace(record, registered_ms=self._now_ms())
            version = NOT_EXISTS if entry is None else entry.version
            try:
                await self._tables.put(RETENTION, key, encode(record), version=version)
            except VersionConflictError:
                # A round may just have removed the stream: look again.
                continue
            return
        raise VersionConflictError(f"others keep changing the retention of {key.decode()}")


class Retention:
    """See the module. ``run_period`` again and again in one task."""

    def __init__(
        self,
        store: MetadataStore,
        streams: StreamOperations,
        segments: SegmentClient,
        registry: RetentionRegistry,
        *,
        owns: Callable[[str], bool],
        now_ms: Callable[[], int],
        period_seconds: float,
    ) -> None:
        self._registry = registry
        self._owns = owns
        self._is_open = False
        self._quiet: dict[StreamName, _Quiet] = {}
        self.store = store
        self.streams = streams
        self.segments = segments
        self.tables = store.tables
        self.now_ms = now_ms
        self.period_seconds = period_seconds

    async def open(self) -> None:
        """Make the table of streams with a policy, and register the streams older than it."""
        await self.tables.create(RETENTION)
        if await self.tables.get(RETENTION, _SCANNED) is None:
            await self._register_all()
            await self.tables.put(RETENTION, _SCANNED, b"{}")
        self._is_open = True

    async def run_period(self) -> None:
        """Visit each registered stream once, spread over a period; quiet ones less often."""
        if not self._is_open:
            await self.open()
        began = trio.current_time()
        due = self._leave_quiet_out(await self._registered())
        for index, name in enumerate(due, 1):
            share = self.period_seconds * index / (len(due) + 1)
            await trio.sleep_until(began + share)
            if self._owns("/".join(name)):
                await self._visit(name)
        await trio.sleep_until(began + self.period_seconds)

    def _leave_quiet_out(self, registered: Mapping[StreamName, int]) -> list[StreamName]:
        """Return the streams to visit now, chosen from all with their records' versions."""
        quiet: dict[StreamName, _Quiet] = {}
        due = []
        for name, version in registered.items():
            known = self._quiet.get(name)
            if known is not None and known.version == version:
                quiet[name] = structs.replace(known, periods_left=known.periods_left - 1)
                if known.periods_left > 0:
                    continue
            due.append(name)
        self._quiet = quiet
        return due

    async def _visit(self, stream: StreamName) -> None:
        scope, name = stream
        earlier = self._quiet.pop(stream, None)
        try:
            version = await self.retain(scope, name)
        except ControllerError as error:
            log.warning("retention failed", scope=scope, stream=name, reason=str(error))
            return
        # A defect that one stream reveals must not delay the others.
        except Exception:
            log.exception("retention failed", scope=scope, stream=name)
            return
        if version is not None:
            periods = 1 if earlier is None else min(earlier.periods + 1, QUIET_PERIODS_MAX)
            self._quiet[stream] = _Quiet(version, periods, periods)

    async def retain(self, scope: str, name: str) -> int | None:
        """Record the tail of a stream, and truncate it where its policy and subscribers allow it.

        Returns the version of its record if there is nothing to do until the stream is written.
        """
        entry = await self.tables.get(RETENTION, _key(scope, name))
        if entry is None:
            return None
        record = decode(entry.value, RetentionRecord)
        try:
            stream = await self.store.stream(scope, name)
        except NotFoundError:
            await self._forget(scope, name, record, entry.version)
            return None
        if isinstance(stream.record.pending, Create):
            return None
        if stream.record.is_sealed:
            return entry.version
        if stream.configuration.retention is None:
            await self._forget(scope, name, record, entry.version)
            return None
        old_times_ms: tuple[int, ...] = ()
        if record.stream_id != stream.stream_id:
            old_times_ms = record.times_ms
            record = RetentionRecord(record.registered_ms, stream.stream_id)
        work = _Round(self, stream, record, entry.version)
        await work.drop(old_times_ms)
        while True:
            try:
                return await work.run()
            except _LostCutError as lost:
                await work.drop([lost.time_ms])

    # ---- The register ----------------------------------------------------------------------------

    async def _register_all(self) -> None:
        async with aclosing(_pages(self.store.list_scopes)) as scopes:
            async for scope in scopes:
                try:
                    await self._register_scope(scope)
                except CorruptMetadataError as error:
                    log.error("scope is damaged", scope=scope, reason=str(error))

    async def _register_scope(self, scope: str) -> None:
        async with aclosing(_pages(partial(self.store.list_streams, scope))) as found:
            async for name in found:
                try:
                    stream = await self.store.stream(scope, name)
                except NotFoundError:
                    continue
                except CorruptMetadataError as error:
                    log.error("stream is damaged", scope=scope, stream=name, reason=str(error))
                    continue
                await self._registry.register(scope, name, stream.configuration)

    async def _registered(self) -> dict[StreamName, int]:
        """Return all registered streams by name, with the versions of their records."""
        found = {}
        async for entries in self.tables.pages(RETENTION):
            for entry in entries:
                scope, slash, name = entry.key.decode().partition("/")
                if slash and "/" not in name:
                    found[scope, name] = entry.version
        return found

    async def _forget(self, scope: str, name: str, record: RetentionRecord, version: int) -> None:
        """Remove the registration of a stream without a policy, unless one is just being made."""
        if self.now_ms() - record.registered_ms > 1000 * UNUSED_SECONDS_MAX:
            await _remove_cuts(self.tables, scope, name, record.times_ms)
            await self.tables.remove(RETENTION, _key(scope, name), version=version)


class _Round:
    """One visit of one stream."""

    def __init__(
        self, retention: Retention, stream: Stream, record: RetentionRecord, version: int
    ) -> None:
        self._all = retention
        self._stream = stream
        self._history = stream.history
        self._scope, self._name = stream.scope.name, stream.name
        self._record = record
        self._version = version

    async def run(self) -> int | None:
        """Visit the stream; return the record's version if no data are kept, and at most the cut at
        the stream's end."""
        head = await self._head()
        if await self._record_tail(head):
            return self._version
        chosen = await self._choose(head)
        if chosen is not None and not await self._history.is_at_or_after(head, chosen):
            await self._truncate(chosen)
            head = dict(chosen)
        await self.drop(await self._passed(head))
        stored = self._stored()
        if len(stored) != 1:
            return None
        is_at_end = await self._history.is_at_or_after(head, await self._fetch(stored[0]))
        return self._version if is_at_end else None

    async def drop(self, times_ms: Sequence[int]) -> None:
        """Delete stored cuts."""
        if not times_ms:
            return
        await _remove_cuts(self._all.tables, self._scope, self._name, times_ms)
        kept = [each for each in self._stored() if each.time_ms not in times_ms]
        await self._write(kept)

    def _stored(self) -> list[StoredCut]:
        pairs = zip(self._record.times_ms, self._record.sizes, strict=True)
        return [StoredCut(time_ms, size) for time_ms, size in pairs]

    async def _write(self, stored: Sequence[StoredCut]) -> None:
        record = structs.replace(
            self._record,
            times_ms=tuple(each.time_ms for each in stored),
            sizes=tuple(each.size for each in stored),
        )
        key = _key(self._scope, self._name)
        self._version = await self._all.tables.put(
            RETENTION, key, encode(record), version=self._version
        )
        self._record = record

    async def _record_tail(self, head: StreamCut) -> bool:
        """Record the stream's end, unless that was done lately or nothing was written since.

        Returns whether the stream is empty and has no cuts. Its first cut is recorded when it has
        data: a cut at the head would drop nothing.
        """
        if not self._is_due():
            return False
        stored = self._stored()
        tail = await self._lengths([segment.segment_id for segment in self._stream.active])
        size, last = 0, head
        if stored:
            size, last = stored[-1].size, await self._fetch(stored[-1])
        if last == tail:
            return not stored
        if not await self._history.is_at_or_after(tail, last):
            return False
        size += await self._count_bytes(last, tail)
        latest = StoredCut(self._all.now_ms(), size)
        if stored and latest.time_ms <= stored[-1].time_ms:
            return False
        thinned = thin([*stored, latest])
        kept = {each.time_ms for each in thinned}
        gone = [each.time_ms for each in stored if each.time_ms not in kept]
        await _remove_cuts(self._all.tables, self._scope, self._name, gone)
        await self._write(thinned)
        key = _cut_key(self._scope, self._name, latest.time_ms)
        await self._all.tables.put(RETENTION, key, encode(RetainedCutRecord(tail)))
        return False

    def _is_due(self) -> bool:
        """Return whether it is time for another cut."""
        if not self._record.times_ms:
            return True
        age_ms = self._all.now_ms() - self._record.times_ms[-1]
        return age_ms >= 1000 * self._all.period_seconds * DUE_SHARE

    async def _choose(self, head: StreamCut) -> StreamCut | None:
        policy = self._stream.configuration.retention
        stored = self._stored()
        if policy is None or not stored:
            return None
        return await choose_truncation(
            policy,
            stored,
            self._fetch,
            await self._released(head, stored[-1]),
            self._history.is_at_or_after,
            now_ms=self._all.now_ms(),
        )

    async def _released(self, head: StreamCut, latest: StoredCut) -> Released | None:
        cuts = await self._released_cuts()
        if not cuts:
            return None
        bound: StreamCut = await self._lower_bound(cuts)
        if await self._history.is_at_or_after(head, bound):
            bound = head
        end = await self._fetch(latest)
        # A subscriber may be ahead of the last recorded cut.
        start = await self._lower_bound([bound, end])
        return Released(bound, await self._count_bytes(start, end))

    async def _released_cuts(self) -> list[StreamCut]:
        """Return the cuts that subscribers have released, if they ever released one.

        The head replaces a cut so long before it that it is not known any more.
        """
        released: list[StreamCut] = []
        for name in await self._all.store.subscriber_names(self._stream):
            found = await self._all.store.subscriber(self._stream, name)
            if found is not None and found[0].cut:
                is_known = await self._is_on_record(found[0].cut)
                released.append(found[0].cut if is_known else await self._head())
        return released

    async def _passed(self, head: StreamCut) -> list[int]:
        """Return cuts at which no truncation can happen, except the last, to measure from."""
        passed = []
        for each in self._stored()[:-1]:
            if not await self._history.is_at_or_after(head, await self._fetch(each)):
                break
            passed.append(each.time_ms)
        return passed

    async def _truncate(self, cut: StreamCut) -> None:
        scope, name = self._scope, self._name
        try:
            await self._all.streams.truncate(scope, name, cut)
        except InvalidStreamCutError as error:
            log.debug("not truncated", scope=scope, stream=name, reason=str(error))
        except StreamSealedError:
            log.debug("sealed meanwhile", scope=scope, stream=name)
        else:
            log.info("truncated by its policy", scope=scope, stream=name)

    # ---- Cuts ------------------------------------------------------------------------------------

    async def _fetch(self, stored: StoredCut) -> StreamCut:
        key = _cut_key(self._scope, self._name, stored.time_ms)
        entry = await self._all.tables.get(RETENTION, key)
        if entry is None:
            raise _LostCutError(stored.time_ms)
        cut = decode(entry.value, RetainedCutRecord).cut
        if not await self._is_on_record(cut):
            raise _LostCutError(stored.time_ms)
        return cut

    async def _is_on_record(self, cut: StreamCut) -> bool:
        """Return whether the cut's segments are known, as they are at or after the head."""
        try:
            await self._history.pieces(cut)
        except EpochDroppedError:
            return False
        return True

    async def _head(self) -> dict[int, int]:
        return self._stream.head or stream_cuts.cut_at((await self._history.epoch(0)).created)

    async def _lower_bound(self, cuts: Sequence[StreamCut]) -> dict[int, int]:
        named = {segment_id for cut in cuts for segment_id in cut}
        return lower_bound(await self._history.segments(named), cuts)

    async def _count_bytes(self, start: StreamCut, end: StreamCut) -> int:
        found = await self._history.segments_between(start, end)
        between = [segment.segment_id for segment in found]
        ended = [each for each in between if each not in end]
        # Truncated segments can no longer be asked.
        recorded = await self._history.lengths_of(ended)
        asked = await self._lengths([each for each in ended if each not in recorded])
        lengths = {**asked, **recorded}
        return count_bytes(between, start, end, lengths)

    async def _lengths(self, identifiers: Sequence[int]) -> dict[int, int]:
        """Return the lengths of segments; 0 for those that are gone."""
        found: dict[int, int] = {}

        async def ask(identifier: int) -> None:
            info = await self._all.segments.segment_info(self._stream.segment_name(identifier))
            found[identifier] = 0 if info is None else info.length

        await for_each(identifiers, ask)
        return {identifier: found[identifier] for identifier in identifiers}


async def _remove_cuts(tables: TableClient, scope: str, name: str, times_ms: Sequence[int]) -> None:
    for time_ms in times_ms:
        await tables.remove(RETENTION, _cut_key(scope, name, time_ms))


def thin(stored: Sequence[StoredCut]) -> list[StoredCut]:
    """Return the cuts, without every second one of the older half if there are too many."""
    if len(stored) <= CUTS_MAX:
        return list(stored)
    half = len(stored) // 2
    return [*stored[:half:2], *stored[half:]]


async def _pages(list_page: Callable[[str], Awaitable[Listing]]) -> AsyncGenerator[str, None]:
    """Yield all names of a listing."""
    token = ""
    while (page := await list_page(token)).names:
        for name in page.names:
            yield name
        token = page.token


def _key(scope: str, name: str) -> bytes:
    return names.scoped_name(scope, name).encode()


def _cut_key(scope: str, name: str, time_ms: int) -> bytes:
    return f"{names.scoped_name(scope, name)}/{time_ms}".encode()
