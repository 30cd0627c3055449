"""The state that the journal's control records lead to.

Owns: ``JournalState``: for each container its epoch and the range of its needed entries, and which
files are needed.

Invariants:
1. The state is a fold over the records in journal order: the writer folds what it writes, the
   recovery folds what it reads, with the same function.
2. ``snapshot_records`` of a state, folded into an empty state, gives that state: every file begins
   with them, so that the newest file alone tells the state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from segstore.tiers.journal.format import Kind, Record, StoredRecord
from segstore.tiers.journal.scan import FileScan


@dataclass(slots=True)
class LogExtent:
    """One container's log: entries from ``first_position`` to before ``next_position`` count."""

    epoch: int = 0
    first_position: int = 1
    next_position: int = 1


@dataclass(slots=True)
class JournalState:
    """The state after some record of the journal."""

    containers: dict[int, LogExtent] = field(default_factory=dict)
    live: set[int] = field(default_factory=set)
    """Generations of the needed files before the current one."""

    def apply(self, record: Record | StoredRecord) -> None:
        """Fold one record."""
        if record.kind == Kind.ENTRY:
            self.container(record.container_id).next_position = record.position + 1
        elif record.kind == Kind.OPEN:
            container = self.container(record.container_id)
            container.epoch = record.epoch
            container.next_position = record.position
        elif record.kind == Kind.TRUNCATE:
            container = self.container(record.container_id)
            container.first_position = max(container.first_position, record.position)
        elif record.kind == Kind.LIVE:
            self.live.add(record.position)
        elif record.kind == Kind.FREE:
            self.live.discard(record.position)

    def apply_scan(self, scan: FileScan) -> None:
        """Fold the records of a whole file.

        An entry's position is the one that an OPEN before it told or the next after another entry,
        so that the entries may be folded after the other records.
        """
        for record in scan.controls:
            self.apply(record)
        for container_id, index in scan.indexes.items():
            container = self.container(container_id)
            container.next_position = max(container.next_position, index.end_position)

    def container(self, container_id: int) -> LogExtent:
        """Return the state of one container's log."""
        state = self.containers.get(container_id)
        if state is None:
            state = self.containers[container_id] = LogExtent()
        return state

    def snapshot_records(self) -> list[Record]:
        """Return records that contain the whole state."""
        records: list[Record] = []
        for container_id, state in sorted(self.containers.items()):
            records.append(Record(Kind.OPEN, container_id, state.epoch, state.next_position))
            records.append(Record(Kind.TRUNCATE, container_id, state.epoch, state.first_position))
        records.extend(Record(Kind.LIVE, 0, 0, generation) for generation in sorted(self.live))
        return records
