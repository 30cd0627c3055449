"""Events as tables of Apache Arrow, which pandas, polars and DuckDB take as they are.

Owns: the columns of such a table, which are those of the data source for Spark, and the import of
``pyarrow``, which is an extra of the package.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from pravega_wire.sessions.read_cursor import ReadEvent
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


def make_frame(events: Sequence[ReadEvent]) -> pa.RecordBatch:
    """Return events as a batch of rows, in their order. Raises ``UsageError`` without
    ``pyarrow``."""
    pa = _import_arrow()
    names = [event.stream.split("/") for event in events]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([event.data for event in events], pa.binary()),
            pa.array([scope for scope, _ in names], pa.string()),
            pa.array([stream for _, stream in names], pa.string()),
            pa.array([event.segment_id for event in events], pa.int64()),
            pa.array([event.offset for event in events], pa.int64()),
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
