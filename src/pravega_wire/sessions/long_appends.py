"""Appends an event that is too long for one append, without I/O: the requests, one by one.

Owns: the steps. The event goes to a segment of its own first, in pieces, as in the Java client;
that is merged into the writer's segment, on the condition that the writer's last event there is the
one before it. The merge counts the writer's number on, so the store's next answer to
``SetupAppend`` says whether the event is stored.

The segment of its own is deleted with the connection on which it was made, so all steps go over one
connection, and after a break they begin anew.

Invariants:
1. When the same event is appended again, because the answer to the merge was lost, the store
   refuses the second merge. Held by
   ``test_a_long_event_is_stored_once_however_connections_break``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from typing import TypeAlias

from pravega_wire import commands as wire
from pravega_wire.errors import RemoteProtocolError
from pravega_wire.event_framing import frame_header
from pravega_wire.sessions.append_session import Block, E

PIECE_BYTES = 8 * 1024 * 1024
"""Length, in bytes, of the appends of a long event."""
_REPLACE_IF_EQUALS = 4

Steps: TypeAlias = Generator[wire.Request, wire.Reply, None]
"""Yields a request, and takes its reply; ends when the event is stored."""


def append_long(
    segment: str,
    writer_id: bytes,
    block: Block[E],
    *,
    stored_number: int,
    token: str,
    next_request_id: Callable[[], int],
    refusal: Callable[[wire.Reply], Exception],
) -> Steps:
    """Yield the requests that append the event of a block to a segment.

    ``stored_number`` is the number of the writer's last event in the segment. Raises the
    ``refusal`` of a reply about the segment, and ``RemoteProtocolError`` for any other.
    """
    made = yield wire.CreateTransientSegment(next_request_id(), writer_id, segment, token)
    if not isinstance(made, wire.SegmentCreated):
        raise refusal(made)
    own = made.segment
    filler = os.urandom(16)
    ready = yield wire.SetupAppend(next_request_id(), filler, own, token)
    if not isinstance(ready, wire.AppendSetup):
        raise _unexpected(own, ready)
    offset = 0
    for number, piece in enumerate(_pieces(block.events[0][1])):
        reply = yield wire.ConditionalBlockEnd(filler, number, offset, piece, next_request_id())
        if not isinstance(reply, wire.DataAppended):
            raise _unexpected(own, reply)
        offset += len(piece)
    update = wire.AttributeUpdate(
        writer_id, _REPLACE_IF_EQUALS, block.last_event_number, stored_number
    )
    merged = yield wire.MergeSegments(next_request_id(), segment, own, token, (update,))
    if isinstance(merged, wire.NoSuchSegment) and merged.segment == own:
        raise RemoteProtocolError(f"segment {own} is gone")
    if not isinstance(merged, wire.SegmentsMerged):
        # The event may be stored: then the next connection tells so.
        raise refusal(merged)


def _pieces(data: bytes) -> Iterator[bytes]:
    """Yield an event with its header, in pieces."""
    header = frame_header(data)
    first = PIECE_BYTES - len(header)
    yield header + data[:first]
    for start in range(first, len(data), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]


def _unexpected(segment: str, reply: wire.Reply) -> RemoteProtocolError:
    return RemoteProtocolError(f"segment {segment} answers with {type(reply).__name__}")
