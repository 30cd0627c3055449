"""Reads, of a damaged journal that cannot be opened, the part before the damage.

Owns: ``read_sound_prefix``, for a recovery that deliberately continues with the entries before the
damage. The state is that of the newest file with a valid first batch.

Invariants:
1. When nothing is damaged, the result has all entries. Held by
   ``test_a_sound_journal_is_all_of_it``.
2. When a batch or a file is damaged, each container keeps its entries up to the first missing one,
   and loses all after it, damaged or not. Held by
   ``test_whatever_is_damaged_all_before_it_is_there``.
3. When the first needed files are missing because a truncation had freed them, and the record of
   that is after the damage, each log begins with its first existing entry, and the result names the
   container. Held by ``test_files_are_used_although_an_earlier_one_was_let_go_behind_the_damage``.
4. When the journal is damaged, reading the prefix changes no file. Held by
   ``test_reading_a_damaged_journal_changes_no_file``.
5. When entries are dropped, ``dropped_bytes_max`` is at least their length, or the missing files
   are named. Held by ``test_what_is_dropped_is_told_whatever_file_cannot_be_opened``.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from itertools import takewhile

from segstore.errors import DataLogCorruptError
from segstore.tiers.journal.disk import Disk, DiskFile
from segstore.tiers.journal.files import JournalFile, journal_name, open_existing, parse_name
from segstore.tiers.journal.scan import WINDOW_BYTES, FileScan, scan_file
from segstore.tiers.journal.state import JournalState


@dataclass(frozen=True, slots=True)
class SoundPrefix:
    """The part of a journal before the damage."""

    state: JournalState
    scans: dict[int, FileScan]
    """The files that have a part of the prefix, by generation in ascending order."""
    dropped_bytes_max: int
    """Number of bytes after the damage. It may be too large: reused files have old bytes at their
    ends."""
    missing: tuple[str, ...] = ()
    """Names of missing files after the damage, of unknown content."""
    let_go_or_lost: tuple[str, ...] = ()
    """Names of files before the damage that are missing or have no valid header. Perhaps they had
    been freed, and the record of that is after the damage."""
    without_beginning: frozenset[int] = frozenset()
    """Containers whose first entries may have been in those files: their logs begin at a later
    entry."""


def read_sound_prefix(disk: Disk) -> SoundPrefix:
    """Read the part before the damage. Blocks; raises ``OSError``. ``disk`` must open files that
    are shorter than their headers say, see ``DamagedDisk``."""
    files, unreadable = _open_all(disk)
    try:
        state, scans = JournalState(), dict[int, FileScan]()
        newest = None
        for generation in sorted(files, reverse=True):
            scan = _scan(files[generation])
            if scan is not None and scan.next_batch_number > 0:
                newest = generation
                state.apply_scan(scan)
                break
        gone: list[int] = []
        if newest is not None:
            needed = sorted({*state.live, newest})
            gone = list(takewhile(lambda each: each not in files, needed))
            for generation in needed[len(gone) :]:
                scan = _scan(files[generation]) if generation in files else None
                if scan is None:
                    break
                scans[generation] = scan
                if scan.following_generation is None:
                    break
        without_beginning = _begin_later(state, scans) if gone else frozenset[int]()
        _cut(state, scans)
        last = max(scans, default=0)
        later = {*state.live, following} if (following := _following(scans)) else state.live
        missing = sorted(
            each for each in later if each > last and each not in files and each not in unreadable
        )
        dropped = sum(
            _written_end(file.disk_file, scans[last].end_offset if generation == last else 0)
            for generation, file in files.items()
            if generation >= last
        )
        for generation, name in unreadable.items():
            if generation > last or generation in gone:
                with closing(disk.open_file(name)) as disk_file:
                    dropped += _written_end(disk_file, 0)
        return SoundPrefix(
            state,
            scans,
            dropped,
            missing=tuple(map(journal_name, missing)),
            let_go_or_lost=tuple(map(journal_name, gone)),
            without_beginning=without_beginning,
        )
    finally:
        for file in files.values():
            file.disk_file.close()


def _open_all(disk: Disk) -> tuple[dict[int, JournalFile], dict[int, str]]:
    """Return the files with valid headers, and the names of the others, by generation."""
    files: dict[int, JournalFile] = {}
    unreadable: dict[int, str] = {}
    for name in disk.list_files():
        parsed = parse_name(name)
        if parsed is None or parsed[1]:
            continue
        file = open_existing(disk, name)
        if file is None:
            unreadable[parsed[0]] = name
        else:
            files[parsed[0]] = file
    return files, unreadable


def _following(scans: dict[int, FileScan]) -> int | None:
    """Return the generation that the END record of the last scan names, or None."""
    return scans[max(scans)].following_generation if scans else None


def _scan(file: JournalFile) -> FileScan | None:
    """Scan a file; return None if its entries are not at consecutive positions."""
    try:
        return scan_file(file)
    except DataLogCorruptError:
        return None


def _begin_later(state: JournalState, scans: dict[int, FileScan]) -> frozenset[int]:
    """Set the beginning of each log to its first existing entry; return the containers that lack
    earlier ones."""
    changed = set()
    for container_id, container in state.containers.items():
        first = next(
            (
                index.first_position
                for scan in scans.values()
                if (index := scan.indexes.get(container_id)) is not None
                and index.end_position > container.first_position
            ),
            container.first_position,
        )
        if first > container.first_position:
            container.first_position = first
            changed.add(container_id)
    return frozenset(changed)


def _cut(state: JournalState, scans: dict[int, FileScan]) -> None:
    """Set the end of each container's log to the first position without an entry."""
    for container_id, container in state.containers.items():
        position = container.first_position
        for scan in scans.values():
            index = scan.indexes.get(container_id)
            if index is None or index.end_position <= position:
                continue
            if index.first_position > position:
                break
            position = index.end_position
        container.next_position = position


def _written_end(disk_file: DiskFile, begin: int) -> int:
    """Return the number of bytes from ``begin`` to the last one that is not zero."""
    buffer = memoryview(bytearray(WINDOW_BYTES))
    offset, end = begin, begin
    while (count := disk_file.read_into(buffer, offset)) > 0:
        if length := len(bytes(buffer[:count]).rstrip(b"\0")):
            end = offset + length
        offset += count
    return end - begin
