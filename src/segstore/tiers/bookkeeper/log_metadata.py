"""Encodes and changes a log's node in ZooKeeper, which has the log's ledgers and truncation point.

Owns: ``LogMetadata``, its bytes, which are Pravega's, its changes, and the paths of the nodes.

    node = versioned record (version 0, revision 0)
      byte enabled | long epoch | long truncated sequence | long truncated ledger | int count, then
      long ledger | int sequence | byte status        for each ledger, ascending in both numbers

Numbers have the compact encoding of ``pravega_wire.versioned``. An address is
``sequence << 32 | entry``, so that addresses ascend over ledgers. The truncated address is the last
one that was dropped.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import IntEnum

from pravega_wire.errors import RemoteProtocolError
from pravega_wire.versioned import (
    VersionedReader,
    write_compact_int,
    write_compact_long,
    write_versioned,
)
from segstore.errors import DataLogCorruptError

ENTRY_BITS = 32
ENTRIES_MAX = 1 << ENTRY_BITS
_DEPTH = 2


class Status(IntEnum):
    """Tells whether a ledger has entries, as far as the metadata know."""

    UNKNOWN = 0
    EMPTY = 1
    NOT_EMPTY = 2


@dataclass(frozen=True, slots=True)
class LogLedger:
    """One of a log's ledgers."""

    ledger_id: int
    sequence: int
    status: Status = Status.UNKNOWN


@dataclass(frozen=True, slots=True)
class LogMetadata:
    """The content of a log's node."""

    is_enabled: bool = True
    epoch: int = 0
    truncated_position: int = 0
    truncated_ledger_id: int = 0
    ledgers: tuple[LogLedger, ...] = ()

    def add(self, ledger_id: int) -> LogMetadata:
        """Return these metadata with one more ledger and the next epoch."""
        sequence = self.ledgers[-1].sequence + 1 if self.ledgers else 1
        added = LogLedger(ledger_id, sequence)
        return replace(self, epoch=self.epoch + 1, ledgers=(*self.ledgers, added))

    def truncate(self, position: int, keeps: Collection[int] = ()) -> LogMetadata:
        """Return these metadata truncated to a position; its entry stays. Unneeded ledgers with ids
        in ``keeps`` stay in the list."""
        if position <= self.truncated_position:
            return self
        sequence = position >> ENTRY_BITS
        kept = tuple(
            each for each in self.ledgers if each.sequence >= sequence or each.ledger_id in keeps
        )
        return replace(
            self,
            truncated_position=position - 1,
            truncated_ledger_id=next(e.ledger_id for e in kept if e.sequence >= sequence),
            ledgers=kept,
        )


def encode_log_metadata(metadata: LogMetadata) -> bytes:
    """Return the bytes of a log's node."""
    data = bytearray([metadata.is_enabled])
    data += write_compact_long(metadata.epoch)
    data += write_compact_long(metadata.truncated_position)
    data += write_compact_long(metadata.truncated_ledger_id)
    data += write_compact_int(len(metadata.ledgers))
    for each in metadata.ledgers:
        data += write_compact_long(each.ledger_id)
        data += write_compact_int(each.sequence)
        data.append(each.status)
    return write_versioned([bytes(data)])


def decode_log_metadata(data: bytes) -> LogMetadata:
    """Return the metadata in the bytes of a log's node. Raises ``DataLogCorruptError``."""
    try:
        reader = VersionedReader(data).read_revision()
        is_enabled = bool(reader.read_byte())
        epoch = reader.read_compact_long()
        position = reader.read_compact_long()
        ledger_id = reader.read_compact_long()
        ledgers = tuple(
            LogLedger(
                reader.read_compact_long(), reader.read_compact_int(), Status(reader.read_byte())
            )
            for _ in range(reader.read_compact_int())
        )
    except (RemoteProtocolError, ValueError, IndexError) as error:
        raise DataLogCorruptError(f"the log's metadata are damaged: {error}") from error
    return LogMetadata(is_enabled, epoch, position, ledger_id, ledgers)


def log_path(root: str, container_id: int) -> str:
    """Return the path of a container's node, below a folder for its last digit and one for the
    digit before: ``<root>/3/2/123`` for container 123."""
    digits = [str(container_id // 10**level % 10) for level in range(_DEPTH)]
    return "/".join([root, *digits, str(container_id)])
