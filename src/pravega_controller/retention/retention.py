"""Truncates streams by their retention policies, as far as their subscribers allow.

Owns: the register of streams with a policy, the cuts that were recorded at their tails, and the
rounds that visit each stream once in a period.

    _system/_tables/controller/retention    scope/stream           -> RetentionRecord
                                            scope/stream/<time>    -> RetainedCutRecord
                                            time                   -> PassedTimeRecord

A stream is registered before it gets a policy, and removed by a round that finds it without one.
The stream's record lists the times of its cuts; each cut has a record of its own. The list is
written before the cut, and a cut is removed before its entry of the list. So each stored cut is in
the list; an entry without a cut is ignored.

If there are more than ``CUTS_MAX`` cuts, every second one of the older half is removed. So the age
of the kept data is right to a few parts in a thousand.

Invariants:
1. When a subscriber lags, data that it needs are kept up to the policy's maximum.
   Held by ``test_what_subscribers_need_stays_up_to_the_maximum``.
2. When a stream gets more than ``CUTS_MAX`` cuts, the oldest one and the newer half remain.
   Held by ``test_the_older_half_thins_out``.
3. When a controller dies at any step of a round, the next round completes its work.
   Held by ``test_a_round_that_stops_anywhere_is_made_up_for``.
4. When cuts have times in the future, because a clock was ahead, they age from the moment at which
   they are first seen. So later cuts are recorded, and the stream is truncated. Held by
   ``test_a_controller_whose_clock_is_behind_goes_on_with_the_cuts_of_one_that_was_ahead``.
5. When a controller starts with a clock that is ahead, it truncates earlier by ``GAP_MS_MAX`` at
   most: rounds continue at the time that the last controller has stored.
   Held by ``test_a_controller_that_begins_with_its_clock_ahead_truncates_nothing_early``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec
import structlog
import trio
from msgspec import structs

from pravega_controller.clocks import ContinuedTime, RecordTimes
from pravega_controller.errors import (
    ControllerError,
    EarlierStreamError,
    EpochDroppedError,
    InvalidStreamCutError,
    NoSuchTableError,
    NotFoundError,
    StreamSealedError,
    VersionConflictError,
)
from pravega_controller.metadata.records import Create, decode, encode
from pravega_controller.metadata.store import MetadataStore
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.rules import stream_cuts
from pravega_controller.rules.retention import (
    Released,
    StoredCut,
    choose_truncation,
    count_bytes,
    lower_bound,
)
from pravega_controller.rules.streams import StreamConfiguration, StreamCut
from pravega_controller.store_client.segment_client import SegmentClient, for_each
from pravega_controller.store_client.table_client import NOT_EXISTS, TableClient
from pravega_controller.streams.operations import StreamOperations
from pravega_wire import names

RETENTION = names.table_name(names.INTERNAL_SCOPE, "controller", "retention")

CUTS_MAX = 512
ATTEMPTS_MAX = 10
"""Maximum number of attempts to change a record that others change meanwhile."""
UNUSED_SECONDS_MAX = 600.0
"""Time, in seconds, for which a registration is kept although the stream has no policy yet."""
DUE_SHARE = 0.9
"""Part of a period after which the next cut is due. It is less than 1 because the time between two
rounds varies."""
QUIET_PERIODS_MAX = 3
"""Maximum number of rounds in a row that skip a stream that stays empty. They skip it because a
visit costs several requests."""
GAP_MS_MAX = 3_600_000
"""Maximum time, in milliseconds, by which cuts age while no controller runs. Only the wall clock of
the next controller tells how long that was, and it may be wrong."""
NOTE_SECONDS = 60.0
"""Time, in seconds, after its start at which a controller stores its time for the first time."""
_TIME = b"time"

StreamName: TypeAlias = tuple[str, str]

log = structlog.get_logger(__name__)


class RetentionRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """A stream that may have a retention policy, and the cuts that were recorded for it."""

    registered_ms: int
    stream_id: str = ""
    """Id of the stream that the cuts belong to. A later stream of the name has another id."""
    times_ms: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    """Number of bytes between the head at the time of the first cut and each cut."""


class RetainedCutRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """A cut at a stream's tail."""

    cut: dict[int, int]


class PassedTimeRecord(msgspec.Struct, frozen=True, tag_field="format", tag=1):
    """The latest time of a round."""

    time_ms: int


class _Quiet(msgspec.Struct, frozen=True):
    """A stream that is empty, and is not visited for some periods."""

    version: int
    """Version of its record at the last visit. When the version changes, it is visited again."""
    periods: int
    periods_left: int


class _LostCutError(ControllerError):
    """A cut in a stream's list has no record, or names segments that are not known any more."""

    def __init__(self, time_ms: int) -> None:
        super().__init__(f"there is no cut of {time_ms}")
        self.time_ms = time_ms


class RetentionRegistry:
    """The streams that may have a retention policy."""

    def __init__(self, tables: TableClient, *, now_ms: Callable[[], int]) -> None:
        self._tables = tables
        self._now_ms = now_ms

    async def register(self, scope: str, name: str, configuration: StreamConfiguration) -> None:
        """Register a stream. Call this before the stream gets the configuration."""
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
                # A round may have removed the registration at the same time, so read it again.
                continue
            return
        raise VersionConflictError(f"others keep changing the retention of {key.decode()}")


