"""The cost of the journal's recent batches."""

from __future__ import annotations

from dataclasses import dataclass

RECENT_WEIGHT = 0.1


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """A moment's figures. The recent ones are exponentially weighted over some ten batches."""

    batch_count: int
    entry_count: int
    byte_count: int
    """Bytes written in batches, headers included, padding not."""
    recent_latency_seconds: float
    """Time from the start of a batch until it is durable."""
    average_batch_bytes: float
    queued_bytes: int
    """Bytes of entries that are appended and not yet durable."""
    queued_count: int
    file_count: int
    """Number of files of the journal: needed, ready and freed."""
    needed_file_count: int

    def log_bytes(self, file_bytes: int) -> int:
        """Return the bytes that count for the throttle of writers: whole files, and all that is on
        its way into them, of any container. Together these could fill the space that is left for
        making room."""
        return self.needed_file_count * file_bytes + self.queued_bytes


class BatchAverages:
    """Running figures over the batches."""

    def __init__(self) -> None:
        self.batch_count = 0
        self.byte_count = 0
        self.recent_latency_seconds = 0.0
        self.average_batch_bytes = 0.0

    def add(self, *, length: int, seconds: float) -> None:
        """Add one durable batch to the averages."""
        self.batch_count += 1
        self.byte_count += length
        if self.batch_count == 1:
            self.recent_latency_seconds = seconds
            self.average_batch_bytes = length
            return
        self.recent_latency_seconds += RECENT_WEIGHT * (seconds - self.recent_latency_seconds)
        self.average_batch_bytes += RECENT_WEIGHT * (length - self.average_batch_bytes)
