"""One stream's epochs in tables: read as needed, and cached while they are used.

Owns: the keys of epochs, snapshots, seals and sizes; reading them in chunks; walking from segments
to their successors.

    <stream id>/epoch/<n>       -> EpochRecord      what epoch n created and sealed
    <stream id>/snapshot/<n>    -> SnapshotRecord   all segments of epoch n, for some epochs but 0
    <stream id>/sealed/<id>     -> SealedRecord     the epoch that sealed a segment
    <stream id>/sizes/<n>       -> SizesRecord      the lengths of what epoch n sealed

Epochs behind the stream's head are dropped after a while (``old_epochs``). The stream's record then
names the first remaining epoch. Segments that began before it and live on are in its snapshot, so
that questions about positions at or after the head need nothing before it.

Invariants:
1. A record of an epoch never changes once the stream's record counts the epoch, so that a cached
   one stays right for ever, and needs no check.
2. A question costs reads in proportion to its answer: a segment's epoch is in its id, the epoch
   that sealed it is under its key, and its successors are in that epoch. No question reads the
   whole history unless the answer is the whole history.
3. Every epoch names the snapshot on which it builds; there are few changes between the two.
4. Long work lets other tasks run between any two chunks.
5. A missing record may have been dropped since the stream's record was read. So that is read again
   before an absent key is a proof, above all that a segment is not sealed. A question about dropped
   records raises ``EpochDroppedError``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import trio

from pravega_controller import stream_cuts
from pravega_controller.errors import (
    CorruptMetadataError,
    EpochDroppedError,
    InvalidRequestError,
    InvalidStreamCutError,
    NotFoundError,
    StreamNotFoundError,
)
from pravega_controller.history import Epoch, Successor, apply_epochs, successors_in
from pravega_controller.records import (
    GONE,
    Delete,
    EpochRecord,
    SealedRecord,
    SizesRecord,
    SnapshotRecord,
    StreamRecord,
    decode,
    encode,
)
from pravega_controller.stream_cuts import Piece
from pravega_controller.streams import Segment, StreamCut
from pravega_controller.table_client import REMOVED_KEYS_MAX, Change, TableClient
from pravega_wire import names

KEPT_SEGMENTS_MAX = 20_000
"""Maximum number of created and sealed segments in the epochs of a stream that stay in memory.

The segments of the first epoch are kept besides, once one of them was needed."""
CHUNK_BYTES = 128 * 1024
CHUNK_EPOCHS_MAX = 64
"""Maximum number of epochs that are read together: reading one reads those after it, too."""
READ_AHEAD_FOR_MAX = 8
"""Maximum number of epochs in a request that reads ahead: a longer request is not a walk along the
history."""
SNAPSHOT_EPOCHS = 256
SNAPSHOT_SEGMENTS_MIN = 256
"""Minimum number of changed segments, or of epochs, after which a snapshot is due."""
SEALED_BYTES_MAX = 64
SEGMENT_BYTES_MIN = 11
"""Minimum length of a segment in an epoch's record, in bytes, as in ``[0,0.0,1.0]``."""


def is_snapshot_due(*, epochs: int, changed: int, segments: int) -> bool:
    """Return whether an epoch needs a snapshot, after so many epochs and changes without one."""
    return epochs >= SNAPSHOT_EPOCHS or changed >= max(SNAPSHOT_SEGMENTS_MIN, segments)


