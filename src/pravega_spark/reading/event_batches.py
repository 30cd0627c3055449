"""Turns segments' bytes into Arrow record batches, without an object for any event.

Owns: the schema of rows, and the conversion of bytes to columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from _fast.wire.events import EventError, compact_events
from pravega_spark.reading.segments import Piece
from segstore_client.errors import PravegaError

SCHEMA_DDL = "event binary, scope string, stream string, segment_id bigint, offset bigint"
BATCH_BYTES = 4 * 1024 * 1024
"""Minimum number of bytes of a segment in one record batch, except for the last batch."""
HEADER_BYTES = 8


class EventBatches:
    """Makes record batches from the events of one segment."""

    def __init__(self, scope: str, stream: str, segment_id: int) -> None:
        self._scope = scope
        self._stream = stream
        self._segment_id = segment_id
        self._constants: tuple[pa.Array, pa.Array, pa.Array, pa.Array] | None = None

    def read(self, pieces: Iterable[Piece], *, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the events in the bytes [start, end) of the segment, which ``pieces`` yields.

        If bytes are missing between two pieces, an event that began before the gap is left out.
        Raises ``PravegaError`` for bytes that are no event, and for an event that ``end`` cuts off.
        """
        buffer = bytearray()
        base = start
        for offset, piece in pieces:
            if offset != base + len(buffer):
                _, batch = self._batch(buffer, base)
                if batch is not None:
                    yield batch
                buffer, base = bytearray(), offset
            buffer += piece
            if len(buffer) >= BATCH_BYTES:
                consumed, batch = self._batch(buffer, base)
                base += consumed
                # Python cannot shorten a buffer while a view of it exists, so copy the rest.
                buffer = buffer[consumed:]
                if batch is not None:
                    yield batch
        consumed, batch = self._batch(buffer, base)
        if batch is not None:
            yield batch
        if consumed < len(buffer):
            raise PravegaError(
                f"an event at offset {base + consumed} of segment {self._name} continues"
                f" behind offset {end}: the stream cut is not between two events, or, if you named"
                " none, a segment was cut within an event: set max_partition_bytes and"
                " min_partitions to 0"
            )

    @property
    def _name(self) -> str:
        return f"{self._scope}/{self._stream}/{self._segment_id}"

    def _batch(self, buffer: bytearray, base: int) -> tuple[int, pa.RecordBatch | None]:
        """Return how many bytes the complete events have, and their batch; None without events."""
        try:
            values, offsets, consumed = compact_events(buffer)
        except EventError as error:
            raise PravegaError(
                f"segment {self._name} holds no event at offset {base + error.position}: perhaps"
                " it is a byte stream"
            ) from None
        count = len(offsets) - 1
        if count == 0:
            return consumed, None
        offset_buffer = pa.py_buffer(offsets)
        events = pa.Array.from_buffers(
            pa.binary(), count, [None, offset_buffer, pa.py_buffer(values)]
        )
        ends = pa.Array.from_buffers(pa.int32(), count, [None, offset_buffer])
        headers, scopes, streams, segments = self._columns(count)
        positions = pc.add(pc.add(ends.cast(pa.int64()), headers), pa.scalar(base, pa.int64()))
        batch = pa.RecordBatch.from_arrays(
            [events, scopes, streams, segments, positions],
            names=["event", "scope", "stream", "segment_id", "offset"],
        )
        return consumed, batch

    def _columns(self, count: int) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
        """Return columns for ``count`` rows: the bytes of all headers before each event's own, and
        scope, stream and segment. They are kept for later batches."""
        if self._constants is None or len(self._constants[0]) < count:
            headers = array("q", range(0, HEADER_BYTES * count, HEADER_BYTES))
            self._constants = (
                pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(headers)]),
                pa.repeat(pa.scalar(self._scope), count),
                pa.repeat(pa.scalar(self._stream), count),
                pa.repeat(pa.scalar(self._segment_id, pa.int64()), count),
            )
        headers, scopes, streams, segments = self._constants
        return (
            headers.slice(0, count),
            scopes.slice(0, count),
            streams.slice(0, count),
            segments.slice(0, count),
        )
