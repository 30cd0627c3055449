"""Tier 2 in a directory: one file per chunk. Also for NFS.

Owns: ``FilesystemChunkStorage``. ``chunk_paths`` has the names of the files, ``open_files`` the
cache of open ones, ``write_groups`` the grouping of short writes.

Blocking calls run in threads, at most ``THREADS_MAX`` at a time for reads and as many for the rest,
so that slow reads do not delay writes. Long reads go past the page cache into lent memory, at most
``DIRECT_READS_MAX`` at a time: more would not make the disk faster, but would delay syncs, which
wait for the reads submitted before them.

Long writes go past the page cache from the beginning of their first block, and through it for an
incomplete last block: so the file's length covers no block that a power cut could leave unwritten.
A short write has this guarantee only when it was acknowledged; docs/adr/0198 tells how a recovery
treats the rest.

Invariants:
1. When a chunk name has ``..`` or begins with a slash, its file lies below the root all the same.
   Held by ``test_a_name_never_leaves_the_root``.
2. When a crash interrupts the first write of a chunk, the chunk does not exist afterwards: its file
   gets its name after the first bytes are durable. Held by
   ``test_an_unfinished_chunk_is_not_listed_and_is_overwritten``.
3. When a write has returned, the file's bytes, its name and the directories above it are durable.
   Held by ``test_a_directory_whose_sync_failed_is_synced_before_anything_counts_in_it``.
4. When a killed process left bytes that it had not synced, they are synced before ``info`` or
   ``list_chunks`` counts them. Held by
   ``test_what_another_process_left_is_synced_before_it_is_counted``.
5. When a sync fails, the written bytes are never counted as part of the chunk and are cut off at
   once: the kernel has them in memory and reports a later sync as successful, although they are not
   on the disk. Held by ``test_what_a_failed_write_left_is_not_counted`` and
   ``test_what_a_failed_sync_left_is_not_counted_by_the_next_process``.
6. When bytes of a failed write cannot be cut off, a note outside of tier 2 makes later processes
   ignore them, until the write is repeated. Held by
   ``test_what_cannot_be_cut_off_after_a_failed_sync_is_noted_for_the_next_process``.
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
from segstore.errors import (
    ChunkNotFoundError,
    InvalidChunkOffsetError,
    StorageError,
    StorageFullError,
)
from segstore.runtime.descriptors import KEPT_FILES_MAX
from segstore.runtime.durable_files import sync_directory
from segstore.runtime.refused_files import describe_full, is_full
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
"""Maximum number of buffers of a write that is grouped with others; one with more is written
alone."""
CREATE_ATTEMPTS_MAX = 10
LENGTHS_TOGETHER_MAX = 256
UNBOUNDED_LENGTH = 2**63 - 1
"""A length greater than any file's, for readers that know by themselves how many bytes are
valid."""

logger = structlog.get_logger(__name__)


class FilesystemChunkStorage:
    """Chunks as files below ``root``, which exists.

    ``doubts`` tells later processes which failed writes could not be undone; the constructor reads
    it and may raise its ``OSError``. At most ``kept_files_max`` files stay open between calls.
    Error messages call the root ``title``.
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
        # By path, the valid length of files with a failed write. Threads use it without a lock:
        # each access is one atomic operation.
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
        """Read exactly ``length`` bytes. The memory of a long result is reused when the result is
        released."""
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
        """Return the file with a chunk's bytes, as one range of unbounded length."""
        await trio.lowlevel.checkpoint()
        return [StoredRange(0, UNBOUNDED_LENGTH, path_of(name))]

    async def lengths(self, names: Sequence[str]) -> list[int | None]:
        """Return the lengths of chunks' files.

        Each call of a thread is for ``LENGTHS_TOGETHER_MAX`` files, so that other threads get the
        interpreter's lock in between.
        """
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
        """Close the files that are kept open. Blocks for a moment."""
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
        sentence = f"tier 2 in {self._title} cannot {verb} {name}:"
        if is_full(error):
            reason = describe_full(error, Path(self._title))
            return StorageFullError(f"{sentence} {reason}", reason)
        return StorageError(f"{sentence} {error.strerror or error}")

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
                file.check_writable()
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
        """Do several short writes, and store in each its error."""
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
        """Finish an append of a group to an existing file; raises the append's error."""
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
            # Perhaps only one write's directory cannot be made: each write makes its own.
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
        """Remove a new file whose directory could not be synced."""
        self._stored_lengths[path] = 0
        try:
            os.unlink(f"{self._root}/{path}")
        except OSError as error:
            self._record_doubt(path, 0, error)

    def _undo_write(self, path: str, descriptor: int, offset: int, length: int) -> None:
        """Undo a write that failed at ``offset`` of a file that had ``length`` bytes before."""
        stored = self._stored(path, length)
        self._stored_lengths[path] = min(offset, stored)
        self._descriptors.drop(path)
        self._undo(path, descriptor, offset, cut=offset == stored)

    def _undo(self, path: str, descriptor: int, length: int, *, cut: bool) -> None:
        """Cut the file off at ``length``; if that fails, or ``cut`` is False, record a note
        instead."""
        try:
            if not cut:
                raise OSError(errno.ENOTSUP, "what was overwritten cannot be brought back")
            os.ftruncate(descriptor, length)
            os.fsync(descriptor)
        except OSError as error:
            self._record_doubt(path, length, error)

    def _record_doubt(self, path: str, length: int, reason: OSError) -> None:
        """Record for later processes that only the file's first ``length`` bytes are valid."""
        try:
            if self._doubts is None:
                raise reason
            self._doubts.add(path, length)
        except OSError as error:
            # This process ignores those bytes all the same, and their data stays in the log.
            logger.error(
                "a failed write of tier 2 can be neither undone nor noted: a process that starts"
                " before the write is repeated may count bytes that the disk does not have",
                file=f"{self._title}/{path}",
                length=length,
                error=str(error),
            )

    def _clear_doubt(self, path: str) -> None:
        """Remove the note about a file whose bytes are all valid again, or which was deleted.
        Otherwise a later process would cut valid bytes off."""
        if self._doubts is not None:
            self._doubts.clear(path)
        self._stored_lengths.pop(path, None)

    def _settle(self, doubts: DoubtNotes, noted: dict[str, int]) -> None:
        """Cut off the bytes that an earlier process could not cut off; keep the notes where this
        fails again."""
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
        """Make directories and their parents, durably. Existing directories are synced, too: the
        process that made them may have failed to do so."""
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
                with suppress(OSError):  # a directory that is not empty stays
                    os.rmdir(f"{self._root}/{directory}")
            raise
        for directory in unknown:
            self._known_directories.add(directory)

    def _forget_directories(self, path: str) -> None:
        while path := os.path.dirname(path):
            self._known_directories.discard(path)

    def _sync_directory(self, directory: str) -> None:
        with suppress(FileNotFoundError):  # removed by another process: nothing to sync
            sync_directory(f"{self._root}/{directory}")

    def _read_directly(
        self, name: str, offset: int, length: int, check: Check | None
    ) -> memoryview | None:
        """Read past the page cache. Return None if that is not possible, or if there are fewer
        bytes: the caller then reads through the cache and raises the right error."""
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
        """Sync a file and the directories above it, if this process does not know that they are
        durable."""
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
    """Return the path of a chunk's file while its first bytes are not durable."""
    return path.removesuffix(CHUNK_SUFFIX) + UNFINISHED_SUFFIX


def _wrong_offset(name: str, length: int, offset: int) -> InvalidChunkOffsetError:
    return InvalidChunkOffsetError(f"chunk {name} has {length} bytes, not {offset}")


def _os_error(number: int) -> OSError:
    """Return the ``OSError`` for an error number."""
    return OSError(number, os.strerror(number))
