"""Bookies of a cluster: the protocol and many ledgers around ``bookkeeper.cluster.FakeBookie``.

Owns: ``SimulatedBookie``.

A crash forgets entries that were not acknowledged, or keeps them whole or with a wrong bit. Ledgers
without a node in ZooKeeper are dropped now and then, as real bookies do.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from random import Random

import trio
from bookkeeper.cluster import FakeBookie
from simulation.network import NetworkStream

from bookkeeper_client.metadata import ledger_path
from bookkeeper_client.wire.protocol import MASTER_KEY_BYTES, Code, Flag, Operation
from cluster.links import Wires
from support.models.memory_server import MemorySession, MemoryZooKeeper
from zookeeper_client.api import NodeExistsError, NoNodeError

PORT = 3181
COLLECT_SECONDS = 3.0
_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">i")
_IDS = struct.Struct(">qq")
_REPLY = struct.Struct(">Iiiqq")


class _LoopSchedule:
    """``bookkeeper.cluster.Schedule`` in the time of the event loop."""

    def __init__(self, random: Random, nursery: trio.Nursery) -> None:
        self.random = random
        self._nursery = nursery

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Do it in so many seconds."""
        self._nursery.start_soon(self._wait, seconds, act)

    async def _wait(self, seconds: float, act: Callable[[], None]) -> None:
        await trio.sleep(seconds)
        act()


class SimulatedBookie:
    """One bookie; what it has acknowledged survives."""

    def __init__(
        self,
        host: str,
        zookeeper: MemoryZooKeeper,
        ledgers_root: str,
        wires: Wires,
        nursery: trio.Nursery,
        random: Random,
        counts: Counter[str],
    ) -> None:
        self.host = host
        self.ledgers: dict[int, FakeBookie] = {}
        self.is_up = False
        self.is_stopped = False
        self._zookeeper = zookeeper
        self._root = ledgers_root
        self._wires = wires
        self._nursery = nursery
        self._random = random
        self._counts = counts
        self._session: MemorySession | None = None
        self._waiting: list[Callable[[], None]] = []
        self._schedule = _LoopSchedule(random, nursery)

    @property
    def name(self) -> str:
        """Return its id."""
        return f"{self.host}:{PORT}"

    def entry(self, ledger_id: int, entry_id: int) -> bytes | None:
        """Return the bytes of an entry that it has synced."""
        ledger = self.ledgers.get(ledger_id)
        return None if ledger is None else ledger.entries.get(entry_id)

    async def start(self) -> None:
        """Listen, and register when the session of the life before has ended."""
        self.is_up, self.is_stopped = True, False
        self._wires.listen(self.host, self._accept)
        session = self._session = self._zookeeper.open_session()
        while session is self._session:
            try:
                path = f"{self._root}/available/{self.name}"
                await session.create(path, b"", is_ephemeral=True)
                return
            except NodeExistsError:
                await trio.sleep(0.2)

    def crash(self, session_seconds: float) -> None:
        """End, and forget what was not acknowledged."""
        self.is_up = self.is_stopped = False
        self._waiting.clear()
        for ledger in self.ledgers.values():
            ledger.crash(self._keep)
        self._wires.break_off(self.host)
        session, self._session = self._session, None
        if session is not None:
            end = self._zookeeper.end_session
            self._schedule.after(session_seconds, lambda: end(session))

    def stop(self) -> None:
        """Stop, as after SIGSTOP."""
        self.is_stopped = True

    def resume(self) -> None:
        """Answer what has come."""
        self.is_stopped = False
        waiting, self._waiting = self._waiting, []
        for act in waiting:
            act()

    async def collect(self) -> None:
        """Drop the ledgers that ZooKeeper does not know, now and then."""
        while True:
            await trio.sleep(COLLECT_SECONDS * (0.5 + self._random.random()))
            for ledger_id in list(self.ledgers):
                try:
                    self._zookeeper.find(f"{self._root}/{ledger_path(ledger_id)}")
                except NoNodeError:
                    self._counts["ledgers collected by a bookie"] += 1
                    del self.ledgers[ledger_id]

    def _keep(self, data: bytes) -> bytes | None:
        """Return what a crash leaves of an entry that was not acknowledged."""
        fate = self._random.randrange(3)
        if fate == 0:
            return None
        if fate == 1:
            return data
        self._counts["entry flipped that was not acknowledged"] += 1
        place = self._random.randrange(len(data))
        return (
            data[:place] + bytes([data[place] ^ 1 << self._random.randrange(8)]) + data[place + 1 :]
        )

    def _accept(self, stream: NetworkStream) -> None:
        self._nursery.start_soon(self._serve, stream)

    async def _serve(self, stream: NetworkStream) -> None:
        buffer = bytearray()
        try:
            while data := await stream.receive_some():
                buffer += data
                while len(buffer) >= 4 and len(buffer) >= (
                    end := 4 + _LENGTH.unpack_from(buffer)[0]
                ):
                    packet = bytes(buffer[4:end])
                    del buffer[:end]
                    if self.is_stopped:
                        self._waiting.append(lambda packet=packet: self._take(stream, packet))
                    else:
                        self._take(stream, packet)
        except trio.BrokenResourceError:
            return
        await stream.aclose()

    def _take(self, stream: NetworkStream, packet: bytes) -> None:
        (head,) = _HEAD.unpack_from(packet)
        operation, flags = Operation(head >> 16 & 0xFF), Flag(head & 0xFFFF)
        entry = packet[4 + MASTER_KEY_BYTES :] if operation is Operation.ADD else packet[4:20]
        ledger_id, entry_id = _IDS.unpack_from(entry)

        def answer(code: Code | None, found: bytes) -> None:
            assert code is not None
            found = found if operation is Operation.READ else b""
            size = _REPLY.size - 4 + len(found)
            reply = _REPLY.pack(size, 2 << 24 | operation << 16, code, ledger_id, entry_id)
            if self.is_stopped:
                self._waiting.append(lambda: stream.send_nowait(reply + found))
            else:
                stream.send_nowait(reply + found)

        ledger = self.ledgers.get(ledger_id)
        if operation is Operation.READ and Flag.FENCING not in flags and ledger is None:
            answer(Code.NO_LEDGER, b"")
            return
        if ledger is None:
            ledger = self.ledgers[ledger_id] = FakeBookie(self.name, self._schedule)
        if operation is Operation.ADD:
            is_recovery = Flag.RECOVERY in flags
            ledger.add(entry_id, entry, is_recovery=is_recovery, answer=answer)
        else:
            ledger.read(entry_id, is_fencing=Flag.FENCING in flags, answer=answer)
