"""Reads the state that the readers of a reader group share.

Owns: ``StateReader``, and the bounds of this reading. Readers write the state, see
``pravega_wire.reader_groups.states``; a controller only shows it.

Invariants:
1. When a state is longer than ``STATE_BYTES_MAX``, or no state, the request is refused; a client
   that writes such a state harms no other request.
   Held by ``test_a_state_that_cannot_be_read_is_refused``.
2. When the state is compacted and truncated while it is read, it is read from its new beginning.
   Held by ``test_a_state_that_is_truncated_meanwhile_is_read_anew``.
3. When a state is read again, only what has come since is read.
   Held by ``test_a_state_is_read_on_from_where_it_was_read_to``.
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
from pravega_controller.store_client.segment_client import SegmentBounds, SegmentClient
from pravega_wire.errors import RemoteProtocolError
from pravega_wire.event_framing import iterate_event_spans
from pravega_wire.hashing import REVISION_MARK
from pravega_wire.reader_groups.states import GroupState

STATE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Maximum number of bytes between the last compaction of a state and its end. Readers compact a
state of more than 512 KiB, each time with a chance of 1 in 20."""
READ_BYTES: Final = 64 * 1024
"""Number of bytes after which other requests get a turn."""
READ_SECONDS_MAX: Final = 10.0
"""Maximum time, in seconds, for reading a state."""
ATTEMPTS_MAX: Final = 3


class StateReader:
    """Reads the state in a segment, any number of times, but one at a time."""

    def __init__(self, segments: SegmentClient, segment: str) -> None:
        self._segments = segments
        self._segment = segment
        self._state = GroupState()
        self._position: int | None = None
        """The offset up to which the state has the revisions; None before the first."""

    async def read(self) -> GroupState:
        """Return the state now; the next call changes it.

        Raises ``NotFoundError`` if there is no such segment, ``StoreUnavailableError`` when it
        takes too long, and ``IllegalStateError`` if the state is too long, or none.
        """
        with trio.move_on_after(READ_SECONDS_MAX):
            for attempt in range(ATTEMPTS_MAX):
                try:
                    return await self._read()
                except StoreAnswerError:
                    # A compaction may have truncated the segment since its bounds were asked for.
                    if attempt == ATTEMPTS_MAX - 1:
                        raise
                except RemoteProtocolError as error:
                    raise IllegalStateError(
                        f"{self._segment} has no state of a group: {error}"
                    ) from error
        raise StoreUnavailableError(f"{self._segment} was not read in {READ_SECONDS_MAX:g} s")

    async def _read(self) -> GroupState:
        info = await self._segments.segment_info(self._segment)
        if info is None:
            raise NotFoundError(f"there is no segment {self._segment}")
        offset, self._position = self._position, None
        # When much has come since, the last compaction may be nearer to the end.
        if offset is None or not info.start_offset <= offset >= info.length - READ_BYTES:
            self._state, offset = GroupState(), await self._find_begin(info)
        if info.length - offset > STATE_BYTES_MAX:
            raise IllegalStateError(
                f"the state in {self._segment} has {info.length - offset} bytes since its last"
                f" compaction, and at most {STATE_BYTES_MAX} are read"
            )
        left = b""
        while offset < info.length:
            length = min(READ_BYTES, info.length - offset)
            # A store may answer with more than it is asked for.
            data = await self._segments.read_segment(self._segment, offset=offset, length=length)
            left += data
            offset += len(data)
            done = 0
            for begin, done in iterate_event_spans(left):
                self._state.add(left[begin:done])
            left = left[done:]
        # A position is only kept when all before it was taken.
        self._position = offset - len(left)
        return self._state

    async def _find_begin(self, info: SegmentBounds) -> int:
        """Return the offset of the last compaction."""
        mark = await self._segments.get_attribute(self._segment, REVISION_MARK)
        begin = max(info.start_offset, mark)
        if begin > info.length:
            raise StoreAnswerError(f"{self._segment} was compacted meanwhile")
        return begin
