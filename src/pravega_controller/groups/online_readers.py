"""Reads which readers of a reader group are online, from the state that the readers share.

Owns: the bounds of this reading. Readers write the state, see ``pravega_wire.reader_group_states``;
a controller has no other use for it.

Invariants:
1. When a state is longer than ``STATE_BYTES_MAX``, or no state, the request is refused; a client
   that writes such a state harms no other request.
   Held by ``test_a_state_that_cannot_be_read_is_refused``.
2. When the state is compacted and truncated while it is read, it is read from its new beginning.
   Held by ``test_a_state_that_is_truncated_meanwhile_is_read_anew``.
"""

from __future__ import annotations

from typing import Final

import trio

from pravega_controller.errors import (
    IllegalStateError,
    NotFoundError,
    StoreAnswerError,
    StoreUnavailableError,
)
from pravega_controller.store_client.segment_client import SegmentClient
from pravega_wire.errors import RemoteProtocolError
from pravega_wire.event_framing import iterate_event_spans
from pravega_wire.hashing import REVISION_MARK
from pravega_wire.reader_group_states import GroupState

STATE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Maximum number of bytes between the last compaction of a state and its end. Readers compact a
state of more than 512 KiB, each time with a chance of 1 in 20."""
READ_BYTES: Final = 64 * 1024
"""Number of bytes after which other requests get a turn."""
READ_SECONDS_MAX: Final = 10.0
"""Maximum time, in seconds, for reading a state."""
ATTEMPTS_MAX: Final = 3


async def find_online_readers(segments: SegmentClient, segment: str) -> list[str]:
    """Return the names of the readers that are online, in order.

    ``segment`` has the state. Raises ``NotFoundError`` if there is no such segment,
    ``StoreUnavailableError`` when it takes too long, and ``IllegalStateError`` if the state is too
    long, or none.
    """
    with trio.move_on_after(READ_SECONDS_MAX):
        for attempt in range(ATTEMPTS_MAX):
            try:
                return await _read(segments, segment)
            except StoreAnswerError:
                # A compaction may have truncated the segment since its bounds were asked for.
                if attempt == ATTEMPTS_MAX - 1:
                    raise
            except RemoteProtocolError as error:
                raise IllegalStateError(f"{segment} has no state of a group: {error}") from error
    raise StoreUnavailableError(f"{segment} was not read in {READ_SECONDS_MAX:g} s")


async def _read(segments: SegmentClient, segment: str) -> list[str]:
    info = await segments.segment_info(segment)
    if info is None:
        raise NotFoundError(f"there is no segment {segment}")
    offset = max(info.start_offset, await segments.get_attribute(segment, REVISION_MARK))
    if offset > info.length:
        raise StoreAnswerError(f"{segment} was compacted meanwhile")
    if info.length - offset > STATE_BYTES_MAX:
        raise IllegalStateError(
            f"the state in {segment} has {info.length - offset} bytes since its last compaction,"
            f" and at most {STATE_BYTES_MAX} are read"
        )
    state, left = GroupState(), b""
    while offset < info.length:
        length = min(READ_BYTES, info.length - offset)
        # A store may answer with more than it is asked for.
        data = await segments.read_segment(segment, offset=offset, length=length)
        left += data
        offset += len(data)
        done = 0
        for begin, done in iterate_event_spans(left):
            state.add(left[begin:done])
        left = left[done:]
    return state.readers
