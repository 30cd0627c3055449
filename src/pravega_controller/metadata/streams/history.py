"""Questions about one stream's history: its segments, their successors, and cuts.

Owns: ``StreamHistory``, which walks from segments to their successors. The records are those of
``epochs``.

Segments that were created before the first remaining epoch, and are not sealed, are in its
snapshot. So queries about positions at or after the head need no earlier epoch.

To find the successors of a segment, two reads are enough: the key ``sealed/<id>`` names the epoch
that sealed it, and the record of that epoch has the successors. Long walks let other tasks run
between two chunks of epochs.

Invariants:
1. When a stream has a long history, the number of reads for a query depends on the length of the
   answer, and not on that of the history. Held by
   ``test_a_question_reads_little_of_a_long_history``.
2. When the epoch that sealed a segment is dropped during a query, the answer is never that the
   segment has no successors. Held by
   ``test_a_question_under_way_is_not_told_that_a_dropped_segment_has_no_successors``.
3. When a query names a segment of an earlier stream of the name, it is told so, whatever was
   dropped since. Held by ``test_a_position_of_an_earlier_stream_is_told_from_a_truncated_one``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial

import trio

from pravega_controller.errors import (
    EarlierStreamError,
    EpochDroppedError,
    InvalidStreamCutError,
)
from pravega_controller.metadata.records import (
    SealedRecord,
    decode,
)
from pravega_controller.metadata.streams.epochs import (
    SEALED_BYTES_MAX,
    EpochRecords,
)
from pravega_controller.metadata.streams.used_numbers import read_used_numbers
from pravega_controller.rules import stream_cuts
from pravega_controller.rules.history import Epoch, Successor, apply_epochs, successors_in
from pravega_controller.rules.stream_cuts import Piece
from pravega_controller.rules.streams import Segment, StreamCut
from pravega_controller.store_client.table_client import TableClient
from pravega_wire import names


class StreamHistory(EpochRecords):
    """Answers queries about the counted epochs of one stream."""

    def __init__(self, tables: TableClient, table: str, stream_id: str, *, stream: str) -> None:
        super().__init__(tables, table, stream_id, stream=stream)
        self._first_segments: tuple[int, dict[int, Segment]] = (0, {})
        self._first_number: int | None = None
        """The least number of the stream's segments, once it was read. It never changes."""

    async def first_needed(self, cut: StreamCut, *, last: int) -> int:
        """Return the first epoch to keep for queries about positions at or after a cut.

        Epoch ``last`` is kept, too. The result has a snapshot, or is 0. The first epoch that sealed
        a segment of the cut tells how far back to go: all of them are in the epoch before it.
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
        """Return the lengths of sealed segments. Segments with unknown lengths are left out."""
        wanted = set(identifiers)
        sealed = await self.sealed_in(wanted)
        # Segments that the seal of the stream sealed are under the number after the last epoch's.
        numbers = set(sealed.values())
        if len(sealed) < len(wanted):
            numbers.add(self.count)
        found = await self.sizes(sorted(numbers))
        return {identifier: found[identifier] for identifier in wanted & found.keys()}

    async def segments(self, identifiers: Iterable[int]) -> dict[int, Segment]:
        """Return the segments with these ids. Segments that were sealed before the first epoch are
        left out."""
        wanted = set(identifiers)
        numbers = {names.segment_epoch(identifier) for identifier in wanted}
        try:
            epochs = await self.epochs(n for n in numbers if self.first <= n < self.count)
        except EpochDroppedError:
            # The first epoch has changed since this call began.
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
        """Return the epoch that sealed each of these segments; segments not sealed are left out.

        The epoch may still be pending. Raises ``EpochDroppedError`` if a segment was sealed before
        the stream's first epoch, or may have been: a segment that never existed looks the same.

        A key counts only if the epoch's record confirms it. The keys of a large epoch are written
        before its record, and another controller may then write another epoch of this number.
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

        Raises ``EpochDroppedError`` if their records were dropped, and ``EarlierStreamError``: an
        empty answer would tell a reader that the stream ends there.
        """
        sealed = await self.sealed_in([segment_id])
        if segment_id not in sealed:
            await self.refuse_missing([segment_id], await self.segments([segment_id]))
            return ()
        epoch = await self.epoch(sealed[segment_id])
        for segment in epoch.sealed:
            if segment.segment_id == segment_id:
                return successors_in(epoch, segment)
        return ()

    async def pieces(self, cut: StreamCut) -> tuple[Piece, ...]:
        """Return the positions a cut gives to the keys, by key.

        Raises ``InvalidStreamCutError``, and ``EpochDroppedError`` if the cut names a segment that
        was dropped.
        """
        segments = await self.segments(cut)
        await self.refuse_missing(cut, segments)
        return stream_cuts.pieces(segments, cut)

    async def refuse_missing(self, identifiers: Iterable[int], found: Container[int]) -> None:
        """Raise an error for a segment that was not found, if it is known to have existed.

        Raises ``EarlierStreamError`` if an earlier stream of the name had it, and
        ``EpochDroppedError`` if its epoch was dropped, or may have been.
        """
        missing = [each for each in identifiers if each not in found]
        await self._refuse_earlier(missing)
        for identifier in missing:
            if self._are_old([names.segment_epoch(identifier)]):
                raise self._dropped(f"segment {identifier}")

    async def _refuse_earlier(self, missing: Sequence[int]) -> None:
        """Raise ``EarlierStreamError`` for a segment of an earlier stream of the name."""
        if missing and self._first_number is None:
            (self._first_number,) = await read_used_numbers(self._tables, [self._stream])
        for identifier in missing:
            if names.segment_number(identifier) < (self._first_number or 0):
                raise EarlierStreamError(
                    f"segment {identifier} is of an earlier stream {self._stream}, which was "
                    "deleted before the present one was made"
                )

    async def refuse_partly_read(self, cut: StreamCut) -> None:
        """Raise ``InvalidStreamCutError`` if a cut is after a segment for some of its keys only."""
        epochs = {max(self.first, names.segment_epoch(identifier)) for identifier in cut}
        if len(epochs) == 1:
            return
        last = {segment.segment_id for segment in await self.segments_in(max(epochs))}
        if cut.keys() <= last:
            # All segments of the cut were active at the same time, so the cut is possible.
            return
        tiling = await self.pieces(cut)
        began = await self.segments_in(min(epochs))
        partly = partial(stream_cuts.is_partly_before, tiling=tiling)
        stream_cuts.refuse_partly_read(await self._walk(began, tiling, partly), tiling)

    async def is_at_or_after(self, later: StreamCut, earlier: StreamCut) -> bool:
        """Return whether ``later`` is, for every key, at or after ``earlier``."""
        return stream_cuts.is_at_or_after(await self.pieces(later), await self.pieces(earlier))

    async def goes_on(self, later: StreamCut, earlier: StreamCut) -> bool:
        """Return whether ``later`` is before ``earlier`` for no key; ``earlier`` may be dropped."""
        try:
            return await self.is_at_or_after(later, earlier)
        except EpochDroppedError:
            # Dropped segments of the earlier cut lie before every segment that is known.
            known = await self.segments(earlier)
            rest = {known[each]: earlier[each] for each in known}
            return stream_cuts.is_at_or_after_all(await self.pieces(later), rest)

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

        An empty ``start`` stands for the first recorded epoch. Raises ``InvalidStreamCutError``
        unless both cuts are valid and ``end`` is not before ``start``.
        """
        number = self.first
        try:
            return await self._segments_between(start, end)
        except EpochDroppedError:
            if start or self.first == number:
                raise
            # The first epoch has changed since this call began.
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
        """Return, by id, the segments from ``start`` up to the cut ``until`` that are wanted."""
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

    async def _segments_at_first(self) -> Mapping[int, Segment]:
        """Return the segments of the first epoch by id. That epoch is not 0."""
        number, segments = self._first_segments
        if number == self.first:
            return segments
        number = self.first
        try:
            segments = {each.segment_id: each for each in await self._snapshot(number)}
        except EpochDroppedError:
            # The first epoch has changed since this call began.
            return await self._segments_at_first()
        self._first_segments = (number, segments)
        return segments

    def _are_old(self, epochs: Iterable[int]) -> bool:
        """Return whether one of these epochs was dropped."""
        return any(0 <= number < self.first for number in epochs)

    async def _refuse_dropped(self, unsealed: Iterable[int]) -> None:
        """Raise ``EpochDroppedError`` if one of these segments may have been sealed.

        No key says that they are sealed. If a segment was created in the first epoch or later, this
        proves that it is not sealed. An older segment is not sealed if it is in the first epoch;
        otherwise the key may have been dropped.
        """
        await self._read_state()
        old = [each for each in unsealed if self._are_old([names.segment_epoch(each)])]
        if old:
            present = await self._segments_at_first()
            for identifier in old:
                if identifier not in present:
                    await self._refuse_earlier([identifier])
                    raise self._dropped(f"segment {identifier}")


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
