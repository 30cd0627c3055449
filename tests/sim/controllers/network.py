"""The way between controllers and the segment store: slow, out of order, and broken at any moment.

Owns: ``Link``, all connections of one controller, and what happens to its requests; ``Refusals``,
the requests that the segment store refuses for good.

Invariants:
1. A request that was sent is carried out at most once, maybe later: also long after its controller
   was killed and others have taken over. When the connection of a living one breaks, what was not
   carried out before is lost: the controller sends it again.
2. Its reply may be lost, and then the connection breaks, as it does over TCP.
3. A link that is cut lets nothing through, in either direction, until it is mended. So a controller
   behind it looks dead to others and goes on with what it held: like a machine that stood still.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable
from random import Random

import trio
import trio.testing

from pravega_controller.metadata.records import GONE, StreamRecord, decode
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_wire import commands as wire
from pravega_wire import names
from pravega_wire.connection import Connection, Role

DELAY_SECONDS = 0.004
LATE_SECONDS = 2.0
"""Less than a controller waits for a reply, and than it keeps outcomes from the archive."""
HAUNT_RATE = 0.7
HAUNT_SECONDS = 45.0
"""A request may come so long after its controller was killed: less than the time after which
others look for what it has made."""


class Rates:
    """How often things go wrong; all at 0 when a run calms down."""

    def __init__(self, random: Random) -> None:
        self.lost_replies = random.choice([0.0, 0.01, 0.05])
        self.late_requests = random.choice([0.0, 0.01, 0.05])

    def calm_down(self) -> None:
        """Stop all faults."""
        self.lost_replies = self.late_requests = 0.0


class Refusals:
    """The segments that the store will never make: some of those that a run asks for.

    Segments of a roll are made: the commits that need it were promised, and are never given up.
    """

    def __init__(
        self, store: MemorySegmentStore, random: Random, note: Callable[[str], None]
    ) -> None:
        self._store = store
        self._note = note
        self._salt = random.getrandbits(32)
        self._rate = random.choice([0.0, 0.1, 0.3])
        store.refuses = self.refuses

    def refuses(self, segment: str) -> bool:
        """Return whether requests about a segment of the clients' streams are refused."""
        if not segment.startswith(("s/a/", "s/b/", "s/_MARKb/")) or segment in self._store.segments:
            return False
        if segment in ("s/a/0.#epoch.0", "s/a/1.#epoch.0") or self._is_rolled(segment):
            return False
        if zlib.crc32(segment.encode(), self._salt) >= self._rate * 2**32:
            return False
        self._note(f"refuse {segment}")
        return True

    def _is_rolled(self, segment: str) -> bool:
        """Return whether transactions of an earlier epoch are being merged into the stream."""
        if names.is_transaction_segment(segment):
            return False
        return any(
            key.endswith(b"/state") and value != GONE and decode(value, StreamRecord).rolling
            for table, content in self._store.tables.items()
            if "/histories-" in table
            for key, (value, _) in content.entries.items()
        )


class Link:
    """The connections of one controller to the segment store."""

    def __init__(
        self,
        store: MemorySegmentStore,
        nursery: trio.Nursery,
        random: Random,
        rates: Rates,
        note: Callable[[str], None],
    ) -> None:
        self._store = store
        self._nursery = nursery
        self._random = random
        self._rates = rates
        self._note = note
        self._mended = trio.Event()
        self._mended.set()
        self._lives = 0
        self._killed = 0.0
        self._until_cut: int | None = None

    def haunt(self) -> None:
        """Let requests that a killed controller has sent come much later."""
        self._lives += 1
        self._killed = trio.current_time()

    def cut(self) -> None:
        """Stop all requests and replies."""
        self._mended = trio.Event()

    def cut_at(self, number: int) -> None:
        """Cut before the request of a number, counted from now on, reaches the store."""
        self._until_cut = number

    def mend(self) -> None:
        """Let waiting and later requests and replies through."""
        self._until_cut = None
        self._mended.set()

    def _count_request(self) -> None:
        if self._until_cut is not None:
            self._until_cut -= 1
            if self._until_cut < 0:
                self._until_cut = None
                self.cut()

    async def open_stream(self, host: str, port: int) -> trio.abc.Stream:
        """Open a connection in memory, in place of a TCP connection."""
        await self._pass(late=False)
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self._serve, ours)
        return theirs

    async def _pass(self, *, late: bool) -> None:
        seconds = self._random.random() * (LATE_SECONDS if late else DELAY_SECONDS)
        await trio.sleep(seconds)
        await self._mended.wait()

    async def _serve(self, stream: trio.StapledStream) -> None:  # type: ignore[type-arg]
        connection = Connection(Role.SERVER)
        broken = (trio.BrokenResourceError, trio.ClosedResourceError)
        sending = trio.StrictFIFOLock()
        broken_in: int | None = None
        """The life of the controller in which the connection broke."""

        def break_off() -> None:
            nonlocal broken_in
            if broken_in is None:
                broken_in = self._lives

        async def answer(request: wire.Request) -> None:
            life, kind = self._lives, type(request).__name__
            self._count_request()
            late = self._random.random() < self._rates.late_requests
            await self._pass(late=late)
            if life == broken_in:
                # The controller has sent it again, even if it was killed after that.
                self._note(f"drop {kind}")
                return
            if life != self._lives:
                killed = self._killed
                if self._random.random() < HAUNT_RATE:
                    await trio.sleep(self._random.random() * HAUNT_SECONDS)
                    await self._mended.wait()
                if trio.current_time() > killed + HAUNT_SECONDS:
                    self._note(f"drop {kind}")
                    return
                self._note(f"haunt {kind}")
            elif late:
                self._note(f"late {kind}")
            created_count = len(self._store.created)
            reply = self._store._apply(request)
            if life != self._lives:
                # It may make again what was deleted; who took over deletes it once more.
                del self._store.created[created_count:]
            if self._random.random() < self._rates.lost_replies:
                self._note(f"lost reply to {kind}")
                break_off()
                await trio.aclose_forcefully(stream)
                return
            await self._pass(late=False)
            with contextlib.suppress(*broken):
                async with sending:
                    await stream.send_all(connection.send(reply))

        with contextlib.suppress(*broken):
            while data := await stream.receive_some(65536):
                for command in connection.receive_data(data):
                    assert isinstance(command, wire.Request)
                    if isinstance(command, wire.Hello):
                        await stream.send_all(connection.send(wire.HELLO))
                    elif isinstance(command, wire.AskDelays):
                        told = wire.DelaysTold(command.request_id, ())
                        await stream.send_all(connection.send(told))
                    else:
                        self._nursery.start_soon(answer, command)
        break_off()
