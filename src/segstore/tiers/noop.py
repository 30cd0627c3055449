"""A tier 2 that drops users' data, to measure the cost of writing to storage.

Owns: ``NoOpChunkStorage``, and the rule that tells from a chunk's name whether it has users' data.

Invariants:
1. When a chunk's bytes are dropped, its name and length are kept, and all calls but reads of its
   bytes work. Held by ``test_lengths_follow_appends_and_overwrites``.
2. When the store itself will read a chunk again (its own segments, attribute indexes, segments that
   will be merged into others), the chunk is written to another chunk storage. Held by
   ``test_what_the_store_reads_again_is_kept``.
3. When dropped bytes are read, the read raises ``DataDroppedError``. Held by
   ``test_dropped_bytes_cannot_be_read``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from segstore.errors import ChunkNotFoundError, InvalidChunkOffsetError, StorageError
from segstore.tiers.api import Buffer, Check, ChunkInfo, ChunkStorage

KEPT_MARKS = ("#transaction.", "#transient.", "attributes.index")
"""Texts in the names of chunks that the store itself reads again."""


class DataDroppedError(StorageError):
    """Raised when dropped bytes are read. The message names the chunk."""


def holds_user_data(name: str) -> bool:
    """Return whether the chunk has only data that the store itself never reads again."""
    if any(mark in name for mark in KEPT_MARKS):
        return False
    return not any(part.startswith("_") for part in name.split("/"))


class NoOpChunkStorage:
    """Drops the bytes of the chunks for whose names ``drops`` returns True; all other chunks go to
    ``kept``."""

    def __init__(
        self, kept: ChunkStorage, *, drops: Callable[[str], bool] = holds_user_data
    ) -> None:
        self._kept = kept
        self._drops = drops
        self._lengths: dict[str, int] = {}

    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Record the chunk's new length; see ``ChunkStorage.write``."""
        if not self._drops(name):
            await self._kept.write(name, offset=offset, data=data, meanwhile=meanwhile)
            return
        await trio.lowlevel.checkpoint()
        length = self._lengths.get(name)
        if length is None:
            if offset != 0:
                raise ChunkNotFoundError(f"there is no chunk {name}")
            length = 0
        if not 0 <= offset <= length:
            raise InvalidChunkOffsetError(f"chunk {name} has {length} bytes, not {offset}")
        if meanwhile is not None:
            meanwhile()
        written = sum(memoryview(part).nbytes for part in data)
        self._lengths[name] = max(length, offset + written)

    async def read(
        self, name: str, *, offset: int, length: int, check: Check | None = None
    ) -> Buffer:
        """Read kept bytes; raises ``DataDroppedError`` for dropped ones, unless the length is 0."""
        if not self._drops(name):
            return await self._kept.read(name, offset=offset, length=length, check=check)
        has = (await self.info(name)).length
        if offset < 0 or length < 0 or offset + length > has:
            raise InvalidChunkOffsetError(
                f"chunk {name} has {has} bytes: it has no range {offset}+{length}"
            )
        if length:
            raise DataDroppedError(f"the no-op storage dropped the bytes of chunk {name}")
        return b""

    async def info(self, name: str) -> ChunkInfo:
        """Return a chunk's length."""
        if not self._drops(name):
            return await self._kept.info(name)
        await trio.lowlevel.checkpoint()
        length = self._lengths.get(name)
        if length is None:
            raise ChunkNotFoundError(f"there is no chunk {name}")
        return ChunkInfo(name, length)

    async def lengths(self, names: Sequence[str]) -> list[int | None]:
        """Return chunks' lengths, whether dropped or kept."""
        kept = await self._kept.lengths(names)
        return [
            self._lengths.get(name) if self._drops(name) else length
            for name, length in zip(names, kept, strict=True)
        ]

    async def delete(self, name: str) -> None:
        """Forget a chunk."""
        if not self._drops(name):
            await self._kept.delete(name)
            return
        await trio.lowlevel.checkpoint()
        self._lengths.pop(name, None)

    async def list_chunks(self, prefix: str) -> list[ChunkInfo]:
        """List chunks by prefix, sorted by name, whether dropped or kept."""
        kept = await self._kept.list_chunks(prefix)
        dropped = (name for name in self._lengths if name.startswith(prefix))
        chunks = [*kept, *(ChunkInfo(name, self._lengths[name]) for name in dropped)]
        return sorted(chunks, key=lambda chunk: chunk.name)
