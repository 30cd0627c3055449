"""The state that results from the journal's control records.

Owns: ``JournalState``: each container's epoch and range of needed entries, and the needed files.
The writer applies the records that it writes, the recovery those that it reads, by the same
function.

Invariants:
1. When the records of ``snapshot_records`` are applied to an empty state, the result is the same
   state. Each file begins with them, so a recovery needs no older file to know the state. Held by
   ``test_a_snapshot_gives_the_same_state_again``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from segstore.tiers.journal.format import Kind, Record, StoredRecord
from segstore.tiers.journal.scan import FileScan


@dataclass(slots=True)
class LogExtent:
    """The range of one container's needed entries: from ``first_position`` to before
    ``next_position``."""

    epoch: int = 0
    first_position: int = 1
    next_position: int = 1


@dataclass(slots=True)
class JournalState:
    """The state after any number of records."""

    containers: dict[int, LogExtent] = field(default_factory=dict)
    live: set[int] = field(default_factory=set)
    """Generations of the needed files before the current one."""

    def apply(self, record: Record | StoredRecord) -> None:
        """Change the state by one record."""
        if record.kind == Kind.ENTRY:
            container = self.containers.get(record.container_id)
            if container is None:
                container = self.container(record.container_id)
            container.next_position = record.position + 1
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
        """Change the state by all records of a file.

        Entries are applied after the other records, although they were written between them. The
        result is the same: an entry's position follows the container's last entry, or its last OPEN
        record.
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
        """Return records that give this state when they are applied to an empty one."""
        records: list[Record] = []
        for container_id, state in sorted(self.containers.items()):
            records.append(Record(Kind.OPEN, container_id, state.epoch, state.next_position))
            records.append(Record(Kind.TRUNCATE, container_id, state.epoch, state.first_position))
        records.extend(Record(Kind.LIVE, 0, 0, generation) for generation in sorted(self.live))
        return records
