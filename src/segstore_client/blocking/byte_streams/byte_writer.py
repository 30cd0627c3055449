"""Writes bytes to a byte stream, each once, through restarts: a raw file of Python.

Owns: the offset of the next byte. The way of the bytes is that of a ``SegmentWriter``.

Invariants:
1. When connections break at any moment, each byte is stored once, in order. Held by
   ``test_a_file_stores_its_bytes_once_however_connections_break``.
2. When a call of ``write`` has at most ``PIECE_BYTES`` bytes, those of other writers do not come
   between them. Held by ``test_the_bytes_of_one_write_to_a_file_stay_together``.
"""

from __future__ import annotations

import io
import os
from types import TracebackType
from typing import TYPE_CHECKING

from pravega_wire.names import scoped_name
from pravega_wire.sessions.append_session import AppendSession, Event
from segstore_client.append_refusals import SegmentEndedError
from segstore_client.backoff import Patience
from segstore_client.blocking.byte_streams.byte_segment import BlockingByteSegment
from segstore_client.blocking.segment_writer import SegmentWriter
from segstore_client.controller.controller_client import ControllerClient, Purpose
from segstore_client.delays import OnDelay
from segstore_client.errors import PravegaError
from segstore_client.steps.byte_segment_steps import (
    JOINED_BYTES_MAX,
    check_offset,
    split_pieces,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class BlockingByteWriter(io.RawIOBase):
    """Appends bytes to one byte stream. Use it in one thread, within a ``with`` block; leaving it
    without an error waits until all bytes are stored.
    """

    def __init__(
        self,
        controller: ControllerClient,
        scope: str,
        stream: str,
        *,
        patience: float,
        on_delay: OnDelay | None,
    ) -> None:
        super().__init__()
        self._name = scoped_name(scope, stream)
        # A file is also closed when it could not be opened.
        self._writer: SegmentWriter | None = None
        self._error: PravegaError | None = None
        access = controller.store_access(scope, stream, Purpose.WRITE)
        self._segment = BlockingByteSegment(
            controller, scope, stream, access=access, patience=patience
        )
        steps = self._segment.steps
        if not steps.find().ranges:
            raise steps.sealed()
        _, self._offset = self._segment.run(steps.find_bounds())
        self._patience = Patience(patience)
        self._session = AppendSession[Event](os.urandom(16), framed=False)
        self._writer = SegmentWriter(
            steps.segment_name,
            steps.locate,
            access=access,
            on_delay=on_delay,
            session=self._session,
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None and self._writer is not None:
            # Nobody waits for what was not stored.
            self._session.release()
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._name}>"

    def close(self) -> None:
        """Wait until all bytes are stored, and close the connection. Idempotent. Raises errors as
        ``write``."""
        if self.closed:
            return
        try:
            # It flushes.
            super().close()
        finally:
            if self._writer is not None:
                self._writer.disconnect()

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Append bytes; return their number when all of them are sent or wait to be: ``flush``
        waits until they are stored.

        Raises ``StreamSealedError`` when the stream has been sealed, and ``UnavailableError`` when
        servers are unreachable for too long; then bytes may be missing from some offset on.
        """
        self._check()
        begin = self._offset
        for piece in split_pieces(data):
            self._write_piece(piece)
        return self._offset - begin

    def flush(self) -> None:
        """Wait until all bytes are stored. Raises errors as ``write``."""
        self._check_open()
        if self._writer is None or self._session.is_idle:
            return
        self._check()
        self._drive(drain=True)

    def tell(self) -> int:
        """Return the offset of the next byte, if nobody else writes."""
        return self._offset

    def truncate_before(self, offset: int) -> None:
        """Delete the bytes before an offset, after all that was written is stored; if they are
        deleted already, nothing happens.

        Offsets of the other bytes stay the same. Raises ``UsageError`` if the stream ends earlier.
        """
        check_offset(offset)
        self._check()
        self.flush()
        self._segment.run(self._segment.steps.truncate_before(offset))

    def seal(self) -> None:
        """Seal the stream, after all that was written is stored: it accepts no more bytes, and its
        readers come to an end."""
        self._check()
        self.flush()
        self._segment.repeat(self._segment.steps.seal, "could not be sealed")
        self._error = self._segment.steps.sealed()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the file is closed")

    def _check(self) -> None:
        """Raise the error of the writer, if it has failed."""
        self._check_open()
        if self._error is not None:
            raise type(self._error)(*self._error.args) from self._error

    def _write_piece(self, piece: bytes) -> None:
        if piece and not self._session.extend(piece, JOINED_BYTES_MAX):
            assert self._writer is not None
            is_ready = self._writer.add((0.0, piece))
            self._offset += len(piece)
            if is_ready:
                self._drive(drain=False)
        else:
            self._offset += len(piece)

    def _drive(self, *, drain: bool) -> None:
        assert self._writer is not None
        try:
            self._writer.drive(self._patience, drain=drain)
        except SegmentEndedError:
            steps = self._segment.steps
            current = self._segment.repeat(steps.find_current, "could not be written to")
            self._fail(steps.ended(current))
        except PravegaError as error:
            self._fail(error)

    def _fail(self, error: PravegaError) -> None:
        """Note the error, by which each later call ends, and raise it."""
        self._error = error
        self._check()
