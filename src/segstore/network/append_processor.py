"""Appends of one connection: writers set up, appends queued, acknowledgements in order.

Owns: the state of each writer on this connection, and with it the exactly-once promise to writers.

Invariants:
1. Every append compares the writer's attribute with the number sent before it on this connection
   and sets it, atomically with its data: an append of another connection in between makes it fail.
2. The event numbers acknowledged to a writer chain: each acknowledgement names the one before it,
   the first one what ``AppendSetup`` said. None is sent for what is acknowledged already.
3. Replies to a writer's appends go out in the order of the appends; completions come in that order.
4. What a writer's acknowledgement has not been sent for yet goes into it when it is: one tells of
   all appends that became durable meanwhile. A conditional append has one of its own, for its
   client looks for its request id.
5. After a failure the writer's state goes when nothing of it is in flight any more; a failed check
   of the offset is no failure. An append without state closes the connection.
   A writer whose container has stopped is told so once, and what it sends until it is set up again
   is dropped: it may have been stored or not, and only the setup tells. The end of the connection
   would not make its client ask where the container is by now.
6. The writer's last event number is read when nothing queued before is in flight on the segment,
   whichever connection queued it.

``append`` runs for every append block: it allocates no task and no closure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from _fast.wire.appends import Acknowledgement
from pravega_wire import commands as wire
from pravega_wire.connection import Append
from pravega_wire.names import is_transient_segment
from segstore.api import SegmentContainer
from segstore.errors import (
    BadAttributeUpdateError,
    BadOffsetError,
    ContainerOfflineError,
    InvalidRequestError,
    SegmentSealedError,
    SegmentStoreError,
    WrongHostError,
)
from segstore.model.attributes import (
    EVENT_COUNT,
    NULL_ATTRIBUTE_VALUE,
    AttributeUpdate,
    AttributeUpdateType,
    SegmentType,
    is_core_attribute,
)
from segstore.network.outstanding_bytes import OutstandingBytes, Share
from segstore.network.replies import NO_OFFSET, Asked, refusal
from segstore.process.registry import ContainerRegistry

_REPLACE_IF_EQUALS: Final = AttributeUpdateType.REPLACE_IF_EQUALS
_ACCUMULATE: Final = AttributeUpdateType.ACCUMULATE
_new_tuple: Final = tuple.__new__
"""Makes a named tuple without a Python call, for every append."""

Send = Callable[[wire.Reply], None]
Close = Callable[[str], None]


class WriterState:
    """One writer of one segment on this connection."""

    __slots__ = (
        "_acknowledgement",
        "_processor",
        "container",
        "counts_events",
        "failed",
        "in_flight",
        "knows_of_stop",
        "last_acked",
        "last_stored",
        "on_complete",
        "request_id",
        "segment",
        "share",
        "writer_id",
    )

    def __init__(
        self,
        processor: AppendProcessor,
        container: SegmentContainer,
        request: wire.SetupAppend,
        last_event_number: int,
    ) -> None:
        self._processor = processor
        self._acknowledgement: Acknowledgement | None = None
        self.container = container
        self.segment = request.segment
        self.request_id = request.request_id
        self.share = processor.outstanding.share_of(request.segment)
        self.writer_id = request.writer_id
        # A transient segment is one event from the start, in however many pieces it comes.
        self.counts_events = not is_transient_segment(request.segment)
        self.last_stored = last_event_number
        self.last_acked = last_event_number
        self.in_flight: deque[Append] = deque()
        self.failed = False
        self.knows_of_stop = False
        self.on_complete = self._append_completed

    def _append_completed(self, error: SegmentStoreError | None, length: int) -> None:
        append = self.in_flight.popleft()
        processor = self._processor
        processor.outstanding.release(len(append.data), self.share)
        processor.in_flight_count -= 1
        if error is None:
            previous = self.last_acked
            event_number = append.last_event_number
            if previous < event_number:
                self.last_acked = event_number
                unsent = self._acknowledgement
                if (
                    unsent is None
                    or append.expected_offset is not None
                    or not unsent.extend(event_number, append.request_id, length)
                ):
                    reply = Acknowledgement(
                        self.writer_id, previous, event_number, append.request_id, length
                    )
                    processor.send_late(reply)
                    self._acknowledgement = reply if append.expected_offset is None else None
        else:
            self._refuse(append, error)
        if self.failed and not self.in_flight:
            processor.forget(self)
        processor.on_completed()

    def _refuse(self, append: Append, error: SegmentStoreError) -> None:
        self._acknowledgement = None
        processor = self._processor
        if append.expected_offset is not None and isinstance(error, BadOffsetError):
            if not self.in_flight:
                self.last_stored = self.last_acked
            processor.send(
                wire.ConditionalCheckFailed(
                    self.writer_id, append.last_event_number, append.request_id
                )
            )
        elif isinstance(error, ContainerOfflineError):
            # The client of a conditional append looks for its request id.
            if not self.knows_of_stop or append.expected_offset is not None:
                processor.tell_of_stop(self, append.request_id, error)
        else:
            self.failed = True
            processor.refuse(self, append, error)


class AppendProcessor:
    """See the module. The callables are the connection's; none may raise."""

    def __init__(
        self,
        registry: ContainerRegistry,
        outstanding: OutstandingBytes,
        *,
        send: Send,
        send_late: Callable[[Acknowledgement], None],
        close: Close,
        on_completed: Callable[[], None],
    ) -> None:
        self._registry = registry
        self._close = close
        self._writers: dict[bytes, WriterState] = {}
        self.outstanding = outstanding
        self.send = send
        self.send_late = send_late
        self.on_completed = on_completed
        self.in_flight_count = 0

    async def set_up(self, request: wire.SetupAppend) -> wire.Reply:
        """Prepare for appends of a writer; sealed segments are fine until the first append."""
        segment = request.segment
        await self._registry.wait_opened(segment)
        container = self._registry.container_for(segment)
        if container.segment_info(segment).segment_type & SegmentType.TABLE:
            raise InvalidRequestError(segment, "a table segment takes no appends")
        if is_core_attribute(request.writer_id):
            raise InvalidRequestError(segment, f"{request.writer_id.hex()} is no writer's id")
        await container.wait_in_flight(segment)
        values = await container.get_attributes(segment, [request.writer_id])
        last_event_number = values.get(request.writer_id, NULL_ATTRIBUTE_VALUE)
        # The decoder knows a writer by its id alone, so a state for another segment is dead.
        self._writers[request.writer_id] = WriterState(self, container, request, last_event_number)
        return wire.AppendSetup(request.request_id, segment, request.writer_id, last_event_number)

    def share_of(self, append: Append) -> Share:
        """Return the share of the container that an append is for."""
        state = self._writers.get(append.writer_id)
        if state is not None and state.segment == append.segment:
            return state.share
        # The writer was set up on another segment after the append came.
        return self.outstanding.share_of(append.segment)

    def append(self, append: Append) -> None:
        """Queue an append; its answer is sent when it is durable or refused."""
        state = self._writers.get(append.writer_id)
        event_number = append.last_event_number
        if state is None or state.segment != append.segment:
            self._close(f"append of writer {append.writer_id.hex()} without AppendSetup")
            return
        previous = state.last_stored
        if event_number < previous:
            self._close(f"event number {event_number} comes after {previous}")
            return
        data = append.data
        length = len(data)
        compare = _new_tuple(
            AttributeUpdate, (append.writer_id, _REPLACE_IF_EQUALS, event_number, previous)
        )
        if state.counts_events:
            count = _new_tuple(
                AttributeUpdate,
                (EVENT_COUNT, _ACCUMULATE, append.event_count, NULL_ATTRIBUTE_VALUE),
            )
            updates: tuple[AttributeUpdate, ...] = (compare, count)
        else:
            updates = (compare,)
        state.last_stored = event_number
        state.in_flight.append(append)
        self.outstanding.add(length, state.share)
        self.in_flight_count += 1
        state.container.append_nowait(
            append.segment,
            data,
            attribute_updates=updates,
            expected_offset=append.expected_offset,
            on_complete=state.on_complete,
        )

    def refuse(self, state: WriterState, append: Append, error: SegmentStoreError) -> None:
        """Send the refusal of a failed append, or close the connection when that is the answer."""
        if isinstance(error, BadAttributeUpdateError):
            self.send(
                wire.InvalidEventNumber(
                    state.writer_id, append.request_id, "", append.last_event_number
                )
            )
            self._close(f"writer {state.writer_id.hex()} appends on another connection too")
            return
        # Only a seal tells which event it refused.
        offset = append.last_event_number if isinstance(error, SegmentSealedError) else NO_OFFSET
        asked = Asked(append.request_id, state.segment, "appendBlock", offset)
        reply = refusal(error, asked)
        if reply is None:
            self._close(f"append failed: {error}")
        else:
            self.send(reply)

    def tell_of_stop(
        self, state: WriterState, request_id: int, error: ContainerOfflineError | WrongHostError
    ) -> None:
        """Make a writer ask where its segment is by now, and set itself up there."""
        state.knows_of_stop = True
        reply = refusal(error, Asked(request_id, state.segment, "appendBlock", NO_OFFSET))
        assert reply is not None
        self.send(reply)

    def tell_of_stops(self) -> None:
        """Tell the writers whose containers have stopped and that have not noticed."""
        for state in self._writers.values():
            try:
                self._registry.container_for(state.segment)
            except (ContainerOfflineError, WrongHostError) as error:
                if not state.knows_of_stop:
                    self.tell_of_stop(state, state.request_id, error)

    def detach(self) -> None:
        """Forget the connection, which has ended. What is in flight completes without it."""
        self.send = self.send_late = self._close = _ignore
        self.on_completed = _ignore_completion
        for state in self._writers.values():
            # The state's own method, which keeps it.
            del state.on_complete
        self._writers.clear()

    def forget(self, state: WriterState) -> None:
        """Drop a failed writer, unless it has been set up again meanwhile."""
        if self._writers.get(state.writer_id) is state:
            del self._writers[state.writer_id]


def _ignore(_: object) -> None:
    """Do nothing: the connection is closed, so no peer can be told."""


def _ignore_completion() -> None:
    """Do nothing: the connection is closed, so no peer waits."""
