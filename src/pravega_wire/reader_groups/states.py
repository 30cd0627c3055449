"""The revisions by which the readers of a group agree, as the official clients write them.

Owns: ``GroupState``, which readers a group has and where they are, and the bytes of the two
revisions that set a group to other positions.

A group's state is in the segment of its stream ``_RG<name>``, one event for each revision. Readers
of the state begin at the last compaction, whose offset is in the attribute ``REVISION_MARK``, and
take the revisions in order.

    revision = int32 1, state | int32 2, { int32 length, change } ...
    state    = [ byte 0 | byte kind | record ], of kind 0 or 1; changes are such, too

    kind  name        content
    0     begun       configuration, positions, ends
    1     compacted   configuration, checkpoints, distances, future segments, positions of each
                      reader, positions that no reader has, ends; then last read positions
    2     comes       reader
    3     goes        reader, positions
    4     releases    reader, segment, offset
    5     acquires    reader, segment
    6     tells       reader, int64 distance; then positions with ranges
    7     completes   reader, segment, map of its successors to the segments before each
    8     checkpoints checkpoint, reader, positions
    12    updating    byte, 1 while the configuration changes

Configuration and checkpoints are bytes with a length before them; a record is as in
``versioned.py``, and what follows "then" is its revision 1. Segments are their names, positions
maps of them to int64 offsets. The other kinds, 9 to 13, are about checkpoints, and are skipped.

A reader's position has two values. ``assigned`` has the offset at which it began, or was at its
last checkpoint: there another reader continues if it vanishes. ``read_to`` has the offset that it
told last, some seconds ago.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pravega_wire.errors import RemoteProtocolError
from pravega_wire.names import InvalidNameError, parse_segment_name, segment_name
from pravega_wire.versioned import (
    FORMAT,
    VersionedReader,
    write_compact_int,
    write_compact_long,
    write_compact_signed_long,
    write_text,
    write_versioned,
)

T = TypeVar("T")
Cut = Mapping[int, int]
"""A stream cut: offsets by segment id. An empty one is unbounded."""

_STATE, _CHANGES = 1, 2
_BEGUN, _COMPACTED, _COMES, _GOES, _RELEASES, _ACQUIRES, _TELLS, _COMPLETES, _CHECKPOINTS = range(9)
_UPDATING = 12
_SILENT = "_SILENT_"
"""A part of the names of checkpoints that only find out positions."""
_NO_RANGE = struct.pack(">dd", -1.0, -1.0)
_CUT_VERSION = 1
_RANGE_BYTES = 16


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The configuration of a group; cuts are by scoped names of streams."""

    starts: Mapping[str, Cut]
    ends: Mapping[str, Cut]
    checkpoint_ms: int
    refresh_ms: int
    outstanding_max: int
    retention: int
    generation: int
    identifier: bytes


