"""Finds out whether a tier 2 without an identity is that of a data directory of an older version.

Owns: ``refuse_implausible``: what the journals say that tier 2 must have, and what it has.

Invariants:
1. A log that was truncated begins with a checkpoint, and tier 2 has every byte that the checkpoint
   counts. A tier 2 without anything of that container is not the one that the log was written with.
2. The epoch of a claim in tier 2 was made durable in the log before: a log that does not know it is
   older than tier 2, or another store's.
3. Nothing is changed.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final, TypeVar

import trio

from _fast.data_frame import FrameReader
from segstore.data_directory import DataDirectory
from segstore.errors import IdentityError, IdentityProblem
from segstore.metadata import ContainerMetadata
from segstore.operations import CheckpointOperation, decode_operation
from segstore.tiers.api import ChunkStorage
from segstore.tiers.journal.disk import LocalDisk
from segstore.tiers.journal.log_reader import LogReader
from segstore.tiers.journal.recovery import Recovered, recover

T = TypeVar("T")

FIRST_VERSION: Final = 1
"""Of the data directory; in that one chunks are all that tier 2 has."""
NAMES_MAX: Final = 1000
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
    recovered = await _run_blocking(lambda: recover(LocalDisk(path)) if path.is_dir() else None)
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
        # In the first version containers have no claims.
        is_claimed = directory.format_version != FIRST_VERSION
        for container_id, state in sorted(states.items()):
            if state.first_position == 1:
                continue  # everything is in the log
            stored = await _stored_segments(path, recovered, container_id)
            is_there = container_id in claims or not is_claimed
            if stored and not (is_there and await _has_one_of(chunks, stored)):
                raise IdentityError(
                    f"tier 2 of data directory {directory.path} is expected in {where}, which has"
                    f" nothing of {stored[0]}, and the journal has not all of it any more: mount"
                    " the right directory, or name it; nothing was written",
                    tier="tier 2",
                    problem=IdentityProblem.MISSING,
                )
    finally:
        if recovered is not None:
            _close(recovered)


async def _claims(chunks: ChunkStorage) -> dict[int, int]:
    """The greatest epoch under which each container was claimed in tier 2."""
    claims: dict[int, int] = {}
    for each in await chunks.list_chunks("_system/chunks-"):
        if match := _CLAIM.fullmatch(each.name):
            container_id = int(match[1])
            claims[container_id] = max(claims.get(container_id, 0), int(match[2]))
    return claims


async def _stored_segments(path: Path, recovered: Recovered, container_id: int) -> list[str]:
    """Segments with bytes before the beginning of the log, by their names in tier 2."""
    state = recovered.state.containers[container_id]
    reader = LogReader(
        LocalDisk(path),
        _run_blocking,
        container_id,
        {
            generation: scan.indexes[container_id]
            for generation, scan in recovered.scans.items()
            if container_id in scan.indexes
        },
        {},
        start=state.first_position,
        end=state.next_position,
    )
    metadata = ContainerMetadata(container_id)
    async with aclosing(_records(reader)) as records:
        async for record in records:
            operation = decode_operation(record)
            if isinstance(operation, CheckpointOperation):
                metadata.restore(operation.snapshot)
            break
    return [
        segment.storage_name
        for segment in metadata.segments.values()
        if segment.length > segment.start_offset
    ]


async def _has_one_of(chunks: ChunkStorage, segments: list[str]) -> bool:
    """Whether tier 2 has a chunk of one of the segments, unless it would take long to find out.

    Chunks of merged segments have other names.
    """
    if len(segments) > NAMES_MAX:
        return True
    for segment in segments:
        if await chunks.list_chunks(f"{segment}$"):
            return True
    return False


async def _records(reader: LogReader) -> AsyncGenerator[bytes | memoryview, None]:
    frames = FrameReader()
    async with aclosing(reader.read()) as entries:
        async for entry in entries:
            for _, record in frames.feed(entry.data, entry.address.position):
                yield record


def _close(recovered: Recovered) -> None:
    files = [scan.file for scan in recovered.scans.values()] + recovered.ready
    if recovered.tail.file is not None:
        files.append(recovered.tail.file)
    for file in files:
        file.disk_file.close()


async def _run_blocking(function: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(function)
