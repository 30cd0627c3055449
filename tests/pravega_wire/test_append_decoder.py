"""The compiled append decoder answers any bytes exactly as its plain Python twin below does."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _fast.wire.appends import Append, AppendDecoder
from _fast.wire.frames import FrameError, scan_frames
from pravega_wire.codec import HEADER, HEADER_BYTES, decode_at
from pravega_wire.commands import COMMAND_BYTES_MAX, Padding, PartialEvent, SetupAppend
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
        """Register the writer from now on."""
        self._expect_no_block("SetupAppend")
        if len(self._writers) >= WRITERS_MAX and writer_id not in self._writers:
            raise RemoteProtocolError(f"more than {WRITERS_MAX} writers on a connection")
        self._writers[writer_id] = _Writer(segment)

    def forget(self, writer_id: bytes) -> None:
        """Forget the writer; its next append is an error unless it is set up again."""
        self._writers.pop(writer_id, None)

    def padding(self) -> None:
        """Ignore padding outside of a block."""
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
        """Return the append that the AppendBlockEnd payload ``source[start:end]`` completes."""
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
        """Return the append of a ConditionalAppend payload: its event, still framed."""
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
        """Return the append of a ConditionalBlockEnd payload: its bytes as they are."""
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
    """Return a block's whole events and, when the block ends in a partial event, that one
    completed."""
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


ACCEPTED = bytes(code in (-127, -1, 1, 3, 4, 5, 89, 100) for code in range(-128, 128))
CODES = st.sampled_from([1, 3, 3, 3, 4, 4, 4, 5, 89, -1, 100])
SMALL = st.integers(-2, 40)


class Reference:
    """A slow ``AppendDecoder``, frame by frame in Python."""

    def __init__(self) -> None:
        self.appends = AppendAssembler()

    def decode(self, data: bytes) -> tuple[list[Any], int]:
        frames, position = scan_frames(data, 0, ACCEPTED, COMMAND_BYTES_MAX)
        commands: list[Any] = []
        for code, start, end in frames:
            if code == 3:
                self.appends.block(data, start, end)
            elif code == 4:
                commands.append(self.appends.block_end(data, start, end))
            elif code == 5:
                commands.append(self.appends.conditional_append(data, start, end))
            elif code == 89:
                commands.append(self.appends.conditional_block_end(data, start, end))
            elif code == -1:
                self.appends.padding()
            else:
                commands.append(self.other(data, code, start, end))
        self.appends.detach()
        return commands, position

    def other(self, data: bytes, code: int, start: int, end: int) -> object:
        command = decode_at(code, data, start, end)
        if isinstance(command, SetupAppend):
            self.appends.set_up(command.writer_id, command.segment)
        return command


class Compiled:
    """The real decoder, called as a connection calls it."""

    def __init__(self) -> None:
        self.decoder = AppendDecoder(ACCEPTED, COMMAND_BYTES_MAX, WRITERS_MAX)

    def decode(self, data: bytes) -> tuple[list[Any], int]:
        def other(code: int, start: int, end: int) -> object:
            command = decode_at(code, data, start, end)
            if isinstance(command, SetupAppend):
                self.decoder.set_up(command.writer_id, command.segment)
            return command

        return self.decoder.decode(data, other)


@st.composite
def payloads(draw: st.DrawFn, code: int) -> bytes:
    """Draw mostly well formed payloads; some of their lengths and numbers are wrong."""
    writer = bytes([draw(st.integers(0, 1))]) * 16
    data = draw(st.binary(max_size=40))
    number = draw(st.integers(-5, 30))
    if code == 1:
        return struct.pack(">q", 1) + writer + struct.pack(">h", 1) + b"s" + struct.pack(">h", 0)
    if code == 3:
        tail = draw(st.sampled_from([b"", struct.pack(">ii", -2, 3), struct.pack(">ii", -1, 2)]))
        return writer + data + tail + b"xyz"[: draw(st.integers(0, 3))]
    if code == 4:
        whole, count = draw(SMALL), draw(st.integers(-1, 3))
        length = draw(st.sampled_from([len(data), len(data), draw(SMALL)]))
        rest = struct.pack(">iqq", count, number, 9)[: draw(st.sampled_from([20, 20, 12, 15]))]
        return writer + struct.pack(">ii", whole, length) + data + rest
    if code == 5:
        length = draw(st.sampled_from([len(data), len(data), draw(SMALL)]))
        event = struct.pack(">ii", draw(st.sampled_from([0, 0, 7])), length) + data
        return writer + struct.pack(">qq", number, 3) + event + struct.pack(">q", 9)
    if code == 89:
        length = draw(st.sampled_from([len(data), len(data), draw(SMALL)]))
        return writer + struct.pack(">qqi", number, 3, length) + data + struct.pack(">q", 9)
    return b""


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Draw the reads of a connection: whole frames, each read one or more of them."""
    setups = [draw(payloads(1)), draw(payloads(1))]
    frames = [HEADER.pack(1, len(payload)) + payload for payload in setups]
    for code in draw(st.lists(CODES, max_size=12)):
        payload = draw(payloads(code))
        frames.append(HEADER.pack(code, len(payload)) + payload)
    reads: list[bytes] = []
    for frame in frames:
        if reads and draw(st.booleans()):
            reads[-1] += frame
        else:
            reads.append(frame)
    return reads


@settings(max_examples=400)
@given(streams())
def test_the_compiled_decoder_answers_like_its_twin(reads: list[bytes]) -> None:
    reference, compiled = Reference(), Compiled()
    for read in reads:
        outcomes = []
        for decoder in (reference, compiled):
            try:
                outcomes.append(decoder.decode(read))
            except (RemoteProtocolError, FrameError) as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
        if isinstance(outcomes[0], str):
            return


@pytest.mark.parametrize("length", [0, 15, 17])
def test_a_writer_id_of_another_length_is_refused_before_it_is_compared(length: int) -> None:
    decoder = AppendDecoder(ACCEPTED, COMMAND_BYTES_MAX, WRITERS_MAX)
    with pytest.raises(ValueError, match=f"16 bytes, not {length}"):
        decoder.set_up(bytes(length), "segment")
