"""One stream's epochs as they lie in tables: read as needed, and kept while they are used.

Owns: the keys of epochs, snapshots, seals and sizes; reading them in chunks; walking from segments
to their successors.

    <stream id>/epoch/<n>       -> EpochRecord      what epoch n created and sealed
    <stream id>/snapshot/<n>    -> SnapshotRecord   all segments of epoch n, for some epochs but 0
    <stream id>/sealed/<id>     -> SealedRecord     the epoch that sealed a segment
    <stream id>/sizes/<n>       -> SizesRecord      the lengths of what epoch n sealed

Invariants:
1. A record of an epoch never changes once the stream's record counts the epoch, so that what was
   read stays right for ever, and needs no check.
2. A question costs reads in proportion to its answer: a segment's epoch is in its id, the epoch
   that sealed it is under its key, and its successors are in that epoch. No question reads the
   whole history unless the answer is the whole history.
3. Every epoch names the snapshot it builds on; there are few changes between the two.
4. Long work gives way to other tasks between any two chunks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence

import trio

from pravega_controller import stream_cuts
from pravega_controller.errors import (
    CorruptMetadataError,
    InvalidRequestError,
    InvalidStreamCutError,
    NotFoundError,
)
from pravega_controller.history import Epoch, Successor, apply_epochs, successors_in
from pravega_controller.records import (
    EpochRecord,
    SealedRecord,
    SizesRecord,
    SnapshotRecord,
    decode,
    encode,
)
from pravega_controller.stream_cuts import Piece
from pravega_controller.streams import Segment, StreamCut
from pravega_controller.table_client import REMOVED_KEYS_MAX, Change, TableClient
from pravega_wire import names

KEPT_SEGMENTS_MAX = 20_000
"""Keep read epochs of a stream up to about so many segments created and sealed."""
CHUNK_BYTES = 128 * 1024
CHUNK_EPOCHS_MAX = 64
"""A read of one epoch brings its followers along, up to these bounds."""
READ_AHEAD_FOR_MAX = 8
"""Whoever asks for more epochs at a time is not walking along the history."""
SNAPSHOT_EPOCHS = 256
SNAPSHOT_SEGMENTS_MIN = 256
"""A snapshot is due after so many epochs, or when they changed as many segments as there are."""
SEALED_BYTES_MAX = 64
SEGMENT_BYTES_MIN = 11
"""A segment takes at least so much of an epoch's record, as in ``[0,0.0,1.0]``."""


def is_snapshot_due(*, epochs: int, changed: int, segments: int) -> bool:
    """Whether an epoch is to have a snapshot, so long and so changed since the last one."""
    return epochs >= SNAPSHOT_EPOCHS or changed >= max(SNAPSHOT_SEGMENTS_MIN, segments)


