"""Journal files: their names, and the preparation of the next ones.

Owns: ``JournalFile``, ``FilePool`` (files that are ready to be written) and ``FilePreparer`` (which
makes them, out of freed files or new ones).

Invariants:
1. A file is called ``<generation>.journal`` only after it has all its blocks and the header with
   that generation and a new salt was synced. Generations are never used twice.
2. A file that is being made is called ``<generation>.new`` and holds nothing that is needed.
3. The files in the pool are taken in the order in which they were added.
"""

from __future__ import annotations

import errno
import functools
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import structlog
import trio

from segstore.errors import DataLogCorruptError
from segstore.tiers.journal.disk import Disk, DiskFile
from segstore.tiers.journal.format import (
    FILE_HEADER_BYTES,
    FileHeader,
    decode_file_header,
    encode_file_header,
)
from segstore.tiers.journal.settings import JournalSettings

T = TypeVar("T")

NO_SPACE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
ZEROS_BYTES = 1024 * 1024
FIRST_FILE_BYTES = 8 * 1024 * 1024
GENTLE_SYNC_BYTES = 1024 * 1024
HURRY_SECONDS = 2.0
"""Time, in seconds, for filling a file below which the next files are made in haste."""

IDENTITY_FILE = "identity.toml"
IDENTITY_NAMES = frozenset({IDENTITY_FILE, f"{IDENTITY_FILE}.new"})
"""Names of files that are not the journal's own: its identity, see ``segstore.process.identity``.
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
    """Return (generation, whether it is being made) of a journal file's name, else None."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), match[2] == "new") if match else None


class RunBlocking(Protocol):
    """Runs a blocking function: in a thread, or in place where a simulation has no threads."""

    async def __call__(self, function: Callable[[], T], /) -> T: ...


@dataclass(slots=True)
class JournalFile:
    """An open journal file."""

    name: str
    header: FileHeader
    disk_file: DiskFile

    @property
    def generation(self) -> int:
        """Return the file's place in the journal's order."""
        return self.header.generation


def open_existing(disk: Disk, name: str) -> JournalFile | None:
    """Open a journal file, or return None when its header does not pass. Blocks.

    Raises ``DataLogCorruptError`` when the file is shorter than its header says. A file gets its
    name only when all its blocks exist, so no crash explains that: the missing part may have had
    durable batches, and its end must not be taken for the journal's end.
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
    """The files that the writer takes at a rollover."""

    def __init__(self) -> None:
        self._ready: deque[JournalFile] = deque()

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, file: JournalFile) -> None:
        """Add a file behind the others."""
        self._ready.append(file)

    def peek(self) -> JournalFile | None:
        """Return the file that ``pop`` will return, or None."""
        return self._ready[0] if self._ready else None

    def pop(self) -> JournalFile:
        """Remove and return the next file."""
        return self._ready.popleft()


def set_aside(disk: Disk, freed: str, generation: int) -> None:
    """Rename a freed file to the name of one that is being made, durably. Blocks.

    Until that is durable its header may not be touched: the old name could come back with it.
    """
    disk.rename(freed, new_name(generation))
    disk.sync_directory()


def make_file(
    disk: Disk, header: FileHeader, *, sync_bytes: int | None, reuse: bool
) -> JournalFile:
    """Make a file ready for writing: out of one that was set aside, or a new one. Blocks.

    Every ``sync_bytes`` are synced, so that the syncs of entries meanwhile do not wait for all.
    With None a new file's blocks are not written, only allocated. When it raises, a new file is
    removed again and one that was set aside is still there.
    """
    name = new_name(header.generation)
    disk_file = disk.open_file(name) if reuse else disk.create_file(name)
    try:
        if disk_file.length() < header.file_bytes:  # new, the first one, or of another setting
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

    For a file that is written in large batches and soon full: a sync into such blocks costs half as
    much again, but only once, and less than writing the whole file twice.
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
    """Keeps the pool filled, within the journal's size. Its methods run in the event loop."""

    def __init__(
        self,
        disk: Disk,
        settings: JournalSettings,
        pool: FilePool,
        *,
        next_generation: int,
        file_count: int,
        freed: list[str],
        new_salt: Callable[[], int],
        run_blocking: RunBlocking,
    ) -> None:
        self._disk = disk
        self._settings = settings
        self._pool = pool
        self._next_generation = next_generation
        self._file_count = file_count
        self._freed = deque(freed)
        self._new_salt = new_salt
        self._run_blocking = run_blocking
        self._wanted = trio.Event()
        self._warned = False
        self._disk_full = False
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
        """Check whether the pool wants a file: called after each rollover."""
        now = trio.current_time()
        self._hurried = now - self._rolled_over_at < HURRY_SECONDS
        self._rolled_over_at = now
        if len(self._pool) < self._files_ahead:
            self._wanted.set()

    async def run(self, on_ready: Callable[[], None], on_error: Callable[[OSError], None]) -> None:
        """Prepare files until cancelled, or until an error that is not want of space."""
        try:
            await self._keep_filled(on_ready)
        except OSError as error:
            on_error(error)

    async def _keep_filled(self, on_ready: Callable[[], None]) -> None:
        while True:
            while len(self._pool) < self._files_ahead:
                if not await self._prepare_one():
                    break
                on_ready()
            else:
                await self._remove_spare()
            with trio.move_on_after(
                self._settings.no_space_retry_seconds if self._disk_full else float("inf")
            ):
                await self._wanted.wait()
            self._wanted = trio.Event()

    async def prepare_first(self) -> None:
        """Add a journal's very first file to the pool: a short one, so that it is quickly there."""
        length = min(FIRST_FILE_BYTES, self._settings.file_bytes)
        self._pool.add(await self._make(length, sync_bytes=length))

    async def _prepare_one(self) -> bool:
        """Add one file to the pool; returns False when the disk has no space for it."""
        if not self._freed and self._file_count >= self._settings.file_count_max:
            self._warn("the journal is full: appends wait until containers truncate their logs")
            return False
        try:
            sync_bytes = None if self._hurried else GENTLE_SYNC_BYTES
            file = await self._make(self._settings.file_bytes, sync_bytes=sync_bytes)
        except OSError as error:
            if error.errno not in NO_SPACE_ERRNOS:
                raise
            self._disk_full = True
            self._warn("the disk is full: appends wait until there is space or a freed file")
            return False
        self._disk_full = False
        if self._warned:
            self._warned = False
            _log.info("the journal has space again", file=file.name)
        self._pool.add(file)
        return True

    async def _make(self, file_bytes: int, *, sync_bytes: int | None) -> JournalFile:
        """Make a file out of a freed one, or a new one."""
        generation = self._next_generation
        self._next_generation += 1
        header = FileHeader(generation, self._new_salt(), file_bytes)
        reuse = bool(self._freed)
        if reuse:
            setting_aside = functools.partial(set_aside, self._disk, self._freed[0], generation)
            await self._run_blocking(setting_aside)
            self._freed[0] = new_name(generation)
        file = await self._run_blocking(
            functools.partial(make_file, self._disk, header, sync_bytes=sync_bytes, reuse=reuse)
        )
        if reuse:
            self._freed.popleft()
        else:
            self._file_count += 1
        return file

    async def _remove_spare(self) -> None:
        while len(self._freed) > self._settings.files_spare_max:
            name = self._freed.pop()
            self._file_count -= 1
            await self._run_blocking(functools.partial(self._disk.remove, name))

    def _warn(self, sentence: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(sentence, file_count=self._file_count)
