"""The network between wire clients and the store: slow, in odd pieces, and broken at any moment.

Owns: ``Network`` and its connections, which are streams of trio.

Invariants:
1. What arrives at one end of a connection is a prefix of what was sent at the other, in order;
   nothing arrives after the end of a stream. Pieces are cut anywhere.
2. A reset loses any part at the end of what is under way, in each direction for itself; the rest
   may arrive long after, while the client uses another connection already.
3. A store that dies sends nothing more: what had left it may still arrive.
"""

from __future__ import annotations

import errno
import os
from collections import Counter, deque
from collections.abc import Callable
from random import Random

import trio

from simulation.plan import KIB, Plan

WINDOW_BYTES = 64 * KIB
"""A sender waits while this many bytes were sent and not received."""
HAUNT_SECONDS = 5.0
"""Maximum delay, in seconds, of bytes that are under way at a reset."""
PIECES_MAX = 4
ACCEPT_FAULT_RATE = 0.1


class _Pipe:
    """One direction of a connection."""

    def __init__(self, random: Random, delay: Callable[[], float]) -> None:
        self._random = random
        self._delay = delay
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._last_at = 0.0
        self._changed = trio.Event()
        self.pending_bytes = 0
        self.ended = False
        """The sender has finished: whoever receives gets what is under way, and then the end."""
        self.broken = False
        """The same, with an error for an end."""

    def put(self, data: bytes) -> None:
        """Send bytes; they arrive later, in pieces."""
        for piece in self._cut(data):
            self._last_at = max(self._last_at, trio.current_time() + self._delay())
            self._pieces.append((self._last_at, piece))
            self.pending_bytes += len(piece)
        self._notify()

    def _cut(self, data: bytes) -> list[bytes]:
        if len(data) < 2 or self._random.random() < 0.7:
            return [data]
        count = self._random.randint(1, PIECES_MAX)
        cuts = sorted(self._random.randrange(1, len(data)) for _ in range(count))
        return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def finish(self) -> None:
        """Finish: nothing more will be sent."""
        self.ended = True
        self._notify()

    def break_off(self, *, keep: bool) -> None:
        """Lose any part at the end of what is under way; all of it unless ``keep``."""
        if self.broken:
            return
        kept = self._random.randint(0, self.pending_bytes) if keep else 0
        late = self._random.random() * HAUNT_SECONDS if self._random.random() < 0.5 else 0.0
        pieces, self._pieces = self._pieces, deque()
        self.pending_bytes = kept
        for at, piece in pieces:
            if kept:
                self._pieces.append((at + late, piece[:kept]))
                kept -= len(self._pieces[-1][1])
        self.broken = True
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def receive(self, bytes_max: int) -> bytes:
        """Return some bytes; none at the end. Raises ``BrokenResourceError`` after a reset."""
        await trio.lowlevel.checkpoint()
        while True:
            now = trio.current_time()
            if self._pieces and self._pieces[0][0] <= now:
                at, piece = self._pieces.popleft()
                if len(piece) > bytes_max:
                    self._pieces.appendleft((at, piece[bytes_max:]))
                    piece = piece[:bytes_max]
                self.pending_bytes -= len(piece)
                self._notify()
                if piece:
                    return piece
                continue
            if not self._pieces and self.broken:
                raise trio.BrokenResourceError("the connection was reset")
            if not self._pieces and self.ended:
                return b""
            seconds = self._pieces[0][0] - now if self._pieces else float("inf")
            with trio.move_on_after(seconds):
                await self._changed.wait()

    async def wait_for_room(self) -> None:
        """Return when more can be sent, or when it cannot be any more."""
        while self.pending_bytes > WINDOW_BYTES and not self.broken:
            await self._changed.wait()


