"""Finds the segments that were stored before there was chunk metadata.

Owns: what those chunks are called: ``<segment>$<start offset, 20 digits>``.

Invariants:
1. Nothing in tier 2 is changed: the chunks stay as they are, and metadata name them from now on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import structlog

from segstore.chunks.chunk_metadata import ChunkMetadata
from segstore.chunks.records import Chunk, Condemn, StoredSegment
from segstore.errors import StorageError
from segstore.tiers.api import ChunkInfo, ChunkStorage

Belongs = Callable[[str], bool]
"""Tells by the name that tier 2 knows a segment by whether it is the container's."""

_NAME: Final = re.compile(r"(.*)\$([0-9]{20})", re.ASCII | re.DOTALL)

logger = structlog.get_logger(__name__)


def everything_belongs(segment: str) -> bool:
    """There is one container."""
    return True


async def import_older(chunks: ChunkStorage, belongs: Belongs) -> ChunkMetadata:
    """The metadata of all segments of a container that tier 2 has without metadata.

    Raises ``StorageError`` when a segment has a hole.
    """
    found: dict[str, list[ChunkInfo]] = {}
    for info in await chunks.list_chunks(""):
        match = _NAME.fullmatch(info.name)
        if match is not None and belongs(match[1]):
            found.setdefault(match[1], []).append(info)
    metadata = ChunkMetadata()
    for segment, infos in found.items():
        _import_segment(metadata, segment, infos)
    if found:
        logger.info("made metadata for the chunks of an older version", segments=len(found))
    return metadata


def _import_segment(metadata: ChunkMetadata, segment: str, infos: list[ChunkInfo]) -> None:
    starts = [int(info.name[-20:]) for info in infos]  # sorted, since the digits are
    records: list[Chunk] = []
    for index, (start, info) in enumerate(zip(starts, infos, strict=True)):
        # A write that failed may have left more than anybody knew of: the next chunk has it too.
        end = starts[index + 1] if index + 1 < len(starts) else start + info.length
        if start + info.length < end:
            raise StorageError(
                f"segment {segment} is damaged in tier 2: {info.name} ends at"
                f" {start + info.length}, the next chunk starts at {end}"
            )
        if start == end:  # it kept the end of a segment that is truncated up to there
            metadata.apply(Condemn((info.name,)))
        else:
            records.append(Chunk(start, end - start, info.name, 0))
    metadata.put(segment, StoredSegment(tuple(records), starts[-1]))
