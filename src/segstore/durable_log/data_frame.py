"""Data frames: how operations are packed into entries of the durable data log.

Owns: the frame's bytes (``docs/formats/data-frame.md``), its writer and its reader.

Invariants:
1. Records lie in frames in the order in which they were added; a record that does not fit goes on
   in the next frame, so a frame holds whole records and at most one tail and one head of others.
2. A frame is never longer than the durable data log takes in one entry.
3. A record that is cut off by the end of the log was never acknowledged and is dropped; a part
   without its beginning anywhere else is damage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from segstore.errors import DataLogCorruptError
from segstore.tiers.api import LOG_ENTRY_BYTES_MAX, Buffer, LogAddress

FRAME_VERSION: Final = 1
FRAME_HEADER: Final = struct.Struct(">BBHI")
PART_HEADER: Final = struct.Struct(">IB")
FIRST_PART: Final = 1
LAST_PART: Final = 2
# A part shorter than this at the end of a frame is not worth a header of its own.
PART_BYTES_MIN: Final = 64


class DataFrame:
    """One frame being filled. ``record_count`` counts the records that end in it."""

    __slots__ = ("buffer", "limit", "record_count")

    def __init__(self, limit: int = LOG_ENTRY_BYTES_MAX) -> None:
        self.buffer = bytearray(FRAME_HEADER.size)
        self.limit = limit
        self.record_count = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing was put into the frame yet."""
        return len(self.buffer) == FRAME_HEADER.size

    @property
    def room(self) -> int:
        """How many bytes of a record still fit."""
        return self.limit - len(self.buffer) - PART_HEADER.size

    def put_whole(self, head: bytes, body: Buffer) -> None:
        """Add a whole record; the caller has looked at ``room``."""
        buffer = self.buffer
        buffer += PART_HEADER.pack(len(head) + len(body), FIRST_PART | LAST_PART)
        buffer += head
        buffer += body
        self.record_count += 1

    def put_part(self, part: Buffer, flags: int) -> None:
        """Add one part of a record that spans frames."""
        self.buffer += PART_HEADER.pack(len(part), flags)
        self.buffer += part
        if flags & LAST_PART:
            self.record_count += 1

    def seal(self) -> bytearray:
        """Fill in the header and return the frame's bytes."""
        content_bytes = len(self.buffer) - FRAME_HEADER.size
        FRAME_HEADER.pack_into(
            self.buffer, 0, FRAME_VERSION, 0, min(self.record_count, 0xFFFF), content_bytes
        )
        return self.buffer


def split_record(frame: DataFrame, head: bytes, body: Buffer) -> Iterator[DataFrame]:
    """Spread a record that does not fit into ``frame`` over it and as many frames as it takes.

    Yields each frame that is full; the caller seals it. The last, unfilled frame is yielded too,
    marked by holding the record's last part.
    """
    record = memoryview(b"".join((head, body)))
    position = 0
    flags = FIRST_PART
    while True:
        room = frame.room
        if room >= PART_BYTES_MIN:
            part = record[position : position + room]
            position += len(part)
            if position == len(record):
                frame.put_part(part, flags | LAST_PART)
                yield frame
                return
            frame.put_part(part, flags)
            flags = 0
        yield frame
        frame = DataFrame(frame.limit)


class DataFrameReader:
    """Puts records together again from frames fed in log order."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._record_address: LogAddress | None = None

    def feed(self, frame: Buffer, address: LogAddress) -> Iterator[tuple[LogAddress, bytes]]:
        """Yield each record that ends in ``frame`` with the address of the frame it began in."""
        view = memoryview(frame)
        if len(view) < FRAME_HEADER.size:
            raise DataLogCorruptError(f"data frame at {address.position} has {len(view)} bytes")
        version, _, _, content_bytes = FRAME_HEADER.unpack_from(view, 0)
        if version != FRAME_VERSION or content_bytes != len(view) - FRAME_HEADER.size:
            raise DataLogCorruptError(f"data frame at {address.position} has a damaged header")
        position = FRAME_HEADER.size
        while position < len(view):
            if position + PART_HEADER.size > len(view):
                raise DataLogCorruptError(f"data frame at {address.position} ends in a header")
            length, flags = PART_HEADER.unpack_from(view, position)
            position += PART_HEADER.size
            if position + length > len(view):
                raise DataLogCorruptError(f"data frame at {address.position} ends in a record")
            record = self._take(bytes(view[position : position + length]), flags, address)
            position += length
            if record is not None:
                yield record

    def _take(
        self, part: bytes, flags: int, address: LogAddress
    ) -> tuple[LogAddress, bytes] | None:
        if flags & FIRST_PART:
            # What was begun before and never ended was cut off by a crash: never acknowledged.
            self._parts = [part]
            self._record_address = address
        elif self._record_address is None:
            raise DataLogCorruptError(f"data frame at {address.position} has a part without a head")
        else:
            self._parts.append(part)
        if not flags & LAST_PART:
            return None
        began, self._record_address = self._record_address, None
        assert began is not None
        record = b"".join(self._parts) if len(self._parts) > 1 else self._parts[0]
        self._parts = []
        return began, record
