"""The sizes, counts and times that decide when a container's data are written to tier 2.

Owns: ``FlushPolicy``. The storage writer and its parts get it as an argument, so that a test can
pass other values.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """Values of one container. Sizes are in bytes, times in seconds."""

    # ---- When the bytes of a segment are flushed -------------------------------------------------

    flush_bytes: int = 4 * MIB
    """Number of unflushed bytes of a segment at which it is flushed at once, as by the original."""
    flush_seconds: float = 5.0
    """Maximum wait of a flush while few segments are unflushed. The original waits 30 s; with 5 s,
    a restart has less to replay."""
    flush_seconds_max: float = 30.0
    """Maximum wait of a short flush while many segments are unflushed."""
    few_segments: int = 256
    """Maximum count of unflushed segments at which each waits ``flush_seconds``."""
    many_segments: int = 2_500
    """Number of unflushed segments above which the wait becomes shorter again: an unflushed segment
    cannot be evicted from memory, and ``inactive.eviction.BACKLOG_MAX`` of them stop eviction."""
    short_bytes_max: int = 256 * 1024
    """Maximum length of a short flush. Short flushes run at the same time, because each mostly
    waits for the disk."""

    # ---- How a flush is done ---------------------------------------------------------------------

    write_bytes_max: int = 4 * MIB
    """Maximum length of one write to tier 2."""
    short_source_bytes_max: int = MIB
    """Maximum length of a merged segment whose bytes are written directly into the target. A longer
    one gets chunks of its own first, which the target takes over."""
    short_flushes_max: int = 32
    """Maximum count of short flushes at the same time."""
    round_flushes_max: int = 128
    """Maximum count of flushes in one round. Between rounds the writer looks at new operations, the
    log and attributes."""
    rounds_max: int = 16
    """Maximum number of rounds in which all unflushed segments are flushed: with many segments a
    round flushes more of them, because each round scans all."""
    first_failures_max: int = 4
    """Number of failures in a row, without any success, after which the round ends."""

    # ---- When tier 2 fails -----------------------------------------------------------------------

    retry_seconds: float = 1.0
    """Pause after a round that failed."""
    pause_seconds_min: float = 1.0
    """First pause, in seconds, of a segment that fails while others succeed; it doubles with each
    failure."""
    pause_seconds_max: float = 30.0
    """Maximum pause of such a segment."""
    error_seconds: float = 60.0
    """Time, in seconds, after which a segment that still fails is logged as an error, because the
    log cannot be truncated beyond its first unflushed operation."""
    strange_attempts_max: int = 5
    """Number of attempts in a row that find chunks missing or of another length after which the
    writer ends with the error."""

    # ---- Attributes ------------------------------------------------------------------------------

    attribute_flush_seconds: float = 5.0
    """Maximum wait of changed attributes while the container has many of them."""
    attribute_flush_seconds_few: float = 30.0
    """Maximum wait of changed attributes while the container has few; the original's time."""
    few_dirty_attributes: int = 8192
    """Maximum count of changed attributes of a container that wait ``attribute_flush_seconds_few``.
    They may wait for longer because each checkpoint contains them, and each index that is written
    costs a synced file."""
    attribute_flush_count: int = 200
    """Number of changed attributes of a segment at which they are written at once, as by the
    original."""
    attribute_update_count: int = 1000
    """Approximate maximum number of attributes in one update of an index: each may rewrite a page.
    """
    attribute_indexes_max: int = 64
    """Maximum count of indexes that are written before the writer waits for the log."""
    attribute_writes_max: int = 16
    """Maximum count of indexes that are written at the same time."""
    log_wait_seconds: float = 1.0
    """Maximum wait for the log to store the root pointers of indexes. When it ends, other work of
    the storage writer continues."""

    # ---- Checkpoints, and the truncation of the log ----------------------------------------------

    poll_seconds: float = 0.5
    """Interval between rounds while operations or checkpoints wait."""
    idle_poll_seconds: float = 1.0
    """Interval between rounds while nothing waits."""
    held_bytes_max: int = 256 * MIB
    """Number of bytes that the container keeps from being freed in a shared tier 1, above which it
    flushes everything and writes a checkpoint. With many unflushed segments, short flushes wait at
    most ``flush_seconds`` from twice as many bytes on."""
    checkpoint_seconds: float = 2.5
    """Minimum interval between checkpoints while the log is too long."""
    checkpoints_max: int = 8
    """Maximum count of checkpoints that wait until tier 2 has all operations before them."""
    idle_checkpoint_bytes: int = 4 * MIB
    """Length of the log, in bytes, above which a checkpoint is written when everything is flushed,
    so that the log can be truncated."""
    metadata_copy_seconds: float = 60.0
    """Minimum interval between copies of the container's metadata in tier 2."""


DEFAULT_FLUSH_POLICY = FlushPolicy()
