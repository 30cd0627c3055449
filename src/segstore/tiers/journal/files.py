"""Names journal files, and makes the next ones in advance.

Owns: ``JournalFile``, ``FilePool`` (files that are ready to be written) and ``FilePreparer`` (which
makes them, out of freed files or new ones). A file that is being made is called
``<generation>.new``; it becomes ``<generation>.journal`` when all its blocks and its header, with
that generation and a new salt, are durable.

Files are made, and freed files are kept, only while the disk keeps ``free_bytes_min`` free
(docs/adr/0190). If no ordinary file can be made any more and the last one is nearly full, short
files are made from half of that reserve, for the truncations that free space; writers stay stopped.

Invariants:
1. When a crash interrupts the making of a file, the next start removes it and never uses its
   generation again. Held by ``test_an_interrupted_preparation_is_cleaned_up``.
2. When a new file gets its final name, all its blocks exist and read as zeros. Held by
   ``test_a_new_file_has_all_its_blocks_and_reads_as_zeros``.
3. When the disk has too little space, no file is made with the space that must stay free. Held by
   ``test_a_file_takes_no_more_than_the_disk_can_spare``.
4. When less space is free than must stay free, freed files are removed. Held by
   ``test_freed_files_are_removed_when_others_need_their_space``.
5. When tier 2 shares the disk, no freed file is reused whose space tier 2 needs. Held by
   ``test_what_tier_2_lacks_is_not_taken_for_a_file_again``.
6. When the last file is full and the disk has no space for another, entries that were accepted
   before get short files. Held by
   ``test_what_is_on_its_way_when_the_last_file_is_full_gets_short_files``.
"""

from __future__ import annotations

import errno
import functools
import os
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import structlog
import trio

from segstore.errors import DataLogCorruptError
from segstore.runtime.refused_files import describe_full, is_full
from segstore.tiers.journal.disk import Disk, DiskFile
from segstore.tiers.journal.format import (
    BATCH_ALIGNMENT,
    FILE_HEADER_BYTES,
    FileHeader,
    decode_file_header,
    encode_file_header,
)
from segstore.tiers.journal.settings import JournalSettings

T = TypeVar("T")

ZEROS_BYTES = 1024 * 1024
GENTLE_SYNC_BYTES = 1024 * 1024
SPARE_SECONDS = 5.0
"""Interval, in seconds, of the checks whether the disk needs the space of freed files."""
SHORT_FILE_PERCENT = 75
"""Used share of the last file, in percent, from which on a short file is made. Writes to system
segments stop there, too (``throttling.ThrottlePolicy``)."""
HURRY_SECONDS = 2.0
"""Time, in seconds: when a file was filled in less, the next files are allocated without writing
zeros, and one more is kept ready."""

IDENTITY_FILE = "identity.toml"
IDENTITY_NAMES = frozenset({IDENTITY_FILE, f"{IDENTITY_FILE}.new"})
"""Names of files that are not the journal's own: its identity, see ``ownership``.
"""

_NAME = re.compile(r"(\d{20})\.(journal|new)")
_log = structlog.get_logger(__name__)


def journal_name(generation: int) -> str:
    """Return the name of a file that may hold entries."""
    return f"{generation:020d}.journal"


def new_name(generation: int) -> str:
    """Return the name of a file that is being made."""
    return f"{generation:020d}.new"


def parse_name(name: str) -> tuple[int, bool] | None:
    """Return the generation in a journal file's name and whether the file is being made; None for
    other names."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), match[2] == "new") if match else None


class RunBlocking(Protocol):
    """Runs a blocking function in a thread, or in place in a simulation, which has no threads."""

    async def __call__(self, function: Callable[[], T], /) -> T: ...


@dataclass(slots=True)
class JournalFile:
    """An open journal file."""

    name: str
    header: FileHeader
    disk_file: DiskFile

    @property
    def generation(self) -> int:
        """Return the file's number in the order of the journal."""
        return self.header.generation


