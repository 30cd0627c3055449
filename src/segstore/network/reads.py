"""The reads of one connection, from the request to the reply.

Owns: the reads that wait for data, those that wait for room, and those whose replies are held until
their requests are old enough; what a reply to a read is made of.

Invariants:
1. A read that waits holds its handle and nothing else, and goes away with the connection.
2. Data that come when there is no room for them are not made: the read is postponed, and begun
   again in its turn, one at a time.
3. A reply is held as ``read_pacing`` says. What is held when the peer has ended, or the connection
   is drained, leaves at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
import trio

from pravega_wire import commands as wire
from pravega_wire.codec import encode
from segstore.api import ReadHandle, ReadResult
from segstore.errors import SegmentStoreError
from segstore.network.buffer_bytes import ReplyBytes
from segstore.network.bulk_turns import BulkTurns
from segstore.network.handler_table import RequestContext
from segstore.network.read_pacing import HeldRead, HeldReads
from segstore.network.replies import Asked, around_data
from segstore.network.send_buffer import SendBuffer

READ_BYTES_MIN: Final = 8
KEPT_BYTES_MIN: Final = 256 * 1024
"""Minimum length, in bytes, of data of history that are sent without a copy. Shorter replies would
be joined before they are sent, and pin more memory than what counts as unsent."""
DUE_SECONDS: Final = 1.0
"""Maximum time, in seconds, for which a postponed read delays the next one."""

logger = structlog.get_logger(__name__)


class ReadInProgress:
    """A read that may be answered later. ``answered``, if given, is set when it is."""

    __slots__ = ("_reads", "answered", "asked", "handle", "held", "is_postponed", "request")

    def __init__(self, reads: ConnectionReads, request: wire.ReadSegment, asked: float) -> None:
        self._reads = reads
        self.request = request
        self.asked = asked
        self.answered: trio.Event | None = None
        self.handle: ReadHandle | None = None
        self.held: HeldRead | None = None
        self.is_postponed = False

    def has_room(self) -> bool:
        """Return whether the data can be accepted now; remember it if not."""
        has_room = self.answered is not None or self._reads.has_room
        self.is_postponed = not has_room
        return has_room

    def complete(self, error: SegmentStoreError | None, result: ReadResult | None) -> None:
        """Complete the read and send its reply."""
        if self.answered is not None:
            self.answered.set()
            self.answered = None
        self._reads.answer(self, error, result)


class ConnectionReads:
    """See the module. ``start_task`` runs a function beside the connection unless that closes."""

    def __init__(
        self,
        context: RequestContext,
        replies: SendBuffer,
        total: ReplyBytes,
        held_reads: HeldReads,
        bulk_turns: BulkTurns,
        *,
        parked_max: int,
        refuse: Callable[[SegmentStoreError, Asked], None],
        close: Callable[[str], None],
        start_task: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._context = context
        self._replies = replies
        self._total = total
        self._held_reads = held_reads
        self._bulk_turns = bulk_turns
        self._parked_max = parked_max
        self._refuse = refuse
        self._close = close
        self._start_task = start_task
        self._parked: set[ReadInProgress] = set()
        self._held: set[ReadInProgress] = set()
        self._due: deque[ReadInProgress] = deque()
        self._answers_due = False
        self._finishes = False

    @property
    def has_room(self) -> bool:
        """Return whether a read that waited may be answered now, before others that were
        postponed."""
        return not self._due and self._replies.has_room

    def start(self, request: wire.ReadSegment) -> None:
        """Begin a read, and reply now if that is possible."""
        asked = -math.inf if self._finishes else trio.current_time()
        self._begin(ReadInProgress(self, request, asked))

    def finish(self) -> None:
        """Send the replies that are held, and forget the reads that wait for data. Later replies
        are not held."""
        self._finishes = True
        for read in list(self._held):
            assert read.held is not None
            read.held.answer()
        self._forget_parked()

    def forget(self) -> None:
        """Forget all reads: no more replies are sent."""
        for read in self._held:
            if read.held is not None:
                read.held.cancel()
        self._held.clear()
        self._due.clear()
        self._forget_parked()

    def _forget_parked(self) -> None:
        parked, self._parked = self._parked, set()
        for read in parked:
            if read.handle is not None:
                read.handle.cancel()

    def _begin(self, read: ReadInProgress) -> None:
        request = read.request
        try:
            container = self._context.container_for(request.segment)
        except SegmentStoreError as error:
            read.complete(error, None)
            return
        length_max = self._total.read_bytes_max
        read.handle = container.read_nowait(
            request.segment,
            offset=request.offset,
            length_max=min(length_max, max(READ_BYTES_MIN, request.suggested_length)),
            on_complete=read.complete,
            has_room=read.has_room,
        )
        if read.handle is not None:
            self._parked.add(read)
            if len(self._parked) > self._parked_max:
                self._close(f"more than {self._parked_max} reads are parked")

    def _postpone(self, read: ReadInProgress) -> None:
        """Postpone the reply to a read until there is room for it."""
        read.is_postponed = False
        self._due.append(read)
        if not self._answers_due:
            self._answers_due = True
            self._start_task(self._answer_due)

    async def _answer_due(self) -> None:
        """Begin the postponed reads again, one after the other."""
        while self._due:
            await self._replies.wait_until_short()
            answered = trio.Event()
            async with self._total.places:
                read = self._due.popleft()
                read.answered = answered
                self._begin(read)
            with trio.move_on_after(DUE_SECONDS):
                await answered.wait()
        self._answers_due = False

    def answer(
        self, read: ReadInProgress, error: SegmentStoreError | None, result: ReadResult | None
    ) -> None:
        """Reply to a read, now or when its request is old enough."""
        self._parked.discard(read)
        if read.is_postponed:
            self._postpone(read)
        elif self._held_reads.must_wait(result, read.asked) and len(self._held) < self._parked_max:
            self._hold(read, error)
        else:
            self._reply(read.request, error, result)

    def _hold(self, read: ReadInProgress, error: SegmentStoreError | None) -> None:
        """Hold a refusal, or a read that will have more by then."""

        def answer() -> None:
            read.held = None
            read.asked = -math.inf  # once, whatever its age is by the rounding of a clock
            self._held.discard(read)
            try:
                self._answer_held(read, error)
            # A defect must end this connection alone, not all whose reads are held.
            except Exception:
                logger.exception("read failed", segment=read.request.segment)
                self._close("internal error")

        self._held.add(read)
        read.held = self._held_reads.hold(read.asked, answer)

    def _answer_held(self, read: ReadInProgress, error: SegmentStoreError | None) -> None:
        if error is not None:
            self._reply(read.request, error, None)
        elif self.has_room or self._finishes:
            self._begin(read)
        else:
            self._postpone(read)

    def _reply(
        self,
        request: wire.ReadSegment,
        error: SegmentStoreError | None,
        result: ReadResult | None,
    ) -> None:
        """Reply to a read; its offset and segment are how the peer knows it again."""
        if error is not None:
            asked = Asked(request.request_id, request.segment, "readSegment", request.offset)
            self._refuse(error, asked)
            return
        assert result is not None
        data, at_tail, end_of_segment = result.data, result.at_tail, result.end_of_segment
        if data and not (result.is_last or at_tail):
            self._bulk_turns.reader_is_behind()
        # A view pins its whole block, so copy small replies.
        kept = data if isinstance(data, memoryview) and len(data) >= KEPT_BYTES_MIN else None
        reply = wire.SegmentRead(
            request.segment,
            request.offset,
            at_tail,
            end_of_segment,
            b"" if kept is not None else bytes(data),
            request.request_id,
        )
        if kept is None:
            self._replies.put(encode(reply))
            return
        head, tail = around_data(reply, len(kept))
        self._replies.put(head)
        self._replies.put(kept)
        self._replies.put(tail)
