"""Writes bytes to a byte stream, each once, through restarts, without blocking.

Owns: the pieces in which bytes are sent, and the offset of the next one.

Invariants:
1. When connections break at any moment, each byte is stored once, in order. Held by
   ``test_bytes_are_stored_once_in_order_however_connections_break``.
2. When a call of ``write`` has at most ``PIECE_BYTES`` bytes, those of other writers do not come
   between them. Held by ``test_the_bytes_of_one_write_stay_together``.
"""

from __future__ import annotations

import os
from typing import Self

import anyio.lowlevel

from pravega_wire.sessions.append_session import AppendSession
from segstore_client.backoff import Patience
from segstore_client.byte_streams.byte_segment import ByteSegment
from segstore_client.connections.calls import call_blocking, repeat_calls
from segstore_client.connections.request_pool import RequestPool
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.delays import OnDelay
from segstore_client.steps.byte_segment_steps import (
    JOINED_BYTES_MAX,
    check_offset,
    split_pieces,
)
from segstore_client.writing.buffered_writer import BufferedWriter
from segstore_client.writing.segment_pump import Event, SegmentPump

_POSITION = 0.0
"""The only segment has each position of the key space."""


class ByteWriter(BufferedWriter):
    """Appends bytes to one byte stream. Use it in an ``async with`` block; leaving it without an
    error waits until all bytes are stored.

    ``Store.byte_writer`` makes it. One task writes at a time.
    """

    def __init__(
        self,
        controller: ControllerClient,
        pool: RequestPool,
        scope: str,
        stream: str,
        *,
        patience: float,
        buffer_bytes: int,
        on_delay: OnDelay | None,
    ) -> None:
        super().__init__(
            controller,
            scope,
            stream,
            patience=patience,
            buffer_bytes=buffer_bytes,
            on_delay=on_delay,
        )
        self._segment = ByteSegment(
            controller, pool, scope, stream, access=self._access, patience=patience
        )
        self._offset = 0
        self._is_sealed = False

    async def __aenter__(self) -> Self:
        steps = self._segment.steps
        current = await call_blocking(steps.find)
        if not current.ranges:
            raise steps.sealed()
        _, self._offset = await self._segment.run(steps.find_bounds())
        await self._start(current.ranges)
        return self

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes; return when the buffer has room for them: ``flush`` waits until they are
        stored.

        Raises ``StreamSealedError`` when the stream has been sealed, and ``UnavailableError`` when
        servers are unreachable for too long; then bytes may be missing from some offset on. When it
        is cancelled, ``tell`` says how many bytes were taken.
        """
        self._raise_error()
        await anyio.lowlevel.checkpoint_if_cancelled()
        for piece in split_pieces(data):
            await self._write_piece(piece)

    def tell(self) -> int:
        """Return the offset of the next byte, if nobody else writes."""
        return self._offset

    async def truncate_before(self, offset: int) -> None:
        """Delete the bytes before an offset, after all that was written is stored; if they are
        deleted already, nothing happens.

        Offsets of the other bytes stay the same. Raises ``UsageError`` if the stream ends earlier.
        """
        check_offset(offset)
        await self.flush()
        await self._segment.run(self._segment.steps.truncate_before(offset))

    async def seal(self) -> None:
        """Seal the stream, after all that was written is stored: it accepts no more bytes, and its
        readers come to an end."""
        await self.flush()
        seal = self._segment.steps.seal
        await repeat_calls(seal, Patience(self._patience), f"{self._name} could not be sealed")
        self._is_sealed = True
        self._fail(self._segment.steps.sealed())

    async def _replace(self, pump: SegmentPump) -> None:
        """End the writer: the only segment takes no more bytes."""
        current = await repeat_calls(
            self._segment.steps.find_current,
            Patience(self._patience),
            f"{self._name} could not be written to",
        )
        raise self._segment.steps.ended(current)

    async def _finish(self) -> None:
        if not self._is_sealed:
            await super()._finish()

    async def _write_piece(self, piece: bytes) -> None:
        if piece and not self._join(piece):
            await self._submit(piece, _POSITION)
        self._offset += len(piece)

    def _join(self, piece: bytes) -> bool:
        """Add a short piece to the one before it, if that was not sent yet; return whether it was
        added. Otherwise each single byte would take the memory of an event."""
        if not self._has_room():
            return False
        is_joined = any(
            pump.session.extend(piece, JOINED_BYTES_MAX) for pump in self._pumps.values()
        )
        self._waiting_bytes += len(piece) if is_joined else 0
        return is_joined

    def _new_session(self) -> AppendSession[Event]:
        return AppendSession(os.urandom(16), framed=False)
