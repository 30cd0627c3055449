"""Stores chunks as files in HDFS, which can append to a file but not overwrite it.

Owns: ``HdfsChunkStorage``, the chunks of a process. docs/formats/chunks.md describes the files,
docs/adr/0347 says why.

The first bytes of a chunk are written to a file with a random name, which is closed and then
renamed. Later bytes are appended. HDFS appends at the file's end, and the answer does not say where
that was. So the length is read after each append. If it is not the expected one, another request
has appended too, and the bytes are read back and compared. If the answer to an append is lost, the
append is not simply repeated: the bytes that the file has are compared, and only the missing ones
are appended.

Invariants:
1. When the first write of a chunk is interrupted, the chunk does not exist. Held by
   ``test_a_chunk_is_never_seen_with_a_part_of_its_first_bytes``.
2. When the answer to an append is lost, its bytes are in the file once. Held by
   ``test_an_append_whose_answer_is_lost_is_never_made_twice``.
3. When an append got no answer, the file is opened and closed again before the write returns, so
   that the DataNodes have synced the bytes (``dfs.datanode.synconclose``). Held by
   ``test_what_was_appended_without_an_answer_is_synced_before_it_counts``.
4. When the file has other bytes where a write belongs, the write fails, and the acknowledged bytes
   stay. Held by ``test_an_append_that_another_request_overtook_fails_and_loses_nothing``.
5. When a request of a killed process appends late, its bytes are after the acknowledged ones and
   are not counted by the next owner. Held by
   ``test_what_a_killed_store_appended_late_counts_for_nobody``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import structlog
import trio

from segstore.errors import ChunkNotFoundError, InvalidChunkOffsetError, StorageError
from segstore.runtime.parallel import run_parallel
from segstore.runtime.remembered import Remembered
from segstore.tiers.api import Buffer, Check, ChunkInfo
from segstore.tiers.chunk_paths import SearchedDirectory, name_of, path_of
from segstore.tiers.hdfs.failures import HdfsFailure, HdfsFailureKind, HdfsRequestError
from segstore.tiers.hdfs.webhdfs import FileStatus, WebHdfs
from segstore.tiers.vectored_io import remainder

T = TypeVar("T")

UNFINISHED_DIRECTORY: Final = ".unfinished"
"""Name of the directory for files whose first bytes are being written. No chunk's path begins with
a dot."""
REMOVAL_SECONDS_MAX: Final = 1.0
KNOWN_CHUNKS_MAX: Final = 16_384
KNOWN_DIRECTORIES_MAX: Final = 16_384
PARALLEL_LOOKS_MAX: Final = 8
LOOKED_UP_ALONE_MAX: Final = 3
"""Maximum number of chunks of one directory whose lengths are requested one by one. For more of
them, the directory is listed."""

logger = structlog.get_logger(__name__)


class HdfsChunkStorage:
    """Chunks as files. For each chunk, callers make one changing call at a time.

    ``unfinished`` is the directory for files whose first bytes are being written.
    """

    def __init__(
        self,
        hdfs: WebHdfs,
        *,
        random_bytes: Callable[[int], bytes],
        unfinished: str = UNFINISHED_DIRECTORY,
    ) -> None:
        self._hdfs = hdfs
        self._unfinished = unfinished
        self._random_bytes = random_bytes
        # Chunks' lengths after the last successful write of this process.
        self._lengths: Remembered[str, int] = Remembered(KNOWN_CHUNKS_MAX)
        self._directories: Remembered[str, bool] = Remembered(KNOWN_DIRECTORIES_MAX)

    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Write ``data`` at ``offset``; see ``ChunkStorage.write``."""
        path = file_path(name)
        if meanwhile is not None:
            meanwhile()
        body = [memoryview(part) for part in data if len(part)]
        known = self._lengths.get(path)
        self._lengths.drop(path)

        async def attempt() -> int:
            nonlocal known
            length, known = known, None
            return await self._write(name, path, offset, body, length)

        self._lengths.set(path, await self._hdfs.repeat(f"write {name}", attempt))

    async def read(
        self, name: str, *, offset: int, length: int, check: Check | None = None
    ) -> bytes:
        """Read exactly ``length`` bytes."""
        path = file_path(name)

        async def attempt() -> bytes:
            if offset < 0 or length <= 0:
                await self._refuse_range(name, path, offset, length)
                return b""
            return await self._read(name, path, offset, length)

        data = await self._hdfs.repeat(f"read {name}", attempt)
        if check is not None:
            check(data)
        return data

    async def info(self, name: str) -> ChunkInfo:
        """Return a chunk's length."""
        path = file_path(name)
        return ChunkInfo(
            name, await self._hdfs.repeat(f"look up {name}", lambda: self._length(name, path))
        )

    async def lengths(self, names: Sequence[str]) -> list[int | None]:
        """Return chunks' lengths. The lengths of many chunks in one directory come from a
        listing."""
        by_directory: defaultdict[str, list[str]] = defaultdict(list)
        for path in map(file_path, names):
            by_directory[path.rpartition("/")[0]].append(path)
        found: dict[str, int] = {}

        async def look_up(directory: str) -> None:
            paths = by_directory[directory]
            if len(paths) > LOOKED_UP_ALONE_MAX:
                for each in await self._hdfs.entries(directory):
                    found[_join(directory, each.path_suffix)] = each.length
                return
            for path in paths:
                status = await self._hdfs.status(path)
                if status is not None:
                    found[path] = status.length

        async def repeat(directory: str) -> None:
            await self._hdfs.repeat("look up chunks", lambda: look_up(directory))

        await run_parallel(by_directory, repeat, tasks_max=PARALLEL_LOOKS_MAX)
        return [found.get(file_path(name)) for name in names]

    async def delete(self, name: str) -> None:
        """Delete a chunk's file, and the directories that become empty."""
        path = file_path(name)
        self._lengths.drop(path)
        await self._hdfs.repeat(f"delete {name}", lambda: self._hdfs.delete(path))
        while path := path.rpartition("/")[0]:
            self._directories.drop(path)
            try:
                await self._hdfs.delete(path)
            except HdfsRequestError:  # not empty; after any other error a later deletion removes it
                return

    async def list_chunks(self, prefix: str) -> list[ChunkInfo]:
        """List chunks by prefix, sorted by name."""
        found: list[ChunkInfo] = []
        level = [SearchedDirectory.of_prefix(prefix)]
        while level:
            below: list[SearchedDirectory] = []

            async def search(
                directory: SearchedDirectory, below: list[SearchedDirectory] = below
            ) -> None:
                path = spelled(directory.path)
                entries = await self._hdfs.repeat(
                    f"list {prefix}", lambda: self._hdfs.entries(path)
                )
                for each in entries:
                    entry = each.path_suffix.replace("!", "%")
                    if each.is_directory:
                        deeper = directory.below(entry)
                        if deeper is not None and deeper.path != UNFINISHED_DIRECTORY:
                            below.append(deeper)
                        continue
                    name = name_of(directory.join(entry))
                    if name is not None and name.startswith(prefix):
                        found.append(ChunkInfo(name, each.length))

            await run_parallel(level, search, tasks_max=PARALLEL_LOOKS_MAX)
            level = below
        return sorted(found, key=lambda chunk: chunk.name)

    def close(self) -> None:
        """Close the connections. Blocks shortly."""
        self._hdfs.close()

    # ---- Attempts --------------------------------------------------------------------------------

    async def _write(
        self,
        name: str,
        path: str,
        offset: int,
        body: Sequence[Buffer],
        known: int | None,
    ) -> int:
        """Append the bytes that the chunk does not have yet; return its length then. ``known`` is
        its length before, if that is known."""
        end = known
        if end is None:
            status = await self._hdfs.status(path)
            if status is None:
                if offset != 0:
                    raise ChunkNotFoundError(f"there is no chunk {name} in {self._hdfs.title}")
                return await self._create(path, body)
            end = status.length
        if not 0 <= offset <= end:
            raise InvalidChunkOffsetError(f"chunk {name} has {end} bytes, not {offset}")
        present = min(end - offset, sum(map(len, body)))
        await self._compare(name, path, offset, _first(body, present))
        rest = remainder(body, present)
        if not rest and known is not None:
            return end
        # Append even if nothing is left: the NameNode counts the bytes, but only closing the file
        # makes the DataNodes sync them.
        await self._hdfs.append(path, rest)
        length = await self._length(name, path)
        if length != end + sum(map(len, rest)):
            logger.warning("a chunk has bytes of another write", chunk=name, length=length, end=end)
            await self._compare(name, path, end, rest)
        return length

    async def _create(self, path: str, body: Sequence[Buffer]) -> int:
        """Make the chunk's file with its first bytes; return its length."""
        unfinished = _join(self._unfinished, self._random_bytes(8).hex())
        directory = path.rpartition("/")[0]
        is_named = False
        try:
            await self._hdfs.create(unfinished, body)
            if directory and not self._directories.get(directory):
                await self._hdfs.make_directory(directory)
                self._directories.set(directory, True)
            is_named = await self._hdfs.rename(unfinished, path)
        finally:
            if not is_named:
                self._directories.drop(directory)
                await remove_unfinished(self._hdfs, unfinished)
        if not is_named:
            # An earlier attempt has made the file, or another call removed the empty directory.
            raise _try_again(f"{path} got no name")
        return sum(map(len, body))

    async def _compare(self, name: str, path: str, offset: int, expected: Sequence[Buffer]) -> None:
        """Raise ``StorageError`` unless the chunk has exactly these bytes at ``offset``."""
        length = sum(map(len, expected))
        if length and await self._read(name, path, offset, length) != b"".join(expected):
            raise StorageError(
                f"chunk {name} in {self._hdfs.title} has other bytes from {offset} on: another"
                " process, or an earlier request that came late, has written there"
            )

    async def _read(self, name: str, path: str, offset: int, length: int) -> bytes:
        try:
            data = await self._hdfs.read(path, offset=offset, length=length)
        except HdfsRequestError as error:
            await self._refuse_range(name, path, offset, length)
            if error.failure.kind is HdfsFailureKind.UNREADABLE_END:
                await self._have_it_closed(path)
            raise
        if len(data) != length:
            await self._refuse_range(name, path, offset, length)
            raise _try_again(f"{len(data)} bytes came of {length}")
        return data

    async def _refuse_range(self, name: str, path: str, offset: int, length: int) -> None:
        """Raise ``InvalidChunkOffsetError`` unless the chunk has this range."""
        has = await self._length(name, path)
        if offset < 0 or length < 0 or offset + length > has:
            raise InvalidChunkOffsetError(
                f"chunk {name} has {has} bytes: it has no range {offset}+{length}"
            )

    async def _have_it_closed(self, path: str) -> None:
        """Open the file for appending, so that HDFS closes it for its dead writer. HDFS does so
        from a minute after the writer's last request."""
        try:
            await self._hdfs.append(path, [])
        except HdfsRequestError as error:
            logger.info("a chunk's last block is being recovered", path=path, error=str(error))

    async def _length(self, name: str, path: str) -> int:
        status = await self._hdfs.status(path)
        if status is None:
            raise ChunkNotFoundError(f"there is no chunk {name} in {self._hdfs.title}")
        return status.length