@dataclass(slots=True)
class GroupState:
    """The state of a group after the revisions that were added. It has nothing before the first
    whole state. Segments are their names."""

    is_begun: bool = False
    is_updating: bool = False
    generation: int | None = None
    """The configuration's; None if a client before 0.10 wrote it."""
    assigned: dict[str, dict[str, int]] = field(default_factory=dict)
    unassigned: dict[str, int] = field(default_factory=dict)
    future: dict[str, set[int]] = field(default_factory=dict)
    """Segments that nobody may read yet, with the ids of those that have to be read before."""
    read_to: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)

    @property
    def readers(self) -> list[str]:
        """Return the names of the readers that are online, in order."""
        return sorted(self.assigned)

    def positions(self) -> dict[str, int]:
        """Return the offsets at which readers would continue if all of them vanished."""
        found = dict(self.unassigned)
        for each in self.assigned.values():
            found |= each
        return found

    def add(self, revision: bytes) -> None:
        """Take the next revision. Raises ``RemoteProtocolError``."""
        reader = VersionedReader(revision)
        kind = reader.read_int()
        if kind == _STATE:
            self._change(revision[reader.position :])
        elif kind == _CHANGES:
            while reader.position < len(revision):
                self._change(reader.read_bytes(reader.read_int()))
        else:
            raise RemoteProtocolError(f"a revision of a reader group of kind {kind}")

    def _change(self, data: bytes) -> None:
        if len(data) < 2 or data[0] != FORMAT:
            raise RemoteProtocolError("a change of a reader group of another format")
        take = _CHANGE_OF_KIND.get(data[1])
        if take is not None:
            # The byte with the kind comes before a record's other bytes.
            record = VersionedReader(bytes([FORMAT]) + data[2:])
            take(self, record.read_revisions())

    def _begin(self, parts: _Parts) -> None:
        record = parts[0]
        self._configure(record.read_bytes(record.read_compact_int()))
        self.assigned, self.future = {}, {}
        self.unassigned = _read_positions(record)
        self.read_to = dict(self.unassigned)
        self.ends = _read_positions(record)
        self.is_updating = 2 in parts and parts[2].read_byte() != 0

    def _restore(self, parts: _Parts) -> None:
        record = parts[0]
        self._configure(record.read_bytes(record.read_compact_int()))
        record.read_bytes(record.read_compact_int())
        _read_map(record, VersionedReader.read_long)
        self.future = {name: set(each) for name, each in _read_map(record, _read_longs).items()}
        self.assigned = _read_map(record, _read_positions)
        self.unassigned = _read_positions(record)
        self.ends = _read_positions(record)
        told = _read_positions(parts[1]) if 1 in parts else {}
        self.read_to = {**self.positions(), **told, **self.unassigned}
        self.is_updating = 2 in parts and parts[2].read_byte() != 0

    def _configure(self, data: bytes) -> None:
        parts = VersionedReader(data).read_revisions()
        self.is_begun = True
        self.generation = None
        if 2 in parts:
            parts[2].read_compact_int()
            self.generation = parts[2].read_long()

    def _come(self, parts: _Parts) -> None:
        self.assigned.setdefault(parts[0].read_text(), {})

    def _go(self, parts: _Parts) -> None:
        record = parts[0]
        segments, last = self.assigned.pop(record.read_text(), {}), _read_positions(record)
        for segment, offset in segments.items():
            self._release(segment, last.get(segment, offset))

    def _release(self, segment: str, offset: int) -> None:
        self.unassigned[segment] = self.read_to[segment] = offset

    def _give_up(self, parts: _Parts) -> None:
        record = parts[0]
        reader, segment, offset = record.read_text(), record.read_text(), record.read_long()
        self.assigned.get(reader, {}).pop(segment, None)
        self._release(segment, offset)

    def _acquire(self, parts: _Parts) -> None:
        reader, segment = parts[0].read_text(), parts[0].read_text()
        offset = self.unassigned.pop(segment, None)
        if offset is not None and reader in self.assigned:
            self.assigned[reader][segment] = offset

    def _tell(self, parts: _Parts) -> None:
        if 1 in parts:
            told = _read_map(parts[1], _read_long_after_range)
            mine = self.assigned.get(parts[0].read_text(), {})
            self.read_to |= {segment: told[segment] for segment in told.keys() & mine.keys()}

    def _complete(self, parts: _Parts) -> None:
        record = parts[0]
        reader, segment = record.read_text(), record.read_text()
        self.assigned.get(reader, {}).pop(segment, None)
        self.read_to.pop(segment, None)
        for successor, before in _read_map(record, _read_longs).items():
            self.future.setdefault(successor, set(before))
        completed = _identifier(segment)
        for successor, waits_for in list(self.future.items()):
            waits_for.discard(completed)
            if not waits_for:
                del self.future[successor]
                self._release(successor, 0)

    def _checkpoint(self, parts: _Parts) -> None:
        record = parts[0]
        checkpoint, reader = record.read_text(), record.read_text()
        mine = self.assigned.get(reader, {})
        for segment, offset in _read_positions(record).items():
            if segment in mine:
                self.read_to[segment] = offset
                if _SILENT not in checkpoint:
                    mine[segment] = offset

    def _set_updating(self, parts: _Parts) -> None:
        self.is_updating = parts[0].read_byte() != 0


