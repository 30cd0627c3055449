"""Events as tables of Apache Arrow, which pandas, polars and DuckDB take as they are.

Owns: the columns of such a table, which are those of the data source for Spark, and the import of
``pyarrow``, which is an extra of the package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from _fast.wire.events import ReadEvent, gather_columns
from pravega_wire.names import SegmentName, parse_segment_name
from segstore_client.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa


def frame_schema() -> pa.Schema:
    """Return the columns: ``event`` (its bytes), ``scope``, ``stream``, ``segment_id``, and
    ``offset``, that of the event in its segment.

    Raises ``UsageError`` without ``pyarrow``.
    """
    pa = _import_arrow()
    return pa.schema(
        [
            ("event", pa.binary()),
            ("scope", pa.string()),
            ("stream", pa.string()),
            ("segment_id", pa.int64()),
            ("offset", pa.int64()),
        ]
    )


def make_frame(events: list[ReadEvent[Any]]) -> pa.RecordBatch:
    """Return events as a batch of rows, in their order. Raises ``UsageError`` without
    ``pyarrow``."""
    arrow = _import_arrow()
    values, ends, offsets, runs = gather_columns(events)
    segments = [(parse_segment_name(name), count) for name, count in runs]

    def wrap(kind: pa.DataType, *buffers: memoryview) -> pa.Array:
        return arrow.Array.from_buffers(kind, len(events), [None, *map(arrow.py_buffer, buffers)])

    def repeat(kind: pa.DataType, find: Callable[[SegmentName], object]) -> pa.Array:
        found = [arrow.repeat(arrow.scalar(find(each), kind), count) for each, count in segments]
        return arrow.concat_arrays(found) if found else arrow.array([], kind)

    return arrow.RecordBatch.from_arrays(
        [
            wrap(arrow.binary(), ends, values),
            repeat(arrow.string(), lambda segment: segment.scope),
            repeat(arrow.string(), lambda segment: segment.stream),
            repeat(arrow.int64(), lambda segment: segment.segment_id),
            wrap(arrow.int64(), offsets),
        ],
        schema=frame_schema(),
    )


def join_frames(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return batches of rows as one table; one without rows has the columns, too."""
    return _import_arrow().Table.from_batches(batches, schema=frame_schema())


def _import_arrow() -> ModuleType:
    try:
        import pyarrow
    except ImportError as error:
        text = "tables of events need pyarrow: pip install 'segstore[arrow]'"
        raise UsageError(text) from error
    module: ModuleType = pyarrow
    return module
