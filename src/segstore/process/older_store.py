"""Finds out whether a tier 2 without an identity is that of a data directory of an older version.

Owns: ``refuse_implausible``: what the journals say that tier 2 must have, and what it has.

Invariants:
1. A log that was truncated begins with a checkpoint, and tier 2 has every byte that the checkpoint
   counts, until the log tells that the segment is deleted or merged. A tier 2 that knows no such
   segment is not the one that the log was written with.
2. Which segments tier 2 knows is told by chunk metadata alone: chunks of a merged segment keep
   their names.
3. The epoch of a claim in tier 2 was made durable in the log before: a log that does not know it is
   older than tier 2, or another store's.
4. Nothing is changed.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Final

import trio

from _fast.log.data_frame import FrameReader
from segstore.chunks.system_journal import SystemJournal
from segstore.errors import IdentityError, IdentityProblem, StorageDamagedError
from segstore.model.metadata import ContainerMetadata, storage_name
from segstore.model.operations import (
    ActivateOperation,
    CheckpointOperation,
    DeleteOperation,
    MapOperation,
    MergeOperation,
    Operation,
    decode_operation,
)
from segstore.process.data_directory import DataDirectory
from segstore.tiers.api import ChunkStorage
from segstore.tiers.journal.disk import UntouchedDisk
from segstore.tiers.journal.log_reader import LogReader
from segstore.tiers.journal.recovery import Recovered, recover

_CLAIM: Final = re.compile(r"_system/chunks-([0-9]+)\$claim-([0-9]{10})-.*", re.ASCII)


async def refuse_implausible(
    directory: DataDirectory, journal: int, chunks: ChunkStorage, where: str
) -> None:
    """Raise ``IdentityError`` when the chunks cannot be those that a journal was written with.

    Raises ``DataLogError`` when the journal cannot be read.
    """
    path = directory.journal_path(journal)
    claims = {
        container_id: epoch
        for container_id, epoch in (await _claims(chunks)).items()
        if directory.journal_of(container_id) == journal
    }
    recovered = await trio.to_thread.run_sync(
        lambda: recover(UntouchedDisk(path)) if path.is_dir() else None
    )
    try:
        states = {} if recovered is None else recovered.state.containers
        for container_id, epoch in sorted(claims.items()):
            state = states.get(container_id)
            if state is None or state.epoch < epoch:
                raise IdentityError(
                    f"{path} has container {container_id} up to epoch {state.epoch if state else 0}"
                    f" and tier 2 in {where} up to epoch {epoch}: one of them is not that of this"
                    " data directory, or an older state of it; put the right one there",
                    tier=f"journal {journal}",
                    problem=IdentityProblem.OLDER,
                )
        if recovered is None:
            return
        for container_id, state in sorted(states.items()):
            if state.first_position == 1:
                continue  # everything is in the log
            missing = await _find_missing(
                directory, container_id, recovered, chunks, is_claimed=container_id in claims
            )
            if missing is not None:
                raise IdentityError(
                    f"tier 2 of data directory {directory.path} is expected in {where}, which has"
                    f" nothing of {missing}, and the journal has not all of it any more: mount"
                    " the right directory, or name it; nothing was written",
                    tier="tier 2",
                    problem=IdentityProblem.MISSING,
                )
    finally:
        if recovered is not None:
            _close(recovered)


async def _claims(chunks: ChunkStorage) -> dict[int, int]:
    """Return the greatest epoch under which each container was claimed in tier 2."""
    claims: dict[int, int] = {}
    for each in await chunks.list_chunks("_system/chunks-"):
        if match := _CLAIM.fullmatch(each.name):
            container_id = int(match[1])
            claims[container_id] = max(claims.get(container_id, 0), int(match[2]))
    return claims


class _Expected:
    """Segments with bytes before the beginning of a log, as the log goes on with them."""

    def __init__(self, metadata: ContainerMetadata) -> None:
        self._names = {each.segment_id: each.storage_name for each in metadata.segments.values()}
        self.left = {
            each.segment_id: each.storage_name
            for each in metadata.segments.values()
            if each.length > each.start_offset
        }
        """Segments that still exist, by their numbers: their names in tier 2."""
        self.seen = set(self.left.values())
        """All segments' names in tier 2, which may know one for longer than the log."""

    def apply(self, operation: Operation) -> None:
        """Follow an operation of the log."""
        match operation:
            case MapOperation():
                number = operation.segment_id
                self._names[number] = storage_name(operation.name, number)
            case ActivateOperation():
                record = operation.record
                self._names[record.segment_id] = storage_name(record.name, record.segment_id)
            case DeleteOperation():
                self.left.pop(operation.segment_id, None)
            case MergeOperation() if self.left.pop(operation.source_id, None) is not None:
                if target := self._names.get(operation.segment_id):
                    self.left[operation.segment_id] = target
                    self.seen.add(target)


async def _find_missing(
    directory: DataDirectory,
    container_id: int,
    recovered: Recovered,
    chunks: ChunkStorage,
    *,
    is_claimed: bool,
) -> str | None:
    """Return a segment that tier 2 must have, when it knows none of those; None when tier 2 is
    plausible."""
    path = directory.journal_path(directory.journal_of(container_id))
    try:
        known = await _known_segments(container_id, chunks)
    except StorageDamagedError:
        return None  # it is there; the container tells of the damage when it is opened
    expected: _Expected | None = None
    async with aclosing(_operations(path, recovered, container_id)) as operations:
        async for operation in operations:
            if expected is not None:
                expected.apply(operation)
                continue
            metadata = ContainerMetadata(container_id)
            if isinstance(operation, CheckpointOperation):
                metadata.restore(operation.snapshot)
            expected = _Expected(metadata)
            if not expected.left or not known.isdisjoint(expected.seen):
                return None
    if expected is None or not known.isdisjoint(expected.seen):
        return None
    if not expected.left and is_claimed:
        return None  # nothing needs to be there any more
    return min(expected.left.values() or expected.seen)


async def _known_segments(container_id: int, chunks: ChunkStorage) -> frozenset[str]:
    """Return the segments in a container's chunk metadata, by their names in tier 2.

    Raises ``StorageDamagedError`` when the metadata are damaged.
    """
    journal = SystemJournal(chunks, container_id=container_id, epoch=lambda: 0)
    return frozenset((await journal.inspect()).metadata.segment_names())


async def _operations(
    path: Path, recovered: Recovered, container_id: int
) -> AsyncGenerator[Operation, None]:
    """Yield the operations in a container's log."""
    disk, run_blocking = UntouchedDisk(path), trio.to_thread.run_sync
    reader = LogReader.of_scans(disk, run_blocking, container_id, recovered.state, recovered.scans)
    frames = FrameReader()
    async with aclosing(reader.read()) as entries:
        async for entry in entries:
            for _, record in frames.feed(entry.data, entry.address.position):
                yield decode_operation(record)


def _close(recovered: Recovered) -> None:
    files = [scan.file for scan in recovered.scans.values()] + recovered.ready
    if recovered.tail.file is not None:
        files.append(recovered.tail.file)
    for file in files:
        file.disk_file.close()
