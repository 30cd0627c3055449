"""The journal's limits, each with its unit in the name."""

from __future__ import annotations

from dataclasses import dataclass

from segstore.tiers.api import LOG_ENTRY_BYTES_MAX
from segstore.tiers.journal.format import BATCH_ALIGNMENT, aligned

MIB = 1024 * 1024
FIRST_FILE_BYTES = 8 * MIB
FILE_OVERHEAD_BYTES = 192 * 1024
"""Bytes of a file that the longest entry does not need: header, state at the beginning, and control
records."""
SNAPSHOT_RECORDS_MAX = 3840
"""Maximum number of records (of 32 bytes) of the state at the beginning of a file. They leave 72
KiB of ``FILE_OVERHEAD_BYTES``."""

INTERVAL_SECONDS_MAX = 0.1
"""Maximum of ``interval_seconds_min``, in seconds: a shutdown may wait this long."""


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """Sizes of the journal, its files and its batches."""

    file_bytes: int = 64 * MIB
    """Length of one journal file, in bytes. Existing files keep the length of an earlier setting
    until they are freed."""
    journal_bytes_max: int = 8192 * MIB
    """Maximum total length of the needed files, in bytes. Appends wait when it is reached."""
    batch_bytes_max: int = 4 * MIB
    """Maximum number of bytes of entries in one batch."""
    batch_records_max: int = 4096
    """Maximum number of records in one batch."""
    files_ahead: int = 1
    """Number of files that are kept ready, so that a change to the next file need not wait; one
    more at high rates."""
    files_spare_max: int = 16
    """Maximum number of freed files that are kept for reuse; further ones are removed."""
    free_bytes_min: int = 0
    """Number of bytes of the disk that stay free: with less, no file is made, and no freed file is
    kept."""
    shares_disk: bool = False
    """True if tier 2 is on the same disk. Then the length of all needed files stays free in
    addition, so that their entries can be written to tier 2."""
    no_space_retry_seconds: float = 1.0
    """Pause, in seconds, before another attempt when the disk was full."""
    mark_delay_seconds: float = 0.02
    """Idle time, in seconds, after which the journal's end is marked. With the mark, damage to the
    last batch is distinguished from a write that a crash interrupted."""
    interval_seconds_min: float = 0.0
    """Minimum time, in seconds, between the beginnings of two batches; 0 for none. Records that are
    queued meanwhile share a batch, which may begin two intervals later."""

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
        """Return how many containers may share the journal. The state at the beginning of each file
        has two records of each container and one of each other file, and the longest entry must fit
        after it."""
        return (SNAPSHOT_RECORDS_MAX - self.file_count_max) // 2

    @property
    def first_file_bytes(self) -> int:
        """Return the length, in bytes, of a journal's first file, and of a file for which there is
        little room. It is short, so that it is made quickly."""
        return min(FIRST_FILE_BYTES, self.file_bytes)

    @property
    def file_bytes_min(self) -> int:
        """Return the length of the shortest file that takes the longest entry."""
        return aligned(self.entry_bytes_max + FILE_OVERHEAD_BYTES, BATCH_ALIGNMENT)

    @property
    def short_file_bytes(self) -> int:
        """Return the length, in bytes, of a short file, which is made when no ordinary one can
        be."""
        return max(self.first_file_bytes // 2, self.file_bytes_min)

    def is_short(self, file_bytes: int) -> bool:
        """Return whether a file of this length is a short one."""
        return file_bytes < self.first_file_bytes

    @property
    def entry_bytes_max(self) -> int:
        """Return the maximum length of an entry, in bytes: ``LOG_ENTRY_BYTES_MAX``, or less for
        very short files, as in tests."""
        return min(LOG_ENTRY_BYTES_MAX, self.file_bytes - FILE_OVERHEAD_BYTES)