class Retention:
    """Truncates streams by their policies. One task must call ``run_period`` again and again."""

    def __init__(
        self,
        store: MetadataStore,
        streams: StreamOperations,
        segments: SegmentClient,
        *,
        owns: Callable[[str], bool],
        now_ms: Callable[[], int],
        period_seconds: float,
    ) -> None:
        self._owns = owns
        self._is_open = False
        self._quiet: dict[StreamName, _Quiet] = {}
        self.store = store
        self.streams = streams
        self.segments = segments
        self.tables = store.tables
        gap_ms_max = GAP_MS_MAX + int(2000 * period_seconds)
        self.time = ContinuedTime(now_ms, gap_ms_max=gap_ms_max)
        self.times = RecordTimes()
        self._has_noted = False
        self.period_seconds = period_seconds

    async def open(self) -> None:
        """Create the table of streams with a policy. Go on from the time that is stored in it."""
        await self.tables.create(RETENTION)
        left = await self.tables.get(RETENTION, _TIME)
        if left is not None:
            self.time.go_on_from(decode(left.value, PassedTimeRecord).time_ms)
        self._is_open = True

    async def _note_time(self) -> None:
        """Store the present time for controllers that start later."""
        try:
            left = await self.tables.get(RETENTION, _TIME)
            time_ms = self.time.now_ms()
            if left is None or decode(left.value, PassedTimeRecord).time_ms < time_ms:
                await self.tables.put(RETENTION, _TIME, encode(PassedTimeRecord(time_ms)))
        except ControllerError as error:
            log.warning("the time of retention is not noted", reason=str(error))
        else:
            self._has_noted = True

    async def run_period(self) -> None:
        """Visit each registered stream once, evenly over a period; empty streams less often."""
        if not self._is_open:
            await self.open()
        began = trio.current_time()
        due = self._leave_quiet_out(await self._registered())
        if not self._has_noted:
            # Do not store the time at the start: otherwise a controller that restarts often would
            # add ``GAP_MS_MAX`` each time.
            share = self.period_seconds / (len(due) + 1)
            await trio.sleep_until(began + min(NOTE_SECONDS, share))
            await self._note_time()
        for index, name in enumerate(due, 1):
            share = self.period_seconds * index / (len(due) + 1)
            await trio.sleep_until(began + share)
            if self._owns("/".join(name)):
                await self._visit(name)
        await trio.sleep_until(began + self.period_seconds)
        await self._note_time()

    def _leave_quiet_out(self, registered: Mapping[StreamName, int]) -> list[StreamName]:
        """Return the streams to visit now. ``registered`` has all, with their records' versions."""
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
        # An error about one stream must not stop the visits of the others.
        except Exception:
            log.exception("retention failed", scope=scope, stream=name)
            return
        if version is not None:
            periods = 1 if earlier is None else min(earlier.periods + 1, QUIET_PERIODS_MAX)
            self._quiet[stream] = _Quiet(version, periods, periods)

    async def retain(self, scope: str, name: str) -> int | None:
        """Record a cut at the tail of a stream, and truncate the stream as its policy says.

        Returns the version of its record if the stream need not be visited until it is written.
        """
        entry = await self.tables.get(RETENTION, _key(scope, name))
        if entry is None:
            return None
        record = decode(entry.value, RetentionRecord)
        try:
            stream = await self.store.streams.read(scope, name)
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
        """Remove the registration of a stream without a policy, unless it is quite new.

        A new registration may be that of a stream that is about to get its policy.
        """
        registration = ("registration", scope, name)
        now_ms = self.times.now_ms(registration, record.registered_ms, now_ms=self.time.now_ms())
        if now_ms - record.registered_ms > 1000 * UNUSED_SECONDS_MAX:
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
        """Visit the stream. Return the record's version if the stream is empty, so that later
        rounds may skip it."""
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
        """Record a cut at the tail, unless the last one is recent or nothing was written since.

        Returns whether the stream is empty and has no cuts. Such a stream gets no cut: truncating
        at the head would delete nothing.
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
        time_ms = self._time_ms()
        if stored:
            # The key of a cut is its time.
            time_ms = max(time_ms, stored[-1].time_ms + 1)
        latest = StoredCut(time_ms, size)
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
        age_ms = self._all.time.now_ms() - self._record.times_ms[-1]
        # The last cut has a time in the future, so its age is unknown.
        return not 0 <= age_ms < 1000 * self._all.period_seconds * DUE_SHARE

    def _time_ms(self) -> int:
        """Return the stream's time, which is never before its last cut (``RecordTimes``)."""
        latest_ms = max(self._record.times_ms, default=0)
        stream = (self._scope, self._name, self._stream.stream_id)
        return self._all.times.now_ms(stream, latest_ms, now_ms=self._all.time.now_ms())

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
            now_ms=self._time_ms(),
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
        """Return the cuts that subscribers have released; subscribers without one are left out.

        The head replaces a cut whose segments are not known any more.
        """
        released: list[StreamCut] = []
        for name in await self._all.store.subscribers.names(self._stream):
            found = await self._all.store.subscribers.find(self._stream, name)
            if found is not None and found[0].cut:
                is_known = await self._is_on_record(found[0].cut)
                released.append(found[0].cut if is_known else await self._head())
        return released

    async def _passed(self, head: StreamCut) -> list[int]:
        """Return the times of the useless cuts: those at or before the head, but for the last.

        The sizes of the other cuts are compared with that of the last one.
        """
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
        """Return whether all segments of a cut are known, as are those at or after the head."""
        try:
            await self._history.pieces(cut)
        except (EpochDroppedError, EarlierStreamError):
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
        # The segment stores do not have truncated segments any more.
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
    """Return the cuts; if there are too many, without every second one of the older half."""
    if len(stored) <= CUTS_MAX:
        return list(stored)
    half = len(stored) // 2
    return [*stored[:half:2], *stored[half:]]


def _key(scope: str, name: str) -> bytes:
    return names.scoped_name(scope, name).encode()


def _cut_key(scope: str, name: str, time_ms: int) -> bytes:
    return f"{names.scoped_name(scope, name)}/{time_ms}".encode()
