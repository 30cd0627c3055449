"""Keeps the order of requests of one connection that are about the same segment.

Owns: ``RequestLanes``, which starts each request when it may run. A *lane* has the requests about
one segment. An *exclusive* request runs alone in its lanes; other requests run side by side.

Invariants:
1. While an exclusive request waits or runs, later requests about its segments wait for it. It waits
   for all earlier requests about its segments. Held by
   ``test_an_exclusive_request_waits_for_all_before_it_and_holds_up_all_behind_it``.
2. When no exclusive request is before it, a request that is not exclusive starts at once. Held by
   ``test_shared_requests_of_a_segment_run_side_by_side``. Requests about different segments never
   wait for each other. Held by ``test_requests_of_different_segments_run_side_by_side``.
3. When requests are about several segments, their waits cannot form a cycle: a request enters all
   its lanes at once. Held by ``test_conflicting_requests_never_overlap_and_all_start_in_order``.
4. When no request is left in a lane, the lane is deleted. Held by
   ``test_a_request_that_is_done_at_once_makes_room_at_once``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Ticket:
    """A request's place in its lanes. Pass it to ``RequestLanes.leave`` when that is done."""

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
        """The lanes that are in use. The connection looks whether there are any."""

    def is_held_up(self, segment: str) -> bool:
        """Return whether a request about the segment that is not exclusive would have to wait."""
        lane = self.by_segment.get(segment)
        return lane is not None and (lane.active_exclusive or bool(lane.waiting))

    def enter(
        self, segments: tuple[str, ...], start: Callable[[Ticket], None], *, exclusive: bool
    ) -> None:
        """Queue a request, and start it if no earlier request makes it wait."""
        ticket = Ticket(tuple(dict.fromkeys(segments)), start, exclusive=exclusive)
        for segment in ticket.segments:
            lane = self.by_segment.get(segment)
            if lane is None:
                lane = self.by_segment[segment] = _Lane()
            lane.waiting.append(ticket)
        for segment in ticket.segments:
            self._admit(segment)

    def leave(self, ticket: Ticket) -> None:
        """End a request, and start those that waited only for it."""
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
                # ``start`` may have ended the request, which deletes the lane.
                lane = self.by_segment.get(segment)
        if lane is not None and not lane.active_count and not lane.waiting:
            del self.by_segment[segment]
