"""A chunk storage that fails now and then.

Owns: ``FaultyChunkStorage``, which wraps another one and injects errors before a call, after it
(the work is done, the reply is lost), in the middle of a write, and delays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

import trio

from segstore.errors import StorageError
from segstore.tiers.api import Buffer, ChunkInfo, ChunkStorage


class Fault(Enum):
    """What happens to one call."""

    NONE = 0
    REFUSED = 1
    """The call fails and has done nothing."""
    REPLY_LOST = 2
    """The call does its work and fails."""
    PARTIAL = 3
    """A write stores its first half and fails; other calls are refused."""


class FaultyChunkStorage:
    """Wraps ``storage``. ``next_fault`` is asked at every call, with its name; the delay before a
    call in seconds is ``next_delay``'s answer."""

    def __init__(
        self,
        storage: ChunkStorage,
        *,
        next_fault: Callable[[str], Fault] = lambda _: Fault.NONE,
        next_delay: Callable[[str], float] = lambda _: 0.0,
    ) -> None:
        self._storage = storage
        self._next_fault = next_fault
        self._next_delay = next_delay
        self.call_count = 0
        self.fault_count = 0

    async def write(self, name: str, *, offset: int, data: Sequence[Buffer]) -> None:
        """Write, or fail."""
        fault = await self._begin("write")
        if fault is Fault.PARTIAL:
            joined = b"".join(data)
            await self._storage.write(name, offset=offset, data=[joined[: len(joined) // 2]])
            raise StorageError("injected: half of a write was stored")
        await self._storage.write(name, offset=offset, data=data)
        self._end("write", fault)

    async def read(self, name: str, *, offset: int, length: int) -> bytes:
        """Read, or fail."""
        fault = await self._begin("read")
        data = await self._storage.read(name, offset=offset, length=length)
        self._end("read", fault)
        return data

    async def info(self, name: str) -> ChunkInfo:
        """Tell a chunk's length, or fail."""
        fault = await self._begin("info")
        info = await self._storage.info(name)
        self._end("info", fault)
        return info

    async def delete(self, name: str) -> None:
        """Delete, or fail."""
        fault = await self._begin("delete")
        await self._storage.delete(name)
        self._end("delete", fault)

    async def list_chunks(self, prefix: str) -> list[ChunkInfo]:
        """List, or fail."""
        fault = await self._begin("list_chunks")
        chunks = await self._storage.list_chunks(prefix)
        self._end("list_chunks", fault)
        return chunks

    async def _begin(self, call: str) -> Fault:
        self.call_count += 1
        await trio.sleep(self._next_delay(call))
        fault = self._next_fault(call)
        if fault is not Fault.NONE:
            self.fault_count += 1
        if fault is Fault.REFUSED or (fault is Fault.PARTIAL and call != "write"):
            raise StorageError(f"injected: {call} was refused")
        return fault

    @staticmethod
    def _end(call: str, fault: Fault) -> None:
        if fault is Fault.REPLY_LOST:
            raise StorageError(f"injected: the reply to {call} was lost")
