"""The file of an export: an Avro object container file whose records are runs of events.

Owns: that form, in both directions. ``docs/formats/export.md`` describes it. The file is written
and read from its beginning to its end, a block at a time.

Every library for Avro reads it. Our own reading is here because it must tell where a file is
damaged, and must not be misled by lengths that damage has made.

Invariants:
1. Runs that are written are read back as the same events. Held by
   ``test_runs_come_back_as_they_were_written``, and with a library for Avro by
   ``test_a_library_for_avro_reads_the_file``.
2. When any byte of a file is changed, or the file is cut off, an error says so, or the events are
   the same. Held by ``test_no_changed_byte_changes_an_event`` and
   ``test_a_file_that_is_cut_off_is_told``.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from _fast.crc import crc32c
from pravega_admin.exports.manifest import Manifest, Run, decode_manifest, encode_manifest
from pravega_wire.codec import HEADER_BYTES
from segstore_client.errors import DamagedExportError, UsageError

MAGIC: Final = b"Obj\x01"
SCHEMA: Final = json.dumps(
    {
        "type": "record",
        "name": "Run",
        "namespace": "segstore.export",
        "doc": "Events of a segment that follow each other.",
        "fields": [
            {"name": "segment", "type": "long", "doc": "Id of the segment."},
            {"name": "offset", "type": "long", "doc": "Offset of the first event's header."},
            {"name": "crc32c", "type": "long", "doc": "CRC32C of the encoded events."},
            {"name": "events", "type": {"type": "array", "items": "bytes"}},
        ],
    }
)
CODECS: Final = ("deflate", "null")
MANIFEST_KEY: Final = "segstore.export"
SUM_KEY: Final = "segstore.export.crc32c"
SYNC_BYTES: Final = 16
BLOCK_BYTES: Final = 256 * 1024
"""Number of bytes of events after which a block ends."""
BLOCK_BYTES_MAX: Final = 2 * 1024 * 1024 * 1024
"""Maximum length of a block, in bytes: that of the longest event of the Java client, and room."""
HEADER_BYTES_MAX: Final = 256 * 1024 * 1024
PIECE_BYTES: Final = 4 * 1024 * 1024
"""Maximum number of bytes that are read or decompressed at once."""
DEFLATE_LEVEL: Final = 1

_VARINT_BYTES_MAX: Final = 10


class Source(Protocol):
    """A file that is read from its beginning to its end."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes: as many as asked for, unless the file ends."""


# ---- Writing -------------------------------------------------------------------------------------


def encode_header(manifest: Manifest, codec: str) -> bytes:
    """Return the beginning of a file."""
    encoded = encode_manifest(manifest)
    entries = {
        "avro.schema": SCHEMA.encode(),
        "avro.codec": codec.encode(),
        MANIFEST_KEY: encoded,
        SUM_KEY: b"%08x" % crc32c(encoded),
    }
    parts = [MAGIC, encode_long(len(entries))]
    for name, value in entries.items():
        parts += [_encode_bytes(name.encode()), _encode_bytes(value)]
    return b"".join([*parts, encode_long(0), _sync_of(manifest)])


class BlockWriter:
    """Makes blocks of events. ``add`` returns those that are complete."""

    def __init__(self, manifest: Manifest, codec: str) -> None:
        self._sync = _sync_of(manifest)
        self._codec = codec
        self._runs: list[bytes] = []
        self._run_bytes = 0
        self._segment = -1
        self._offset = 0
        self._events: list[bytes] = []
        self._event_bytes = 0

    def add(self, segment: int, offset: int, event: bytes) -> bytes:
        """Add the next event, whose header is at an offset; return a block, or nothing."""
        if segment != self._segment:
            self._end_run()
            self._segment, self._offset = segment, offset
        self._events.append(event)
        self._event_bytes += len(event) + HEADER_BYTES
        if self._run_bytes + self._event_bytes >= BLOCK_BYTES:
            return self.flush()
        return b""

    def flush(self) -> bytes:
        """Return a block of what was added since the last one; nothing if there is nothing."""
        self._end_run()
        self._segment = -1
        if not self._runs:
            return b""
        count, data = len(self._runs), b"".join(self._runs)
        self._runs, self._run_bytes = [], 0
        if self._codec == "deflate":
            data = zlib.compress(data, DEFLATE_LEVEL, -zlib.MAX_WBITS)
        return b"".join([encode_long(count), encode_long(len(data)), data, self._sync])

    def _end_run(self) -> None:
        if self._events:
            run = Run(self._segment, self._offset, self._events)
            self._runs.append(encode_run(run))
            self._run_bytes += self._event_bytes
            self._events, self._event_bytes = [], 0


def encode_run(run: Run) -> bytes:
    """Return a record."""
    parts = []
    for event in run.events:
        length = len(event)
        parts += [_LONGS[length] if length < len(_LONGS) else encode_long(length), event]
    events = b"".join(parts)
    head = (run.segment, run.offset, crc32c(events), len(run.events))
    return b"".join([*map(encode_long, head), events, _LONGS[0]])


def encode_long(value: int) -> bytes:
    """Return a long of Avro: zigzag, then seven bits in each byte, the lowest ones first."""
    rest = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


_LONGS: Final = [encode_long(value) for value in range(8192)]
"""The numbers that are encoded most, which are lengths of events."""


def _encode_bytes(data: bytes) -> bytes:
    return encode_long(len(data)) + data


def _sync_of(manifest: Manifest) -> bytes:
    """Return the marker between blocks: the id of the export."""
    return bytes.fromhex(manifest.id)


# ---- Reading -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileBlock:
    """A block, and where in the file it ends."""

    runs: tuple[Run, ...]
    end: int


