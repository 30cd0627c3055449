"""The columns that say where an event was.

Owns: their names and types, and how a malformed event is told by its place.
"""

from __future__ import annotations

import pyarrow as pa

from pravega_blocking.errors import PravegaError

PLACE_COLUMNS = ("scope", "stream", "segment_id", "offset")
PLACE_DDL = "scope string, stream string, segment_id bigint, offset bigint"


def name_malformed(batch: pa.RecordBatch, row: int, form: str) -> PravegaError:
    """Return the error of an event that is not what the option ``schema`` says."""
    scope, stream, segment, offset = (batch.column(name)[row].as_py() for name in PLACE_COLUMNS)
    return PravegaError(
        f"the event at offset {offset} of segment {segment} of {scope}/{stream} is not {form} of"
        " the option schema: correct that, or set mode to permissive"
    )
