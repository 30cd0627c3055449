"""The checkpoints of a reader group: who has to reach each, and the positions of those who did.

Owns: ``Checkpoints``, and its bytes in a compacted state.

A checkpoint begins with the readers that are online then, and with the positions that no reader
has. When the last of its readers has told its positions, the checkpoint is complete: all positions
together are a stream cut of each of the group's streams. The bytes are a list of names, the readers
that each waits for, the positions of each, and those of the last complete one; then a byte, 1 when
the last one was published to the controller.

Example: r1 and r2 are online, segment c belongs to nobody::

    begin("x", ["r1", "r2"], {c: 5})     waiting {"x": [r1, r2]}    positions {"x": {c: 5}}
    reach("x", "r1", {a: 10})            waiting {"x": [r2]}        positions {"x": {c: 5, a: 10}}
    remove_reader("r2", {b: 7})          waiting {}, last = {c: 5, a: 10, b: 7}

Invariants:
1. When a reader leaves the group, the checkpoints that wait for it get its last positions. Held by
   ``test_a_reader_that_goes_completes_the_checkpoints_that_wait_for_it``.
2. When a silent checkpoint is completed, the last one stays as it was. Held by
   ``test_a_silent_checkpoint_is_not_the_last_one``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pravega_wire.reader_groups.fields import (
    Positions,
    read_map,
    read_positions,
    read_texts,
    write_list,
    write_map,
    write_positions,
)
from pravega_wire.versioned import VersionedReader, write_text, write_versioned

SILENT = "_SILENT_"
"""A part of the names of checkpoints that only find out positions."""


@dataclass(slots=True)
class Checkpoints:
    """The checkpoints that were begun and not cleared."""

    names: list[str] = field(default_factory=list)
    waiting: dict[str, list[str]] = field(default_factory=dict)
    """The readers that have not reached a checkpoint; complete checkpoints are not in it."""
    positions: dict[str, dict[str, int]] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    """The positions of the last complete one that is not silent; empty if there is none."""
    is_published: bool = True

    def begin(self, name: str, readers: Iterable[str], unassigned: Positions) -> None:
        """Begin a checkpoint; one of the same name stays as it is."""
        if name in self.positions:
            return
        if waiting := list(readers):
            self.waiting[name] = waiting
        self.positions[name] = dict(unassigned)
        self.names.append(name)

    def next_of(self, reader: str) -> str | None:
        """Return the checkpoint that a reader has to reach next."""
        return next((name for name in self.names if reader in self.waiting.get(name, ())), None)

    def reach(self, name: str, reader: str, positions: Positions) -> None:
        """Take the positions of a reader for a checkpoint."""
        readers = self.waiting.get(name)
        if readers is None or reader not in readers:
            return
        readers.remove(reader)
        self.positions.setdefault(name, {}).update(positions)
        if not readers:
            del self.waiting[name]
            if not is_silent(name):
                self.last = self.positions[name]
                self.is_published = False

    def remove_reader(self, reader: str, positions: Positions) -> None:
        """Complete what waits for a reader that leaves with these positions."""
        for name in [each for each, readers in self.waiting.items() if reader in readers]:
            self.reach(name, reader, positions)

    def clear_before(self, name: str) -> None:
        """Forget all that were begun before a checkpoint."""
        if name not in self.positions:
            return
        while self.names and self.names[0] != name:
            self._forget(self.names.pop(0))

    def drop_outstanding(self) -> None:
        """Forget the positions of those that are not complete, without the silent ones."""
        for name in self.outstanding:
            self._forget(name)

    @property
    def outstanding(self) -> list[str]:
        """Return those that are not complete, without the silent ones."""
        return [name for name in self.names if name in self.waiting and not is_silent(name)]

    def _forget(self, name: str) -> None:
        self.waiting.pop(name, None)
        self.positions.pop(name, None)

    def copy(self) -> Checkpoints:
        """Return a copy that does not change with this."""
        return Checkpoints(
            list(self.names),
            {name: list(readers) for name, readers in self.waiting.items()},
            {name: dict(positions) for name, positions in self.positions.items()},
            dict(self.last),
            self.is_published,
        )

    def encode(self) -> bytes:
        """Return the record."""
        parts = [
            write_list(self.names, write_text),
            write_map(self.waiting, lambda readers: write_list(readers, write_text)),
            write_map(self.positions, write_positions),
            write_positions(self.last),
        ]
        return write_versioned([b"".join(parts), bytes([self.is_published])])

    @classmethod
    def decode(cls, data: bytes) -> Checkpoints:
        """Return what a record has. Raises ``RemoteProtocolError``."""
        parts = VersionedReader(data).read_revisions()
        record = parts[0]
        return cls(
            read_texts(record),
            read_map(record, read_texts),
            read_map(record, read_positions),
            read_positions(record),
            1 not in parts or parts[1].read_byte() != 0,
        )


def is_silent(name: str) -> bool:
    """Return whether a checkpoint only finds out where readers are."""
    return SILENT in name
