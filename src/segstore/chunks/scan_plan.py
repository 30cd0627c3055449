"""Plans by which readers read a segment's bytes in tier 2 themselves.

Owns: ``ScanPlan`` and its parts, ``ReadableTier``, and how long a plan may be. docs/adr/0280 tells
why there are plans, docs/formats/scan-plan.md what clients do with them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from segstore.chunks.records import Chunk
from segstore.runtime.parallel import run_parallel
from segstore.tiers.api import StoredRange

PLANNED_CHUNKS_MAX: Final = 500
PLANNED_SUMS_BYTES_MAX: Final = 2 * 1024 * 1024
"""Maximum of checksums in one plan: those of 32 GiB."""
PARALLEL_LOOKS_MAX: Final = 16
"""Maximum number of chunks that tier 2 is asked about at the same time: each may cost a request."""

Locate = Callable[[str], Awaitable[list[StoredRange]]]
"""Returns where a chunk's bytes are, by its name."""


@dataclass(frozen=True, slots=True)
class TierAddress:
    """The place of tier 2, for readers other than the store."""

    location: str
    """Location of tier 2: ``file:///directory`` or ``s3://bucket/prefix/``."""
    store_id: str
    endpoint: str = ""
    """URL of the S3 endpoint; empty for Amazon's."""
    region: str = ""


@dataclass(frozen=True, slots=True)
class ReadableTier:
    """A tier 2 that others may read, and where in it a chunk's bytes are."""

    address: TierAddress
    locate: Locate


@dataclass(frozen=True, slots=True)
class PlannedChunk:
    """A chunk, and the files or objects that have its bytes."""

    chunk: Chunk
    ranges: tuple[StoredRange, ...]


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """The chunks that have a segment's bytes from an offset up to ``planned_end``.

    Tier 2 has the segment's bytes up to ``stored_end``: another plan has the bytes between the two.
    """

    address: TierAddress
    planned_end: int
    stored_end: int
    chunks: tuple[PlannedChunk, ...]


def choose_chunks(chunks: Iterable[Chunk], start: int, end: int) -> list[Chunk]:
    """Return the chunks with bytes of a range, from its beginning on, as many as one plan has."""
    chosen: list[Chunk] = []
    sums_bytes = 0
    for chunk in chunks:
        if chunk.end <= start:
            continue
        sums_bytes += len(chunk.checksums.sums)
        is_full = len(chosen) == PLANNED_CHUNKS_MAX or sums_bytes > PLANNED_SUMS_BYTES_MAX
        if chunk.start >= end or (chosen and is_full):
            break
        chosen.append(chunk)
    return chosen


async def locate_all(locate: Locate, chunks: Sequence[Chunk]) -> tuple[PlannedChunk, ...]:
    """Return the chunks with where they are. Raises the first ``StorageError``."""
    planned: dict[str, PlannedChunk] = {}

    async def find(chunk: Chunk) -> None:
        ranges = await locate(chunk.name)
        planned[chunk.name] = PlannedChunk(chunk, tuple(ranges))

    await run_parallel(chunks, find, tasks_max=PARALLEL_LOOKS_MAX)
    return tuple(planned[chunk.name] for chunk in chunks)
