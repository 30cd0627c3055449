"""Chunks as files in HDFS, which appends to them and never overwrites.

Owns: ``HdfsChunkStorage``, the chunks of a process. docs/formats/chunks.md says what lies in HDFS,
docs/adr/0347 why.

How it works: the first bytes of a chunk are written to a file with a name that is used once, which
is renamed when it is closed. Later ones are appended. HDFS appends where the file ends, and does
not say where that was. So the length is asked after each append: when it is not what it has to be,
something else was appended, and the bytes are read back and compared. An append whose answer was
lost is never repeated as it was: what the file has by then is compared, and the rest is appended.

Invariants:
1. A chunk's file appears under its name only with its first bytes in it, closed.
2. A call that returned found its bytes where they belong, in a file that was closed: its DataNodes
   have synced them (``dfs.datanode.synconclose``), and the NameNode counts them.
3. A write changes no byte that a chunk has. Where a file has other bytes it fails, and the chunk
   keeps what was acknowledged.
4. What a request of an earlier process appends late lies behind that. No length is trusted that
   neither the log nor the metadata know: each owner is in doubt about the one before it.
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
"""Maximum number of chunks of one directory whose lengths are requested one by one; those of more
come from a listing."""

logger = structlog.get_logger(__name__)


class HdfsChunkStorage:
    """Chunks as files. Calls that change one chunk come one at a time.

    ``unfinished`` is the directory for files that have no chunk's name yet.
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
        # Lengths that the last write of this process has found; a write that fails forgets them.
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
        """Return chunks' lengths: those of many in one directory by a listing."""
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
            except HdfsRequestError:  # it is not empty, or stays for a later deletion
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
        """Write what the chunk does not have yet; returns its length then."""
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
        # With nothing left to append it is known only that a NameNode counts the bytes. Opening and
        # closing the file once more has the DataNodes sync it.
        await self._hdfs.append(path, rest)
        length = await self._length(name, path)
        if length != end + sum(map(len, rest)):
            logger.warning("a chunk has bytes of another write", chunk=name, length=length, end=end)
            await self._compare(name, path, end, rest)
        return length

    async def _create(self, path: str, body: Sequence[Buffer]) -> int:
        """Write the chunk's first bytes."""
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
            # An earlier attempt has made it, or its directory was removed while it was empty.
            raise _try_again(f"{path} got no name")
        return sum(map(len, body))

    async def _compare(self, name: str, path: str, offset: int, expected: Sequence[Buffer]) -> None:
        """Raise ``StorageError`` unless a chunk has exactly these bytes there."""
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
        """Raise unless a chunk has these bytes."""
        has = await self._length(name, path)
        if offset < 0 or length < 0 or offset + length > has:
            raise InvalidChunkOffsetError(
                f"chunk {name} has {has} bytes: it has no range {offset}+{length}"
            )

    async def _have_it_closed(self, path: str) -> None:
        """Ask HDFS to close a file whose writer has died: it does so for the next client that opens
        it for appending, from a minute after the writer's last sign of life."""
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
    """Delete a file that may be there, even while all is being cancelled. One that stays is deleted
    at a later start."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + REMOVAL_SECONDS_MAX):
        try:
            await hdfs.delete(path, waits_when_cancelled=False)
        except StorageError as error:
            logger.debug("an unfinished chunk is left", path=path, error=str(error))


async def remove_old_unfinished(hdfs: WebHdfs, *, older_than_seconds: float) -> int:
    """Delete what killed processes have left of chunks that they began; return the count.

    Ages are by the NameNode's clock alone: they count back from the newest file that is there.
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
    """Return a path of ``chunk_paths`` as it is in HDFS: several versions of WebHDFS decode a ``%``
    in a path twice."""
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
