"""The configuration of a reader group, and its bytes in the group's state.

    times | cuts to start at | cuts to end at
    the same | int32 outstanding checkpoints
    compact retention | int64 generation | 16 bytes id

Each line is a revision of the record; clients before 0.10 wrote two of them. Cuts are maps from
scoped names of streams to bytes, which are empty for an unbounded cut.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from pravega_wire.reader_groups.fields import read_map, write_long, write_map
from pravega_wire.versioned import (
    VersionedReader,
    write_compact_int,
    write_compact_long,
    write_compact_signed_long,
    write_text,
    write_versioned,
)

Cut = Mapping[int, int]
"""A stream cut: offsets by segment id. An empty one is unbounded."""
RETENTION_NONE, RETENTION_MANUAL, RETENTION_AUTOMATIC = range(3)
"""The retention type: nothing is kept for a group, or what is behind the cut that a user tells, or
behind its last checkpoint."""
REFRESH_MS = 3000
CHECKPOINT_MS = 30_000
OUTSTANDING_MAX = 3
_CUT_VERSION = 1
_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The configuration of a group; cuts are by scoped names of streams.

    ``generation`` is None in a state that a client before 0.10 wrote.
    """

    starts: Mapping[str, Cut]
    ends: Mapping[str, Cut]
    checkpoint_ms: int = CHECKPOINT_MS
    refresh_ms: int = REFRESH_MS
    outstanding_max: int = OUTSTANDING_MAX
    retention: int = RETENTION_NONE
    generation: int | None = 0
    identifier: bytes = bytes(_ID_BYTES)

    def encode(self) -> bytes:
        """Return the record."""
        times = write_long(self.checkpoint_ms) + write_long(self.refresh_ms)
        cuts = _write_cuts(self.starts) + _write_cuts(self.ends)
        return write_versioned(
            [
                times + cuts,
                times + cuts + struct.pack(">i", self.outstanding_max),
                write_compact_int(self.retention)
                + write_long(self.generation or 0)
                + self.identifier,
            ]
        )

    @classmethod
    def decode(cls, data: bytes) -> GroupSettings:
        """Return the configuration in a record. Raises ``RemoteProtocolError``."""
        parts = VersionedReader(data).read_revisions()
        times = parts.get(1, parts[0])
        checkpoint_ms, refresh_ms = times.read_long(), times.read_long()
        starts, ends = _read_cuts(times), _read_cuts(times)
        outstanding = times.read_int() if 1 in parts else OUTSTANDING_MAX
        if 2 not in parts:
            return cls(starts, ends, checkpoint_ms, refresh_ms, outstanding, generation=None)
        last = parts[2]
        retention, generation = last.read_compact_int(), last.read_long()
        identifier = last.read_bytes(_ID_BYTES)
        return cls(
            starts,
            ends,
            checkpoint_ms,
            refresh_ms,
            outstanding,
            retention,
            generation,
            identifier,
        )


def _write_cuts(cuts: Mapping[str, Cut]) -> bytes:
    written = {name: _write_cut(name, cut) if cut else b"" for name, cut in cuts.items()}
    return write_map(written, lambda data: write_compact_int(len(data)) + data)


def _write_cut(name: str, cut: Cut) -> bytes:
    positions = [
        write_compact_long(segment) + write_compact_signed_long(offset)
        for segment, offset in cut.items()
    ]
    content = write_text(name) + write_compact_int(len(positions)) + b"".join(positions)
    return write_versioned([content], version=_CUT_VERSION)


def _read_cuts(record: VersionedReader) -> dict[str, Cut]:
    return read_map(record, lambda each: _read_cut(each.read_bytes(each.read_compact_int())))


def _read_cut(data: bytes) -> dict[int, int]:
    if not data:
        return {}
    content = VersionedReader(data).read_revisions(version=_CUT_VERSION)[0]
    content.read_text()
    return {
        content.read_compact_long(): content.read_compact_signed_long()
        for _ in range(content.read_compact_int())
    }
