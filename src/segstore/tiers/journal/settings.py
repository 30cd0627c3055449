"""The journal's limits, each with its unit in the name."""

from __future__ import annotations

from dataclasses import dataclass

from segstore.tiers.api import LOG_ENTRY_BYTES_MAX

MIB = 1024 * 1024
FILE_OVERHEAD_BYTES = 192 * 1024
"""What a file may hold besides the longest entry: header, snapshot, and room for control records"""
SNAPSHOT_RECORDS_MAX = 3840
"""How many records of 32 bytes the snapshot may have, so that 72 KiB are left for the rest."""


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """How large the journal's files, batches and the journal itself may be."""

    file_bytes: int = 64 * MIB
    """Length of one journal file; files made under another setting keep theirs until freed."""
    journal_bytes_max: int = 8192 * MIB
    """Appends wait while the files hold this much that is not truncated."""
    batch_bytes_max: int = 4 * MIB
    """Most bytes of entries that one synced write carries."""
    batch_records_max: int = 4096
    """Most records that one synced write carries."""
    files_ahead: int = 1
    """How many files are kept ready so that a rollover does not wait; one more at high rates."""
    files_spare_max: int = 16
    """How many freed files are kept to be used again; more are removed."""
    no_space_retry_seconds: float = 1.0
    """How long to wait after the disk was full before trying again."""
    mark_delay_seconds: float = 0.02
    """How long the journal is idle before it marks its end, so that damage to the last batch can
    be told from a write that a crash interrupted."""

    def __post_init__(self) -> None:
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
        """How many files the journal may have."""
        return self.journal_bytes_max // self.file_bytes

    @property
    def container_count_max(self) -> int:
        """How many containers may share the journal: each file begins with two records of each, and
        one of each other file, and takes the longest entry besides."""
        return (SNAPSHOT_RECORDS_MAX - self.file_count_max) // 2

    @property
    def entry_bytes_max(self) -> int:
        """The longest entry: the limit of all logs, unless files are made tiny for a test."""
        return min(LOG_ENTRY_BYTES_MAX, self.file_bytes - FILE_OVERHEAD_BYTES)
