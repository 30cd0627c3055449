"""The reads of one connection, from the request to the reply.

Owns: the reads that wait for data; the *postponed* reads, which wait for room in the send buffer;
the *held* reads, whose replies wait as ``read_pacing`` describes; and the bytes of a reply to a
read.

Invariants:
1. When a connection ends while reads wait for data, the container keeps nothing of these reads.
   Held by ``test_parked_reads_go_with_their_connection``.
2. When data arrive for a waiting read while the send buffer has no room, no reply is made: the read
   is postponed. Postponed reads are begun again one at a time when the peer takes replies. Held by
   ``test_replies_to_parked_reads_are_made_when_the_peer_takes_them``.
3. When the peer has ended its sending, or the connection is drained, held replies are sent at once.
   Held by ``test_a_peer_that_has_ended_gets_what_was_held_at_once`` and
   ``test_draining_answers_what_is_held``.
4. While it is unknown whether another store owns the container by now, a missing segment is
   reported only after the container has confirmed that no other owner can have created it. Held by
   ``test_an_owner_in_doubt_answers_when_it_is_confirmed``. The bytes, the start and the end of a
   segment are sent at once, because no other owner can take them back. Held by
   ``test_an_owner_in_doubt_sends_bytes_without_a_confirmation``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import structlog
import trio

from _fast.metrics.recorders import now_ns
from pravega_metrics.store_metrics import READ_BYTES, READ_SECONDS
from pravega_wire import commands as wire
from pravega_wire.codec import encode
from segstore.api import ReadHandle, ReadResult, SegmentContainer
from segstore.errors import NoSuchSegmentError, SegmentStoreError
from segstore.network.admission.policy import Admission
from segstore.network.admission.read_pacing import HeldRead
from segstore.network.admission.send_buffer import SendBuffer
from segstore.network.handler_table import RequestContext
from segstore.network.replies import Asked, around_data

READ_BYTES_MIN: Final = 8
KEPT_BYTES_MIN: Final = 256 * 1024
"""Minimum length, in bytes, of a view of history that is sent without a copy. Shorter data are
copied: they are joined with other replies anyway, and a short view keeps a whole block in memory,
of which only the length of the view would count as unsent."""
DUE_SECONDS: Final = 1.0
"""Maximum time, in seconds, for which a postponed read delays the next one."""

_READ: Final = READ_SECONDS.of("no")
_WAITING_READ: Final = READ_SECONDS.of("yes")
_count_bytes: Final = READ_BYTES.of().add

logger = structlog.get_logger(__name__)


class ReadInProgress:
    """A read that may be answered later. ``answered``, if it is not None, is set when the read is
    answered."""

    __slots__ = (
        "_reads",
        "answered",
        "asked",
        "began",
        "container",
        "handle",
        "has_waited",
        "held",
        "is_postponed",
        "request",
    )

    def __init__(self, reads: ConnectionReads, request: wire.ReadSegment, asked: float) -> None:
        self._reads = reads
        self.request = request
        self.asked = asked
        self.began = now_ns()
        self.answered: trio.Event | None = None
        self.container: SegmentContainer | None = None
        self.handle: ReadHandle | None = None
        self.held: HeldRead | None = None
        self.has_waited = False
        self.is_postponed = False

    def has_room(self) -> bool:
        """Return whether a reply can be queued now; if not, mark the read as postponed."""
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
    """See the module. ``start_task`` runs a function in a task of the connection, unless the
    connection is closing."""

    def __init__(
        self,
        context: RequestContext,
        replies: SendBuffer,
        admission: Admission,
        *,
        refuse: Callable[[SegmentStoreError, Asked], None],
        close: Callable[[str], None],
        start_task: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._context = context
        self._replies = replies
        self._total = admission.buffers.replies
        self._held_reads = admission.held_reads
        self._bulk_turns = admission.bulk_turns
        self._parked_max = admission.settings.parked_reads_max
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
        """Return whether a read that waited for data may be answered now: no postponed read comes
        before it, and the send buffer has room."""
        return not self._due and self._replies.has_room

    def start(self, request: wire.ReadSegment) -> None:
        """Begin a read, and reply now if that is possible."""
        asked = -math.inf if self._finishes else trio.current_time()
        self._begin(ReadInProgress(self, request, asked))

    def finish(self) -> None:
        """Send the held replies, and cancel the reads that wait for data. Later replies are not
        held."""
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
        read.container = container
        length_max = self._total.read_bytes_max
        read.handle = container.read_nowait(
            request.segment,
            offset=request.offset,
            length_max=min(length_max, max(READ_BYTES_MIN, request.suggested_length)),
            on_complete=read.complete,
            has_room=read.has_room,
        )
        if read.handle is not None:
            read.has_waited = True
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
            self._reply(read, error, result)

    async def _refuse_when_sure(
        self, container: SegmentContainer, error: SegmentStoreError, asked: Asked
    ) -> None:
        """Refuse the read of a missing segment, after the container has confirmed that no other
        owner can have created the segment."""
        try:
            await container.confirm_answer()
        except SegmentStoreError as lost:
            error = lost
        self._refuse(error, asked)

    def _hold(self, read: ReadInProgress, error: SegmentStoreError | None) -> None:
        """Hold a reply. A refusal is sent unchanged; a read is begun again, and may have more data
        by then."""

        def answer() -> None:
            read.held = None
            read.asked = -math.inf  # held only once, even if rounding makes it too young again
            self._held.discard(read)
            try:
                self._answer_held(read, error)
            # A defect must end only this connection, not all connections that have held reads.
            except Exception:
                logger.exception("read failed", segment=read.request.segment)
                self._close("internal error")

        self._held.add(read)
        read.held = self._held_reads.hold(read.asked, answer)

    def _answer_held(self, read: ReadInProgress, error: SegmentStoreError | None) -> None:
        if error is not None:
            self._reply(read, error, None)
        elif self.has_room or self._finishes:
            self._begin(read)
        else:
            self._postpone(read)

    def _reply(
        self,
        read: ReadInProgress,
        error: SegmentStoreError | None,
        result: ReadResult | None,
    ) -> None:
        """Reply to a read. The peer recognizes the reply by its segment and offset."""
        request, container = read.request, read.container
        if error is not None:
            asked = Asked(request.request_id, request.segment, "readSegment", request.offset)
            is_sure = container is None or container.may_answer
            if is_sure or not isinstance(error, NoSuchSegmentError):
                self._refuse(error, asked)
            else:
                assert container is not None
                self._start_task(partial(self._refuse_when_sure, container, error, asked))
            return
        assert result is not None
        data, at_tail, end_of_segment = result.data, result.at_tail, result.end_of_segment
        (_WAITING_READ if read.has_waited else _READ).record_since(read.began)
        _count_bytes(len(data))
        if data and not (result.is_last or at_tail):
            self._bulk_turns.reader_is_behind()
        # A short view would keep its whole block in memory, so it is copied.
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