_Parts = dict[int, VersionedReader]
_CHANGE_OF_KIND: dict[int, Callable[[GroupState, _Parts], None]] = {
    _BEGUN: GroupState._begin,
    _COMPACTED: GroupState._restore,
    _COMES: GroupState._come,
    _GOES: GroupState._go,
    _RELEASES: GroupState._give_up,
    _ACQUIRES: GroupState._acquire,
    _TELLS: GroupState._tell,
    _COMPLETES: GroupState._complete,
    _CHECKPOINTS: GroupState._checkpoint,
    _UPDATING: GroupState._set_updating,
}


def encode_updating() -> bytes:
    """Return the revision that tells readers that the configuration changes."""
    return _encode_change(_UPDATING, [b"\x01"])


def encode_begun(settings: GroupSettings, starts: Mapping[str, Cut]) -> bytes:
    """Return the revision that makes a group begin anew, without readers.

    ``starts`` is a bounded cut of each stream.
    """
    bounded = {name: cut for name, cut in settings.ends.items() if cut}
    begin = [(name, offset) for name, cut in starts.items() for name, offset in _named(name, cut)]
    end = [(each, offset) for name, cut in bounded.items() for each, offset in _named(name, cut)]
    configuration = _encode_settings(settings)
    count = write_compact_int(len(begin))
    plain = b"".join(write_text(name) + _long(offset) for name, offset in begin)
    ends = b"".join(
        # All of a segment is read before this end.
        write_text(name) + _long((1 << 63) - 1 if offset == -1 else offset)
        for name, offset in end
    )
    ranged = b"".join(write_text(name) + _NO_RANGE + _long(offset) for name, offset in begin)
    head = write_compact_int(len(configuration)) + configuration
    parts = [head + count + plain + write_compact_int(len(end)) + ends, count + ranged, b"\x00"]
    return _encode_change(_BEGUN, parts)


def _encode_change(kind: int, parts: list[bytes]) -> bytes:
    record = write_versioned(parts)
    change = bytes([FORMAT, kind]) + record[1:]
    return struct.pack(">ii", _CHANGES, len(change)) + change


def _encode_settings(settings: GroupSettings) -> bytes:
    times = _long(settings.checkpoint_ms) + _long(settings.refresh_ms)
    cuts = _encode_cuts(settings.starts) + _encode_cuts(settings.ends)
    return write_versioned(
        [
            times + cuts,
            times + cuts + struct.pack(">i", settings.outstanding_max),
            write_compact_int(settings.retention)
            + _long(settings.generation)
            + settings.identifier,
        ]
    )


def _encode_cuts(cuts: Mapping[str, Cut]) -> bytes:
    parts = [write_compact_int(len(cuts))]
    for name, cut in cuts.items():
        data = _encode_cut(name, cut) if cut else b""
        parts += [write_text(name), write_compact_int(len(data)), data]
    return b"".join(parts)


def _encode_cut(name: str, cut: Cut) -> bytes:
    positions = [
        write_compact_long(segment) + write_compact_signed_long(offset)
        for segment, offset in cut.items()
    ]
    content = write_text(name) + write_compact_int(len(positions)) + b"".join(positions)
    return write_versioned([content], version=_CUT_VERSION)


def _named(stream: str, cut: Cut) -> list[tuple[str, int]]:
    scope, _, name = stream.partition("/")
    return [(segment_name(scope, name, segment), offset) for segment, offset in cut.items()]


def _long(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def _identifier(segment: str) -> int:
    try:
        return parse_segment_name(segment).segment_id
    except InvalidNameError as error:
        raise RemoteProtocolError(f"{segment!r} is no segment") from error


def _read_longs(record: VersionedReader) -> list[int]:
    data = record.read_bytes(8 * record.read_compact_int())
    return [each for (each,) in struct.iter_unpack(">q", data)]


def _read_long_after_range(record: VersionedReader) -> int:
    record.read_bytes(_RANGE_BYTES)
    return record.read_long()


def _read_positions(record: VersionedReader) -> dict[str, int]:
    return _read_map(record, VersionedReader.read_long)


def _read_map(record: VersionedReader, read_value: Callable[[VersionedReader], T]) -> dict[str, T]:
    """Return a map from texts."""
    found: dict[str, T] = {}
    for _ in range(record.read_compact_int()):
        key = record.read_text()
        found[key] = read_value(record)
    return found
