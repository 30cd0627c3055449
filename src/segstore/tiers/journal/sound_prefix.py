"""Reads the part before the damage of a journal that cannot be opened.

Owns: ``read_sound_prefix``, for a recovery that deliberately continues with what is left.

Invariants:
1. The state is that of the newest file whose first batch passes, as far as its batches pass.
2. Of each container the entries count that follow each other from its first needed one on, in files
   that are there, up to the first hole. What lies behind a hole is dropped, sound or not.
3. The first needed files may be gone because they were let go, and only what lies behind the damage
   tells that. The logs then begin in the first file that is there, and their readers are told so.
4. Nothing is changed.
5. What is dropped is told: files whose headers do not pass count whole, and needed ones that are
   not there are named.
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
    """The usable part of a journal."""

    state: JournalState
    scans: dict[int, FileScan]
    """The files that have a part of the prefix, by generation in ascending order."""
    dropped_bytes_max: int
    """Bytes behind the damage; reused files have old bytes at their ends."""
    missing: tuple[str, ...] = ()
    """Names of missing files behind the damage, of unknown content."""
    let_go_or_lost: tuple[str, ...] = ()
    """Names of files before the damage that are missing or have no header. They may have been
    freed: the record that says so may be behind the damage."""
    without_beginning: frozenset[int] = frozenset()
    """Containers with entries in those files: their logs begin at any entry."""


def read_sound_prefix(disk: Disk) -> SoundPrefix:
    """Read what can be used. Blocks; raises ``OSError``. Let ``disk`` open files that are short."""
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
    """Return the files whose headers pass, and the names of the others."""
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
    """Return the generation that follows the last scan, or None if that names none."""
    return scans[max(scans)].following_generation if scans else None


def _scan(file: JournalFile) -> FileScan | None:
    """Scan a file; None when its entries are not at the positions that they must have."""
    try:
        return scan_file(file)
    except DataLogCorruptError:
        return None


def _begin_later(state: JournalState, scans: dict[int, FileScan]) -> frozenset[int]:
    """Begin each log at its first existing entry; return the containers that lack earlier ones."""
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
    """End each container's log where the first of its entries is missing."""
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
    """Return how many bytes behind ``begin`` lie before a tail of zeros."""
    buffer = memoryview(bytearray(WINDOW_BYTES))
    offset, end = begin, begin
    while (count := disk_file.read_into(buffer, offset)) > 0:
        if length := len(bytes(buffer[:count]).rstrip(b"\0")):
            end = offset + length
        offset += count
    return end - begin
