"""A chunk storage that fails now and then.

Owns: ``FaultyChunkStorage``, which wraps another one and injects errors before a call, after it
(the work is done, the reply is lost), in the middle of a write, delays, and the caller's death.

Invariants:
1. A call takes effect in one step, after its delay; the reply takes a delay too.
2. After ``abandon`` nothing takes effect any more. Of a write that was under way then, storage has
   nothing, its beginning, or all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from random import Random

import trio

from segstore.errors import InvalidChunkOffsetError, StorageError
from segstore.tiers.api import Buffer, Check, ChunkInfo, ChunkStorage


class Fault(Enum):
    """The fault of one call."""

    NONE = 0
    REFUSED = 1
    """The call fails and has done nothing."""
    REPLY_LOST = 2
    """The call does its work and fails."""
    PARTIAL = 3
    """A write stores its first half and fails; other calls are refused."""
    STRANGE = 4
    """The call finds a chunk of another length than its caller knows."""


@dataclass(frozen=True, slots=True)
class _Write:
    """A write that is under way."""

    name: str
    offset: int
    data: bytes


class FaultyChunkStorage:
    """Wraps ``storage``. ``next_fault`` is asked at every call, with its name; the delay before a
    call in seconds is ``next_delay``'s answer, that of its reply is ``next_reply_delay``'s."""

    def __init__(
        self,
        storage: ChunkStorage,
        *,
        next_fault: Callable[[str], Fault] = lambda _: Fault.NONE,
        next_delay: Callable[[str], float] = lambda _: 0.0,
        next_reply_delay: Callable[[str], float] = lambda _: 0.0,
    ) -> None:
        self._storage = storage
        self.next_fault = next_fault
        self._next_delay = next_delay
        self._next_reply_delay = next_reply_delay
        self._writes: dict[int, _Write] = {}
        self._left: list[_Write] = []
        self._abandoned = False
        self._write_count = 0
        self.call_count = 0
        self.fault_count = 0

    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Write, or fail."""
        number = self._write_count = self._write_count + 1
        joined = b"".join(data)
        self._writes[number] = _Write(name, offset, joined)
        try:
            fault = await self._begin("write")
        finally:
            self._writes.pop(number, None)
        if fault is Fault.PARTIAL:
            await self._storage.write(name, offset=offset, data=[joined[: len(joined) // 2]])
            raise StorageError("injected: half of a write was stored")
        await self._storage.write(name, offset=offset, data=[joined], meanwhile=meanwhile)
        await self._end("write", fault)

    async def read(
        self, name: str, *, offset: int, length: int, check: Check | None = None
    ) -> Buffer:
        """Read, or fail."""
        fault = await self._begin("read")
        data = await self._storage.read(name, offset=offset, length=length, check=check)
        await self._end("read", fault)
        return data

    async def info(self, name: str) -> ChunkInfo:
        """Return a chunk's length, or fail."""
        fault = await self._begin("info")
        info = await self._storage.info(name)
        await self._end("info", fault)
        return info

    async def lengths(self, names: Sequence[str]) -> list[int | None]:
        """Return chunks' lengths, or fail."""
        fault = await self._begin("lengths")
        lengths = await self._storage.lengths(names)
        await self._end("lengths", fault)
        return lengths

    async def delete(self, name: str) -> None:
        """Delete, or fail."""
        fault = await self._begin("delete")
        await self._storage.delete(name)
        await self._end("delete", fault)

    async def list_chunks(self, prefix: str) -> list[ChunkInfo]:
        """List, or fail."""
        fault = await self._begin("list_chunks")
        chunks = await self._storage.list_chunks(prefix)
        await self._end("list_chunks", fault)
        return chunks

    def abandon(self) -> None:
        """Kill the caller: nothing it asks for takes effect any more."""
        self._left = list(self._writes.values())
        self._abandoned = True

    async def settle(self, random: Random) -> None:
        """Store what was under way at the caller's death, in part or not."""
        left, self._left = self._left, []
        for write in left:
            part = write.data[: random.randrange(len(write.data) + 1)]
            stored = random.choice([None, part, write.data])
            if stored is not None:
                with suppress(StorageError):
                    await self._storage.write(write.name, offset=write.offset, data=[stored])

    def _stop_the_dead(self) -> None:
        if self._abandoned:
            raise StorageError("injected: the caller is dead")

    async def _begin(self, call: str) -> Fault:
        self.call_count += 1
        self._stop_the_dead()
        await trio.sleep(self._next_delay(call))
        self._stop_the_dead()
        fault = self.next_fault(call)
        if fault is not Fault.NONE:
            self.fault_count += 1
        if fault is Fault.STRANGE:
            raise InvalidChunkOffsetError(f"injected: {call} meets another chunk")
        if fault is Fault.REFUSED or (fault is Fault.PARTIAL and call != "write"):
            raise StorageError(f"injected: {call} was refused")
        return fault

    async def _end(self, call: str, fault: Fault) -> None:
        await trio.sleep(self._next_reply_delay(call))
        if fault is Fault.REPLY_LOST:
            raise StorageError(f"injected: the reply to {call} was lost")
