"""The columns that tell where an event is stored: scope, stream, segment and offset.

Owns: their names and types, and the error of a malformed event, which names its segment and offset.
"""

from __future__ import annotations

import pyarrow as pa

from segstore_client.errors import PravegaError

PLACE_COLUMNS = ("scope", "stream", "segment_id", "offset")
PLACE_DDL = "scope string, stream string, segment_id bigint, offset bigint"


def name_malformed(batch: pa.RecordBatch, row: int, form: str) -> PravegaError:
    """Return the error of an event that does not match the option ``schema``."""
    scope, stream, segment, offset = (batch.column(name)[row].as_py() for name in PLACE_COLUMNS)
    return PravegaError(
        f"the event at offset {offset} of segment {segment} of {scope}/{stream} is not {form} of"
        " the option schema: correct that, or set mode to permissive"
    )
