"""Appends events that have numbers to one segment, each once, also when another process goes on.

Owns: ``NumberedSession``, by which a ``SegmentWriter`` does so.

The writer's id and the numbers come from the file that is imported, so each process that imports
it is the same writer to the store. The store knows the number of the last event that a segment has
of this writer. Events up to that number are stored, and are not sent.

Invariants:
1. When a process is killed at any moment and another one writes the same events, each is stored
   once, in the order of its number. Held by
   ``test_another_process_goes_on_after_the_last_stored_event``.
2. When two processes write the same events at the same time, each event is stored once. Held by
   ``test_two_processes_with_the_same_events_store_each_once``.
3. When the connection breaks before or after a long event is merged, it is stored once. Held by
   ``test_a_long_event_is_stored_once_however_connections_break``.
"""

from __future__ import annotations

from collections.abc import Sequence

from pravega_wire.sessions.append_session import AppendSession, Block, Event


class NumberedSession(AppendSession[Event]):
    """Events, each ``(position, data, number)``, for one segment. Numbers grow."""

    def __init__(self, writer_id: bytes) -> None:
        super().__init__(writer_id, takes_long=True)

    def add(self, event: Event) -> bool:
        """Add an event to the batch, unless it is stored; return whether to send the batch."""
        return number_of(event) > self.stored_number and super().add(event)

    def resume(self, event_number: int) -> list[Block[Event]]:
        """Forget the events that are stored, and put the others into the batch again.

        Another process may have sent the same events in other blocks, so the last stored event may
        be in the middle of one.
        """
        self.acknowledge(event_number)
        waiting = self.release()
        for event in waiting:
            # What is stored is not added.
            self.add(event)
        self.acknowledged_events += len(waiting) - len(self.unacknowledged_events)
        return []

    def number_after(self, events: tuple[Event, ...]) -> int:
        return number_of(events[-1])


def number_of(event: Event) -> int:
    """Return the number of an event that has one."""
    numbered: Sequence[float | bytes | int] = event
    number = numbered[2]
    assert isinstance(number, int)
    return number
