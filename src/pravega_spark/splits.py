"""Finds positions between two events where a long slice can be cut, reading little of it. Pure.

Owns: the guess at an event's start from a window of bytes.

An event has 8 bytes, four of them 0 and four its length, and then as many bytes as that. Each place
in the window that looks like such a header starts a chain from event to event. Chains from places
that are no headers end soon, or meet the real one at the next real header. So the longest chain is
the real one, and its last header in the window is an event's start.

This is a guess, because payloads may hold whole events. The read itself proves it: a task raises an
error unless its slice ends at the end of an event, and the first slice begins at the beginning of
one. A wrong cut makes a read fail, and never gives a wrong row.
"""

from __future__ import annotations

import re
import struct

HEADER_BYTES = 8
WINDOW_BYTES_MIN = 64 * 1024
WINDOW_BYTES_MAX = 16 * 1024 * 1024
"""Maximum length of a window, in bytes: an event that is written in one piece has 8 MiB at most."""
EVENT_BYTES_MAX = 1024 * 1024 * 1024
CHAIN_EVENTS_MIN = 8
CHAIN_LEAD = 4
"""Minimum lead of the real chain: it has so many times the events or the length of any other. Zeros
look like many empty events, and numbers like a long one."""

_ZEROS = re.compile(rb"(?=\0\0\0\0)")
_LENGTH = struct.Struct(">i")


def find_event_start(window: bytes) -> int | None:
    """Return the start of an event in a window of a segment's bytes; None if that is not clear."""
    size = len(window)
    places = [found.start() for found in _ZEROS.finditer(window)]
    chains: dict[int, tuple[int, int]] = {}  # by place: events up to the window's end, the last one
    for place in reversed(places):
        if place + HEADER_BYTES > size:
            continue
        (length,) = _LENGTH.unpack_from(window, place + 4)
        if not 0 <= length <= EVENT_BYTES_MAX:
            continue
        after = place + HEADER_BYTES + length
        if after + HEADER_BYTES > size:
            chains[place] = 1, place
        elif after in chains:
            count, last = chains[after]
            chains[place] = count + 1, last
    # By the last header: events of the longest chain to it, and how many bytes chains come from.
    events: dict[int, int] = {}
    spans: dict[int, int] = {}
    for place, (count, last) in chains.items():
        events[last] = max(count, events.get(last, 0))
        spans[last] = max(last - place, spans.get(last, 0))
    if not spans:
        return None
    best = max(spans, key=lambda last: spans[last] * events[last])
    is_clear = events[best] >= CHAIN_EVENTS_MIN and not any(
        CHAIN_LEAD * events[last] > events[best] and CHAIN_LEAD * spans[last] > spans[best]
        for last in spans
        if last != best
    )
    return best if is_clear else None
