"""The changes of a reader group's state, and the bytes in which the official clients write them.

Owns: one class for each kind of change, with its code.

A group's state is in the segment of its stream ``_RG<name>``, in revisions as in ``revisions.py``.
A whole state is a change of kind 0 or 1, an update is any change.

    change = byte 0 | byte kind | record, as in ``versioned.py``

    kind  class                  content
    0     ``GroupBegun``         configuration, positions, ends; positions with ranges; updating
    1     ``StateCompacted``     configuration, checkpoints, distances, future segments, positions
                                 of each reader, positions that no reader has, ends; last read
                                 positions, ranges; updating
    2     ``ReaderAdded``        reader
    3     ``ReaderRemoved``      reader, positions
    4     ``SegmentReleased``    reader, segment, offset
    5     ``SegmentAcquired``    reader, segment
    6     ``PositionTold``       reader, int64 distance; positions with ranges
    7     ``SegmentCompleted``   reader, segment, map of its successors to the segments before each;
                                 ranges
    8     ``CheckpointReached``  checkpoint, reader, positions
    9     ``CheckpointBegun``    checkpoint
    10    ``CheckpointsCleared`` the first checkpoint that stays
    11    ``CheckpointPublished`` byte, 1 when the controller has the positions of the last one
    12    ``UpdateBegun``        byte, 1 while the configuration changes
    13    ``CheckpointsDropped``

A semicolon begins the record's next revision. Configuration and checkpoints are bytes with a length
before them. Segments are their names, positions maps of them to int64 offsets.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pravega_wire.errors import RemoteProtocolError
from pravega_wire.names import segment_name
from pravega_wire.reader_groups.checkpoints import Checkpoints
from pravega_wire.reader_groups.fields import (
    KeyRange,
    Positions,
    read_longs,
    read_map,
    read_positions,
    read_range,
    write_list,
    write_long,
    write_map,
    write_positions,
    write_range,
)
from pravega_wire.reader_groups.settings import Cut, GroupSettings
from pravega_wire.sessions import revisions
from pravega_wire.versioned import (
    FORMAT,
    VersionedReader,
    write_compact_int,
    write_text,
    write_versioned,
)

INT64_MAX = (1 << 63) - 1
Parts = dict[int, VersionedReader]
Ranges = Mapping[str, KeyRange]


class Change(ABC):
    """A change of a group's state. ``kind`` is its number in the bytes."""

    kind: ClassVar[int]

    @abstractmethod
    def write(self) -> list[bytes]:
        """Return the revisions of the record."""

    @classmethod
    @abstractmethod
    def read(cls, parts: Parts) -> Change:
        """Return the change in the revisions of a record. Raises ``RemoteProtocolError``."""


@dataclass(frozen=True, slots=True)
class GroupBegun(Change):
    """The group begins, or begins anew, without readers."""

    kind = 0
    configuration: bytes
    positions: Positions
    ends: Positions
    ranges: Ranges = field(default_factory=dict)
    is_updating: bool = False

    def write(self) -> list[bytes]:
        return [
            _write_block(self.configuration)
            + write_positions(self.positions)
            + write_positions(self.ends),
            _write_ranged(self.positions, self.ranges),
            bytes([self.is_updating]),
        ]

    @classmethod
    def read(cls, parts: Parts) -> GroupBegun:
        record = parts[0]
        configuration = _read_block(record)
        positions, ends = read_positions(record), read_positions(record)
        ranges = _read_ranged(parts)[1]
        return cls(configuration, positions, ends, ranges, _read_flag(parts, 2))


@dataclass(frozen=True, slots=True)
class StateCompacted(Change):
    """The whole state."""

    kind = 1
    configuration: bytes
    checkpoints: Checkpoints
    distances: Mapping[str, int]
    future: Mapping[str, Sequence[int]]
    assigned: Mapping[str, Positions]
    unassigned: Positions
    ends: Positions
    last_read: Positions | None
    """None if a client wrote it that did not know them."""
    ranges: Ranges = field(default_factory=dict)
    is_updating: bool = False

    def write(self) -> list[bytes]:
        first = [
            _write_block(self.configuration),
            _write_block(self.checkpoints.encode()),
            write_map(self.distances, write_long),
            write_map(self.future, lambda ids: write_list(ids, write_long)),
            write_map(self.assigned, write_positions),
            write_positions(self.unassigned),
            write_positions(self.ends),
        ]
        told = write_positions(self.last_read or {}) + write_map(self.ranges, write_range)
        return [b"".join(first), told, bytes([self.is_updating])]

    @classmethod
    def read(cls, parts: Parts) -> StateCompacted:
        record = parts[0]
        return cls(
            configuration=_read_block(record),
            checkpoints=Checkpoints.decode(_read_block(record)),
            distances=read_map(record, VersionedReader.read_long),
            future=read_map(record, read_longs),
            assigned=read_map(record, read_positions),
            unassigned=read_positions(record),
            ends=read_positions(record),
            last_read=read_positions(parts[1]) if 1 in parts else None,
            ranges=read_map(parts[1], read_range) if 1 in parts else {},
            is_updating=_read_flag(parts, 2),
        )


