"""Damage to one record of the journal, and its end.

Owns: ``damage_one_record``: which records can be damaged so that only one container is concerned.

Invariants:
1. The file is complete, noted, and not the journal's newest: it is not read when the journal is
   opened, and all else in it is as it was.
2. Undone, the record is what it was; a file that is not there any more needs no repair.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from _fast.replay import DIGEST_FORMAT, digest_frame
from segstore.testing.simulated_disk import SimulatedDisk
from segstore.tiers.journal.contents import NotedContents
from segstore.tiers.journal.files import JournalFile, open_existing, parse_name
from segstore.tiers.journal.format import RECORD_HEADER_BYTES
from segstore.tiers.journal.scan import FileScan, scan_file


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
    NotedContents(notes, digest_frame, digest_format=DIGEST_FORMAT).note(scan.file)
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
