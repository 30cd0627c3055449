"""The segment of a byte stream: which one it is, and the requests about it, without I/O.

Owns: ``ByteSegmentSteps``: the rule that a byte stream has one segment, and the errors of what is
refused. An operation is a generator, so that a client that blocks and an async one share it: it
yields what makes a request, gets the reply, and returns its result.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from pravega_wire import commands as wire
from pravega_wire.errors import TruncatedBytesError
from pravega_wire.names import scoped_name, segment_name
from pravega_wire.sessions.append_session import EVENT_BYTES_MAX
from pravega_wire.sessions.read_cursor import ByteCursor
from segstore_client.controller.controller_client import ControllerClient, CurrentSegments
from segstore_client.errors import (
    NotFoundError,
    PravegaError,
    StreamSealedError,
    TruncatedError,
    UsageError,
)
from segstore_client.inputs import to_end
from segstore_client.positions import End, Position
from segstore_client.steps.table_steps import Make

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PIECE_BYTES = EVENT_BYTES_MAX
"""Maximum number of bytes that are stored together."""
JOINED_BYTES_MAX = 4096
"""Maximum number of bytes of short writes that are sent as one piece."""

T = TypeVar("T")
Steps: TypeAlias = Generator[Make, wire.Reply, T]


class ByteSegmentSteps:
    """The only segment of a stream."""

    def __init__(
        self, controller: ControllerClient, scope: str, stream: str, *, patience: float
    ) -> None:
        self.name = scoped_name(scope, stream)
        self.number = 0
        """The segment's id, after ``find``."""
        self._controller = controller
        self._patient = controller.with_patience(patience)
        self._scope = scope
        self._stream = stream

    @property
    def segment_name(self) -> str:
        """Return the segment's name, after ``find``."""
        return segment_name(self._scope, self._stream, self.number)

    def locate(self) -> tuple[str, int]:
        """Return the address of the segment's store. This blocks."""
        return self._controller.segment_address(self._scope, self._stream, self.number)

    def find(self) -> CurrentSegments:
        """Ask the controller for the segment; return those that accept bytes now, one or none. This
        blocks.

        Raises ``UsageError`` if the stream has, or once had, another number of segments.
        """
        current = self._patient.current_segments(self._scope, self._stream)
        head = self._patient.head_segments(self._scope, self._stream)
        found = {*head.offsets, *(each.segment_id for each in current.ranges)}
        if len(found) != 1:
            raise UsageError(
                f"stream {self.name} has {len(found)} segments: a byte stream has one, and is never"
                " scaled"
            )
        (self.number,) = found
        return current

    def find_current(self) -> CurrentSegments:
        """Ask the controller which segments accept bytes now. This blocks."""
        return self._controller.current_segments(self._scope, self._stream)

    def seal(self) -> None:
        """Seal the stream. This blocks."""
        self._controller.seal_stream(self._scope, self._stream)

    def open_cursor(self, offset: int) -> ByteCursor:
        """Return a position in the segment."""
        return ByteCursor(self.number, self.segment_name, offset, None)

    def find_bounds(self) -> Steps[tuple[int, int]]:
        """Return the offset of the first byte that is left, and that behind the last one."""
        reply = yield wire.GetStreamSegmentInfo
        if not isinstance(reply, wire.StreamSegmentInfo):
            raise self._refusal(reply)
        return reply.start_offset, reply.write_offset

    def find_start(self, start: int | End) -> Steps[int]:
        """Return the offset at which a reader begins: this one, or that of an end of the stream."""
        if not isinstance(start, str):
            return start
        end = to_end(start)
        head, tail = yield from self.find_bounds()
        return head if end is Position.HEAD else tail

    def truncate_before(self, offset: int) -> Steps[None]:
        """Delete the bytes before an offset; if they are deleted already, nothing happens.

        Raises ``UsageError`` if the stream ends earlier.
        """
        reply = yield lambda request_id, name, token: wire.TruncateSegment(
            request_id, name, offset, token
        )
        if isinstance(reply, wire.SegmentIsTruncated):
            # It is the answer, too, if there are no such bytes yet.
            if reply.start_offset < offset:
                _, end = yield from self.find_bounds()
                raise UsageError(
                    f"{self.name} cannot be truncated before {offset}: it ends at {end}"
                )
        elif not isinstance(reply, wire.SegmentTruncated):
            raise self._refusal(reply)

    # ---- Errors ----------------------------------------------------------------------------------

    def ended(self, current: CurrentSegments) -> PravegaError:
        """Return the error of a writer whose segment takes no more bytes, by those that do."""
        if all(each.segment_id == self.number for each in current.ranges):
            return self.sealed()
        return UsageError(f"stream {self.name} was scaled: a byte stream never is")

    def sealed(self) -> StreamSealedError:
        """Return the error of a writer of a sealed stream."""
        return StreamSealedError(f"stream {self.name} is sealed")

    def gone(self) -> NotFoundError:
        """Return the error for a segment that the stores do not have."""
        return NotFoundError(f"stream {self.name} does not exist any more")

    def truncated(self, error: TruncatedBytesError) -> TruncatedError:
        """Return the error of a reader whose bytes were deleted."""
        found = TruncatedError(
            f"the bytes of {self.name} from {error.offset} on were truncated: it begins at"
            f" {error.head} now"
        )
        found.head = error.head
        return found

    def _refusal(self, reply: wire.Reply) -> PravegaError:
        """Return the error for a reply that is no answer."""
        if isinstance(reply, wire.NoSuchSegment):
            return self.gone()
        return PravegaError(f"the segment of {self.name} answers with {type(reply).__name__}")


class ReadPiece:
    """The piece of bytes that a reader has, and the offset of the next byte: in it, or at its end,
    where the next piece begins."""

    def __init__(self) -> None:
        self.offset = 0
        self._begin = 0
        self._data = b""

    @property
    def rest(self) -> bytes:
        """Return the bytes that are left; none at the end."""
        return self._data[self.offset - self._begin :]

    @property
    def is_used_up(self) -> bool:
        """Return whether the next piece is needed."""
        return self.offset - self._begin == len(self._data)

    def take(self, length_max: int) -> bytes:
        """Return the next bytes of the piece, at most so many, and move behind them."""
        start = self.offset - self._begin
        found = self._data[start : start + length_max]
        self.offset += len(found)
        return found

    def replace(self, data: bytes) -> None:
        """Take the piece that begins at the offset."""
        self._data, self._begin = data, self.offset

    def move(self, offset: int) -> bool:
        """Move to an offset; return whether it is outside of the piece, which is left then."""
        check_offset(offset)
        is_outside = not 0 <= offset - self._begin <= len(self._data)
        if is_outside:
            self._data, self._begin = b"", offset
        self.offset = offset
        return is_outside


def check_offset(offset: int) -> None:
    """Raise ``UsageError`` for what is no offset."""
    if offset < 0:
        raise UsageError(f"{offset} is not an offset: it is negative")


def split_pieces(data: ReadableBuffer) -> Iterator[bytes]:
    """Yield bytes in the pieces in which they are stored."""
    if isinstance(data, bytes) and len(data) <= PIECE_BYTES:
        yield data
        return
    with memoryview(data).cast("B") as view:
        for start in range(0, len(view), PIECE_BYTES):
            yield bytes(view[start : start + PIECE_BYTES])