def open_existing(disk: Disk, name: str) -> JournalFile | None:
    """Open a journal file; return None if its header is not valid. Blocks.

    Raises ``DataLogCorruptError`` if the file is shorter than its header says. No crash explains
    that, because a file gets its name only when all its blocks exist; durable batches may be
    missing.
    """
    parsed = parse_name(name)
    assert parsed is not None
    disk_file = disk.open_file(name)
    block = memoryview(bytearray(FILE_HEADER_BYTES))
    header = decode_file_header(block[: disk_file.read_into(block, 0)])
    if header is None or header.generation != parsed[0]:
        disk_file.close()
        return None
    if (length := disk_file.length()) < header.file_bytes:
        disk_file.close()
        raise DataLogCorruptError(
            f"journal file {name}, offset {length}: the file ends there, and its header says that"
            f" it has {header.file_bytes} bytes"
        )
    return JournalFile(name, header, disk_file)


class FilePool:
    """The files that are ready to be written, in the order in which they will be used."""

    def __init__(self) -> None:
        self._ready: deque[JournalFile] = deque()

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, file: JournalFile) -> None:
        """Add a file, to be used after all others."""
        self._ready.append(file)

    def peek(self) -> JournalFile | None:
        """Return the file that ``pop`` will return, or None."""
        return self._ready[0] if self._ready else None

    def peek_last(self) -> JournalFile | None:
        """Return the file that was added last, or None."""
        return self._ready[-1] if self._ready else None

    def pop(self) -> JournalFile:
        """Remove and return the next file."""
        return self._ready.popleft()


def set_aside(disk: Disk, freed: str, generation: int) -> None:
    """Rename a freed file to the name of a file that is being made, durably. Blocks.

    Only then may its header be overwritten: after a crash, the old name must not come back with a
    new header.
    """
    disk.rename(freed, new_name(generation))
    disk.sync_directory()


def file_length(disk: Disk, name: str) -> int:
    """Return the number of bytes of a file that batches may fill. Blocks."""
    file = disk.open_file(name)
    length = whole_batches(file.length())
    file.close()
    return length


def whole_batches(length: int) -> int:
    """Return how many bytes of a file of this length batches may fill."""
    return length // BATCH_ALIGNMENT * BATCH_ALIGNMENT


def choose_length(
    room: int, freed_bytes: int, *, wanted: int, shortest: int, shares_disk: bool = False
) -> int:
    """Return the length of the next file, which is made from a freed one of ``freed_bytes``, or new
    (0).

    ``room`` is the number of bytes that the disk can spare. A file that ``shares_disk`` with tier 2
    needs its length twice: its entries will be written to tier 2. With less room than for
    ``wanted``, a freed file keeps its length, and a new file has the length ``shortest``. Raises
    ``OSError`` (ENOSPC) if there is no room even for that.
    """
    for length in (wanted, min(wanted, freed_bytes), shortest):
        needed = max(0, length - freed_bytes) + length * shares_disk
        if length >= shortest and needed <= max(0, room):
            return length
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def make_file(
    disk: Disk, header: FileHeader, *, sync_bytes: int | None, reuse: bool
) -> JournalFile:
    """Make a file ready for writing, from one that was renamed by ``set_aside``, or new. Blocks.

    It is synced every ``sync_bytes``, so that the syncs of batches meanwhile do not wait for the
    whole file. With None a new file's blocks are allocated, and not written. If this raises, a new
    file is removed; a renamed one stays.
    """
    name = new_name(header.generation)
    disk_file = disk.open_file(name) if reuse else disk.create_file(name)
    try:
        if (
            disk_file.length() < header.file_bytes
        ):  # a new file, the short first one, or one made under another setting
            if sync_bytes is None:
                _allocate(disk_file, header)
            else:
                _fill(disk_file, header, sync_bytes=sync_bytes)
        else:
            disk_file.write_durably([encode_file_header(header)], 0)
    except OSError:
        disk_file.close()
        if not reuse:
            disk.remove(name)
        raise
    disk.rename(name, journal_name(header.generation))
    disk.sync_directory()
    return JournalFile(journal_name(header.generation), header, disk_file)


def _allocate(disk_file: DiskFile, header: FileHeader) -> None:
    """Write the header, allocate blocks up to the file's length, and sync.

    This is for files that are filled in a short time by large batches. The first sync into an
    allocated but unwritten block costs half as much again, but writing the whole file twice would
    cost more.
    """
    disk_file.write([encode_file_header(header)], 0)
    disk_file.allocate(header.file_bytes)
    disk_file.sync()