@dataclass(frozen=True, slots=True)
class ReaderAdded(Change):
    """A reader comes, without segments."""

    kind = 2
    reader: str

    def write(self) -> list[bytes]:
        return [write_text(self.reader)]

    @classmethod
    def read(cls, parts: Parts) -> ReaderAdded:
        return cls(parts[0].read_text())


@dataclass(frozen=True, slots=True)
class ReaderRemoved(Change):
    """A reader goes. Its segments continue at these positions, or else at its last checkpoint."""

    kind = 3
    reader: str
    positions: Positions

    def write(self) -> list[bytes]:
        return [write_text(self.reader) + write_positions(self.positions)]

    @classmethod
    def read(cls, parts: Parts) -> ReaderRemoved:
        return cls(parts[0].read_text(), read_positions(parts[0]))


@dataclass(frozen=True, slots=True)
class SegmentReleased(Change):
    """A reader gives a segment up; another one continues at the offset."""

    kind = 4
    reader: str
    segment: str
    offset: int

    def write(self) -> list[bytes]:
        return [write_text(self.reader) + write_text(self.segment) + write_long(self.offset)]

    @classmethod
    def read(cls, parts: Parts) -> SegmentReleased:
        record = parts[0]
        return cls(record.read_text(), record.read_text(), record.read_long())


@dataclass(frozen=True, slots=True)
class SegmentAcquired(Change):
    """A reader takes a segment that no reader has."""

    kind = 5
    reader: str
    segment: str

    def write(self) -> list[bytes]:
        return [write_text(self.reader) + write_text(self.segment)]

    @classmethod
    def read(cls, parts: Parts) -> SegmentAcquired:
        return cls(parts[0].read_text(), parts[0].read_text())


@dataclass(frozen=True, slots=True)
class PositionTold(Change):
    """A reader tells how far it is from the tail, in milliseconds, and where."""

    kind = 6
    reader: str
    distance: int
    positions: Positions
    ranges: Ranges = field(default_factory=dict)

    def write(self) -> list[bytes]:
        return [
            write_text(self.reader) + write_long(self.distance),
            _write_ranged(self.positions, self.ranges),
        ]

    @classmethod
    def read(cls, parts: Parts) -> PositionTold:
        reader, distance = parts[0].read_text(), parts[0].read_long()
        return cls(reader, distance, *_read_ranged(parts))


@dataclass(frozen=True, slots=True)
class SegmentCompleted(Change):
    """A reader has read a segment to its end. ``successors`` has the segments that have to be read
    before each of its successors."""

    kind = 7
    reader: str
    segment: str
    successors: Mapping[str, Sequence[int]]
    ranges: Ranges = field(default_factory=dict)

    def write(self) -> list[bytes]:
        first = write_text(self.reader) + write_text(self.segment)
        successors = write_map(self.successors, lambda ids: write_list(ids, write_long))
        return [first + successors, write_map(self.ranges, write_range)]

    @classmethod
    def read(cls, parts: Parts) -> SegmentCompleted:
        record = parts[0]
        reader, segment = record.read_text(), record.read_text()
        successors = read_map(record, read_longs)
        ranges = read_map(parts[1], read_range) if 1 in parts else {}
        return cls(reader, segment, successors, ranges)


@dataclass(frozen=True, slots=True)
class CheckpointReached(Change):
    """A reader tells its positions for a checkpoint."""

    kind = 8
    checkpoint: str
    reader: str
    positions: Positions

    def write(self) -> list[bytes]:
        names = write_text(self.checkpoint) + write_text(self.reader)
        return [names + write_positions(self.positions)]

    @classmethod
    def read(cls, parts: Parts) -> CheckpointReached:
        record = parts[0]
        return cls(record.read_text(), record.read_text(), read_positions(record))


@dataclass(frozen=True, slots=True)
class CheckpointBegun(Change):
    """All readers that are online have to reach a checkpoint."""

    kind = 9
    checkpoint: str

    def write(self) -> list[bytes]:
        return [write_text(self.checkpoint)]

    @classmethod
    def read(cls, parts: Parts) -> CheckpointBegun:
        return cls(parts[0].read_text())


@dataclass(frozen=True, slots=True)
class CheckpointsCleared(Change):
    """The checkpoints that were begun before this one are forgotten."""

    kind = 10
    checkpoint: str

    def write(self) -> list[bytes]:
        return [write_text(self.checkpoint)]

    @classmethod
    def read(cls, parts: Parts) -> CheckpointsCleared:
        return cls(parts[0].read_text())