async def remove_unfinished(hdfs: WebHdfs, path: str) -> None:
    """Delete a file if it exists, even while the caller is being cancelled. If that fails, a later
    start deletes it."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + REMOVAL_SECONDS_MAX):
        try:
            await hdfs.delete(path, waits_when_cancelled=False)
        except StorageError as error:
            logger.debug("an unfinished chunk is left", path=path, error=str(error))


async def remove_old_unfinished(hdfs: WebHdfs, *, older_than_seconds: float) -> int:
    """Delete unfinished files of killed processes; return their number.

    Ages are relative to the newest unfinished file, so that only the NameNode's clock matters.
    """
    files = await hdfs.entries(UNFINISHED_DIRECTORY)
    newest = max((each.modification_time for each in files), default=0)
    old = [each for each in files if _is_old(each, newest, older_than_seconds)]
    for each in old:
        await hdfs.delete(_join(UNFINISHED_DIRECTORY, each.path_suffix))
    return len(old)


def file_path(name: str) -> str:
    """Return the path, relative to the root, of the file that holds a chunk."""
    return spelled(path_of(name))


def spelled(path: str) -> str:
    """Return the path in HDFS for one of ``chunk_paths``. Each ``%`` becomes ``!``, because several
    versions of WebHDFS decode a ``%`` twice."""
    return path.replace("%", "!")


def _is_old(each: FileStatus, newest: int, seconds: float) -> bool:
    return each.modification_time < newest - seconds * 1000


def _join(directory: str, entry: str) -> str:
    return f"{directory}/{entry}" if directory else entry


def _try_again(reason: str) -> HdfsRequestError:
    return HdfsRequestError(reason, HdfsFailure(HdfsFailureKind.TRY_AGAIN, reason))


def _first(body: Sequence[Buffer], length: int) -> list[Buffer]:
    """Return the first bytes of buffers, without copying."""
    taken: list[Buffer] = []
    for part in body:
        if length <= 0:
            break
        taken.append(memoryview(part)[:length])
        length -= len(taken[-1])
    return taken
