"""Plans the reads of a stream: where a query begins and ends, and where each batch ends.

Owns: the driver's requests to controller and segment stores. The rules are in ``cuts``.

Invariants:
1. When batches have limits, each ends between two events, so that no event is read in two parts.
   Held by ``test_batches_are_as_long_as_their_limits_allow``.
2. When slices are split for more tasks, the rows are those of the whole slices.
   Held by ``test_direct_and_wire_give_the_same_rows_through_merges_truncation_and_epochs``.
3. When more is written while a query with an end runs, its batches read nothing after that end.
   Held by ``test_every_byte_is_read_once_and_each_key_in_order``.
4. When a position is of an earlier stream of the name, reading is refused, or goes on at the head
   of the present one. Held by
   ``test_a_stream_that_was_made_again_is_told_or_read_from_its_head``.
5. When segments were truncated after they were read to their ends, no loss is claimed.
   Held by ``test_no_loss_is_claimed_where_everything_was_read``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from pravega_spark.errors import DataLossError, OptionError, PlanRefusedError
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
from pravega_spark.reading.cuts import (
    END_OF_SEGMENT,
    Cut,
    SegmentState,
    Slice,
    Successor,
    find_completed,
    parse_cut,
    readable_end,
    replace_completed,
    resolve_ends,
    slices_between,
)
from pravega_spark.reading.event_scans import EventScan, scan_starts
from pravega_spark.reading.limits import Turns
from pravega_spark.reading.scan_plans import ScanPlan, ScanPlans, new_lease_id
from pravega_spark.reading.segments import Address, Piece, SegmentStores
from pravega_spark.reading.splits import WINDOW_BYTES_MAX, WINDOW_BYTES_MIN, find_event_start
from pravega_wire.event_framing import iterate_event_spans
from pravega_wire.names import mark_stream
from pravega_wire.watermarks import Watermark, decode_watermark
from segstore_client.controller.controller_client import Purpose
from segstore_client.cuts.times import find_end, find_start
from segstore_client.errors import (
    EarlierStreamError,
    NotFoundError,
    PositionGoneError,
    UsageError,
)

CALLS_AT_ONCE = 16
OFFSET_MAX = 2**63 - 1
"""Maximum offset in a segment. It is beyond the end of each segment whose length is known."""
DIRECT_BYTES_MIN = 8 * 1024 * 1024
"""Minimum number of bytes of a segment, besides those in the store's memory, for which the driver
requests a plan: reading fewer bytes over the wire is faster."""
SCANNED_TARGET_MAX = 1024 * 1024
"""Maximum length, in bytes, of the parts of a split for which the whole slice is read to find its
events. If the parts are longer, only the bytes near the cuts are read."""


class StreamView:
    """One stream as the driver sees it. Use it within a ``with`` block."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._controller = open_controller(options, is_first=True)
        locate = partial(self._controller.segment_address, options.scope, options.stream)
        # Tasks read by the token that the driver got, and few ask for one of their own.
        self._access = self._controller.store_access(options.scope, options.stream, Purpose.READ)
        self._stores = SegmentStores(options.scope, options.stream, locate, access=self._access)
        self._scan_plans = ScanPlans(self._stores)
        self._seen_tail: dict[int, int] | None = None
        self._scans: dict[int, EventScan] = {}
        self._turns = Turns()
        self._present: set[int] = set()
        """The segments that the last call of ``advance`` saw."""

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

    def token(self) -> str:
        """Return the token for tasks that read the stream; "" without authorization."""
        return self._access.token()

    # ---- Positions -------------------------------------------------------------------------------

    def start(self, default: str) -> dict[int, int]:
        """Return the position at which the options begin to read."""
        time_ms = self.options.start_time_ms
        if time_ms is None:
            try:
                start = self._resolve(self.options.start, default)
            except EarlierStreamError as error:
                self._refuse_position("the stream cut", error)
                start = self.head()
        else:
            start = find_start(self._marks("start_time"), time_ms)
        return self.head() if start is None else start

    def end(self, default: str) -> dict[int, int] | None:
        """Return the position at which the options stop reading; None for nowhere."""
        time_ms = self.options.end_time_ms
        if time_ms is None:
            try:
                return self._resolve(self.options.end, default)
            except EarlierStreamError as error:
                raise OptionError(str(error)) from error
        return find_end(self._marks("end_time"), time_ms) or self.tail()

    def _resolve(self, text: str | None, default: str) -> dict[int, int] | None:
        """Return the cut that an option names; None if it names no position."""
        word = (text or default).lower()
        if word == EARLIEST:
            return self.head()
        if word == LATEST:
            return self.tail()
        if word == UNBOUNDED:
            return None
        return self._check_cut(parse_cut(self.options.name, text or default))

    def _check_cut(self, cut: Cut) -> dict[int, int]:
        """Return a user's cut with lengths in place of ``END_OF_SEGMENT``.

        Raises ``OptionError`` if the stream has no such cut, and ``EarlierStreamError`` if an
        earlier stream of the name had it.
        """
        options = self.options
        try:
            self._controller.check_cut(options.scope, options.stream, cut)
        except UsageError as error:
            raise OptionError(str(error)) from error
        except NotFoundError as error:
            # The stream may have been truncated so long ago that the controller does not know the
            # cut's segments any more. Then reading the cut's segments raises ``DataLossError``.
            if isinstance(error, EarlierStreamError):
                raise
        ends = [segment for segment, position in cut.items() if position == END_OF_SEGMENT]
        return resolve_ends(cut, self._stores.states(ends))

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
        """Return the end of the stream as the last call of ``advance`` saw it.

        If that call saw sealed segments, ask the controller for the end, which has other segments.
        """
        return self.tail() if self._seen_tail is None else self._seen_tail

    def advance(self, start: Cut, end: Cut | None, *, limited: bool) -> dict[int, int]:
        """Return the end of a batch that begins at ``start``.

        It is not after ``end``, and with ``limited`` it obeys the limits of the options.
        """
        cut, states = self._replace_completed(start, end)
        self._present = set(states)
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
        """Return the slices between two cuts, split as the options request."""
        try:
            segments = self._segments_between(start, end)
        except PositionGoneError as error:
            start = self._go_on_at_head(start, "the stream cut", error)
            segments = self._segments_between(start, end)
        states = self._stores.states(segments)
        slices = []
        for segment in sorted(segments):
            state = states.get(segment)
            first = start.get(segment, 0)
            if state is None:
                self._refuse_unread(start, segment)
                continue
            if first < state.start_offset:
                self._refuse_loss(segment)
            piece = Slice(segment, max(first, state.start_offset), end.get(segment, state.length))
            if piece.start < piece.end:
                slices.append(piece)
        return self._split(slices)

    def planned_slices(self, start: Cut, end: Cut) -> list[Slice]:
        """Return the slices of a streaming query's batch, which an earlier run may have planned.

        Slices of segments that are gone are left out, if the options allow it.
        """
        slices = slices_between(start, end)
        unseen = {piece.segment_id for piece in slices} - self._present
        gone = unseen - self._stores.states(unseen).keys()
        for segment in sorted(gone):
            try:
                self._successors([segment], are_gone=True)
            except PositionGoneError as error:
                self._refuse_position("this checkpoint", error)
            self._refuse_loss(segment)
        return [piece for piece in slices if piece.segment_id not in gone]

    def plan_scans(self, slices: Sequence[Slice]) -> list[ScanPlan | None]:
        """Return a plan for each slice; None for a slice that is read over the wire.

        The lease of the plans is not renewed: tasks take leases of their own.
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
            access = self._controller.store_access(options.scope, name, Purpose.READ)
            with SegmentStores(options.scope, name, locate, access=access) as stores:
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

    def _segments_between(self, start: Cut, end: Cut) -> list[int]:
        options = self.options
        return self._controller.segments_between(options.scope, options.stream, start, end)

    def _successors(
        self, segments: Sequence[int], *, are_gone: bool = False
    ) -> dict[int, list[Successor]]:
        """Return the successors of segments.

        With ``are_gone`` the segment stores do not have the segments any more. Raises
        ``PositionGoneError`` if the controller has no record of them, either.
        """
        options, controller = self.options, self._controller
        question = controller.successors_of_gone if are_gone else controller.successors

        def ask(segment: int) -> list[Successor]:
            return [
                Successor(item.range.segment_id, item.predecessors)
                for item in question(options.scope, options.stream, segment)
            ]

        if len(segments) < 2:
            return {segment: ask(segment) for segment in segments}
        with ThreadPoolExecutor(min(CALLS_AT_ONCE, len(segments))) as pool:
            return dict(zip(segments, pool.map(ask, segments), strict=True))

    def _last_segments(self) -> list[int]:
        """Return the segments with which a sealed stream ends."""
        segments = self._segments_between(self.head(), {})
        successors = self._successors(segments)
        return [segment for segment in segments if not successors[segment]]

    def _replace_completed(
        self, start: Cut, end: Cut | None
    ) -> tuple[dict[int, int], dict[int, SegmentState]]:
        """Return the cut with completed segments replaced by their successors, and all states."""
        cut = dict(start)
        while True:
            states = self._stores.states(cut)
            gone = sorted(cut.keys() - states.keys())
            try:
                successors = self._successors(gone, are_gone=True)
            except PositionGoneError as error:
                cut = self._go_on_at_head(cut, "this checkpoint", error)
                continue
            for segment in gone:
                self._refuse_unread(cut, segment)
                states[segment] = SegmentState(0, cut[segment], True)
            for segment, offset in cut.items():
                if offset < states[segment].start_offset:
                    self._refuse_loss(segment)
                    cut[segment] = states[segment].start_offset
            completed = find_completed(cut, states, end)
            successors |= self._successors(sorted(completed.difference(gone)))
            replaced = replace_completed(cut, completed, successors, end)
            if replaced == cut:
                return cut, states
            cut = replaced

    # ---- What is lost ----------------------------------------------------------------------------

    def _go_on_at_head(self, cut: Cut, what: str, error: PositionGoneError) -> dict[int, int]:
        """Return the head of the stream, as the controller has no record of a cut's segments.

        In segments of the head that the cut names, reading goes on at the later of both offsets.
        Raises ``DataLossError`` unless the options allow it; its text calls the cut ``what``.
        """
        self._refuse_position(what, error)
        head = {
            segment: max(offset, cut.get(segment, 0)) for segment, offset in self.head().items()
        }
        if head == cut:
            raise error
        return head

    def _refuse_position(self, what: str, error: PositionGoneError) -> None:
        """Raise ``DataLossError`` for a position that is not on record, unless that is allowed."""
        if not self.options.fail_on_data_loss:
            return
        name = self.options.name
        if isinstance(error, EarlierStreamError):
            raise DataLossError(
                f"{what} is of an earlier stream of that name: {name} was deleted and made again."
                " Set fail_on_data_loss to false to read the present stream from its head"
            ) from error
        raise DataLossError(
            f"the position of {what} is not on record, so it is not known which events of {name}"
            f" are lost: {error}. Set fail_on_data_loss to false to go on at the stream's head"
        ) from error

    def _refuse_unread(self, cut: Cut, segment: int) -> None:
        """Raise ``DataLossError`` for a segment that was truncated, unless it was read to its end.

        Whether it was is known if the controller recorded the segment's length, as it does when it
        seals one: it then refuses an offset beyond the end.
        """
        if not self.options.fail_on_data_loss:
            return
        offset = cut.get(segment)
        is_length_known = self._has_cut(cut) and not self._has_cut({**cut, segment: OFFSET_MAX})
        if offset is None or not is_length_known:
            raise DataLossError(
                f"segment {segment} of stream {self.options.name} is gone: the stream was truncated"
                " after it, and it is not known whether all of its events had been read. Set"
                " fail_on_data_loss to false to continue"
            )
        if self._has_cut({**cut, segment: offset + 1}):
            self._refuse_loss(segment)

    def _has_cut(self, cut: Cut) -> bool:
        """Return whether the controller takes these positions for a cut of the stream."""
        options = self.options
        try:
            self._controller.check_cut(options.scope, options.stream, cut)
        except (UsageError, NotFoundError):
            return False
        return True

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

        ``Turns`` divides the limits among segments. The batch has at least one event.
        """
        limited = dict(cut)

        def take(
            segment: int, *, bytes_max: int, rows_max: int, at_least_one: bool
        ) -> tuple[int, int]:
            start, end = limited[segment], ends[segment]
            if not row_limit and end - start <= min(bytes_max, rows_max):
                # Nobody needs to know where the events begin.
                limited[segment] = end
                return end - start, 1
            offset, rows = self._scan_from(segment, start).advance(
                end, bytes_max=bytes_max, rows_max=rows_max, at_least_one=at_least_one
            )
            limited[segment] = offset
            return offset - start, rows

        unread = {
            segment: ends[segment] - cut[segment]
            for segment in ends
            if ends[segment] > cut[segment]
        }
        self._turns.divide(unread, byte_limit=byte_limit, row_limit=row_limit, take=take)
        return limited

    def _scan_from(self, segment: int, start: int) -> EventScan:
        """Return a scan of a segment whose position is an offset: the last one, or a new one."""
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
        """Split slices between events.

        There are at least ``min_partitions`` slices, if there are enough events, and none is much
        longer than ``max_partition_bytes``.
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
        """Yield offsets between events, each at least ``target`` bytes after the last one."""
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
        # Divide the slice evenly, so that the last part is not much shorter than the others.
        count = -(-(piece.end - piece.start) // target)
        target = -(-(piece.end - piece.start) // count)
        for number in range(1, count):
            found = self._find_event_start(piece, piece.start + number * target)
            if found is not None and start < found < piece.end:
                yield found
                start = found

    def _find_event_start(self, piece: Slice, near: int) -> int | None:
        """Return the start of an event near an offset; None if no start is certain."""
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
