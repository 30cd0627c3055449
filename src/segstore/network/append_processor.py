"""Handles the appends of one connection: setups of writers, the queue, acknowledgements.

Owns: the state of each writer on this connection, and with it the exactly-once guarantee.

Invariants:
1. When another connection has appended for the same writer in between, an append is refused: it
   compares the writer's attribute with the event number that this connection sent before, and sets
   it, atomically with its data. Held by ``test_an_append_of_a_superseded_connection_is_refused``.
2. Each acknowledgement names the event number of the one before it. Held by
   ``test_acks_chain_and_echo_the_request_id_of_their_append``. The first one names the number in
   ``AppendSetup``. Held by ``test_the_first_ack_names_the_number_of_the_setup``. When a number was
   acknowledged, it is not acknowledged again. Held by
   ``test_the_same_event_number_again_is_stored_and_not_acknowledged_twice``.
3. Replies to the appends of a writer are sent in the order of the appends. Held by
   ``test_a_seal_is_told_with_the_event_number_after_all_earlier_acks``.
4. When several appends of a writer become durable before an acknowledgement is sent, it covers all
   of them. Held by ``test_one_ack_tells_of_all_appends_that_became_durable_before_it_left``. A
   conditional append has its own acknowledgement, because its client waits for its request id. Held
   by ``test_a_conditional_append_has_an_ack_of_its_own``.
5. When an append fails, the writer's state is removed as soon as none of its appends is in flight,
   and a later append without a new setup closes the connection. Held by
   ``test_a_writer_is_gone_after_a_refusal_until_it_is_set_up_again``. When only the check of the
   offset fails, the state stays. Held by
   ``test_a_failed_offset_check_leaves_writer_and_connection_alone``.
6. When the container of a writer stops, the writer is told so once, and its appends are dropped
   until it is set up again: only the setup tells which of them were stored. The connection stays
   open, because after its end the client would come back to the same store. Held by
   ``test_writers_of_a_container_that_stops_are_told_once_where_it_is_not``.
7. When a writer is set up, its last event number is read only after all appends to the segment that
   are in flight, of any connection. Held by
   ``test_a_setup_waits_for_what_an_earlier_connection_has_in_flight``.

The decoder checks what the bytes alone show: the writer has asked for a setup, the append is
complete, and its event number is not below the one before. This module checks what the store knows:
the setup is done, and the event number is not below the stored one.

``append`` runs for every append block, so it creates neither a task nor a closure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from _fast.wire.appends import Acknowledgement, AppendMeter
from pravega_metrics.store_metrics import APPEND_BYTES, APPEND_EVENTS, APPEND_SECONDS, REFUSALS
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
from segstore.network.admission.outstanding_requests import OutstandingRequests
from segstore.network.replies import NO_OFFSET, Asked, refusal
from segstore.process.registry import ContainerRegistry

_REPLACE_IF_EQUALS: Final = AttributeUpdateType.REPLACE_IF_EQUALS
_ACCUMULATE: Final = AttributeUpdateType.ACCUMULATE
_record_append: Final = AppendMeter(
    APPEND_SECONDS.of(), APPEND_BYTES.of(), APPEND_EVENTS.of()
).record
_new_tuple: Final = tuple.__new__
"""Makes a named tuple without running Python code. Every append makes one or two."""

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
        # A transient segment counts as one event from its creation, whatever the number of its
        # pieces.
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
        processor.outstanding.append_count -= 1
        processor.outstanding.release(len(append.data), self.share)
        if error is None:
            _record_append(append)
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

    def _refuse(self, append: Append, error: SegmentStoreError) -> None:
        REFUSALS.of(type(error).__name__).add(1)
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
            # The client of a conditional append waits for a reply with its request id.
            if not self.knows_of_stop or append.expected_offset is not None:
                processor.tell_of_stop(self, append.request_id, error)
        else:
            self.failed = True
            processor.refuse(self, append, error)


class AppendProcessor:
    """See the module. The connection passes the callables; none may raise."""

    def __init__(
        self,
        registry: ContainerRegistry,
        outstanding: OutstandingRequests,
        *,
        send: Send,
        send_late: Callable[[Acknowledgement], None],
        close: Close,
    ) -> None:
        self._registry = registry
        self._close = close
        self._writers: dict[bytes, WriterState] = {}
        self.outstanding = outstanding
        self.send = send
        self.send_late = send_late

    async def set_up(self, request: wire.SetupAppend) -> wire.Reply:
        """Prepare for appends of a writer. A sealed segment is no error here; its first append is
        refused."""
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
        # The decoder finds a writer by its id alone, so the state for another segment is not used
        # any more.
        self._writers[request.writer_id] = WriterState(self, container, request, last_event_number)
        return wire.AppendSetup(request.request_id, segment, request.writer_id, last_event_number)

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
        self.outstanding.append_count += 1
        self.outstanding.add(length, state.share)
        state.container.append_nowait(
            append.segment,
            data,
            attribute_updates=updates,
            expected_offset=append.expected_offset,
            on_complete=state.on_complete,
        )

    def refuse(self, state: WriterState, append: Append, error: SegmentStoreError) -> None:
        """Send the refusal of a failed append. Close the connection if the error has no reply."""
        if isinstance(error, BadAttributeUpdateError):
            self.send(
                wire.InvalidEventNumber(
                    state.writer_id, append.request_id, "", append.last_event_number
                )
            )
            self._close(f"writer {state.writer_id.hex()} appends on another connection too")
            return
        # Only the refusal of a sealed segment names the refused event.
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
        """Tell a writer that its container has stopped, so that it asks where the segment is and
        sets itself up there."""
        state.knows_of_stop = True
        reply = refusal(error, Asked(request_id, state.segment, "appendBlock", NO_OFFSET))
        assert reply is not None
        self.send(reply)

    def tell_of_stops(self) -> None:
        """Tell all writers whose containers have stopped, except those that were told before."""
        for state in self._writers.values():
            try:
                self._registry.container_for(state.segment)
            except (ContainerOfflineError, WrongHostError) as error:
                if not state.knows_of_stop:
                    self.tell_of_stop(state, state.request_id, error)

    def detach(self) -> None:
        """Drop the references to the connection, which has ended. Appends in flight complete
        without it."""
        self.send = self.send_late = self._close = _ignore
        for state in self._writers.values():
            # The callback is a method of the state, and would keep the state in memory.
            del state.on_complete
        self._writers.clear()

    def forget(self, state: WriterState) -> None:
        """Drop a failed writer, unless it has been set up again meanwhile."""
        if self._writers.get(state.writer_id) is state:
            del self._writers[state.writer_id]


def _ignore(_: object) -> None:
    """Do nothing: the connection is closed, so no peer can be told."""
