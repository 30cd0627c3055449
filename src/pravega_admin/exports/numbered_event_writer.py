"""Writes events that have numbers to a stream by their keys, each once, also by several processes.

Owns: which of a file's events a stream has, by the numbers of the last ones in its segments.

In each segment, and for each key over all segments, events are stored in the order of their
numbers. So an event is stored if a segment with its key, of now or of earlier, has one of its
number or of a later one.

Invariants:
1. When a process is killed and another one writes the same events, each is stored once, also if the
   stream was scaled meanwhile. Held by ``test_events_are_stored_once_through_scalings_and_kills``.
2. When segments are merged, the unstored events of all of them are stored in the order of their
   numbers. Held by ``test_merged_segments_give_their_events_in_order``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from pravega_admin.exports.numbered_writer import NumberedSession, number_of
from pravega_admin.exports.stream_plan import find_segments
from pravega_wire.commands import NULL_ATTRIBUTE_VALUE
from pravega_wire.names import segment_name
from pravega_wire.sessions.append_session import Event
from pravega_wire.sessions.routes import SegmentRange, Successor
from segstore_client.append_refusals import SegmentEndedError
from segstore_client.backoff import Patience
from segstore_client.blocking.event_writer import BlockingEventWriter
from segstore_client.blocking.segment_writer import SegmentWriter
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.delays import OnDelay


class NumberedEventWriter(BlockingEventWriter):
    """Writes events with numbers, which grow; see ``BlockingEventWriter``."""

    def __init__(
        self,
        controller: ControllerClient,
        scope: str,
        stream: str,
        *,
        writer_id: bytes,
        patience: float,
        on_delay: OnDelay | None = None,
    ) -> None:
        self._writer_id = writer_id
        super().__init__(controller, scope, stream, patience=patience, on_delay=on_delay)
        self._stored = StoredNumbers(
            find_stored_numbers(controller, scope, stream, writer_id, patience=patience)
        )

    def write_numbered(self, position: float, data: bytes, number: int) -> bool:
        """Add an event with the position of its key, unless it is stored; return whether it was
        not."""
        if number <= self._stored.last_at(position):
            return False
        self._prepare()
        writer = self._route(position)
        if writer.add((position, data, number)):
            self._drive(writer, drain=False)
        return True

    def _new_writer(self, segment: int) -> SegmentWriter:
        locate = partial(self._controller.segment_address, self._scope, self._stream, segment)
        return SegmentWriter(
            segment_name(self._scope, self._stream, segment),
            locate,
            session=NumberedSession(self._writer_id),
            access=self._access,
            on_delay=self._on_delay,
        )

    def _replace(self, ended: SegmentWriter) -> None:
        """Replace a segment that has ended, and those that the same scale replaces.

        What is unstored of all of them goes to the successors in the order of its numbers.
        """
        writers = self._segment_writers
        (first,) = (segment for segment, writer in writers.items() if writer is ended)
        successors: dict[int, Successor] = {}
        replaced, waiting = set[int](), {first}
        while waiting:
            segment = waiting.pop()
            replaced.add(segment)
            for each in self._ask_successors(segment):
                successors[each.range.segment_id] = each
                waiting |= (each.predecessors & writers.keys()) - replaced
        events: list[Event] = []
        for segment in replaced:
            events += self._end(writers[segment])
        if not successors:
            raise self._sealed(len(events))
        ranges = [each.range for each in successors.values()]
        self._hand_over(replaced, ranges, sorted(events, key=number_of))

    def _end(self, writer: SegmentWriter) -> list[Event]:
        """Return the events that a segment, which is being replaced, has not stored."""
        with suppress(SegmentEndedError):
            writer.drive(self._patience, drain=True)
        writer.disconnect()
        return writer.session.unacknowledged_events


class StoredNumbers:
    """The last stored number at each position of the key space."""

    def __init__(self, numbers: Mapping[SegmentRange, int]) -> None:
        bounds = sorted({bound for each in numbers for bound in (each.low, each.high)})
        self._bounds = bounds
        self._last = [NULL_ATTRIBUTE_VALUE] * (len(bounds) + 1)
        for each, number in numbers.items():
            for at in range(bisect_right(bounds, each.low), bisect_right(bounds, each.high)):
                self._last[at] = max(self._last[at], number)

    def last_at(self, position: float) -> int:
        """Return the number of the last stored event whose key has a position."""
        return self._last[bisect_right(self._bounds, position)]

    @property
    def last(self) -> int:
        """Return the number of the last stored event; the least int64 if none is stored."""
        return max(self._last)


def find_stored_numbers(
    controller: ControllerClient, scope: str, stream: str, writer_id: bytes, *, patience: float
) -> dict[SegmentRange, int]:
    """Return the number of a writer's last event in each segment of a stream, of those that have
    one."""
    access = controller.store_access(scope, stream, Purpose.WRITE)
    found = {}
    for segment, item in find_segments(controller, scope, stream).items():
        locate = partial(controller.segment_address, scope, stream, segment)
        name = segment_name(scope, stream, segment)
        writer = SegmentWriter(name, locate, session=NumberedSession(writer_id), access=access)
        try:
            writer.connect(Patience(patience))
        except SegmentEndedError:
            # A truncation has deleted it.
            continue
        finally:
            writer.disconnect()
        if writer.session.stored_number != NULL_ATTRIBUTE_VALUE:
            found[item] = writer.session.stored_number
    return found
