"""The journal's limits, each with its unit in the name."""

from __future__ import annotations

from dataclasses import dataclass

from segstore.tiers.api import LOG_ENTRY_BYTES_MAX

MIB = 1024 * 1024
FILE_OVERHEAD_BYTES = 192 * 1024
"""Bytes of a file beside the longest entry: header, snapshot, and room for control records."""
SNAPSHOT_RECORDS_MAX = 3840
"""Maximum count of records of 32 bytes in the snapshot, which leaves 72 KiB for the rest."""

INTERVAL_SECONDS_MAX = 0.1
"""Maximum of ``interval_seconds_min``: a shutdown waits for it."""


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """Sizes of the journal, its files and its batches."""

    file_bytes: int = 64 * MIB
    """Length of one journal file; files made under another setting keep theirs until freed."""
    journal_bytes_max: int = 8192 * MIB
    """Maximum number of bytes of the files that are not truncated; appends wait above it."""
    batch_bytes_max: int = 4 * MIB
    """Maximum of bytes of entries in one synced write."""
    batch_records_max: int = 4096
    """Maximum count of records in one synced write."""
    files_ahead: int = 1
    """Count of files that are kept ready so that a rollover does not wait; one more at high
    rates."""
    files_spare_max: int = 16
    """Maximum count of freed files that are kept for reuse; more are removed."""
    no_space_retry_seconds: float = 1.0
    """Pause before another attempt after the disk was full."""
    mark_delay_seconds: float = 0.02
    """Idle time, in seconds, after which the journal marks its end, so that damage to the last
    batch can be told from a write that a crash interrupted."""
    interval_seconds_min: float = 0.0
    """Minimum time, in seconds, between the beginnings of two synced writes; 0 for none. Records
    that come meanwhile share a write, which may begin two intervals later."""

    def __post_init__(self) -> None:
        if not 0 <= self.interval_seconds_min <= INTERVAL_SECONDS_MAX:
            raise ValueError(
                "the interval between writes (journal_interval_seconds_min) has to be from 0 to"
                f" {INTERVAL_SECONDS_MAX}, not {self.interval_seconds_min}"
            )
        if self.file_bytes % 4096 != 0 or self.file_bytes < 2 * FILE_OVERHEAD_BYTES:
            raise ValueError(
                f"a journal file is a multiple of 4096 bytes and has at least"
                f" {2 * FILE_OVERHEAD_BYTES}, not {self.file_bytes}"
            )
        if self.journal_bytes_max < 2 * self.file_bytes:
            raise ValueError(f"a journal has at least two files: {2 * self.file_bytes} bytes")
        if self.batch_bytes_max < self.entry_bytes_max:
            raise ValueError(f"a batch takes an entry of {self.entry_bytes_max} bytes")
        if self.files_ahead < 1 or self.batch_records_max < 1:
            raise ValueError("a journal has a file ahead, and a batch a record")

    @property
    def file_count_max(self) -> int:
        """Return how many files the journal may have."""
        return self.journal_bytes_max // self.file_bytes

    @property
    def container_count_max(self) -> int:
        """Return how many containers may share the journal: each file begins with two records of
        each, and one of each other file, and takes the longest entry besides."""
        return (SNAPSHOT_RECORDS_MAX - self.file_count_max) // 2

    @property
    def entry_bytes_max(self) -> int:
        """Return the longest entry: the limit of all logs, unless files are made tiny for a
        test."""
        return min(LOG_ENTRY_BYTES_MAX, self.file_bytes - FILE_OVERHEAD_BYTES)