class StreamHistory:
    """Reads the counted epochs of one stream. A new reader knows nothing and reads everything."""

    def __init__(self, tables: TableClient, table: str, stream_id: str, *, stream: str) -> None:
        self._tables = tables
        self._table = table
        self._stream = stream
        self._prefix = stream_id.encode()
        self._epochs: OrderedDict[int, EpochRecord] = OrderedDict()
        self._sealed_in: dict[int, int] = {}
        self._kept_segments = 0
        self._first_segments: tuple[int, dict[int, Segment]] = (0, {})
        self.count = 0
        """The epochs that may be read: those from ``first`` on that the stream's record counts."""
        self.first = 0
        """First epoch about which readers can ask."""
        self.removed_before = 0
        """First epoch that may have records."""
        self.epoch_bytes_max = 0
        """The greatest size of their records."""

    def update(self, record: StreamRecord) -> None:
        """Update the range of the epochs from a stream's record, which may be an older one."""
        self.count = max(self.count, record.epoch_count)
        self.epoch_bytes_max = max(self.epoch_bytes_max, record.epoch_bytes_max)
        self.removed_before = max(self.removed_before, record.removed_before)
        if record.first_epoch > self.first:
            self.first = record.first_epoch
            for number in [number for number in self._epochs if number < self.first]:
                self._forget(number)

    # ---- Keys ------------------------------------------------------------------------------------

    @property
    def state_key(self) -> bytes:
        return b"%b/state" % self._prefix

    def epoch_key(self, number: int) -> bytes:
        return b"%b/epoch/%d" % (self._prefix, number)

    def snapshot_key(self, number: int) -> bytes:
        return b"%b/snapshot/%d" % (self._prefix, number)

    def sealed_key(self, segment_id: int) -> bytes:
        return b"%b/sealed/%d" % (self._prefix, segment_id)

    def sizes_key(self, number: int) -> bytes:
        return b"%b/sizes/%d" % (self._prefix, number)

    # ---- Writing ---------------------------------------------------------------------------------

    def changes_for(
        self, record: EpochRecord, snapshot: Sequence[Segment] | None
    ) -> tuple[list[Change], int]:
        """Return the entries that an epoch adds to the table, and the size of its record."""
        epoch = record.epoch
        value = encode(record)
        changes = [Change(self.epoch_key(epoch.number), value)]
        if snapshot is not None:
            whole = encode(SnapshotRecord(epoch.number, tuple(snapshot)))
            changes.append(Change(self.snapshot_key(epoch.number), whole))
        sealed = encode(SealedRecord(epoch.number))
        changes += [Change(self.sealed_key(segment_id), sealed) for segment_id in epoch.sealed_ids]
        return changes, len(value)

    def keep(self, record: EpochRecord) -> None:
        """Cache a record that was read or written, and evict those not used for longest."""
        number = record.epoch.number
        if number in self._epochs:
            self._epochs.move_to_end(number)
            return
        self._epochs[number] = record
        self._sealed_in.update(dict.fromkeys(record.epoch.sealed_ids, number))
        self._kept_segments += _weight(record)
        while self._kept_segments > KEPT_SEGMENTS_MAX and len(self._epochs) > 1:
            self._forget(next(iter(self._epochs)))

    def _forget(self, number: int) -> None:
        dropped = self._epochs.pop(number)
        self._kept_segments -= _weight(dropped)
        for segment_id in dropped.epoch.sealed_ids:
            self._sealed_in.pop(segment_id, None)

    # ---- Epochs ----------------------------------------------------------------------------------

    async def epochs(self, numbers: Iterable[int]) -> dict[int, Epoch]:
        """Return these epochs, all of which must be counted."""
        records = await self._records(numbers)
        return {number: record.epoch for number, record in records.items()}

    async def epoch(self, number: int) -> Epoch:
        """Return an epoch. Raises ``NotFoundError`` when there is none of this number."""
        return (await self._record(number)).epoch

    async def base_of(self, number: int) -> int:
        """Return the last epoch up to this one of which there is a snapshot; 0 without any."""
        return (await self._record(number)).base

    async def first_needed(self, cut: StreamCut, *, last: int) -> int:
        """Return the first epoch to keep for positions at or after a cut, and for epoch ``last``.

        It has a snapshot, or is 0. All segments of the cut are in the epoch before the first one
        that sealed one of them.
        """
        sealed = await self.sealed_in(cut)
        return await self.base_of(min([last, *(number - 1 for number in sealed.values())]))

    async def segments_in(self, number: int) -> tuple[Segment, ...]:
        """Return an epoch's segments, by key range; ``NotFoundError`` for an unknown epoch."""
        return await self.segments_since(await self.base_of(number), number)

    async def segments_since(self, base: int, number: int) -> tuple[Segment, ...]:
        """Return the segments of an epoch, computed from the snapshot of an earlier one."""
        numbers = range(base + 1, number + 1)
        segments: Sequence[Segment]
        if base == 0:
            segments = (await self.epoch(0)).created
        else:
            segments = await self._snapshot(base)
        found = await self._records(numbers)
        return apply_epochs(segments, (found[n].epoch for n in numbers))

    async def lengths_of(self, identifiers: Iterable[int]) -> dict[int, int]:
        """Return the lengths of sealed segments, as far as they were recorded with the seal."""
        wanted = set(identifiers)
        sealed = await self.sealed_in(wanted)
        # Segments that the end of the stream sealed are recorded under the number after the last.
        numbers = set(sealed.values())
        if len(sealed) < len(wanted):
            numbers.add(self.count)
        found = await self.sizes(sorted(numbers))
        return {identifier: found[identifier] for identifier in wanted & found.keys()}

    async def sizes(self, numbers: Sequence[int]) -> dict[int, int]:
        """Return the lengths, by id, of the segments that these epochs sealed, as far as known."""
        keys = [self.sizes_key(number) for number in numbers]
        found: dict[int, int] = {}
        for entry in await self._tables.get_all(self._table, keys):
            if entry is not None:
                found.update(decode(entry.value, SizesRecord).sizes)
        return found

    # ---- Segments --------------------------------------------------------------------------------

    async def segments(self, identifiers: Iterable[int]) -> dict[int, Segment]:
        """Return the known segments of these ids: not those sealed before the first epoch."""
        wanted = set(identifiers)
        numbers = {names.segment_epoch(identifier) for identifier in wanted}
        try:
            epochs = await self.epochs(n for n in numbers if self.first <= n < self.count)
        except EpochDroppedError:
            # The first epoch has changed since this began.
            return await self.segments(wanted)
        old = await self._segments_at_first() if self._are_old(numbers) else {}
        found = {identifier: old[identifier] for identifier in wanted & old.keys()}
        found.update(
            (segment.segment_id, segment)
            for epoch in epochs.values()
            for segment in epoch.created
            if segment.segment_id in wanted
        )
        return found

    async def sealed_in(self, identifiers: Iterable[int]) -> dict[int, int]:
        """Return the epochs that sealed these segments, or will; omit segments that are not sealed.

        Raises ``EpochDroppedError`` if a segment was sealed before the stream's first epoch, or may
        have been: segments that never existed then look like dropped ones.

        A key counts only if the epoch's record confirms it: the keys of a large epoch are written
        before it, and another epoch may have taken its place.
        """
        found: dict[int, int] = {}
        unknown: list[int] = []
        for identifier in identifiers:
            if (epoch := self._sealed_in.get(identifier)) is None:
                unknown.append(identifier)
            else:
                found[identifier] = epoch
        if unknown:
            keys = [self.sealed_key(identifier) for identifier in unknown]
            entries = await self._tables.get_all(
                self._table, keys, value_bytes_max=SEALED_BYTES_MAX
            )
            absent: list[int] = []
            for identifier, entry in zip(unknown, entries, strict=True):
                if entry is None:
                    absent.append(identifier)
                    continue
                epoch = decode(entry.value, SealedRecord).epoch
                if epoch < self.count:
                    found[identifier] = epoch
            if absent:
                await self._refuse_dropped(absent)
        return found

    async def successors(self, segment_id: int) -> tuple[Successor, ...]:
        """Return the successors of a segment; none while it is not sealed, or if it never existed.

        Raises ``EpochDroppedError`` if they are not on record any more, so that a stream that
        continues does not seem to end.
        """
        sealed = await self.sealed_in([segment_id])
        if segment_id not in sealed:
            return ()
        epoch = await self.epoch(sealed[segment_id])
        for segment in epoch.sealed:
            if segment.segment_id == segment_id:
                return successors_in(epoch, segment)
        return ()

    # ---- Cuts ------------------------------------------------------------------------------------

    async def pieces(self, cut: StreamCut) -> tuple[Piece, ...]:
        """Return the positions a cut gives to the keys, by key.

        Raises ``InvalidStreamCutError``, and ``EpochDroppedError`` if the cut names a segment that
        is not on record any more.
        """
        segments = await self.segments(cut)
        for identifier in cut:
            if identifier not in segments and self._are_old([names.segment_epoch(identifier)]):
                raise self._dropped(f"segment {identifier}")
        return stream_cuts.pieces(segments, cut)

    async def is_valid(self, cut: StreamCut) -> bool:
        """Return whether the cut names segments of this stream that give every key one position.

        Raises ``EpochDroppedError`` if that is not known any more.
        """
        try:
            await self.pieces(cut)
        except InvalidStreamCutError:
            return False
        return True

    async def is_at_or_after(self, later: StreamCut, earlier: StreamCut) -> bool:
        """Return whether ``later`` is, for every key, at or behind ``earlier``."""
        return stream_cuts.is_at_or_after(await self.pieces(later), await self.pieces(earlier))

    async def segments_before(self, cut: StreamCut, *, since: StreamCut) -> list[Segment]:
        """Return the segments wholly before a cut that were not wholly before ``since``.

        An empty ``since`` stands for the beginning of the stream.
        """
        new = await self.pieces(cut)
        old = await self.pieces(since) if since else ()

        def is_wanted(segment: Segment) -> bool:
            is_old = bool(old) and stream_cuts.is_before(segment, old)
            return not is_old and stream_cuts.is_before(segment, new)

        return await self._walk(await self._segments_at(since), new, is_wanted)

    async def segments_between(self, start: StreamCut, end: StreamCut) -> list[Segment]:
        """Return the segments with bytes between two cuts, both ends included, by id.

        An empty ``start`` stands for the first epoch on record. Raises ``InvalidStreamCutError``
        unless both cuts are valid and ``end`` is not before ``start``.
        """
        number = self.first
        try:
            return await self._segments_between(start, end)
        except EpochDroppedError:
            if start or self.first == number:
                raise
            # The first epoch has changed since this began.
            return await self.segments_between(start, end)

    async def _segments_between(self, start: StreamCut, end: StreamCut) -> list[Segment]:
        began = await self._segments_at(start)
        first = await self.pieces(start or stream_cuts.cut_at(began))
        last = await self.pieces(end)
        if not stream_cuts.is_at_or_after(last, first):
            raise InvalidStreamCutError("the end lies before the start")
        return await self._walk(
            began, last, lambda segment: stream_cuts.is_between(segment, first, last)
        )

    async def _segments_at(self, cut: StreamCut) -> list[Segment]:
        """Return the segments that a cut names; for an empty cut, those of the first epoch."""
        if not cut:
            return list(await self.segments_in(self.first))
        return list((await self.segments(cut)).values())

    async def _walk(
        self,
        start: Iterable[Segment],
        until: Sequence[Piece],
        is_wanted: Callable[[Segment], bool],
    ) -> list[Segment]:
        """Return by id the wanted ones of these segments and their successors up to a cut."""
        seen = {segment.segment_id: segment for segment in start}
        layer = list(seen.values())
        found: list[Segment] = []
        while layer:
            found += filter(is_wanted, layer)
            left = [s for s in layer if stream_cuts.is_partly_before(s, until)]
            sealed = await self.sealed_in(segment.segment_id for segment in left)
            gone: defaultdict[int, list[Segment]] = defaultdict(list)
            for segment in left:
                if segment.segment_id in sealed:
                    gone[sealed[segment.segment_id]].append(segment)
            layer = []
            for number, epoch in (await self.epochs(gone)).items():
                ended = frozenset(epoch.sealed_ids)
                left = [segment for segment in gone[number] if segment.segment_id in ended]
                for segment in _followers(epoch, left):
                    if segment.segment_id not in seen:
                        seen[segment.segment_id] = segment
                        layer.append(segment)
            await trio.lowlevel.checkpoint()
        return sorted(found, key=lambda segment: segment.segment_id)

    # ---- Removal ---------------------------------------------------------------------------------

    @property
    def fits_one_removal(self) -> bool:
        """Return whether one request can certainly remove all keys."""
        keys_each = 3 + self.epoch_bytes_max // SEGMENT_BYTES_MIN
        return (self.count - self.removed_before) * keys_each <= REMOVED_KEYS_MAX // 2

    async def remove(self, *, keys_max: int) -> list[bytes]:
        """Remove the epochs except for at most ``keys_max`` last keys, which are returned.

        The caller removes these together with the stream's record. An interrupted call may be
        repeated.
        """
        for numbers in _chunks(self.removed_before, self.count):
            keys, derived = await self._keys_of(numbers)
            # The record of the stream's end, to which no epoch leads.
            derived.append(self.sizes_key(numbers[-1] + 1))
            if len(derived) + len(keys) <= keys_max:
                keys = [*derived, *keys]
            else:
                await self._tables.remove_all(self._table, derived)
            if numbers[-1] == self.count - 1:
                return keys
            await self._tables.remove_all(self._table, keys)
        return []

    async def remove_old(self, *, epochs_max: int) -> int:
        """Remove at most ``epochs_max`` epochs before the first; return the lowest one left.

        An interrupted call may be repeated, and by several controllers at a time.
        """
        end = min(self.first, self.removed_before + epochs_max)
        for numbers in _chunks(self.removed_before, end):
            keys, derived = await self._keys_of(numbers)
            await self._tables.remove_all(self._table, derived)
            await self._tables.remove_all(self._table, keys)
        return end

    async def _keys_of(self, numbers: Sequence[int]) -> tuple[list[bytes], list[bytes]]:
        """Return the keys of epochs, and of the records to which they lead.

        These records must be removed no later than the epoch, which is needed to find them.
        """
        keys = [self.epoch_key(number) for number in numbers]
        entries = await self._tables.get_all(
            self._table, keys, value_bytes_max=self.epoch_bytes_max
        )
        derived: list[bytes] = []
        for number, entry in zip(numbers, entries, strict=True):
            derived += [self.snapshot_key(number), self.sizes_key(number)]
            if entry is not None:
                record = decode(entry.value, EpochRecord)
                derived += map(self.sealed_key, record.epoch.sealed_ids)
        return keys, derived

    # ---- Reading ---------------------------------------------------------------------------------

    async def _record(self, number: int) -> EpochRecord:
        self._check_number(number)
        return (await self._records([number]))[number]

    async def _records(self, numbers: Iterable[int]) -> dict[int, EpochRecord]:
        """Return the records of counted epochs, from memory or read with some that follow them."""
        found: dict[int, EpochRecord] = {}
        missing: list[int] = []
        for number in numbers:
            if (record := self._epochs.get(number)) is None:
                missing.append(number)
            else:
                self._epochs.move_to_end(number)
                found[number] = record
        if missing:
            found.update(await self._read(missing))
        return found

    async def _read(self, wanted: Sequence[int]) -> dict[int, EpochRecord]:
        ahead = min(CHUNK_EPOCHS_MAX, CHUNK_BYTES // max(1, self.epoch_bytes_max))
        numbers = set(wanted)
        if len(wanted) <= READ_AHEAD_FOR_MAX:
            for number in wanted:
                numbers |= set(range(number, min(number + ahead, self.count)))
            numbers -= self._epochs.keys() - set(wanted)
        ordered = sorted(numbers)
        result: dict[int, EpochRecord] = {}
        must_have = frozenset(wanted)
        for start in range(0, len(ordered), CHUNK_EPOCHS_MAX):
            part = ordered[start : start + CHUNK_EPOCHS_MAX]
            keys = [self.epoch_key(number) for number in part]
            entries = await self._tables.get_all(
                self._table, keys, value_bytes_max=self.epoch_bytes_max
            )
            for number, entry in zip(part, entries, strict=True):
                if entry is None:
                    raise await self._explain(number, f"epoch {number}")
                record = decode(entry.value, EpochRecord)
                self.keep(record)
                if number in must_have:
                    result[number] = record
            await trio.lowlevel.checkpoint()
        return result

    def _check_number(self, number: int) -> None:
        if number < 0:
            raise InvalidRequestError(f"there is no epoch {number}")
        if number >= self.count:
            raise NotFoundError(f"epoch {number} does not exist, the last is {self.count - 1}")
        if number < self.first:
            raise self._dropped(f"epoch {number}")

    async def _snapshot(self, number: int) -> tuple[Segment, ...]:
        entry = await self._tables.get(self._table, self.snapshot_key(number))
        if entry is None:
            raise await self._explain(number, f"the snapshot of epoch {number}")
        return decode(entry.value, SnapshotRecord).segments

    async def _segments_at_first(self) -> Mapping[int, Segment]:
        """Return the segments of the first epoch, which is not 0, by their ids."""
        number, segments = self._first_segments
        if number == self.first:
            return segments
        number = self.first
        try:
            segments = {each.segment_id: each for each in await self._snapshot(number)}
        except EpochDroppedError:
            # The first epoch has changed since this began.
            return await self._segments_at_first()
        self._first_segments = (number, segments)
        return segments

    def _are_old(self, epochs: Iterable[int]) -> bool:
        """Return whether one of these epochs is before the first on record."""
        return any(0 <= number < self.first for number in epochs)

    async def _refuse_dropped(self, unsealed: Iterable[int]) -> None:
        """Raise ``EpochDroppedError`` if one of these segments is not known to be unsealed.

        No key tells that they are sealed. A segment created since the first epoch is not, because
        its seal would be on record; an older one is not only if it is in that epoch.
        """
        await self._read_state()
        old = [each for each in unsealed if self._are_old([names.segment_epoch(each)])]
        if old:
            present = await self._segments_at_first()
            for identifier in old:
                if identifier not in present:
                    raise self._dropped(f"segment {identifier}")

    async def _explain(self, number: int, what: str) -> Exception:
        """Return why a record of an epoch is missing that the stream's record counted."""
        try:
            await self._read_state()
        except StreamNotFoundError as error:
            return error
        if number < self.first:
            return self._dropped(what)
        return CorruptMetadataError(f"{what} of {self._stream} is missing")

    async def _read_state(self) -> None:
        """Read again which epochs there are. Raises ``StreamNotFoundError``."""
        entry = await self._tables.get(self._table, self.state_key)
        if entry is None or entry.value == GONE:
            raise StreamNotFoundError(f"stream {self._stream} does not exist any more")
        record = decode(entry.value, StreamRecord)
        if isinstance(record.pending, Delete) and not record.pending.has_segments:
            # Its epochs are being removed with what they lead to: an absent key proves nothing.
            raise StreamNotFoundError(f"stream {self._stream} is being deleted")
        self.update(record)

    def _dropped(self, what: str) -> EpochDroppedError:
        return EpochDroppedError(
            f"{what} of {self._stream} is not on record any more: it lies before the head, "
            f"and the first epoch on record is {self.first}"
        )


def _chunks(start: int, end: int) -> Iterable[range]:
    """Yield the epochs from ``start`` up to, not including, ``end``, some at a time."""
    for first in range(start, end, CHUNK_EPOCHS_MAX):
        yield range(first, min(first + CHUNK_EPOCHS_MAX, end))


def _followers(epoch: Epoch, gone: Sequence[Segment]) -> list[Segment]:
    """Return the segments that the epoch created in the key ranges of ``gone``, which it sealed."""
    ordered = sorted(gone, key=lambda segment: segment.low)
    lows = [segment.low for segment in ordered]
    found = []
    for segment in epoch.created:
        index = bisect_left(lows, segment.high) - 1
        if index >= 0 and ordered[index].overlaps(segment):
            found.append(segment)
    return found


def _weight(record: EpochRecord) -> int:
    return 1 + len(record.epoch.created) + len(record.epoch.sealed)
