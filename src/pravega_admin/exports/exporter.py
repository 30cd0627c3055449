"""Reads a stream for an export, and writes it to a file or a pipe.

Owns: the order in which segments are read, and the file while it is not complete.

A file has the name ``FILE.part`` until all of it is on disk. An export that was ended goes on there
with the last whole block, and reads the same part of the stream to its end.

Invariants:
1. When an export is killed at any moment and goes on, the file has each event once. Held by
   ``test_an_export_goes_on_where_it_was_killed``.
2. When the stream is truncated meanwhile, an error says so: an export never lacks events in
   silence. Held by ``test_a_truncation_meanwhile_ends_the_export``.
3. At most ``SEGMENTS_AT_ONCE`` segments are read at a time, which bounds the memory. Held by
   ``test_segments_are_read_some_at_a_time``.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Protocol

from pravega_admin.exports.export_file import BlockWriter, ExportReader, encode_header
from pravega_admin.exports.manifest import FORMAT, Manifest, Positions, encode_settings
from pravega_admin.exports.stream_plan import plan_steps
from pravega_wire.codec import HEADER_BYTES
from pravega_wire.names import scoped_name
from pravega_wire.sessions.read_cursor import ReadEvent
from segstore_client.blocking.event_reader import BlockingEventReader
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.cuts.bounds import Bounds
from segstore_client.errors import (
    AlreadyExistsError,
    ConflictError,
    DamagedExportError,
    UsageError,
)

SEGMENTS_AT_ONCE = 16
PART_SUFFIX = ".part"

Rest = Sequence[Mapping[int, tuple[int, int]]]
"""For each step, the offsets from which to which are missing, by segment."""


class Sink(Protocol):
    """The place where an export is written."""

    def write(self, data: bytes, /) -> object:
        """Write all of the bytes."""


def make_manifest(
    controller: ControllerClient,
    scope: str,
    stream: str,
    start: Mapping[int, int],
    end: Mapping[int, int],
    *,
    places: tuple[str, str],
    exported: str,
) -> Manifest:
    """Return the manifest of an export that begins now, between two stream cuts.

    An empty ``end`` is the end of a sealed stream. ``exported`` is the time. Raises
    ``ConflictError`` when the stream is truncated meanwhile.
    """
    return Manifest(
        format=FORMAT,
        id=os.urandom(16).hex(),
        stream=scoped_name(scope, stream),
        exported=exported,
        places=places,
        is_sealed=not end,
        settings=encode_settings(controller.stream_settings(scope, stream)),
        steps=plan_steps(controller, scope, stream, start, end),
    )


def write_export(
    controller: ControllerClient,
    manifest: Manifest,
    rest: Rest,
    sink: Sink,
    *,
    codec: str,
    patience: float,
    on_bytes: Callable[[int], None],
) -> int:
    """Write the missing events of an export to a sink, behind its header; return their number.

    ``on_bytes`` is called with the number of bytes of the stream that were read since the last
    call. Raises ``ConflictError`` when the stream has lost events.
    """
    blocks = BlockWriter(manifest, codec)
    scope, _, stream = manifest.stream.partition("/")
    count = waiting = 0
    for event in read_events(controller, scope, stream, rest, patience=patience):
        block = blocks.add(event.segment_id, event.offset, event.data)
        count += 1
        waiting += len(event.data) + HEADER_BYTES
        if block:
            sink.write(block)
            on_bytes(waiting)
            waiting = 0
    if block := blocks.flush():
        sink.write(block)
    on_bytes(waiting)
    return count


def read_events(
    controller: ControllerClient, scope: str, stream: str, rest: Rest, *, patience: float
) -> Iterator[ReadEvent]:
    """Yield the events of parts of segments, those of each step after those of the step before it.

    Raises ``ConflictError`` when one is missing.
    """
    for step in rest:
        waiting = iter(sorted(step.items()))
        while parts := dict(islice(waiting, SEGMENTS_AT_ONCE)):
            expected = {segment: begin for segment, (begin, _) in parts.items()}
            ends = {segment: end for segment, (_, end) in parts.items()}
            with BlockingEventReader(
                controller, scope, stream, bounds=Bounds(expected, ends), patience=patience
            ) as reader:
                while (event := reader.next_event()) is not None:
                    if expected[event.segment_id] != event.offset:
                        raise _truncated(scope, stream, event.segment_id)
                    expected[event.segment_id] += len(event.data) + HEADER_BYTES
                    yield event
            if lacking := [segment for segment in parts if expected[segment] != ends[segment]]:
                raise _truncated(scope, stream, lacking[0])


def _truncated(scope: str, stream: str, segment: int) -> ConflictError:
    return ConflictError(
        f"stream {scoped_name(scope, stream)} was truncated while it was exported: events of"
        f" segment {segment} are gone"
    )


# ---- The file ------------------------------------------------------------------------------------


class PartFile:
    """The file of an export that is not complete."""

    def __init__(self, file: BinaryIO, manifest: Manifest, codec: str, positions: Positions):
        self.file = file
        self.manifest = manifest
        self.codec = codec
        self.rest: Rest = positions.rest()
        self.taken_bytes = positions.taken_bytes
        """The number of bytes of the stream that the file has."""
        self.taken_events = positions.taken_events


@contextmanager
def open_part(
    path: Path, codec: str, places: tuple[str, str], stream: str, begin: Callable[[], Manifest]
) -> Iterator[PartFile]:
    """Yield the file of an export to ``path``, to which blocks are added; it gets its name then.

    What is there of an earlier attempt stays; without one, ``begin`` makes the manifest. The block
    may raise an error, then the file keeps what was written. Raises ``AlreadyExistsError`` if
    ``path`` exists, ``ConflictError`` if another process writes there, and ``UsageError`` if an
    earlier attempt was to export something else.
    """
    if path.exists():
        raise AlreadyExistsError(f"{path} exists already")
    part_path = path.with_name(path.name + PART_SUFFIX)
    with open(part_path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(f"another process exports to {path}") from None
        if not _is_at(part_path, file):
            # It was opened before the other process gave it its name, and locked after that.
            raise ConflictError(f"another process has just ended an export to {path}")
        part = _recover(part_path, file)
        if part is None:
            try:
                manifest = begin()
            except BaseException:
                # There is nothing to go on with.
                part_path.unlink()
                raise
            file.write(encode_header(manifest, codec))
            part = PartFile(file, manifest, codec, Positions(manifest.steps))
        if (part.manifest.stream, part.manifest.places) != (stream, places):
            first, last = part.manifest.places
            raise UsageError(
                f"{part_path} is a part of another export, of {part.manifest.stream} from {first}"
                f" to {last}: finish that one, or delete the file"
            )
        yield part
        file.flush()
        os.fsync(file.fileno())
        part_path.rename(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _is_at(path: Path, file: BinaryIO) -> bool:
    """Return whether a path leads to an open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _recover(path: Path, file: BinaryIO) -> PartFile | None:
    """Return a file without the broken bytes at its end, which are cut off; None if it has no
    header.

    Raises ``UsageError`` if it has something else.
    """
    with path.open("rb") as source:
        if not source.read(1):
            return None
        source.seek(0)
        try:
            reader = ExportReader(source)
        except UsageError as error:
            raise UsageError(f"{path} is in the way: {error}") from None
        except DamagedExportError:
            file.truncate(0)
            return None
        end, positions = reader.position, Positions(reader.manifest.steps)
        try:
            for block in reader.blocks():
                for run in block.runs:
                    positions.take(run)
                end = block.end
        except DamagedExportError:
            # The last writes before a crash are missing or broken.
            file.truncate(end)
            return _recover(path, file)
    return PartFile(file, reader.manifest, reader.codec, positions)
