"""Writes an export to a stream, each event once.

Owns: the loop over a file's events, and the identity of an import, by which an attempt that was
ended goes on.

An import is one writer to the segment stores: its id is made of the export's id and of what the
user wants, and each event has its place in the file as its number. So a stream itself tells which
events it has, and nothing is kept elsewhere.

Invariants:
1. When an import is killed at any moment and repeated, the stream has each event once. Held by
   ``test_an_import_that_is_killed_goes_on_without_loss_or_duplicates``.
2. When a file is damaged or cut off, the import of it ends with an error. Held by
   ``test_a_damaged_file_is_refused_before_anything_is_written``, and for what comes through a pipe
   by ``test_a_pipe_that_ends_early_is_told_with_what_was_stored``.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from pravega_admin.exports.export_file import ExportReader, Source
from pravega_admin.exports.keys import KeyOf
from pravega_admin.exports.manifest import Manifest, Positions
from pravega_admin.exports.numbered_event_writer import NumberedEventWriter
from pravega_wire.hashing import routing_key_hash
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.delays import OnDelay
from segstore_client.errors import (
    AlreadyExistsError,
    DamagedExportError,
    UsageError,
)

OnBytes = Callable[[int], None]


def writer_id_of(manifest: Manifest, *wishes: str) -> bytes:
    """Return the id of the writer that imports an export as its user wishes: 16 bytes."""
    text = "\n".join(["segstore import", manifest.id, *wishes])
    # The first bit is that of attributes which are no writers'.
    digest = hashlib.sha256(text.encode()).digest()
    return bytes([digest[0] & 0x7F]) + digest[1:16]


@dataclass(frozen=True, slots=True)
class Counts:
    """The number of a file's events and of their bytes."""

    events: int
    data_bytes: int


def check_file(source: Source, on_bytes: OnBytes) -> tuple[Manifest, Counts]:
    """Read a file to its end; return its manifest and what it has.

    Raises ``DamagedExportError`` and ``UsageError`` as ``ExportReader``.
    """
    reader = ExportReader(source)
    positions = Positions(reader.manifest.steps)
    data_bytes = position = 0
    for block in reader.blocks():
        for run in block.runs:
            positions.take(run)
            data_bytes += sum(map(len, run.events))
        on_bytes(block.end - position)
        position = block.end
    positions.check_complete()
    return reader.manifest, Counts(positions.taken_events, data_bytes)


class Target(ABC):
    """A stream that gets the events of a file. Use it within a ``with`` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def write(self, segment: int, data: bytes, number: int) -> None:
        """Add the file's event of a number, which is of a segment of the exported stream."""

    @abstractmethod
    def flush(self) -> None:
        """Wait until every event that was added is stored."""

    @abstractmethod
    def finish(self) -> None:
        """Do what is left when every event was added, and wait until all are stored."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections, without waiting for anything. Idempotent."""

    @property
    @abstractmethod
    def stored_events(self) -> int:
        """Return the number of events that this process has stored."""

    def describe_segments(self) -> list[dict[str, Any]]:
        """Return where each exported segment is now; none if events are spread by their keys."""
        return []


def import_events(reader: ExportReader, target: Target, on_bytes: OnBytes) -> Counts:
    """Write all events of a file to a stream, and wait until they are stored; count them.

    ``on_bytes`` is called with the number of bytes since the last call. When the file turns out to
    be damaged, what came before is stored, and ``DamagedExportError`` is raised.
    """
    positions = Positions(reader.manifest.steps)
    number = data_bytes = 0
    try:
        for block in reader.blocks():
            before = positions.taken_bytes
            for run in block.runs:
                positions.take(run)
                for event in run.events:
                    number += 1
                    data_bytes += len(event)
                    target.write(run.segment, event, number)
            on_bytes(positions.taken_bytes - before)
        positions.check_complete()
    except DamagedExportError as error:
        target.flush()
        raise DamagedExportError(
            f"{error}; the {number} events before are stored, and the import is not complete"
        ) from error
    target.finish()
    return Counts(number, data_bytes)


class KeyedTarget(Target):
    """A stream, which may have other events, that gets those of a file by their routing keys.

    If it does not exist it is made with the exported settings, and with ``segments`` if given. One
    that exists keeps its segments and settings.
    """

    def __init__(
        self,
        controller: ControllerClient,
        scope: str,
        stream: str,
        manifest: Manifest,
        key_of: KeyOf,
        *,
        writer_id: bytes,
        segments: int | None,
        patience: float,
        on_delay: OnDelay | None = None,
    ) -> None:
        settings = manifest.stream_settings()
        if segments is not None:
            scaling = replace(settings.scaling, segment_count_min=segments)
            settings = replace(settings, scaling=scaling)
        with suppress(AlreadyExistsError):
            controller.create_stream(scope, stream, settings)
        self._key_of = key_of
        self._writer = NumberedEventWriter(
            controller, scope, stream, writer_id=writer_id, patience=patience, on_delay=on_delay
        )

    @property
    def stored_events(self) -> int:
        """Return the number of events that this process has stored."""
        return self._writer.acknowledged_events

    def write(self, segment: int, data: bytes, number: int) -> None:
        """Add an event; ``UsageError`` if it has no key."""
        try:
            key = self._key_of(data)
        except UsageError as error:
            raise UsageError(f"{error} (event {number} of the file)") from None
        self._writer.write_numbered(routing_key_hash(key), data, number)

    def flush(self) -> None:
        """Wait until every event that was added is stored."""
        self._writer.flush()

    def finish(self) -> None:
        """Wait until every event is stored."""
        self._writer.flush()

    def close(self) -> None:
        """Close the connections."""
        self._writer.close()
