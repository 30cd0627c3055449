"""Plans the reads of a stream: its two ends, and the end of each batch.

Owns: the driver's requests to controller and segment stores. The rules are in ``cuts``.

Invariants:
1. Every position in a result is between two events.
2. A batch never goes beyond its given end, nor beyond the bytes stored when it was planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from pravega_blocking.errors import NotFoundError
from pravega_spark.cuts import (
    Cut,
    SegmentState,
    Slice,
    Successor,
    find_completed,
    parse_cut,
    readable_end,
    replace_completed,
)
from pravega_spark.errors import DataLossError, OptionError, PlanRefusedError
from pravega_spark.event_scans import EventScan, scan_starts
from pravega_spark.options import (
    AUTO,
    DIRECT,
    EARLIEST,
    LATEST,
    UNBOUNDED,
    WIRE,
    Options,
    open_controller,
)
from pravega_spark.scan_plans import ScanPlan, ScanPlans, new_lease_id
from pravega_spark.segments import Address, Piece, SegmentStores
from pravega_spark.splits import WINDOW_BYTES_MAX, WINDOW_BYTES_MIN, find_event_start
from pravega_spark.times import find_end, find_start
from pravega_wire.event_framing import iterate_event_spans
from pravega_wire.names import mark_stream
from pravega_wire.watermarks import Watermark, decode_watermark

CALLS_AT_ONCE = 16
DIRECT_BYTES_MIN = 8 * 1024 * 1024
"""Minimum bytes of a segment for which a plan is worth a request, without those in memory."""
SCANNED_TARGET_MAX = 1024 * 1024
"""Maximum length, in bytes, of the pieces for which a slice is read to find its events; for longer
pieces only the bytes around the cuts are read."""


class StreamView:
    """One stream as the driver sees it. Use it within a ``with`` block."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._controller = open_controller(options)
        locate = partial(self._controller.segment_address, options.scope, options.stream)
        self._stores = SegmentStores(options.scope, options.stream, locate)
        self._scan_plans = ScanPlans(self._stores)
        self._seen_tail: dict[int, int] | None = None
        self._scans: dict[int, EventScan] = {}

    def __enter__(self) -> StreamView:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Idempotent."""
        self._stores.close()
        self._controller.close()

    def address(self, segment_id: int) -> Address:
        """Return the address of a segment's store."""
        return self._stores.address(segment_id)

    # ---- Positions -------------------------------------------------------------------------------

    def start(self, default: str) -> dict[int, int]:
        """Return the position at which the options begin to read."""
        time_ms = self.options.start_time_ms
        if time_ms is None:
            start = self._resolve(self.options.start, default)
        else:
            start = find_start(self._marks("start_time"), time_ms)
        return self.head() if start is None else start

    def end(self, default: str) -> dict[int, int] | None:
        """Return the position at which the options stop reading; None for nowhere."""
        time_ms = self.options.end_time_ms
        if time_ms is None:
            return self._resolve(self.options.end, default)
        return find_end(self._marks("end_time"), time_ms) or self.tail()

    def _resolve(self, text: str | None, default: str) -> dict[int, int] | None:
        """Return the cut that an option names; None for no bound."""
        word = (text or default).lower()
        if word == EARLIEST:
            return self.head()
        if word == LATEST:
            return self.tail()
        if word == UNBOUNDED:
            return None
        return parse_cut(self.options.name, text or default)

    def head(self) -> dict[int, int]:
        """Return the cut at which the stream begins."""
        options = self.options
        return dict(self._controller.head_segments(options.scope, options.stream).offsets)

    def tail(self) -> dict[int, int]:
        """Return the cut at which the stream ends now."""
        options = self.options
        current = self._controller.current_segments(options.scope, options.stream)
        segments = [item.segment_id for item in current.ranges] or self._last_segments()
        states = self._stores.states(segments)
        return {segment: state.length for segment, state in states.items()}

    def last_tail(self) -> dict[int, int]:
        """Return the cut at which the stream ended when ``advance`` looked last.

        If it saw segments that have successors, the controller is asked for the end now.
        """
        return self.tail() if self._seen_tail is None else self._seen_tail

    def advance(self, start: Cut, end: Cut | None, *, limited: bool) -> dict[int, int]:
        """Return the end of a batch from ``start``, within ``end`` and, if asked, the limits."""
        cut, states = self._replace_completed(start, end)
        self._scans = {segment: scan for segment, scan in self._scans.items() if segment in cut}
        has_successors = any(state.is_sealed for state in states.values())
        self._seen_tail = (
            None if has_successors else {segment: states[segment].length for segment in cut}
        )
        ends = {
            segment: max(offset, readable_end(segment, states[segment], end))
            for segment, offset in cut.items()
        }
        byte_limit = self.options.max_bytes_per_trigger if limited else 0
        row_limit = self.options.max_rows_per_trigger if limited else 0
        if byte_limit or row_limit:
            return self._limit(cut, ends, byte_limit, row_limit)
        return ends

    def batch_slices(self, start: Cut, end: Cut) -> list[Slice]:
        """Return the slices between two cuts; more of them if the options ask for it."""
        options = self.options
        segments = self._controller.segments_between(options.scope, options.stream, start, end)
        states = self._stores.states(segments)
        slices = []
        for segment in sorted(segments):
            state = states.get(segment)
            first = start.get(segment, 0)
            if state is None or first < state.start_offset:
                self._refuse_loss(segment)
            if state is None:
                continue
            piece = Slice(segment, max(first, state.start_offset), end.get(segment, state.length))
            if piece.start < piece.end:
                slices.append(piece)
        return self._split(slices)

    def plan_scans(self, slices: Sequence[Slice]) -> list[ScanPlan | None]:
        """Return the places in tier 2 of slices' bytes: None for slices to read over the wire.

        The plans come with a lease, which ends by itself: tasks have their own.
        """
        path = self.options.read_path
        if path == WIRE or self._scan_plans.are_refused:
            return [None] * len(slices)
        lease_id = new_lease_id()
        plans: dict[int, ScanPlan | None] = {}
        lengths: dict[int, int] = {}
        for piece in slices:
            length = lengths.get(piece.segment_id, 0) + piece.end - piece.start
            lengths[piece.segment_id] = length
        for segment, length in lengths.items():
            if path == AUTO and length < DIRECT_BYTES_MIN:
                continue
            start = min(piece.start for piece in slices if piece.segment_id == segment)
            end = max(piece.end for piece in slices if piece.segment_id == segment)
            try:
                plans[segment] = self._scan_plans.request(segment, start, end, lease_id)
            except PlanRefusedError:
                if path == DIRECT:
                    raise
                break
        return [
            plan.within(piece.start, piece.end) if plan is not None else None
            for piece in slices
            for plan in [plans.get(piece.segment_id)]
        ]

    # ---- Ends and successors ---------------------------------------------------------------------

    def _marks(self, option: str) -> list[Watermark]:
        """Return the stream's watermarks, oldest first; ``OptionError`` if it has none."""
        options = self.options
        name = mark_stream(options.stream)
        marks: list[Watermark] = []
        with suppress(NotFoundError):
            (item,) = self._controller.current_segments(options.scope, name).ranges
            locate = partial(self._controller.segment_address, options.scope, name)
            with SegmentStores(options.scope, name, locate) as stores:
                state = stores.states([item.segment_id]).get(item.segment_id)
                assert state is not None
                piece = Slice(item.segment_id, state.start_offset, state.length)
                data = b"".join(data for _, data in stores.read_slice(piece))
            marks = [decode_watermark(data[a:b]) for a, b in iterate_event_spans(data)]
        if not marks:
            raise OptionError(
                f"{option} needs watermarks, and {options.name} has none: its writers record no"
                " times"
            )
        return marks

    def _successors(self, segments: Sequence[int]) -> dict[int, list[Successor]]:
        options = self.options

        def ask(segment: int) -> list[Successor]:
            return [
                Successor(item.range.segment_id, item.predecessors)
                for item in self._controller.successors(options.scope, options.stream, segment)
            ]

        if len(segments) < 2:
            return {segment: ask(segment) for segment in segments}
        with ThreadPoolExecutor(min(CALLS_AT_ONCE, len(segments))) as pool:
            return dict(zip(segments, pool.map(ask, segments), strict=True))

    def _last_segments(self) -> list[int]:
        """Return the segments with which a sealed stream ends."""
        options = self.options
        head = self.head()
        segments = self._controller.segments_between(options.scope, options.stream, head, {})
        successors = self._successors(segments)
        return [segment for segment in segments if not successors[segment]]

    def _replace_completed(
        self, start: Cut, end: Cut | None
    ) -> tuple[dict[int, int], dict[int, SegmentState]]:
        """Replace segments that were read to their end by successors; also return their states."""
        cut = dict(start)
        while True:
            states = self._stores.states(cut)
            for segment in list(cut):
                state = states.get(segment)
                if state is None:
                    # It is not known any more whether it had been read to its end.
                    self._refuse_loss(segment)
                    states[segment] = SegmentState(0, cut[segment], True)
                elif cut[segment] < state.start_offset:
                    self._refuse_loss(segment)
                    cut[segment] = state.start_offset
            completed = find_completed(cut, states, end)
            successors = self._successors(sorted(completed))
            replaced = replace_completed(cut, completed, successors, end)
            if replaced == cut:
                return cut, states
            cut = replaced

    def _refuse_loss(self, segment: int) -> None:
        if self.options.fail_on_data_loss:
            raise DataLossError(
                f"events of segment {segment} of stream {self.options.name} are gone: the stream"
                " was truncated before they were read. Set fail_on_data_loss to false to"
                " continue without them"
            )

    # ---- Limits ----------------------------------------------------------------------------------

    def _limit(
        self, cut: Cut, ends: Mapping[int, int], byte_limit: int, row_limit: int
    ) -> dict[int, int]:
        """Return ends that keep a batch within the limits, each between two events.

        Every segment gets a fair share of the rest; at least one event comes.
        """
        limited = dict(cut)
        waiting = sorted(
            (segment for segment in ends if ends[segment] > cut[segment]),
            key=lambda segment: ends[segment] - cut[segment],
        )
        bytes_left = byte_limit or sum(ends.values())
        rows_left = row_limit or sum(ends.values())
        for number, segment in enumerate(waiting):
            share = len(waiting) - number
            byte_share, row_share = bytes_left // share, rows_left // share
            start, end = cut[segment], ends[segment]
            if not row_limit and end - start <= byte_share:
                limited[segment] = end
                bytes_left -= end - start
                continue
            is_first = limited == cut
            offset, rows = self._scan_from(segment, start).advance(
                end,
                bytes_max=byte_share if byte_limit else end - start,
                rows_max=row_share if row_limit else end - start,
                at_least_one=is_first,
            )
            limited[segment] = offset
            bytes_left -= offset - start
            rows_left -= rows
        return limited

    def _scan_from(self, segment: int, start: int) -> EventScan:
        """Return the scan of a segment that stands at an offset: the last one, or a new one."""
        scan = self._scans.get(segment)
        if scan is None or scan.position != start:
            scan = self._scans[segment] = EventScan(
                self._segment_name(segment), partial(self._read_without_lookahead, segment), start
            )
        return scan

    def _read_without_lookahead(self, segment: int, start: int, end: int) -> Iterator[Piece]:
        """Yield bytes of a segment; no request is under way between two pieces."""
        return self._stores.read_slice(
            Slice(segment, start, end),
            fail_on_data_loss=self.options.fail_on_data_loss,
            reads_ahead=False,
        )

    def _segment_name(self, segment: int) -> str:
        return f"{self.options.name}/{segment}"

    def _split(self, slices: Sequence[Slice]) -> list[Slice]:
        """Split slices between events into at least ``min_partitions``, if the events allow it,
        none of them much longer than ``max_partition_bytes``.
        """
        options = self.options
        target = options.max_partition_bytes or sum(piece.end - piece.start for piece in slices)
        if len(slices) < options.min_partitions:
            total = sum(piece.end - piece.start for piece in slices)
            target = min(target, total // options.min_partitions)
        target = max(1, target)
        pieces: list[Slice] = []
        for piece in slices:
            start = piece.start
            if piece.end - piece.start > target:
                for position in self._cuts(piece, target):
                    pieces.append(Slice(piece.segment_id, start, position))
                    start = position
            pieces.append(Slice(piece.segment_id, start, piece.end))
        return pieces

    def _cuts(self, piece: Slice, target: int) -> Iterator[int]:
        """Yield offsets between events, each ``target`` bytes or a little more behind the last."""
        start = piece.start
        if target < SCANNED_TARGET_MAX:
            pieces = self._stores.read_slice(
                piece, fail_on_data_loss=self.options.fail_on_data_loss
            )
            for starts in scan_starts(self._segment_name(piece.segment_id), pieces, piece.start):
                for number in range(len(starts)):
                    position = starts.offset(number)
                    if position - start >= target:
                        yield position
                        start = position
            return
        # With cuts at equal distances no piece is much shorter than the others.
        count = -(-(piece.end - piece.start) // target)
        target = -(-(piece.end - piece.start) // count)
        for number in range(1, count):
            found = self._find_event_start(piece, piece.start + number * target)
            if found is not None and start < found < piece.end:
                yield found
                start = found

    def _find_event_start(self, piece: Slice, near: int) -> int | None:
        """Return the start of an event soon behind an offset; None if that is not clear."""
        size = WINDOW_BYTES_MIN
        while size <= WINDOW_BYTES_MAX:
            window = Slice(piece.segment_id, near, min(near + size, piece.end))
            pieces = self._stores.read_slice(
                window, fail_on_data_loss=self.options.fail_on_data_loss
            )
            data = b"".join(data for _, data in pieces)
            if len(data) < window.end - window.start:
                return None  # it was truncated meanwhile
            if (found := find_event_start(data)) is not None:
                return near + found
            if window.end == piece.end:
                return None
            size *= 2
        return None