class ExportReader:
    """Reads a file. ``manifest`` and ``codec`` are those of its header.

    Raises ``UsageError`` for a file that is no export, and ``DamagedExportError`` for one that is
    damaged or cut off.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.position = 0
        """The number of bytes that were read."""
        begin = source.read(len(MAGIC))
        if begin != MAGIC:
            raise UsageError("it is no export of a stream")
        self.position = len(begin)
        entries, self._sync = self._read_header()
        self.codec = entries.get("avro.codec", b"null").decode("ascii", "replace")
        encoded = entries.get(MANIFEST_KEY)
        if encoded is None:
            raise UsageError("it is a file of Avro, and no export of a stream")
        if self.codec not in CODECS or entries.get(SUM_KEY) != b"%08x" % crc32c(encoded):
            raise DamagedExportError("its header is damaged")
        self.manifest = decode_manifest(encoded)
        if _sync_of(self.manifest) != self._sync:
            raise DamagedExportError("its header is damaged")

    def blocks(self) -> Iterator[FileBlock]:
        """Yield the blocks up to the end of the file."""
        while (found := self._next_block()) is not None:
            count, data, begin = found
            try:
                runs = tuple(_decode_runs(self._decompress(data), count))
            except _MalformedError as error:
                raise DamagedExportError(f"it is damaged from byte {begin} on: {error}") from None
            yield FileBlock(runs, self.position)

    def _next_block(self) -> tuple[int, bytes, int] | None:
        """Return the next block's number of runs, its bytes, and where it begins."""
        begin = self.position
        first = self._source.read(1)
        if not first:
            return None
        self.position += 1
        try:
            count, size = self._read_long(first), self._read_long()
            if count <= 0 or not 0 <= size <= BLOCK_BYTES_MAX:
                raise _MalformedError("a length makes no sense")
            data = self._read(size)
            if self._read(SYNC_BYTES) != self._sync:
                raise _MalformedError("a block does not end where it should")
        except _MalformedError as error:
            raise DamagedExportError(f"it is damaged from byte {begin} on: {error}") from None
        except EOFError:
            raise DamagedExportError(
                f"it is cut off: it ends within the block at byte {begin}"
            ) from None
        return count, data, begin

    def _decompress(self, data: bytes) -> bytes:
        if self.codec == "null":
            return data
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        parts, length = [], 0
        try:
            while not inflater.eof:
                part = inflater.decompress(data, PIECE_BYTES)
                data = inflater.unconsumed_tail
                length += len(part)
                parts.append(part)
                if length > BLOCK_BYTES_MAX or not (part or data or inflater.eof):
                    raise _MalformedError("its compressed bytes make no sense")
        except zlib.error:
            raise _MalformedError("its compressed bytes make no sense") from None
        if inflater.unused_data:
            raise _MalformedError("its compressed bytes make no sense")
        return b"".join(parts)

    def _read_header(self) -> tuple[dict[str, bytes], bytes]:
        entries: dict[str, bytes] = {}
        try:
            while count := self._read_long():
                if not 0 < count <= HEADER_BYTES_MAX:
                    raise _MalformedError
                for _ in range(count):
                    name = self._read_sized().decode("utf-8", "replace")
                    entries[name] = self._read_sized()
            return entries, self._read(SYNC_BYTES)
        except _MalformedError:
            raise DamagedExportError("its header is damaged") from None
        except EOFError:
            raise DamagedExportError("it is cut off: it ends within its header") from None

    def _read_sized(self) -> bytes:
        size = self._read_long()
        if not 0 <= size <= HEADER_BYTES_MAX:
            raise _MalformedError
        return self._read(size)

    def _read(self, size: int) -> bytes:
        """Return so many bytes; ``EOFError`` if the file ends before."""
        # A damaged length must not take memory that the file does not fill.
        parts = []
        while size:
            part = self._source.read(min(size, PIECE_BYTES))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
            self.position += len(part)
        return b"".join(parts)

    def _read_long(self, first: bytes = b"") -> int:
        encoded = bytearray(first)
        while not encoded or encoded[-1] & 0x80:
            if len(encoded) == _VARINT_BYTES_MAX:
                raise _MalformedError("a number is too long")
            encoded += self._read(1)
        value, _ = _decode_long(bytes(encoded), 0)
        return value


class _MalformedError(Exception):
    """The bytes are not what they should be."""


def _decode_runs(data: bytes, count: int) -> Iterator[Run]:
    """Yield the records of a block. Raises ``_MalformedError``."""
    position = 0
    for _ in range(count):
        segment, position = _decode_long(data, position)
        offset, position = _decode_long(data, position)
        expected, position = _decode_long(data, position)
        number, position = _decode_long(data, position)
        begin = position
        events = []
        if number <= 0:
            raise _MalformedError("a run has no events")
        for _ in range(number):
            length, position = _decode_long(data, position)
            end = position + length
            if length < 0 or end > len(data):
                raise _MalformedError("an event is longer than its block")
            events.append(data[position:end])
            position = end
        if crc32c(memoryview(data)[begin:position]) != expected:
            raise _MalformedError(
                f"the checksum of the events of segment {segment} from offset {offset} on differs"
            )
        last, position = _decode_long(data, position)
        if last != 0:
            raise _MalformedError("a run does not end where it should")
        yield Run(segment, offset, events)
    if position != len(data):
        raise _MalformedError("a block is longer than its runs")


def _decode_long(data: bytes, position: int) -> tuple[int, int]:
    """Return a number, and the position behind it."""
    value = shift = 0
    try:
        while (byte := data[position]) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            position += 1
            if shift > 7 * (_VARINT_BYTES_MAX - 1):
                raise _MalformedError("a number is too long")
    except IndexError:
        raise _MalformedError("a block ends within a number") from None
    value |= byte << shift
    return (value >> 1) ^ -(value & 1), position + 1