def _fill(disk_file: DiskFile, header: FileHeader, *, sync_bytes: int) -> None:
    """Write the header and zeros up to the file's length, and sync.

    The zeros are really written: a sync of overwritten, allocated blocks costs half of a sync of a
    write into a hole or into a preallocated but unwritten extent.
    """
    zeros = bytes(ZEROS_BYTES)
    offset = FILE_HEADER_BYTES
    unsynced = 0
    disk_file.write([encode_file_header(header)], 0)
    while offset < header.file_bytes:
        length = min(ZEROS_BYTES, header.file_bytes - offset)
        disk_file.write([memoryview(zeros)[:length]], offset)
        offset += length
        unsynced += length
        if unsynced >= sync_bytes:
            disk_file.sync()
            unsynced = 0
    disk_file.sync()


class FilePreparer:
    """Keeps files ready in the pool, within the journal's maximum size. Its methods run in the
    event loop."""

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        settings: JournalSettings,
        pool: FilePool,
        *,
        next_generation: int,
        lengths: dict[str, int],
        freed: list[str],
        new_salt: Callable[[], int],
        run_blocking: RunBlocking,
        on_no_space: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._reserve_percent: Callable[[], int] = lambda: 0
        self._on_no_space = on_no_space
        self._disk = disk
        self._settings = settings
        self._pool = pool
        self._next_generation = next_generation
        self._lengths = lengths
        """The length of each file, by name; in bytes."""
        self._freed = deque(freed)
        self._new_salt = new_salt
        self._run_blocking = run_blocking
        self._wanted = trio.Event()
        self._warned = False
        self.is_stuck = False
        """True if no file can be made after the ready ones: the disk is full, or the journal has
        its maximum size."""
        self.no_space: OSError | None = None
        """Error of the last attempt to make a file, if the disk was full."""
        self._hurried = False
        self._rolled_over_at = -HURRY_SECONDS

    @property
    def _files_ahead(self) -> int:
        return self._settings.files_ahead + self._hurried

    def add_freed(self, name: str) -> None:
        """Add a file that no container needs any more."""
        self._freed.append(name)
        self._wanted.set()

    def check(self) -> None:
        """Check whether the pool needs a file; called after each change to the next file."""
        now = trio.current_time()
        self._hurried = now - self._rolled_over_at < HURRY_SECONDS
        self._rolled_over_at = now
        if len(self._pool) < self._files_ahead:
            self._wanted.set()

    async def run(
        self,
        on_ready: Callable[[], None],
        on_error: Callable[[OSError], None],
        reserve_percent: Callable[[], int],
    ) -> None:
        """Prepare files until cancelled, or until an error other than a full disk.

        ``reserve_percent`` returns the used share of the last file, in percent.
        """
        self._reserve_percent = reserve_percent
        try:
            await self._keep_filled(on_ready)
        except OSError as error:
            on_error(error)

    async def _keep_filled(self, on_ready: Callable[[], None]) -> None:
        while True:
            while self.no_space or len(self._pool) < self._files_ahead:
                if not await self._prepare_one():
                    break
                on_ready()
            else:
                await self._remove_spare()
            seconds = SPARE_SECONDS if self._freed else float("inf")
            if self.no_space:
                seconds = self._settings.no_space_retry_seconds
            with trio.move_on_after(seconds):
                await self._wanted.wait()
            self._wanted = trio.Event()

    async def prepare_first(self) -> None:
        """Add the first file of a new journal to the pool. It is short, so that the start is
        quick."""
        length = self._settings.first_file_bytes
        self._pool.add(await self._make(length, sync_bytes=length))

    async def _prepare_one(self) -> bool:
        """Add one file to the pool; return False if the disk has no space for it."""
        if self._has_all_files:
            self.is_stuck = True
            self._warn("the journal is full: appends wait until containers truncate their logs")
            return False
        try:
            file = await self._make_ordinary()
        except OSError as error:
            if not is_full(error):
                raise
            self.no_space = error
            self.is_stuck = True
            reason = describe_full(error, self._directory)
            self._warn(f"{reason}: appends wait until there is space or a freed file")
            self._on_no_space()
            return await self._prepare_short()
        self._pool.add(file)
        self.no_space = None
        # This is set before the file is used, so that writers are slowed down from its beginning
        # on.
        self.is_stuck = not await self._has_room_for_another()
        if self._warned and not self.is_stuck:
            self._warned = False
            _log.info("the journal has space again", file=file.name)
        return True

    async def _prepare_short(self) -> bool:
        """Add a short file to the pool if the last file is nearly full.

        Entries that were accepted before writers stopped may need more space than the last file
        has, and the truncations that free space wait for them.
        """
        if self._pool or self._reserve_percent() < SHORT_FILE_PERCENT:
            return False
        settings = self._settings
        kept = settings.free_bytes_min // 2
        wanted, shortest = settings.short_file_bytes, settings.file_bytes_min
        try:
            room = await self._run_blocking(self._disk.free_bytes) - kept
            length = choose_length(room, self._freed_bytes, wanted=wanted, shortest=shortest)
            file = await self._make(length, sync_bytes=length)
        except OSError as error:
            if not is_full(error):
                raise
            return False
        self._pool.add(file)
        return True

    async def _make_ordinary(self) -> JournalFile:
        while True:
            try:
                length = await self._choose_ordinary_length()
            except OSError as error:
                if not (is_full(error) and self._freed and self._settings.shares_disk):
                    raise
                # Tier 2 needs the space of this file, so that other files can be freed.
                await self._remove(self._freed.pop())
                continue
            if length < self._freed_bytes and self._settings.shares_disk:
                await self._remove(self._freed.popleft())
                continue
            sync_bytes = None if self._hurried else GENTLE_SYNC_BYTES
            return await self._make(length, sync_bytes=sync_bytes)

    async def _choose_ordinary_length(self) -> int:
        settings = self._settings
        free = await self._run_blocking(self._disk.free_bytes)
        return choose_length(
            free - self._kept_bytes,
            self._freed_bytes,
            wanted=settings.file_bytes,
            shortest=settings.first_file_bytes,
            shares_disk=settings.shares_disk,
        )

    async def _has_room_for_another(self) -> bool:
        if self._has_all_files:
            return False
        try:
            await self._choose_ordinary_length()
        except OSError as error:
            if not is_full(error):
                raise
            return False
        return True

    @property
    def _has_all_files(self) -> bool:
        """Return whether the journal has its maximum number of files and none of them is free."""
        return not self._freed and len(self._lengths) >= self._settings.file_count_max

    @property
    def _freed_bytes(self) -> int:
        """Return the length, in bytes, of the freed file that will be reused next; 0 if there is
        none."""
        return self._lengths[self._freed[0]] if self._freed else 0

    @property
    def _kept_bytes(self) -> int:
        """Return the number of bytes of the disk that must stay free."""
        settings = self._settings
        if not settings.shares_disk:
            return settings.free_bytes_min
        freed = sum([self._lengths[name] for name in self._freed])
        return settings.free_bytes_min + sum(self._lengths.values()) - freed

    async def _make(self, file_bytes: int, *, sync_bytes: int | None) -> JournalFile:
        """Make a file out of a freed one, or a new one."""
        generation = self._next_generation
        self._next_generation += 1
        header = FileHeader(generation, self._new_salt(), file_bytes)
        reuse = bool(self._freed)
        if reuse:
            freed, new = self._freed[0], new_name(generation)
            await self._run_blocking(functools.partial(set_aside, self._disk, freed, generation))
            self._freed[0] = new
            self._lengths[new] = self._lengths.pop(freed)
        file = await self._run_blocking(
            functools.partial(make_file, self._disk, header, sync_bytes=sync_bytes, reuse=reuse)
        )
        length = self._lengths.pop(self._freed.popleft()) if reuse else 0
        self._lengths[file.name] = max(length, file_bytes)
        return file

    async def _remove_spare(self) -> None:
        """Remove freed files beyond ``files_spare_max``, and those whose space the disk needs."""
        while self._freed and (
            len(self._freed) > self._settings.files_spare_max
            or await self._run_blocking(self._disk.free_bytes) < self._kept_bytes
        ):
            await self._remove(self._freed.pop())

    async def _remove(self, name: str) -> None:
        await self._run_blocking(functools.partial(self._disk.remove, name))
        del self._lengths[name]

    def _warn(self, sentence: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(sentence, file_count=len(self._lengths))
