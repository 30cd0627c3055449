"""Turns append commands of a connection into whole appends, on the server's side.

Owns: which writers a connection has set up, the append block that is open, and the rules for both.

Invariants:
1. A writer is known from its SetupAppend on; a new SetupAppend of it starts afresh.
2. A writer's last event number never goes backwards on a connection.
3. Between an AppendBlock and its AppendBlockEnd no other append command comes.
4. An append's data is copied once: from the receive buffer into the ``Append``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeAlias

from pravega_wire.codec import HEADER, HEADER_BYTES
from pravega_wire.commands import Padding, PartialEvent
from pravega_wire.errors import RemoteProtocolError

WRITERS_MAX = 0x1_0000
"""Writers of one connection; clients open a new connection long before."""

_UUID_BYTES = 16
_BLOCK_END = struct.Struct(">16sii")
_BLOCK_END_TAIL = struct.Struct(">iq")
_CONDITIONAL = struct.Struct(">16sqq")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")

Source: TypeAlias = bytes | memoryview


@dataclass(slots=True)
class Append:
    """One append, whole, however the client cut it up.

    ``expected_offset`` is None for an unconditional append.
    """

    segment: str
    writer_id: bytes
    data: bytes
    event_count: int
    last_event_number: int
    request_id: int
    expected_offset: int | None = None


@dataclass(slots=True)
class _Writer:
    segment: str
    last_event_number: int = 0


@dataclass(slots=True)
class _Block:
    """An open append block: its writer, and its data where the receive buffer holds it."""

    writer_id: bytes
    source: Source
    start: int
    end: int


class AppendAssembler:
    """The appends of one connection. Any error leaves it unusable."""

    def __init__(self) -> None:
        self._writers: dict[bytes, _Writer] = {}
        self._block: _Block | None = None

    def set_up(self, writer_id: bytes, segment: str) -> None:
        """Know the writer from now on."""
        self._expect_no_block("SetupAppend")
        if len(self._writers) >= WRITERS_MAX and writer_id not in self._writers:
            raise RemoteProtocolError(f"more than {WRITERS_MAX} writers on a connection")
        self._writers[writer_id] = _Writer(segment)

    def forget(self, writer_id: bytes) -> None:
        """Know the writer no more; its next append is an error unless it is set up again."""
        self._writers.pop(writer_id, None)

    def padding(self) -> None:
        """Padding outside of a block means nothing."""
        self._expect_no_block("Padding")

    def detach(self) -> None:
        """Copy an open block out of the receive buffer, which is about to change."""
        block = self._block
        if block is not None and not (isinstance(block.source, bytes) and block.start == 0):
            block.source = bytes(block.source[block.start : block.end])
            block.start, block.end = 0, len(block.source)

    def block(self, source: Source, start: int, end: int) -> None:
        """Open the block of the AppendBlock payload ``source[start:end]``."""
        self._expect_no_block("AppendBlock")
        if end - start < _UUID_BYTES:
            raise RemoteProtocolError("AppendBlock ends early")
        writer_id = bytes(source[start : start + _UUID_BYTES])
        self._writer(writer_id)
        self._block = _Block(writer_id, source, start + _UUID_BYTES, end)

    def block_end(self, source: Source, start: int, end: int) -> Append:
        """The append that the AppendBlockEnd payload ``source[start:end]`` completes."""
        data_start = start + _BLOCK_END.size
        if data_start > end:
            raise RemoteProtocolError("AppendBlockEnd ends early")
        writer_id, whole_bytes, length = _BLOCK_END.unpack_from(source, start)
        data_end = data_start + length
        position = data_end + _BLOCK_END_TAIL.size
        if length < 0 or position > end:
            raise RemoteProtocolError(f"AppendBlockEnd with {length} bytes of data does not fit")
        event_count, last_event_number = _BLOCK_END_TAIL.unpack_from(source, data_end)
        request_id = _request_id(source, position, end)
        writer = self._writer(writer_id)
        if event_count <= 0:
            raise RemoteProtocolError(f"AppendBlockEnd of {event_count} events")
        _advance(writer, last_event_number)
        block, self._block = self._block, None
        if block is None:
            data = bytes(source[data_start:data_end])
        elif block.writer_id != writer_id:
            raise RemoteProtocolError("AppendBlockEnd of another writer than its AppendBlock")
        else:
            data = _block_data(block, whole_bytes, source[data_start:data_end])
        return Append(writer.segment, writer_id, data, event_count, last_event_number, request_id)

    def conditional_append(self, source: Source, start: int, end: int) -> Append:
        """The append of a ConditionalAppend payload: its event, still framed."""
        data_start = start + _CONDITIONAL.size
        if data_start + HEADER_BYTES > end:
            raise RemoteProtocolError("ConditionalAppend ends early")
        code, length = HEADER.unpack_from(source, data_start)
        data_end = data_start + HEADER_BYTES + length
        if code != 0 or length < 0 or data_end > end:
            raise RemoteProtocolError("ConditionalAppend without a whole event")
        request_id = _request_id(source, data_end, end)
        return self._conditional(source, start, data_start, data_end, request_id)

    def conditional_block_end(self, source: Source, start: int, end: int) -> Append:
        """The append of a ConditionalBlockEnd payload: its bytes as they are."""
        data_start = start + _CONDITIONAL.size + _INT32.size
        if data_start > end:
            raise RemoteProtocolError("ConditionalBlockEnd ends early")
        (length,) = _INT32.unpack_from(source, data_start - _INT32.size)
        data_end = data_start + length
        if length < 0 or data_end + _INT64.size > end:
            raise RemoteProtocolError(f"ConditionalBlockEnd of {length} bytes does not fit")
        (request_id,) = _INT64.unpack_from(source, data_end)
        return self._conditional(source, start, data_start, data_end, request_id)

    def _conditional(
        self, source: Source, start: int, data_start: int, data_end: int, request_id: int
    ) -> Append:
        self._expect_no_block("a conditional append")
        writer_id, event_number, expected_offset = _CONDITIONAL.unpack_from(source, start)
        writer = self._writer(writer_id)
        _advance(writer, event_number)
        data = bytes(source[data_start:data_end])
        return Append(writer.segment, writer_id, data, 1, event_number, request_id, expected_offset)

    def _writer(self, writer_id: bytes) -> _Writer:
        writer = self._writers.get(writer_id)
        if writer is None:
            raise RemoteProtocolError(f"writer {writer_id.hex()} was not set up")
        return writer

    def _expect_no_block(self, name: str) -> None:
        if self._block is not None:
            raise RemoteProtocolError(f"{name} inside an append block")


def _advance(writer: _Writer, event_number: int) -> None:
    if event_number < writer.last_event_number:
        raise RemoteProtocolError(
            f"event number went backwards from {writer.last_event_number} to {event_number}"
        )
    writer.last_event_number = event_number


def _request_id(source: Source, position: int, end: int) -> int:
    if position == end:
        return -1
    if position + _INT64.size > end:
        raise RemoteProtocolError("a request id ends early")
    (request_id,) = _INT64.unpack_from(source, position)
    return int(request_id)


def _block_data(block: _Block, whole_bytes: int, end_data: Source) -> bytes:
    """A block's whole events and, when the block ends in a partial event, that one completed."""
    length = block.end - block.start
    if not 0 <= whole_bytes <= length:
        raise RemoteProtocolError(f"{whole_bytes} bytes of whole events in a block of {length}")
    if whole_bytes == length:
        return bytes(block.source[block.start : block.end])
    tail = block.start + whole_bytes
    if tail + HEADER_BYTES > block.end:
        raise RemoteProtocolError("an append block ends in neither padding nor a partial event")
    code, tail_length = HEADER.unpack_from(block.source, tail)
    tail_end = tail + HEADER_BYTES + tail_length
    if tail_length < 0 or tail_end > block.end:
        raise RemoteProtocolError(f"a tail of {tail_length} bytes does not fit its append block")
    if code == Padding.code:
        if len(end_data):
            raise RemoteProtocolError("AppendBlockEnd with data behind a padded block")
        return bytes(block.source[block.start : tail])
    if code != PartialEvent.code:
        raise RemoteProtocolError(f"command type {code} at the end of an append block")
    whole = block.source[block.start : tail]
    return b"".join((whole, block.source[tail + HEADER_BYTES : tail_end], end_data))
