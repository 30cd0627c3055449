"""Shares the segments of a group among its readers: who takes some, and who gives one up.

Owns: the rule by which a reader that has more than its share gives one up, and one that has less
takes some. All readers follow the same rule, those of the official clients too, so shares become
equal, whichever reader decides first.

A reader's load is the number of its segments, weighted by its distance from the tail: the reader
that is farthest from it counts each of its segments as 1.

Example: r1 has five segments, r2 has two, both at the tail; nothing is unassigned. r1's load of 5
is more than r2's of 2 and one more segment, so r1 gives one up; r2 takes it. At 4 and 3 it ends.

Invariants:
1. When each reader does in turn what these functions say, no reader has two segments more than
   another in the end. Held by ``test_shares_become_equal``.
"""

from __future__ import annotations

from pravega_wire.reader_groups.states import DISTANCE_MS_MIN, DISTANCE_UNKNOWN, GroupState


def find_loads(state: GroupState) -> dict[str, float]:
    """Return the load of each reader."""
    distances = {
        reader: max(DISTANCE_MS_MIN, state.distances.get(reader, DISTANCE_MS_MIN))
        for reader, segments in state.assigned.items()
        if segments
    }
    farthest = max(distances.values(), default=DISTANCE_MS_MIN)
    return {
        reader: len(segments) * distances.get(reader, 0) / farthest
        for reader, segments in state.assigned.items()
    }


def rank_reader(state: GroupState, reader: str) -> int:
    """Return the place of a reader among all, from 0 for the one with the greatest load."""
    loads = find_loads(state)
    return sorted(loads, key=lambda each: (-loads[each], each)).index(reader)


def count_acquirable(state: GroupState, reader: str) -> int:
    """Return how many of the unassigned segments a reader takes at once: at least one if any."""
    unassigned, readers = len(state.unassigned), len(state.assigned)
    if not unassigned or not readers:
        return 0
    # Halves are rounded up, as the official clients round them.
    share = int(state.segment_count / readers + 0.5) - len(state.assigned[reader])
    return max(unassigned // readers, min(unassigned, share), 1)


def has_too_many(state: GroupState, reader: str) -> bool:
    """Return whether a reader has more than a segment more than the one with the least."""
    if len(state.assigned.get(reader, ())) <= 1:
        return False
    loads = find_loads(state)
    return loads[reader] > min(loads.values()) + max(1, len(state.unassigned))


def estimate_distance(state: GroupState, reader: str) -> int:
    """Return the distance that a reader tells: the greatest that another reader has told.

    The official clients tell nanoseconds of their machine's clock once they have read an event, and
    the least distance before. Equal distances make all segments count alike.
    """
    others = [
        distance
        for each, distance in state.distances.items()
        if each != reader and state.assigned.get(each) and distance != DISTANCE_UNKNOWN
    ]
    return max([DISTANCE_MS_MIN, *others])
