"""Bookies in memory that listen on 127.0.0.1 and are registered in a ZooKeeper in memory.

Owns: ``MemoryBookie``, ``MemoryBookies``.

They store and refuse what a real bookie does: for example another master key, or entries behind a
fence. ``stop`` ends connections and refuses new ones, ``pause`` leaves them open and silent.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import trio

from bookkeeper_client.data_formats_pb2 import BookieServiceInfoFormat
from bookkeeper_client.protocol import LAST_ENTRY, MASTER_KEY_BYTES, Code, Flag, Operation
from zookeeper_client.api import ensure_path
from zookeeper_client.testing.memory_server import MemoryZooKeeper

LEDGERS_ROOT = "/ledgers"
_LAYOUT = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">i")
_IDS = struct.Struct(">qq")
_REPLY = struct.Struct(">Iiiqq")


@dataclass(slots=True)
class _Ledger:
    master_key: bytes
    is_fenced: bool = False
    entries: dict[int, bytes] = field(default_factory=dict)


class MemoryBookie:
    """One bookie; its entries survive ``stop``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = 0
        self.is_read_only = False
        self._ledgers: dict[int, _Ledger] = {}
        self._scope = trio.CancelScope()
        self._goes_on = trio.Event()
        self._goes_on.set()

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen until ``stop``, on the same port each time."""
        with trio.CancelScope() as self._scope:
            listeners = await trio.open_tcp_listeners(self.port, host="127.0.0.1")
            self.port = listeners[0].socket.getsockname()[1]
            async with trio.open_nursery() as nursery:
                await nursery.start(
                    partial(trio.serve_listeners, self._serve_connection, listeners)
                )
                task_status.started()

    def stop(self) -> None:
        """End every connection, and stop listening."""
        self._scope.cancel()

    def pause(self) -> None:
        """Answer no requests until ``resume``."""
        self._goes_on = trio.Event()

    def resume(self) -> None:
        """Answer all requests that have arrived."""
        self._goes_on.set()

    def entry_count(self, ledger_id: int) -> int:
        """Return how many entries of a ledger there are."""
        found = self._ledgers.get(ledger_id)
        return 0 if found is None else len(found.entries)

    def forget(self, ledger_id: int) -> None:
        """Drop a ledger and its fence, as bookies do some time after it was deleted."""
        self._ledgers.pop(ledger_id, None)

    async def _serve_connection(self, stream: trio.SocketStream) -> None:
        buffer = bytearray()
        try:
            while data := await stream.receive_some():
                buffer += data
                while len(buffer) >= 4 and len(buffer) >= 4 + _LENGTH.unpack_from(buffer)[0]:
                    end = 4 + _LENGTH.unpack_from(buffer)[0]
                    packet = bytes(buffer[4:end])
                    del buffer[:end]
                    await self._goes_on.wait()
                    await stream.send_all(self._answer(packet))
        except trio.BrokenResourceError:
            pass

    def _answer(self, packet: bytes) -> bytes:
        (head,) = _HEAD.unpack_from(packet)
        operation, flags = Operation(head >> 16 & 0xFF), Flag(head & 0xFFFF)
        if operation is Operation.ADD:
            key, entry = packet[4 : 4 + MASTER_KEY_BYTES], packet[4 + MASTER_KEY_BYTES :]
            ledger_id, entry_id = _IDS.unpack_from(entry)
            code, found = self._add(ledger_id, entry_id, key, entry, flags), b""
        else:
            ledger_id, entry_id = _IDS.unpack_from(packet, 4)
            code, found = self._read(ledger_id, entry_id, packet[20:], flags)
        size = _REPLY.size - 4 + len(found)
        reply = _REPLY.pack(size, 2 << 24 | operation << 16, code, ledger_id, entry_id)
        return reply + found

    def _add(self, ledger_id: int, entry_id: int, key: bytes, entry: bytes, flags: Flag) -> Code:
        ledger = self._ledgers.setdefault(ledger_id, _Ledger(key))
        if ledger.master_key != key:
            return Code.UNAUTHORIZED
        if self.is_read_only and Flag.HIGH_PRIORITY not in flags:
            return Code.READ_ONLY
        if ledger.is_fenced and Flag.RECOVERY not in flags:
            return Code.FENCED
        ledger.entries[entry_id] = entry
        return Code.OK

    def _read(self, ledger_id: int, entry_id: int, key: bytes, flags: Flag) -> tuple[Code, bytes]:
        if Flag.FENCING in flags:
            ledger = self._ledgers.setdefault(ledger_id, _Ledger(key))
            if ledger.master_key != key:
                return Code.UNAUTHORIZED, b""
            ledger.is_fenced = True
        elif ledger_id not in self._ledgers:
            return Code.NO_LEDGER, b""
        entries = self._ledgers[ledger_id].entries
        if entry_id == LAST_ENTRY:
            entry_id = max(entries, default=LAST_ENTRY)
        found = entries.get(entry_id)
        return (Code.NO_ENTRY, b"") if found is None else (Code.OK, found)


class MemoryBookies:
    """Some bookies; a stopped one is removed from the list at once, a paused one is not."""

    def __init__(self, zookeeper: MemoryZooKeeper, nursery: trio.Nursery) -> None:
        self.zookeeper = zookeeper
        self.bookies: dict[str, MemoryBookie] = {}
        self._session = zookeeper.open_session()
        self._nursery = nursery

    async def start(self, name: str) -> MemoryBookie:
        """Start a bookie, for the first time or again."""
        bookie = self.bookies.setdefault(name, MemoryBookie(name))
        await self._nursery.start(bookie.serve)
        info = BookieServiceInfoFormat()
        info.endpoints.add(id="bookie", port=bookie.port, host="127.0.0.1", protocol="bookie-rpc")
        path = f"{LEDGERS_ROOT}/available/{name}"
        await self._session.create(path, info.SerializeToString(), is_ephemeral=True)
        return bookie

    async def stop(self, name: str) -> None:
        """Stop a bookie."""
        self.bookies[name].stop()
        await self._session.delete(f"{LEDGERS_ROOT}/available/{name}")


@asynccontextmanager
async def open_memory_bookies(*names: str) -> AsyncIterator[MemoryBookies]:
    """Open a ZooKeeper in memory with these bookies, laid out as ``initnewcluster`` does it."""
    zookeeper = MemoryZooKeeper()
    session = zookeeper.open_session()
    await ensure_path(session, f"{LEDGERS_ROOT}/available/readonly")
    await session.create(f"{LEDGERS_ROOT}/LAYOUT", _LAYOUT)
    async with trio.open_nursery() as nursery:
        bookies = MemoryBookies(zookeeper, nursery)
        for name in names:
            await bookies.start(name)
        yield bookies
        nursery.cancel_scope.cancel()
