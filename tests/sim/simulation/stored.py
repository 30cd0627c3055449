"""Compares the bytes in tier 2 with what the containers' segments must be.

Owns: ``check_chunks`` and ``check_complete``.

Invariants:
1. Whatever lies there are bytes of the segment that it is named for.
2. After a clean stop without faults it has all, and nothing that nobody needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from segstore.tiers.api import ChunkStorage
from segstore.tiers.memory import MemoryChunkStorage
from simulation.host import READ_BYTES, Host
from simulation.model import Model

CHECKERS_EPOCH = 2**31
OWN_SEGMENTS = "_system/containers/"
"""Segments that the container makes for itself begin with this."""


async def check_chunks(stored: ChunkStorage, hosts: Sequence[Host]) -> None:
    """Check that all chunks in tier 2 have bytes of the segment that they are named for."""
    for chunk in await stored.list_chunks(""):
        name, start = parse_chunk_name(chunk.name)
        if start is None or name.startswith(OWN_SEGMENTS):
            continue
        model = next(host.model for host in hosts if host.owns(name))
        if "#transient." in name and name not in model.segments.by_name:
            # A recovery deleted it before anybody could see which of its last appends were
            # durable; its chunks are deleted later.
            continue
        data = b""
        if chunk.length:
            data = await stored.read(chunk.name, offset=0, length=chunk.length)
        # What lies in tier 2 was durable before, though a killed life may not have told so.
        model.prove(
            name,
            partial(_is_known, model, name, start, data),
            f"tier 2: {chunk.name} has bytes of no such segment",
        )


def _is_known(model: Model, name: str, start: int, data: bytes) -> bool:
    end = start + len(data)
    return any(
        memoryview(segment.data)[start:end] == data for segment in model.incarnations.get(name, [])
    )


async def check_complete(
    stored: ChunkStorage, hosts: Sequence[Host], *, with_strangers: bool
) -> None:
    """Check that what later owners find in tier 2, without the log, is all there is, and no more.

    ``with_strangers`` when there may be chunks that nobody looks for.
    """
    chunks = await copy_of(stored)
    needed: set[str] = set()
    known: set[str] = set()
    for host in hosts:
        found, names = await _check_host(chunks, host)
        needed |= found
        known |= names
    # What is to be deleted is known, too, without a look at what is there.
    left = {chunk.name for chunk in await chunks.list_chunks("")}
    orphans = {name for name in left - known - needed if not name.startswith("_system/chunks")}
    if with_strangers:
        orphans = set()
    if orphans or needed - left:
        raise hosts[0].model.violated(
            f"tier 2 keeps {sorted(orphans)} for nobody, and has no {sorted(needed - left)}"
        )


async def _check_host(chunks: ChunkStorage, host: Host) -> tuple[set[str], set[str]]:
    """Compare one container's segments; the names of its chunks that have bytes, and of all that
    it knows."""
    model = host.model
    storage = host.segments(chunks, lambda: CHECKERS_EPOCH)
    stored: dict[str, list[str]] = {}
    needed, known = set(), set()
    for storage_name in await storage.segment_names():
        chunks_of_segment = await storage.chunks_of(storage_name)
        # One that is known and was never written has no bytes to miss.
        known |= {chunk.name for chunk in chunks_of_segment}
        needed |= {chunk.name for chunk in chunks_of_segment if chunk.length}
        if "$" not in storage_name and not storage_name.startswith(OWN_SEGMENTS):
            stored.setdefault(storage_name.rpartition(".S-")[0], []).append(storage_name)
    segments = model.segments.by_name
    if strangers := sorted(stored.keys() - segments.keys()):
        raise model.violated(f"tier 2 keeps segments that are gone: {strangers}")
    for name, segment in segments.items():
        names = stored.get(name, [])
        if len(names) > 1:
            raise model.violated(f"tier 2 keeps namesakes of {name}: {names}")
        if segment.start_offset == len(segment.data):
            continue
        data = bytearray()
        while (offset := segment.start_offset + len(data)) < len(segment.data):
            if not names or offset >= await storage.stored_length(names[0]):
                raise model.violated(
                    f"tier 2 has {name} up to {offset}, its length is {len(segment.data)}"
                )
            data += await storage.read(names[0], offset=offset, length=READ_BYTES)
        if data != segment.data[segment.start_offset :]:
            raise model.violated(f"tier 2 has other bytes of {name}")
    return needed, known | set(storage.journal.metadata.condemned)


async def copy_of(chunks: ChunkStorage) -> MemoryChunkStorage:
    """Return another storage with the same chunks."""
    copy = MemoryChunkStorage()
    for chunk in await chunks.list_chunks(""):
        data = b""
        if chunk.length:
            data = await chunks.read(chunk.name, offset=0, length=chunk.length)
        await copy.write(chunk.name, offset=0, data=[data])
    return copy


def parse_chunk_name(chunk: str) -> tuple[str, int | None]:
    """Return segment and the chunk's start offset; None for chunks that hold something else."""
    storage_name, _, maker = chunk.rpartition("$")
    name, _, segment_id = storage_name.rpartition(".S-")
    start, _, _ = maker.partition(".")
    if not segment_id.isdigit() or not start.isdigit():
        return name, None
    return name, int(start)
