"""Damage to one record of the journal or one bit of a chunk, and its end.

Owns: ``damage_one_record``: which records can be damaged so that only one container is concerned;
``DamagedReads``: bits of chunks that somebody has to notice.

Invariants:
1. The file is complete, noted, and not the journal's newest: it is not read when the journal is
   opened, and all else in it is as it was.
2. Undone, the record is what it was; a file that is not there any more needs no repair.
3. A chunk's bit is wrong only where the owner who reads it knows a checksum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from _fast.log.replay import DIGEST_FORMAT, digest_frame
from segstore.chunks.chunk_metadata import ChunkMetadata
from segstore.errors import ChunkNotFoundError, InvalidChunkOffsetError
from segstore.tiers.api import Buffer, Check
from segstore.tiers.journal.contents import NotedContents
from segstore.tiers.journal.files import JournalFile, open_existing, parse_name
from segstore.tiers.journal.format import RECORD_HEADER_BYTES
from segstore.tiers.journal.scan import FileScan, scan_file
from segstore.tiers.memory import MemoryChunkStorage
from support.simulated.simulated_disk import SimulatedDisk

ABSENT_RATE = 0.3
"""Share of the bad reads at which the chunk is shorter or missing."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A bit that is wrong."""

    container_id: int
    name: str
    offset: int
    bit: int

    def undo(self, disk: SimulatedDisk) -> None:
        """Make it right, unless the file is gone."""
        if self.name in disk.list_files():
            disk.flip_bit(self.name, self.offset, self.bit)


def damage_one_record(disk: SimulatedDisk, notes: SimulatedDisk, random: Random) -> Damage | None:
    """Flip a bit in a record of some container; None where there is no file for it."""
    scans = [scan for name in disk.list_files() if (scan := _scan(disk, name)) is not None]
    used = [scan for scan in scans if scan.next_batch_number > 0]
    # The last batch may be what the kernel keeps of a sync that failed: the disk may have nothing
    # of the last file, and the one before it is the newest then.
    candidates = [
        scan for scan in used[:-2] if scan.following_generation is not None and scan.indexes
    ]
    if not candidates:
        return None
    scan = random.choice(candidates[-3:])
    NotedContents(notes, digest_frame, digest_format=DIGEST_FORMAT).write_note(scan.file)
    container_id = random.choice(list(scan.indexes))
    index = scan.indexes[container_id]
    position = random.randrange(index.first_position, index.end_position)
    offset = index.offset_of(position) + RECORD_HEADER_BYTES
    damage = Damage(container_id, scan.file.name, offset, random.randrange(8))
    disk.flip_bit(damage.name, damage.offset, damage.bit)
    return damage


def _scan(disk: SimulatedDisk, name: str) -> FileScan | None:
    parsed = parse_name(name)
    if parsed is None or parsed[1]:
        return None
    file: JournalFile | None = open_existing(disk, name)
    return None if file is None else scan_file(file)


class DamagedReads:
    """An owner's chunks, some of which have a wrong bit at a few reads, or are shorter or missing.

    The metadata tell what has a checksum; everything but reads is passed on.
    """

    def __init__(
        self,
        chunks: Any,
        memory: MemoryChunkStorage,
        random: Random,
        *,
        note: Callable[[str], None],
        is_calm: Callable[[], bool],
    ) -> None:
        self._chunks = chunks
        self._memory = memory
        self._random = random
        self._note = note
        self._is_calm = is_calm
        self._reads_left: dict[str, int] = {}
        self.metadata_of: Callable[[], ChunkMetadata] = ChunkMetadata

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chunks, name)

    async def read(
        self, name: str, *, offset: int, length: int, check: Check | None = None
    ) -> Buffer:
        """Read, perhaps while a bit is wrong that is read, or the chunk is short or not there."""
        end = min(offset + length, self._checked_length(name))
        content = self._memory.contents.get(name)
        is_bad = end > offset and content is not None and self._is_bad(name)
        if is_bad and self._random.random() < ABSENT_RATE:
            if self._random.random() < 0.5:
                self._note("chunk is missing")
                raise ChunkNotFoundError(f"injected: there is no chunk {name}")
            self._note("chunk is shorter")
            raise InvalidChunkOffsetError(f"injected: chunk {name} ends before {end}")
        if not is_bad or content is None:
            read: Buffer = await self._chunks.read(name, offset=offset, length=length, check=check)
            return read
        place, bit = self._random.randrange(offset, end), 1 << self._random.randrange(8)
        self._note("bit of a chunk is wrong")
        content[place] ^= bit
        try:
            read = await self._chunks.read(name, offset=offset, length=length, check=check)
        finally:
            content[place] ^= bit
        return read

    def _is_bad(self, name: str) -> bool:
        """Return whether the bit is wrong at this read; it is wrong for several reads in a row."""
        if self._is_calm():
            return False
        if name not in self._reads_left:
            self._reads_left[name] = self._random.choice([-3, -2, -1, 2, 4])
        left = self._reads_left.pop(name)
        if abs(left) > 1:
            self._reads_left[name] = left - 1 if left > 0 else left + 1
        return left > 0

    def _checked_length(self, name: str) -> int:
        metadata = self.metadata_of()
        for segment in metadata.segment_names():
            record = metadata.peek(segment)
            for chunk in record.chunks if record is not None else ():
                if chunk.name == name:
                    return min(chunk.length, chunk.checksums.length)
        return 0