@dataclass(frozen=True, slots=True)
class CheckpointPublished(Change):
    """The controller has the positions of the last checkpoint, up to which retention deletes."""

    kind = 11
    is_published: bool

    def write(self) -> list[bytes]:
        return [bytes([self.is_published])]

    @classmethod
    def read(cls, parts: Parts) -> CheckpointPublished:
        return cls(_read_flag(parts, 0))


@dataclass(frozen=True, slots=True)
class UpdateBegun(Change):
    """The configuration changes: readers ask the controller for the new one."""

    kind = 12
    is_updating: bool = True

    def write(self) -> list[bytes]:
        return [bytes([self.is_updating])]

    @classmethod
    def read(cls, parts: Parts) -> UpdateBegun:
        return cls(_read_flag(parts, 0))


@dataclass(frozen=True, slots=True)
class CheckpointsDropped(Change):
    """The checkpoints that are not complete are given up."""

    kind = 13

    def write(self) -> list[bytes]:
        return [b""]

    @classmethod
    def read(cls, parts: Parts) -> CheckpointsDropped:
        return cls()


@dataclass(frozen=True, slots=True)
class UnknownChange:
    """A change of a later version of the clients."""

    kind: int


_CLASSES: Mapping[int, type[Change]] = {
    each.kind: each
    for each in (
        GroupBegun,
        StateCompacted,
        ReaderAdded,
        ReaderRemoved,
        SegmentReleased,
        SegmentAcquired,
        PositionTold,
        SegmentCompleted,
        CheckpointReached,
        CheckpointBegun,
        CheckpointsCleared,
        CheckpointPublished,
        UpdateBegun,
        CheckpointsDropped,
    )
}


def begin_group(
    settings: GroupSettings, starts: Mapping[str, Cut], ranges: Ranges | None = None
) -> GroupBegun:
    """Return the change by which a group begins. ``starts`` is a bounded cut of each stream."""
    ends = {
        # All of a segment is read before the end -1.
        name: INT64_MAX if offset == -1 else offset
        for stream, cut in settings.ends.items()
        for name, offset in _name_segments(stream, cut).items()
    }
    positions = {
        name: offset
        for stream, cut in starts.items()
        for name, offset in _name_segments(stream, cut).items()
    }
    return GroupBegun(settings.encode(), positions, ends, ranges or {})


def encode_state(change: GroupBegun | StateCompacted) -> bytes:
    """Return a revision that replaces all before it."""
    return revisions.encode_state(encode_change(change))


def encode_changes(changes: Sequence[Change]) -> bytes:
    """Return a revision with these changes, which are made together."""
    return revisions.encode_updates(map(encode_change, changes))


def decode_revision(revision: bytes) -> list[Change | UnknownChange]:
    """Return the changes in a revision. Raises ``RemoteProtocolError``."""
    return [decode_change(data) for data in revisions.decode_revision(revision)[1]]


def encode_change(change: Change) -> bytes:
    """Return the bytes of a change, without those of a revision."""
    # The byte with the kind comes between the first bytes of a record.
    return struct.pack(">BB", FORMAT, change.kind) + write_versioned(change.write())[1:]


def decode_change(data: bytes) -> Change | UnknownChange:
    """Return the change in these bytes. Raises ``RemoteProtocolError``."""
    if len(data) < 2 or data[0] != FORMAT:
        raise RemoteProtocolError("a change of a reader group of another format")
    found = _CLASSES.get(data[1])
    if found is None:
        return UnknownChange(data[1])
    return found.read(VersionedReader(bytes([FORMAT]) + data[2:]).read_revisions())


def _name_segments(stream: str, cut: Cut) -> dict[str, int]:
    scope, _, name = stream.partition("/")
    return {segment_name(scope, name, segment): offset for segment, offset in cut.items()}


def _write_block(data: bytes) -> bytes:
    return write_compact_int(len(data)) + data


def _read_block(record: VersionedReader) -> bytes:
    return record.read_bytes(record.read_compact_int())


def _read_flag(parts: Parts, revision: int) -> bool:
    return revision in parts and parts[revision].read_byte() != 0


def _write_ranged(positions: Positions, ranges: Ranges) -> bytes:
    """Return the bytes of positions with ranges."""
    found = {name: (ranges.get(name), offset) for name, offset in positions.items()}
    return write_map(found, lambda each: write_range(each[0]) + write_long(each[1]))


def _read_ranged(parts: Parts) -> tuple[dict[str, int], dict[str, KeyRange]]:
    """Return the positions and ranges of a record's second revision."""
    if 1 not in parts:
        return {}, {}
    found = read_map(parts[1], lambda record: (read_range(record), record.read_long()))
    positions = {name: offset for name, (_, offset) in found.items()}
    return positions, {name: key_range for name, (key_range, _) in found.items()}
