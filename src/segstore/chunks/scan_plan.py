"""Plans with which clients read a segment's bytes in tier 2 themselves.

Owns: ``ScanPlan`` and its parts, and the maximum length of a plan. docs/adr/0280 explains why there
are plans, and docs/formats/scan-plan.md how clients use them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from segstore.chunks.records import Chunk
from segstore.runtime.parallel import run_parallel
from segstore.tiers.api import StoredRange
from segstore.tiers.vendor import Locate, TierAddress

PLANNED_CHUNKS_MAX: Final = 500
PLANNED_SUMS_BYTES_MAX: Final = 2 * 1024 * 1024
"""Maximum length, in bytes, of the checksums in one plan: those of 32 GiB of chunks."""
PARALLEL_LOOKS_MAX: Final = 16
"""Maximum number of chunks whose places are looked up at the same time. Each may cost a request."""


@dataclass(frozen=True, slots=True)
class PlannedChunk:
    """A chunk, and the files or objects that have its bytes."""

    chunk: Chunk
    ranges: tuple[StoredRange, ...]


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """The chunks with a segment's bytes from the requested offset up to ``planned_end``.

    Tier 2 has the segment's bytes up to ``stored_end``. If that is more, a client asks for another
    plan.
    """

    address: TierAddress
    planned_end: int
    stored_end: int
    chunks: tuple[PlannedChunk, ...]


def choose_chunks(chunks: Iterable[Chunk], start: int, end: int) -> list[Chunk]:
    """Return the chunks with the first bytes of a range: up to its end, to a lost range, or to the
    maximum length of a plan."""
    chosen: list[Chunk] = []
    sums_bytes = 0
    for chunk in chunks:
        if chunk.end <= start:
            continue
        sums_bytes += len(chunk.checksums.sums)
        is_full = len(chosen) == PLANNED_CHUNKS_MAX or sums_bytes > PLANNED_SUMS_BYTES_MAX
        if chunk.start >= end or chunk.is_lost or (chosen and is_full):
            break
        chosen.append(chunk)
    return chosen


async def locate_all(locate: Locate, chunks: Sequence[Chunk]) -> tuple[PlannedChunk, ...]:
    """Return the chunks with their places. Raises the first ``StorageError``."""
    planned: dict[str, PlannedChunk] = {}

    async def find(chunk: Chunk) -> None:
        ranges = await locate(chunk.name)
        planned[chunk.name] = PlannedChunk(chunk, tuple(ranges))

    await run_parallel(chunks, find, tasks_max=PARALLEL_LOOKS_MAX)
    return tuple(planned[chunk.name] for chunk in chunks)