class NetworkStream(trio.abc.HalfCloseableStream):
    """One end of a connection."""

    def __init__(self, connection: _Connection, receives: _Pipe, sends: _Pipe) -> None:
        self._connection = connection
        self._receives = receives
        self._sends = sends
        self._closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send; what was sent need not arrive."""
        await trio.lowlevel.checkpoint()
        self._check_open()
        self._sends.put(bytes(data))
        self._connection.note_sent(len(data))
        await self._sends.wait_for_room()
        self._check_open()

    def send_nowait(self, data: bytes) -> None:
        """Send without waiting for room; nothing if the connection is over."""
        if not self._closed and not self._sends.broken:
            self._sends.put(data)
            self._connection.note_sent(len(data))

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError
        if self._sends.broken:
            raise trio.BrokenResourceError("the connection was reset")

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until more can be sent."""
        await trio.lowlevel.checkpoint()
        await self._sends.wait_for_room()

    async def send_eof(self) -> None:
        """Send the end: nothing more will be sent."""
        await trio.lowlevel.checkpoint()
        self._check_open()
        self._sends.finish()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return some bytes; none at the end."""
        if self._closed:
            raise trio.ClosedResourceError
        return await self._receives.receive(max_bytes or WINDOW_BYTES)

    async def aclose(self) -> None:
        """Close at once: what was sent still arrives, whoever goes on sending finds out."""
        if not self._closed:
            self._closed = True
            self._sends.finish()
            self._receives.break_off(keep=False)
        await trio.lowlevel.checkpoint()


class _Connection:
    def __init__(
        self, network: Network, random: Random, delay: Callable[[], float], bytes_left: float
    ) -> None:
        self._network = network
        self._bytes_left = bytes_left
        self.to_server = _Pipe(random, delay)
        self.to_client = _Pipe(random, delay)

    def note_sent(self, count: int) -> None:
        self._bytes_left -= count
        if self._bytes_left < 0:
            self.reset()

    def reset(self) -> None:
        self._network.forget(self)
        self.to_server.break_off(keep=True)
        self.to_client.break_off(keep=True)

    def server_dies(self) -> None:
        self.to_server.break_off(keep=False)
        self.to_client.break_off(keep=True)


class SimulatedListener(trio.abc.Listener[trio.abc.HalfCloseableStream]):
    """A listener that accepts connections for a server.

    Now and then there is no descriptor for one.
    """

    def __init__(self, next_error: Callable[[], int]) -> None:
        self._next_error = next_error
        self._waiting: deque[trio.abc.HalfCloseableStream] = deque()
        self._came = trio.Event()
        self._closed = False

    def put(self, stream: trio.abc.HalfCloseableStream) -> None:
        """Put a connection into the queue of those to accept."""
        self._waiting.append(stream)
        self._came.set()
        self._came = trio.Event()

    async def accept(self) -> trio.abc.HalfCloseableStream:
        """Return the next connection."""
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            await self._came.wait()
        if code := self._next_error():
            raise OSError(code, os.strerror(code))
        return self._waiting.popleft()

    async def aclose(self) -> None:
        """Reset what nobody has accepted."""
        while self._waiting:
            with trio.CancelScope(shield=True):
                await self._waiting.popleft().aclose()
        await trio.lowlevel.checkpoint()


class Network:
    """All connections of one life of the store."""

    def __init__(
        self,
        plan: Plan,
        random: Random,
        is_calm: Callable[[], bool],
        fault_counts: Counter[str],
    ) -> None:
        self._plan = plan
        self._random = random
        self._is_calm = is_calm
        self._fault_counts = fault_counts
        self._connections: dict[_Connection, None] = {}

    def connect(self) -> tuple[NetworkStream, NetworkStream]:
        """Make a new connection; return the client's end and the server's."""
        bytes_mean = self._plan.network_reset_bytes
        bytes_left = float("inf")
        if bytes_mean and not self._is_calm():
            bytes_left = self._random.expovariate(1 / bytes_mean)
        connection = _Connection(self, self._random, self._delay, bytes_left)
        self._connections[connection] = None
        to_server, to_client = connection.to_server, connection.to_client
        return (
            NetworkStream(connection, to_client, to_server),
            NetworkStream(connection, to_server, to_client),
        )

    def listener(self) -> SimulatedListener:
        """Return a listener that accepts connections, in spite of a lack of descriptors or
        memory."""
        return SimulatedListener(self._next_accept_error)

    def _next_accept_error(self) -> int:
        if self._is_calm() or self._random.random() > ACCEPT_FAULT_RATE:
            return 0
        code = self._random.choice([errno.EMFILE, errno.ENFILE, errno.ENOMEM])
        self._fault_counts[f"accept fails, {errno.errorcode[code]}"] += 1
        return code

    def forget(self, connection: _Connection) -> None:
        """Forget a connection that was reset."""
        self._fault_counts["connection reset"] += 1
        self._connections.pop(connection, None)

    def server_dies(self) -> None:
        """Cut all connections of the dead server: nothing that it still does reaches a client."""
        connections, self._connections = self._connections, {}
        for connection in connections:
            connection.server_dies()

    def _delay(self) -> float:
        seconds = self._plan.network_seconds
        return self._random.expovariate(1 / seconds) if seconds else 0.0
