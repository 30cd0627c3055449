"""The revisions by which the readers of a group agree, as the official clients write them.

Owns: ``OnlineReaders``, which readers a group has, and of the bytes as much as tells that.

A group's state is in the segment of its stream ``_RG<name>``, one event for each revision. Readers
of the state begin at the last compaction, whose offset is in the attribute ``REVISION_MARK``, and
take the revisions in order.

    revision = int32 1, state | int32 2, { int32 length, change } ...
    state    = [ byte 0 | byte kind | record ], of kind 0 or 1; changes are such, too
    kind 0   = a state without readers
    kind 1   = a compaction: configuration, checkpoints, distances, future segments, and
               a map of each reader to its segments
    kind 2   = a reader comes: its name
    kind 3   = a reader goes: its name, and its segments

Configuration and checkpoints are bytes with a length before them; a record is as in
``versioned.py``. All other kinds of changes are about segments and checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pravega_wire.errors import RemoteProtocolError
from pravega_wire.versioned import FORMAT, VersionedReader

_STATE, _CHANGES = 1, 2
_EMPTY, _COMPACTED, _COMES, _GOES = range(4)


class OnlineReaders:
    """The readers of a group, after the revisions that were added. No reader is known before the
    first whole state."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    @property
    def names(self) -> list[str]:
        """Return their names, in order."""
        return sorted(self._names)

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
        kind = data[1]
        if kind > _GOES:
            return
        # The byte with the kind stands before a record's other bytes.
        record = VersionedReader(bytes([FORMAT]) + data[2:]).read_revision()
        if kind == _EMPTY:
            self._names = set()
        elif kind == _COMPACTED:
            self._names = _read_compacted(record)
        elif kind == _COMES:
            self._names.add(record.read_text())
        else:
            self._names.discard(record.read_text())


def _read_compacted(record: VersionedReader) -> set[str]:
    """Return the readers of a compacted state."""
    for _ in ("configuration", "checkpoints"):
        record.read_bytes(record.read_compact_int())
    _read_map(record, VersionedReader.read_long)
    _read_map(record, _read_longs)
    return set(_read_map(record, lambda each: _read_map(each, VersionedReader.read_long)))


def _read_longs(record: VersionedReader) -> None:
    record.read_bytes(8 * record.read_compact_int())


def _read_map(record: VersionedReader, read_value: Callable[[VersionedReader], Any]) -> list[str]:
    """Return the keys of a map from texts to values."""
    keys = []
    for _ in range(record.read_compact_int()):
        keys.append(record.read_text())
        read_value(record)
    return keys
