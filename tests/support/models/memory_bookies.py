"""Bookies in memory that listen on 127.0.0.1 and are registered in a ZooKeeper in memory.

Owns: ``MemoryBookie``, ``MemoryBookies``.

They accept and refuse requests like real bookies: for example, they refuse a wrong master key, and
entries of a fenced ledger. With ``tls`` they begin to speak it when they are asked to. ``stop``
closes all connections and the port. ``pause`` leaves connections open and answers nothing.
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import trio

from bookkeeper_client.data_formats_pb2 import BookieServiceInfoFormat
from bookkeeper_client.wire.protocol import LAST_ENTRY, MASTER_KEY_BYTES, Code, Flag, Operation
from bookkeeper_client.wire.start_tls import START_TLS
from support.models.memory_server import MemoryZooKeeper
from zookeeper_client.api import ensure_path

LEDGERS_ROOT = "/ledgers"
_LAYOUT = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">i")
_IDS = struct.Struct(">qq")
_REPLY = struct.Struct(">Iiiqq")
_START_TLS_HEADER = START_TLS[4:12]
TLS_BEGINS = b"\0\0\0\x0d" + _START_TLS_HEADER + b"\x10\x00\xd2\x06\x00"
NO_TLS = b"\0\0\0\x0b" + _START_TLS_HEADER + b"\x10\x94\x03"
"""The answers of a bookie to the request for TLS: the second is the status 404."""


@dataclass(slots=True)
class _Ledger:
    master_key: bytes
    is_fenced: bool = False
    entries: dict[int, bytes] = field(default_factory=dict)


class MemoryBookie:
    """One bookie. Its entries are still there after ``stop``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = 0
        self.is_read_only = False
        self.tls: ssl.SSLContext | None = None
        self.request_count = 0
        """Number of requests of all connections, but for those for TLS."""
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
        """Return how many entries of a ledger the bookie has."""
        found = self._ledgers.get(ledger_id)
        return 0 if found is None else len(found.entries)

    def forget(self, ledger_id: int) -> None:
        """Delete a ledger and its fence, as bookies do some time after its node was deleted."""
        self._ledgers.pop(ledger_id, None)

    async def _serve_connection(self, stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await self._serve_requests(stream)

    async def _serve_requests(self, stream: trio.abc.Stream) -> None:
        buffer = bytearray()
        while data := await stream.receive_some():
            buffer += data
            if buffer == START_TLS:
                await stream.send_all(NO_TLS if self.tls is None else TLS_BEGINS)
                if self.tls is not None:
                    stream = trio.SSLStream(stream, self.tls, server_side=True)
                buffer.clear()
            while len(buffer) >= 4 and len(buffer) >= 4 + _LENGTH.unpack_from(buffer)[0]:
                end = 4 + _LENGTH.unpack_from(buffer)[0]
                packet = bytes(buffer[4:end])
                del buffer[:end]
                await self._goes_on.wait()
                await stream.send_all(self._answer(packet))

    def _answer(self, packet: bytes) -> bytes:
        self.request_count += 1
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
    """A set of bookies. A stopped one is removed from ZooKeeper at once, a paused one is not."""

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
    """Open a ZooKeeper in memory with these bookies, and the nodes that ``initnewcluster``
    makes."""
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
