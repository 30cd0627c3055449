"""Reads the bytes of a byte stream, from any offset: a raw file of Python.

Owns: the piece from which the program takes bytes. The next one is requested when it is used up.

Invariants:
1. When connections break, the same bytes come out. Held by
   ``test_a_file_gives_its_bytes_once_however_connections_break``.
2. When bytes were truncated, a read raises ``TruncatedError`` with the new head; it never goes on
   at other bytes than those that were asked for. Held by
   ``test_truncated_bytes_of_a_file_are_told_with_the_new_head``.
3. When a read is interrupted, the next one returns the same bytes. Held by
   ``test_a_read_of_a_file_that_is_interrupted_loses_nothing``.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

from pravega_wire.errors import TruncatedBytesError
from pravega_wire.names import scoped_name
from pravega_wire.sessions.read_cursor import ByteCursor
from segstore_client.blocking.byte_streams.byte_segment import BlockingByteSegment
from segstore_client.blocking.segments.segment_reads import READ_BYTES, SegmentReads
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.errors import UsageError
from segstore_client.positions import End
from segstore_client.steps.byte_segment_steps import ReadPiece

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class BlockingByteReader(io.RawIOBase):
    """Reads one byte stream; a loop over it gives lines. Use it in one thread, within a ``with``
    block.

    ``io.BufferedReader`` and ``io.TextIOWrapper`` can be put around it. Each call that reads raises
    ``TruncatedError`` if the bytes were deleted, ``NotFoundError`` if the stream was, and
    ``UnavailableError`` when servers are unreachable for too long.
    """

    def __init__(
        self,
        controller: ControllerClient,
        scope: str,
        stream: str,
        *,
        offset: int | End,
        patience: float,
    ) -> None:
        super().__init__()
        self._name = scoped_name(scope, stream)
        self._scope, self._stream = scope, stream
        self._piece = ReadPiece()
        self._cursor: ByteCursor | None = None
        self._reads = SegmentReads[bytes](controller, patience=patience)
        self._access = controller.store_access(scope, stream, Purpose.READ)
        self._segment = BlockingByteSegment(
            controller, scope, stream, access=self._access, patience=patience
        )
        self._segment.steps.find()
        self.seek(self._segment.run(self._segment.steps.find_start(offset)))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._name}>"

    def close(self) -> None:
        """Close the connections. Idempotent."""
        if not self.closed:
            super().close()
            self._reads.close()

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes, at least one and at most ``size``; at the tail, as soon as there
        are some. ``b""`` is the end of a sealed stream.

        Without a size, or with None, return all bytes up to the end of a sealed stream, once it is
        sealed.
        """
        if size is None or size < 0:
            return self.readall()
        self._check_open()
        if size and self._piece.is_used_up:
            self._fill()
        return self._piece.take(size)

    def readall(self) -> bytes:
        """Return all bytes up to the end of a sealed stream, once it is sealed."""
        return b"".join(iter(lambda: self.read(READ_BYTES), b""))

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read into a buffer, as ``read`` does; return the number of bytes, 0 at the end."""
        with memoryview(buffer).cast("B") as view:
            data = self.read(len(view))
            view[: len(data)] = data
        return len(data)

    def peek(self, size: int = 0, /) -> bytes:
        """Return the next bytes without moving, as many as are there, at least one; ``b""`` at the
        end of a sealed stream."""
        self._check_open()
        if self._piece.is_used_up:
            self._fill()
        return self._piece.rest

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Continue at an offset, and return it: one from the beginning of the stream, from where
        the reader is, or from the tail. Behind the tail, ``read`` waits for bytes there.

        Raises ``UsageError`` for a negative one.
        """
        self._check_open()
        bases = {os.SEEK_SET: lambda: 0, os.SEEK_CUR: self.tell, os.SEEK_END: self.tail}
        if whence not in bases:
            raise UsageError(f"{whence} is none of SEEK_SET, SEEK_CUR and SEEK_END")
        if self._piece.move(bases[whence]() + offset):
            self._end_fetch()
        return self._piece.offset

    def tell(self) -> int:
        """Return the offset of the next byte."""
        return self._piece.offset

    def head(self) -> int:
        """Return the offset of the first byte that is left now."""
        self._check_open()
        return self._segment.run(self._segment.steps.find_bounds())[0]

    def tail(self) -> int:
        """Return the offset behind the last byte that is stored now."""
        self._check_open()
        return self._segment.run(self._segment.steps.find_bounds())[1]

    # ---- Pieces ----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the file is closed")

    def _fill(self) -> None:
        """Take the next piece; an empty one at the end."""
        try:
            self._piece.replace(self._fetch_piece())
        except BaseException:
            # The next call begins at the offset anew, also if this one was interrupted.
            self._end_fetch()
            raise

    def _fetch_piece(self) -> bytes:
        if self._cursor is None:
            self._cursor = self._segment.steps.open_cursor(self._piece.offset)
            self._reads.add(self._cursor, self._scope, self._stream, access=self._access)
        while not self._cursor.is_at_end:
            try:
                found = self._reads.receive(None)
            except TruncatedBytesError as error:
                raise self._segment.steps.truncated(error) from None
            if found:
                return b"".join(piece for _, pieces in found for piece in pieces)
        is_gone = self._cursor.is_gone
        self._end_fetch()
        if is_gone:
            raise self._segment.steps.gone()
        return b""

    def _end_fetch(self) -> None:
        if self._cursor is not None:
            self._reads.remove(self._cursor.name)
            self._cursor = None
