"""Tier 2 in a directory: one file per chunk. Also for NFS.

Owns: ``FilesystemChunkStorage``; ``chunk_paths`` has the names of its files, ``open_files`` those
that stay open, ``write_groups`` what is written together.

Invariants:
1. No chunk's name leads out of the root, whatever bytes it has.
2. A chunk's file appears under its name only with its first bytes durable in it.
3. A call that returned is durable: the file's bytes, its name and the directories above it.
4. What is listed is durable: what a process that was killed wrote is synced before it is counted.
5. What a write that failed left at a file's end is never counted: the kernel takes it for
   stored, however often it is synced, when the disk has not taken it. It is cut off at once; where
   that fails too, it is noted outside of tier 2, for later processes, until it is written again.
6. A long write never leaves a length that counts bytes which a power cut could leave unwritten: it
   goes past the page cache from the block on in which it begins, what is left of it after. A short
   one that was not acknowledged may: whoever recovers knows from where on (docs/adr/0198).
7. Blocking calls run in threads, at most ``THREADS_MAX`` at a time for reads and as many for the
   rest, so that readers of history do not hold up writes.
8. Long reads go past the page cache into lent memory, at most ``DIRECT_READS_MAX`` at a time: that
   keeps a disk busy, and what is read ahead of a sync is what the sync waits for.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog
import trio

from _fast.native_io.chunk_files import (
    NOT_OPENED,
    NOT_STORED,
    STORED,
    TOO_SHORT,
    sync_directories,
    write_files,
)
from segstore.errors import ChunkNotFoundError, InvalidChunkOffsetError, StorageError
from segstore.runtime.descriptors import KEPT_FILES_MAX
from segstore.runtime.durable_files import sync_directory
from segstore.tiers.api import Buffer, Check, ChunkInfo, StoredRange
from segstore.tiers.chunk_paths import CHUNK_SUFFIX, UNFINISHED_SUFFIX, path_of
from segstore.tiers.direct_io import (
    BLOCK_BYTES,
    READ_BYTES_MAX,
    ReadMemory,
    StagingBuffers,
    block_bytes_of,
)
from segstore.tiers.files.chunk_listing import files_of_chunks
from segstore.tiers.files.doubtful_files import DoubtNotes
from segstore.tiers.files.known_paths import KnownPaths
from segstore.tiers.files.open_files import DIRECT_BYTES_MIN, OpenFiles
from segstore.tiers.files.write_groups import ShortWrite, WriteGroups, store_error

T = TypeVar("T")

THREADS_MAX = 8
DIRECT_READS_MAX = 4
GROUPED_BUFFERS_MAX = 64
"""Maximum number of pieces of a write that is grouped with others; longer ones are written alone.
"""
CREATE_ATTEMPTS_MAX = 10
LENGTHS_TOGETHER_MAX = 256
UNBOUNDED_LENGTH = 2**63 - 1
"""Length of a file that is not compared: readers know how many of its bytes count."""

logger = structlog.get_logger(__name__)


class FilesystemChunkStorage:
    """Chunks as files below ``root``, which exists.

    Later processes know by ``doubts`` what this one could not undo. May raise ``OSError`` for them.
    At most ``kept_files_max`` files stay open between calls. Errors call the root ``title``.
    """

    def __init__(
        self,
        root: Path,
        *,
        doubts: DoubtNotes | None = None,
        kept_files_max: int = KEPT_FILES_MAX,
        title: str | None = None,
    ) -> None:
        self._root = os.fspath(root)
        self._title = title or self._root
        self._limiter = trio.CapacityLimiter(THREADS_MAX)
        self._read_limiter = trio.CapacityLimiter(THREADS_MAX)
        self._groups = WriteGroups(self._write_group, limiter=self._limiter, groups_max=THREADS_MAX)
        self._descriptors = OpenFiles(self._root, files_max=kept_files_max)
        self._staging = StagingBuffers()
        self._direct_read_limiter = trio.CapacityLimiter(DIRECT_READS_MAX)
        self._read_memory = ReadMemory()
        self._reads_directly = root.exists() and block_bytes_of(root) == BLOCK_BYTES
        self._known_durable = KnownPaths()
        self._known_directories = KnownPaths()
        # Stored lengths before a write that failed, by path. Each operation is one step.
        self._stored_lengths: dict[str, int] = {}
        self._doubts = doubts
        if doubts is not None and (noted := doubts.read()):
            self._settle(doubts, noted)

    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Write ``data`` at ``offset``; see ``ChunkStorage.write``."""
        if offset < 0 or len(data) > GROUPED_BUFFERS_MAX or sum(map(len, data)) >= DIRECT_BYTES_MIN:
            await self._run(name, "write", lambda: self._write(name, offset, data, meanwhile))
            return
        if meanwhile is not None:
            meanwhile()
        try:
            await self._groups.write(ShortWrite(name, path_of(name), offset, data))
        except (OSError, MemoryError) as error:
            raise self._told(name, "write", error) from error

    async def read(
        self, name: str, *, offset: int, length: int, check: Check | None = None
    ) -> Buffer:
        """Read exactly ``length`` bytes; many of them are in memory that is used again later."""
        if self._reads_directly and DIRECT_BYTES_MIN <= length <= READ_BYTES_MAX:
            read = partial(self._read_directly, name, offset, length, check)
            try:
                found = await self._run(name, "read", read, limiter=self._direct_read_limiter)
            finally:
                self._read_memory.record_read()
            if found is not None:
                return found
        return await self._run(
            name,
            "read",
            lambda: self._read(name, offset, length, check),
            limiter=self._read_limiter,
        )

    async def info(self, name: str) -> ChunkInfo:
        """Return a chunk's length."""
        return await self._run(name, "look up", lambda: self._info(name))

    async def locate(self, name: str) -> list[StoredRange]:
        """Return which file has a chunk's bytes: one has all of them."""
        await trio.lowlevel.checkpoint()
        return [StoredRange(0, UNBOUNDED_LENGTH, path_of(name))]

    async def lengths(self, names: Sequence[str]) -> list[int | None]:
        """Return the lengths of chunks' files; look at a few at a time, because other threads need
        the interpreter, too."""
        lengths: list[int | None] = []
        for start in range(0, len(names), LENGTHS_TOGETHER_MAX):
            part = names[start : start + LENGTHS_TOGETHER_MAX]
            lengths += await self._run(part[0], "look up", partial(self._lengths_of, part))
        return lengths

    async def delete(self, name: str) -> None:
        """Delete a chunk's file, and the directories that become empty."""
        await self._run(name, "delete", lambda: self._delete(name))

    async def list_chunks(self, prefix: str) -> list[ChunkInfo]:
        """List chunks by prefix, sorted by name."""
        return await self._run(prefix, "list", lambda: sorted(self._list(prefix), key=_by_name))

    def close(self) -> None:
        """Close the files that stayed open. Blocks shortly."""
        self._descriptors.drop_all()

    async def _run(
        self,
        name: str,
        verb: str,
        function: Callable[[], T],
        *,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        try:
            return await trio.to_thread.run_sync(function, limiter=limiter or self._limiter)
        except (OSError, MemoryError) as error:
            raise self._told(name, verb, error) from error

    def _told(self, name: str, verb: str, error: OSError | MemoryError) -> StorageError:
        if isinstance(error, FileNotFoundError):
            return ChunkNotFoundError(f"there is no chunk {name} in {self._title}")
        if isinstance(error, MemoryError):
            error = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        reason = error.strerror or str(error)
        return StorageError(f"tier 2 in {self._title} cannot {verb} {name}: {reason}")

    # ---- Writes ----------------------------------------------------------------------------------

    def _write(
        self,
        name: str,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        path = path_of(name)
        if meanwhile is not None:
            meanwhile()
        try:
            with self._descriptors.use(path) as file:
                length = os.fstat(file.descriptor).st_size
                if not 0 <= offset <= length:
                    raise _wrong_offset(name, length, offset)
                try:
                    file.write(data, offset, self._staging)
                    os.fdatasync(file.descriptor)
                except (OSError, MemoryError):
                    self._undo_write(path, file.descriptor, offset, length)
                    raise
                if offset <= self._stored(path, length):
                    self._clear_doubt(path)
        except FileNotFoundError:
            if offset != 0:
                raise
            self._create(path, data)

    def _write_group(self, group: Sequence[ShortWrite]) -> None:
        """Do several short writes, and store in each how it ended."""
        if len(group) == 1:
            store_error(group[0], lambda each: self._write(each.name, each.offset, each.data))
            return
        outcomes = write_files(
            [(self._encoded(each.path), None, each.offset, each.data) for each in group]
        )
        new: list[ShortWrite] = []
        for each, outcome in zip(group, outcomes, strict=True):
            if each.offset == 0 and outcome[:2] == (NOT_OPENED, errno.ENOENT):
                new.append(each)
            else:
                store_error(each, partial(self._settle_append, outcome=outcome))
        if new:
            self._create_group(new)

    def _settle_append(self, write: ShortWrite, outcome: tuple[int, int, int]) -> None:
        """Finish an append to an existing file; raises what the append failed with."""
        result, number, length = outcome
        if result == STORED:
            if write.offset <= self._stored(write.path, length):
                self._clear_doubt(write.path)
            return
        if result == TOO_SHORT:
            raise _wrong_offset(write.name, length, write.offset)
        if result == NOT_STORED:
            try:
                file = self._descriptors.open(write.path, 0)
            except OSError as error:
                self._stored_lengths[write.path] = min(
                    write.offset, self._stored(write.path, length)
                )
                self._record_doubt(write.path, write.offset, error)
            else:
                with closing(file):
                    self._undo_write(write.path, file.descriptor, write.offset, length)
        raise _os_error(number)

    def _create_group(self, group: Sequence[ShortWrite]) -> None:
        try:
            self._make_directories(os.path.dirname(each.path) for each in group)
        except OSError:
            # It may be the directory of one alone that cannot be made.
            for each in group:
                store_error(each, lambda each: self._create(each.path, each.data))
            return
        outcomes = write_files(
            [
                (self._encoded(_unfinished(each.path)), self._encoded(each.path), 0, each.data)
                for each in group
            ]
        )
        named: dict[str, list[ShortWrite]] = {}
        for each, (result, number, _) in zip(group, outcomes, strict=True):
            if result == STORED:
                named.setdefault(os.path.dirname(each.path), []).append(each)
            elif (result, number) == (NOT_OPENED, errno.ENOENT):
                # Another process removed the directory while it was empty.
                store_error(each, lambda each: self._create(each.path, each.data))
            else:
                with suppress(OSError):
                    os.unlink(f"{self._root}/{_unfinished(each.path)}")
                each.error = _os_error(number)
        numbers = sync_directories([self._encoded(directory) for directory in named])
        for writes, number in zip(named.values(), numbers, strict=True):
            for each in writes:
                if number in (0, errno.ENOENT):
                    store_error(each, lambda each: self._clear_doubt(each.path))
                else:
                    self._undo_name(each.path)
                    each.error = _os_error(number)

    def _encoded(self, path: str) -> bytes:
        return os.fsencode(f"{self._root}/{path}")

    def _create(self, path: str, data: Sequence[Buffer]) -> None:
        """Write a new file under a temporary name, then rename it."""
        unfinished = _unfinished(path)
        for attempt in range(CREATE_ATTEMPTS_MAX):
            self._make_directories([os.path.dirname(path)])
            try:
                file = self._descriptors.open(unfinished, os.O_CREAT | os.O_TRUNC)
                break
            except FileNotFoundError:  # another thread removed the directory while it was empty
                self._forget_directories(path)
                if attempt + 1 == CREATE_ATTEMPTS_MAX:
                    raise
        try:
            file.write(data, 0, self._staging)
            os.fsync(file.descriptor)
        except (OSError, MemoryError):
            with suppress(OSError):
                os.unlink(f"{self._root}/{unfinished}")
            raise
        finally:
            file.close()
        os.rename(f"{self._root}/{unfinished}", f"{self._root}/{path}")
        try:
            self._sync_directory(os.path.dirname(path))
        except OSError:
            self._undo_name(path)
            raise
        self._clear_doubt(path)

    def _undo_name(self, path: str) -> None:
        """Remove a new file that is durable, but whose name may not be."""
        self._stored_lengths[path] = 0
        try:
            os.unlink(f"{self._root}/{path}")
        except OSError as error:
            self._record_doubt(path, 0, error)

    def _undo_write(self, path: str, descriptor: int, offset: int, length: int) -> None:
        """Undo a write that failed at ``offset``, to a file that had ``length`` bytes before."""
        stored = self._stored(path, length)
        self._stored_lengths[path] = min(offset, stored)
        self._descriptors.drop(path)
        self._undo(path, descriptor, offset, cut=offset == stored)

    def _undo(self, path: str, descriptor: int, length: int, *, cut: bool) -> None:
        """Undo a failed write at ``length``, or note that it is not undone."""
        try:
            if not cut:
                raise OSError(errno.ENOTSUP, "what was overwritten cannot be brought back")
            os.ftruncate(descriptor, length)
            os.fsync(descriptor)
        except OSError as error:
            self._record_doubt(path, length, error)

    def _record_doubt(self, path: str, length: int, reason: OSError) -> None:
        """Record for later processes that only the file's first ``length`` bytes count."""
        try:
            if self._doubts is None:
                raise reason
            self._doubts.add(path, length)
        except OSError as error:
            # This process knows better than the file system: the data stays in the log.
            logger.error(
                "a failed write of tier 2 can be neither undone nor noted: a process that starts"
                " before the write is repeated may count bytes that the disk does not have",
                file=f"{self._title}/{path}",
                length=length,
                error=str(error),
            )

    def _clear_doubt(self, path: str) -> None:
        """Remove the note about a file, since all its bytes count again or it is gone: no later
        process may cut anything off."""
        if self._doubts is not None:
            self._doubts.clear(path)
        self._stored_lengths.pop(path, None)

    def _settle(self, doubts: DoubtNotes, noted: dict[str, int]) -> None:
        """Cut off now what an earlier process could not."""
        for path, length in noted.items():
            try:
                with closing(self._descriptors.open(path, 0)) as file:
                    if os.fstat(file.descriptor).st_size > length:
                        os.ftruncate(file.descriptor, length)
                    os.fsync(file.descriptor)
            except FileNotFoundError:
                continue
            except OSError:
                self._stored_lengths[path] = length
        left = {path: noted[path] for path in self._stored_lengths}
        if left != noted:
            doubts.replace(left)

    def _make_directories(self, directories: Iterable[str]) -> None:
        """Make directories and their parents, durably, even existing ones: their maker may have
        failed to sync."""
        unknown: dict[str, None] = {}
        for directory in directories:
            while directory and directory not in self._known_directories:
                unknown[directory] = None
                directory = os.path.dirname(directory)
        for directory in sorted(unknown, key=len):
            with suppress(FileExistsError, FileNotFoundError):
                os.mkdir(f"{self._root}/{directory}", 0o755)
        try:
            for parent in sorted({os.path.dirname(each) for each in unknown}, key=len):
                self._sync_directory(parent)
        except OSError:
            for directory in sorted(unknown, key=len, reverse=True):
                with suppress(OSError):  # not empty: it stays, and is not known
                    os.rmdir(f"{self._root}/{directory}")
            raise
        for directory in unknown:
            self._known_directories.add(directory)

    def _forget_directories(self, path: str) -> None:
        while path := os.path.dirname(path):
            self._known_directories.discard(path)

    def _sync_directory(self, directory: str) -> None:
        with suppress(FileNotFoundError):  # removed by another process: it need not last
            sync_directory(f"{self._root}/{directory}")

    def _read_directly(
        self, name: str, offset: int, length: int, check: Check | None
    ) -> memoryview | None:
        """Read past the page cache; None where that is impossible or returns fewer bytes: a read
        through the cache tells why."""
        with self._descriptors.use(path_of(name)) as file:
            direct = file.direct_file(self._staging) if offset >= 0 else None
            if direct is None:
                return None
            data = direct.read(self._read_memory.memory.lend(), offset, length)
            if data is None or len(data) < length:
                return None
            if check is not None:
                check(data)
            return data.toreadonly()

    def _read(self, name: str, offset: int, length: int, check: Check | None) -> bytes:
        with self._descriptors.use(path_of(name)) as file:
            descriptor = file.descriptor
            if offset < 0 or length < 0:
                raise InvalidChunkOffsetError(f"chunk {name} has no range {offset}+{length}")
            data = os.pread(descriptor, length, offset)
            if len(data) < length:
                data += self._read_rest(descriptor, offset + len(data), length - len(data))
            if len(data) < length:
                raise InvalidChunkOffsetError(
                    f"chunk {name} has {os.fstat(descriptor).st_size} bytes: it has no range"
                    f" {offset}+{length}"
                )
            if check is not None:
                check(data)
            return data

    @staticmethod
    def _read_rest(descriptor: int, offset: int, length: int) -> bytes:
        """Continue after a short read, up to the end of the file."""
        pieces = []
        while length > 0:
            piece = os.pread(descriptor, length, offset)
            if not piece:
                break
            pieces.append(piece)
            offset += len(piece)
            length -= len(piece)
        return b"".join(pieces)

    def _info(self, name: str) -> ChunkInfo:
        path = path_of(name)
        length = os.stat(f"{self._root}/{path}").st_size
        self._make_durable(path)
        return ChunkInfo(name, self._stored(path, length))

    def _lengths_of(self, names: Sequence[str]) -> list[int | None]:
        lengths: list[int | None] = []
        for name in names:
            path = path_of(name)
            try:
                lengths.append(self._stored(path, os.stat(f"{self._root}/{path}").st_size))
            except (FileNotFoundError, NotADirectoryError):
                lengths.append(None)
        return lengths

    def _stored(self, path: str, length: int) -> int:
        return min(length, self._stored_lengths.get(path, length))

    def _make_durable(self, path: str) -> None:
        """Sync a file, and the directories above it, that this process has not written itself."""
        if path in self._known_durable:
            return
        descriptor = os.open(f"{self._root}/{path}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        self._known_durable.add(path)
        directory = path
        while directory:
            directory = os.path.dirname(directory)
            if f"{directory}/" not in self._known_durable:
                self._sync_directory(directory)
                self._known_durable.add(f"{directory}/")
            self._known_directories.add(directory)

    def _delete(self, name: str) -> None:
        path = path_of(name)
        self._descriptors.drop(path)
        directory = os.path.dirname(path)
        unfinished = _unfinished(path)
        for victim in (path, unfinished):
            with suppress(FileNotFoundError):
                os.unlink(f"{self._root}/{victim}")
        self._clear_doubt(path)
        while directory:
            try:
                os.rmdir(f"{self._root}/{directory}")
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                break
            self._known_directories.discard(directory)
            self._known_durable.discard(f"{directory}/")
            directory = os.path.dirname(directory)
        self._sync_directory(directory)

    def _list(self, prefix: str) -> Iterator[ChunkInfo]:
        for name, path, entry in files_of_chunks(self._root, prefix):
            try:
                length = entry.stat(follow_symlinks=False).st_size
                self._make_durable(path)
            except FileNotFoundError:  # deleted meanwhile
                continue
            yield ChunkInfo(name, self._stored(path, length))


def _by_name(chunk: ChunkInfo) -> str:
    return chunk.name


def _unfinished(path: str) -> str:
    """Return the name of a chunk's file before its first bytes are durable."""
    return path.removesuffix(CHUNK_SUFFIX) + UNFINISHED_SUFFIX


def _wrong_offset(name: str, length: int, offset: int) -> InvalidChunkOffsetError:
    return InvalidChunkOffsetError(f"chunk {name} has {length} bytes, not {offset}")


def _os_error(number: int) -> OSError:
    """Return an ``OSError`` of the class that the number has."""
    return OSError(number, os.strerror(number))
