"""The settings of table segments.

Owns: ``TableSettings`` and its defaults. Bounds that would let a table become unreadable are
refused here, before anything is opened.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from segstore.tables.entries import ENTRY_BYTES_MAX, KEY_BYTES_MAX

KIB: Final = 1024
MIB: Final = 1024 * KIB


class TableSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of table segments."""

    key_bytes_max: Annotated[int, Meta(ge=1, le=KEY_BYTES_MAX)] = 8 * KIB
    """Maximum size, in bytes, of a key."""
    value_bytes_max: Annotated[int, Meta(ge=0, le=ENTRY_BYTES_MAX)] = MIB - 8 * KIB
    """Maximum size, in bytes, of a value."""
    batch_bytes_max: Annotated[int, Meta(ge=1)] = 32 * MIB
    """Maximum encoded size, in bytes, of one update."""
    append_bytes_max: Annotated[int, Meta(ge=1)] = 4 * MIB
    """Maximum size, in bytes, of the waiting updates that are appended together."""
    kept_value_bytes_max: Annotated[int, Meta(ge=0)] = KIB
    """Maximum size, in bytes, of values that stay in memory with the index."""
    index_bytes_max: Annotated[int, Meta(ge=0)] = 64 * MIB
    """Maximum memory, in bytes, of all table indexes of a container; above it, the indexes of idle
    tables leave memory."""
    clean_bytes_max: Annotated[int, Meta(ge=0)] = 8 * MIB
    """Maximum memory, in bytes, of one table's entries that were read by its attributes."""
    index_count: Annotated[int, Meta(ge=1)] = 2_048
    """Number of entries without attributes at which a table is indexed."""
    index_bytes: Annotated[int, Meta(ge=1)] = 4 * MIB
    """Number of bytes of entries without attributes at which a table is indexed."""
    index_seconds: Annotated[float, Meta(gt=0)] = 5.0
    """Time, in seconds, after which a table with entries that lack attributes is indexed."""
    unindexed_count_max: Annotated[int, Meta(ge=1)] = 32_768
    """Maximum number of entries without attributes; updates wait above it."""
    unindexed_bytes_max: Annotated[int, Meta(ge=1)] = 32 * MIB
    """Maximum number of bytes of entries without attributes; updates wait above it. Opening a table
    reads at most that many bytes."""
    page_bytes_max: Annotated[int, Meta(ge=1)] = 2 * MIB
    """Maximum size, in bytes, of keys and values in one page of an iteration. The last bucket of
    the page may exceed it."""
    reply_bytes_max: Annotated[int, Meta(ge=1)] = 15 * MIB
    """Maximum size, in bytes, of keys and values in the answer to one read."""
    compaction_utilization_percent_min: Annotated[int, Meta(ge=0, le=100)] = 50
    """Percentage of entries that are the newest of their keys; below it, a table is compacted."""
    compaction_bytes_min: Annotated[int, Meta(ge=0)] = 4 * MIB
    """Minimum size, in bytes, of a table that is compacted."""
    compaction_step_bytes: Annotated[int, Meta(ge=1)] = 4 * MIB
    """Number of bytes that one step of a compaction reads at the head of a table and truncates."""
    read_bytes: Annotated[int, Meta(ge=1)] = 256 * KIB
    """Size, in bytes, of the reads that scan the entries of a table."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for bounds above those of the format: such entries could be written,
        but not read again."""
        if not 0 < self.key_bytes_max <= KEY_BYTES_MAX:
            raise ValueError(f"key_bytes_max has to be from 1 to {KEY_BYTES_MAX}")
        if not 0 <= self.value_bytes_max <= ENTRY_BYTES_MAX:
            raise ValueError(f"value_bytes_max has to be from 0 to {ENTRY_BYTES_MAX}")