class StreamHistory:
    """Reads the counted epochs of one stream. Made anew, it knows nothing and reads everything."""

    def __init__(self, tables: TableClient, table: str, stream_id: str, *, stream: str) -> None:
        self._tables = tables
        self._table = table
        self._stream = stream
        self._prefix = stream_id.encode()
        self._epochs: OrderedDict[int, EpochRecord] = OrderedDict()
        self._sealed_in: dict[int, int] = {}
        self._kept_segments = 0
        self.count = 0
        """The epochs that may be read: those the stream's record counts."""
        self.epoch_bytes_max = 0
        """The greatest size of their records."""

    # ---- Keys ------------------------------------------------------------------------------------

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
        """What an epoch adds to the table, and the size of its record."""
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
        """Remember a record that was read or written, and forget those not used for longest."""
        number = record.epoch.number
        if number in self._epochs:
            self._epochs.move_to_end(number)
            return
        self._epochs[number] = record
        self._sealed_in.update(dict.fromkeys(record.epoch.sealed_ids, number))
        self._kept_segments += _weight(record)
        while self._kept_segments > KEPT_SEGMENTS_MAX and len(self._epochs) > 1:
            _, dropped = self._epochs.popitem(last=False)
            self._kept_segments -= _weight(dropped)
            for segment_id in dropped.epoch.sealed_ids:
                self._sealed_in.pop(segment_id, None)

    # ---- Epochs ----------------------------------------------------------------------------------

    async def epochs(self, numbers: Iterable[int]) -> dict[int, Epoch]:
        """These epochs, all of which must be counted."""
        records = await self._records(numbers)
        return {number: record.epoch for number, record in records.items()}

    async def epoch(self, number: int) -> Epoch:
        """An epoch. ``NotFoundError`` when there is none of this number."""
        self._check_number(number)
        return (await self._records([number]))[number].epoch

    async def segments_in(self, number: int) -> tuple[Segment, ...]:
        """The segments of an epoch, by key range. ``NotFoundError`` for an unknown one."""
        self._check_number(number)
        base = (await self._records([number]))[number].base
        return await self.segments_since(base, number)

    async def segments_since(self, base: int, number: int) -> tuple[Segment, ...]:
        """The segments of an epoch, computed from the snapshot of an earlier one."""
        numbers = range(base + 1, number + 1)
        segments: Sequence[Segment]
        if base == 0:
            segments = (await self.epoch(0)).created
        else:
            entry = await self._tables.get(self._table, self.snapshot_key(base))
            if entry is None:
                raise self._missing(f"the snapshot of epoch {base}")
            segments = decode(entry.value, SnapshotRecord).segments
        found = await self._records(numbers)
        return apply_epochs(segments, (found[n].epoch for n in numbers))

    async def lengths_of(self, identifiers: Iterable[int]) -> dict[int, int]:
        """The lengths of sealed segments, as far as they were noted when they were sealed."""
        wanted = set(identifiers)
        sealed = await self.sealed_in(wanted)
        # What the seal of the stream sealed is noted under the number after the last epoch.
        numbers = set(sealed.values())
        if len(sealed) < len(wanted):
            numbers.add(self.count)
        found = await self.sizes(sorted(numbers))
        return {identifier: found[identifier] for identifier in wanted & found.keys()}

    async def sizes(self, numbers: Sequence[int]) -> dict[int, int]:
        """The lengths, by id, of the segments that these epochs sealed, as far as known."""
        keys = [self.sizes_key(number) for number in numbers]
        found: dict[int, int] = {}
        for entry in await self._tables.get_all(self._table, keys):
            if entry is not None:
                found.update(decode(entry.value, SizesRecord).sizes)
        return found

    # ---- Segments --------------------------------------------------------------------------------

    async def segments(self, identifiers: Iterable[int]) -> dict[int, Segment]:
        """The segments of these ids; those the stream never had are left out."""
        wanted = set(identifiers)
        numbers = {names.segment_epoch(identifier) for identifier in wanted}
        epochs = await self.epochs(n for n in numbers if 0 <= n < self.count)
        return {
            segment.segment_id: segment
            for epoch in epochs.values()
            for segment in epoch.created
            if segment.segment_id in wanted
        }

    async def sealed_in(self, identifiers: Iterable[int]) -> dict[int, int]:
        """The epochs that sealed these segments, or were to; those not sealed are left out.

        What a key says counts only if the epoch's record says so, too: the keys of a large epoch
        are written before it, and another epoch may have come in its place.
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
            for identifier, entry in zip(unknown, entries, strict=True):
                if entry is not None:
                    epoch = decode(entry.value, SealedRecord).epoch
                    if epoch < self.count:
                        found[identifier] = epoch
        return found

    async def successors(self, segment_id: int) -> tuple[Successor, ...]:
        """Who takes over from a segment; nobody while it is not sealed, or when it is unknown."""
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
        """The positions a cut gives to the keys, by key. Raises ``InvalidStreamCutError``."""
        return stream_cuts.pieces(await self.segments(cut), cut)

    async def is_valid(self, cut: StreamCut) -> bool:
        """Whether the cut names segments of this stream that give every key one position."""
        try:
            await self.pieces(cut)
        except InvalidStreamCutError:
            return False
        return True

    async def is_at_or_after(self, later: StreamCut, earlier: StreamCut) -> bool:
        """Whether ``later`` is, for every key, at or behind nothing of ``earlier``."""
        return stream_cuts.is_at_or_after(await self.pieces(later), await self.pieces(earlier))

    async def segments_before(self, cut: StreamCut, *, since: StreamCut) -> list[Segment]:
        """The segments wholly before a cut, save those that were already wholly before ``since``.

        An empty ``since`` stands for the beginning of the stream.
        """
        new = await self.pieces(cut)
        old = await self.pieces(since) if since else ()

        def is_wanted(segment: Segment) -> bool:
            is_old = bool(old) and stream_cuts.is_before(segment, old)
            return not is_old and stream_cuts.is_before(segment, new)

        return await self._walk(await self._segments_at(since), new, is_wanted)

    async def segments_between(self, start: StreamCut, end: StreamCut) -> list[Segment]:
        """The segments with bytes between two cuts, both ends included, by id.

        An empty ``start`` stands for the beginning of the stream. Both cuts must be valid and
        ``end`` not before ``start``, else ``InvalidStreamCutError``.
        """
        began = await self._segments_at(start)
        first = await self.pieces(start or stream_cuts.cut_at(began))
        last = await self.pieces(end)
        if not stream_cuts.is_at_or_after(last, first):
            raise InvalidStreamCutError("the end lies before the start")
        return await self._walk(
            began, last, lambda segment: stream_cuts.is_between(segment, first, last)
        )

    async def _segments_at(self, cut: StreamCut) -> list[Segment]:
        """The segments that a cut names; for an empty one, those the stream began with."""
        if not cut:
            return list((await self.epoch(0)).created)
        return list((await self.segments(cut)).values())

    async def _walk(
        self,
        start: Iterable[Segment],
        until: Sequence[Piece],
        is_wanted: Callable[[Segment], bool],
    ) -> list[Segment]:
        """The wanted ones of these segments and of all that follow them up to a cut, by id."""
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
        """Whether surely all keys can be removed at once."""
        keys_each = 3 + self.epoch_bytes_max // SEGMENT_BYTES_MIN
        return self.count * keys_each <= REMOVED_KEYS_MAX // 2

    async def remove(self, *, keys_max: int) -> list[bytes]:
        """Remove the epochs but for at most ``keys_max`` last keys, which are returned.

        The caller removes these together with the stream's record. Broken off, it may be repeated.
        """
        for start in range(0, self.count, CHUNK_EPOCHS_MAX):
            numbers = range(start, min(start + CHUNK_EPOCHS_MAX, self.count))
            keys = [self.epoch_key(number) for number in numbers]
            entries = await self._tables.get_all(
                self._table, keys, value_bytes_max=self.epoch_bytes_max
            )
            derived: list[bytes] = [self.sizes_key(numbers[-1] + 1)]
            for number, entry in zip(numbers, entries, strict=True):
                derived += [self.snapshot_key(number), self.sizes_key(number)]
                if entry is not None:
                    record = decode(entry.value, EpochRecord)
                    derived += map(self.sealed_key, record.epoch.sealed_ids)
            # What an epoch leads to goes no later than the epoch, to be found again until then.
            if len(derived) + len(keys) <= keys_max:
                keys = [*derived, *keys]
            else:
                await self._tables.remove_all(self._table, derived)
            if numbers[-1] == self.count - 1:
                return keys
            await self._tables.remove_all(self._table, keys)
        return []

    # ---- Within ----------------------------------------------------------------------------------

    async def _records(self, numbers: Iterable[int]) -> dict[int, EpochRecord]:
        """The records of counted epochs, from memory or read with some that follow them."""
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
                    raise self._missing(f"epoch {number}")
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

    def _missing(self, what: str) -> CorruptMetadataError:
        return CorruptMetadataError(f"{what} of {self._stream} is missing")


def _followers(epoch: Epoch, gone: Sequence[Segment]) -> list[Segment]:
    """What the epoch created in the key ranges of ``gone``, some of what it sealed."""
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
