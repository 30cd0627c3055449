"""The order among requests of one connection that are about the same segment.

Owns: who may start when. Requests about different segments never wait for each other.

Invariants:
1. A request starts when every *exclusive* request before it that shares a segment with it is done;
   an exclusive one also when every other request before it that shares a segment is done.
2. A request about several segments enters all their lanes at once, so waits cannot form a cycle.
3. A lane exists only while a request is in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Ticket:
    """A request's place in its lanes. Give it back to ``RequestLanes.leave`` when it is done."""

    __slots__ = ("exclusive", "missing", "segments", "start")

    def __init__(
        self, segments: tuple[str, ...], start: Callable[[Ticket], None], *, exclusive: bool
    ) -> None:
        self.segments = segments
        self.start = start
        self.exclusive = exclusive
        self.missing = len(segments)


class _Lane:
    __slots__ = ("active_count", "active_exclusive", "waiting")

    def __init__(self) -> None:
        self.active_count = 0
        self.active_exclusive = False
        self.waiting: deque[Ticket] = deque()

    def admits(self, ticket: Ticket) -> bool:
        return not self.active_exclusive and not (ticket.exclusive and self.active_count)


class RequestLanes:
    """See the module. ``start`` is called once, from ``enter`` or from the ``leave`` of another
    request."""

    def __init__(self) -> None:
        self.by_segment: dict[str, _Lane] = {}
        """The lanes that are in use, for other parts to look at."""

    def is_held_up(self, segment: str) -> bool:
        """Return whether a request about the segment that shares nothing would have to wait now."""
        lane = self.by_segment.get(segment)
        return lane is not None and (lane.active_exclusive or bool(lane.waiting))

    def enter(
        self, segments: tuple[str, ...], start: Callable[[Ticket], None], *, exclusive: bool
    ) -> None:
        """Queue a request, and start it if nothing before it is in the way."""
        ticket = Ticket(tuple(dict.fromkeys(segments)), start, exclusive=exclusive)
        for segment in ticket.segments:
            lane = self.by_segment.get(segment)
            if lane is None:
                lane = self.by_segment[segment] = _Lane()
            lane.waiting.append(ticket)
        for segment in ticket.segments:
            self._admit(segment)

    def leave(self, ticket: Ticket) -> None:
        """End a request, and admit those that waited for it."""
        for segment in ticket.segments:
            lane = self.by_segment[segment]
            lane.active_count -= 1
            lane.active_exclusive = False
        for segment in ticket.segments:
            self._admit(segment)

    def _admit(self, segment: str) -> None:
        lane = self.by_segment.get(segment)
        while lane is not None and lane.waiting and lane.admits(lane.waiting[0]):
            ticket = lane.waiting.popleft()
            lane.active_count += 1
            lane.active_exclusive = ticket.exclusive
            ticket.missing -= 1
            if not ticket.missing:
                ticket.start(ticket)
                # The request may have ended at its start, and the lane with it.
                lane = self.by_segment.get(segment)
        if lane is not None and not lane.active_count and not lane.waiting:
            del self.by_segment[segment]
