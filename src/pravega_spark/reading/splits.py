"""Finds positions between two events at which a long slice can be cut, from few of its bytes.

Owns: the guess at an event's start from a window of bytes. The functions are pure.

An event is a header and its bytes; the header has four zero bytes, and four bytes with the length
of the event. Each place in the window that looks like a header begins a chain: the length leads to
the next place. A chain from a place that is no header soon leads to bytes that do not look like a
header, or to a real header. So the longest chain consists of real headers, and the last one in the
window is an event's start.

This is a guess, because the bytes of an event may contain whole events. Reading the slice checks
it: the first slice begins at the start of an event, and a task raises an error unless its slice
ends at the end of an event. So a wrong cut makes a read fail, and never returns a wrong row.
"""

from __future__ import annotations

import re
import struct

HEADER_BYTES = 8
WINDOW_BYTES_MIN = 64 * 1024
WINDOW_BYTES_MAX = 16 * 1024 * 1024
"""Maximum length of a window, in bytes. An event of a usual client has at most 8 MiB, so that a
window contains a header."""
EVENT_BYTES_MAX = 1024 * 1024 * 1024
CHAIN_EVENTS_MIN = 8
CHAIN_LEAD = 4
"""Minimum lead of the best chain: its number of events or its length is this many times that of
each other chain. Both are compared, because zero bytes look like many empty events, and a number in
an event may look like the header of a long one."""

_ZEROS = re.compile(rb"(?=\0\0\0\0)")
_LENGTH = struct.Struct(">i")


def find_event_start(window: bytes) -> int | None:
    """Return the start of an event in a window of a segment's bytes; None if it is uncertain."""
    size = len(window)
    places = [found.start() for found in _ZEROS.finditer(window)]
    chains: dict[int, tuple[int, int]] = {}  # place -> number of events from it on, last header
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
    # For each last header of chains of events: the most events of such a chain, and the length of
    # the longest.
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
