"""Append blocks sent straight over the wire, one connection, one segment: no client's own batching.

1. A steady load is open: block k is due at start + k / rate, and a late sender catches up.
2. A block's latency is from its sending to the ack that covers it, in the sender's clock.
3. All blocks of a sender have the same bytes.
"""

import select
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import UnionType

from pravega_wire.blocking import ConnectionLostError, SegmentConnection
from pravega_wire.codec import encode
from pravega_wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    CreateSegment,
    DataAppended,
    SegmentAlreadyExists,
    SegmentCreated,
    SetupAppend,
)
from pravega_wire.event_framing import frame_event

SEGMENT = "budget/blocks/0.#epoch.0"
WRITER = b"bench of blocks!"
OUTSTANDING_MAX = 1_000
ACK_SECONDS_MAX = 20.0
SERVED_SECONDS_MAX = 60.0
RETRY_SECONDS = 0.2


class BlockLoadFailedError(Exception):
    """The server answered with something else than the request asked for, or not at all."""


@dataclass(frozen=True, slots=True)
class BlockLoadResult:
    """Blocks that were acknowledged, and the latencies in milliseconds, ascending."""

    blocks: int
    seconds: float
    latencies_ms: tuple[float, ...]

    def percentile_ms(self, percent: float) -> float:
        """Return the latency that this percentage of the blocks did not exceed."""
        return percentile(self.latencies_ms, percent)


def percentile(ascending: Sequence[float], percent: float) -> float:
    """Return the number that this percentage did not exceed."""
    return ascending[min(len(ascending) - 1, int(len(ascending) * percent / 100))]


def event_block(block_bytes: int) -> bytes:
    """Make a block of this length that consists of one event."""
    return frame_event(bytes(block_bytes - len(frame_event(b""))))


def expect(reply: object, kind: type | UnionType) -> None:
    """Raise ``BlockLoadFailedError`` unless the reply is of that kind."""
    if not isinstance(reply, kind):
        raise BlockLoadFailedError(f"the server answered {reply}")


def wait_until_served(host: str, port: int, segment: str) -> None:
    """Make a segment, as soon as the server serves it: one that has just started may not yet.

    Raises ``BlockLoadFailedError``.
    """
    deadline = time.perf_counter() + SERVED_SECONDS_MAX
    while True:
        answer: object
        try:
            with SegmentConnection(host, port) as connection:
                answer = connection.call(CreateSegment(1, segment, 0, 0, ""))
        except ConnectionLostError as error:
            answer = error
        if isinstance(answer, SegmentCreated):
            return
        if time.perf_counter() > deadline:
            raise BlockLoadFailedError(f"{segment} is not served: {answer}")
        time.sleep(RETRY_SECONDS)


class BlockWriter:
    """One writer of one segment, which it makes if it is not there, on a connection.

    Raises ``BlockLoadFailedError``. ``sent`` holds the number of each block that is not
    acknowledged and the time it was sent, oldest first.
    """

    def __init__(
        self, connection: SegmentConnection, *, data: bytes, segment: str, writer_id: bytes
    ) -> None:
        self.connection = connection
        self.writer_id = writer_id
        self.sent: deque[tuple[int, float]] = deque()
        self._length = len(data)
        self._block = encode(AppendBlock(writer_id, data))
        self._events = 0
        request_id = connection.next_request_id()
        made = connection.call(CreateSegment(request_id, segment, 0, 0, ""))
        expect(made, SegmentCreated | SegmentAlreadyExists)
        request_id = connection.next_request_id()
        expect(connection.call(SetupAppend(request_id, writer_id, segment, "")), AppendSetup)

    def send(self) -> None:
        """Send the next block."""
        self._events += 1
        end = AppendBlockEnd(self.writer_id, self._length, b"", 1, self._events, self._events)
        self.sent.append((self._events, time.perf_counter()))
        self.connection.send_bytes(self._block + encode(end))

    def take_ack(self, reply: DataAppended, now: float) -> Iterator[float]:
        """Take a reply of this time.

        Return the latencies in ms of the blocks that it acknowledges.
        """
        while self.sent and self.sent[0][0] <= reply.event_number:
            yield (now - self.sent.popleft()[1]) * 1000


class BlockSender:
    """One writer's load. Used within a ``with`` block of its connection."""

    def __init__(
        self,
        connection: SegmentConnection,
        *,
        data: bytes,
        segment: str = SEGMENT,
        writer_id: bytes = WRITER,
    ) -> None:
        self._writer = BlockWriter(connection, data=data, segment=segment, writer_id=writer_id)
        self._sent = self._writer.sent
        self._latencies: list[float] = []

    def run(self, *, blocks_per_second: float, seconds: float) -> BlockLoadResult:
        """Send for that long and wait for the acks. Raises BlockLoadFailedError."""
        self._latencies = []
        start = time.perf_counter()
        wanted = int(blocks_per_second * seconds)
        sent = 0
        while sent < wanted:
            due = min(wanted, int((time.perf_counter() - start) * blocks_per_second) + 1)
            count = min(due - sent, OUTSTANDING_MAX - len(self._sent))
            for _ in range(count):
                self._writer.send()
            sent += max(0, count)
            pause = start + sent / blocks_per_second - time.perf_counter()
            self._take_acks(max(0.0, pause))
        self._wait_until_outstanding(0)
        elapsed = time.perf_counter() - start
        return BlockLoadResult(wanted, elapsed, tuple(sorted(self._latencies)))

    def send_all(self, count: int, *, outstanding_max: int) -> None:
        """Send so many blocks as fast as they are acknowledged. Raises BlockLoadFailedError."""
        for _ in range(count):
            self._wait_until_outstanding(outstanding_max - 1)
            self._writer.send()
        self._wait_until_outstanding(0)

    def _wait_until_outstanding(self, count: int) -> None:
        deadline = time.perf_counter() + ACK_SECONDS_MAX
        acknowledged = self._sent[0] if self._sent else None
        while len(self._sent) > count:
            if time.perf_counter() > deadline:
                raise BlockLoadFailedError(f"{len(self._sent)} blocks were never acknowledged")
            self._take_acks(0.1)
            if self._sent and self._sent[0] is not acknowledged:
                acknowledged = self._sent[0]
                deadline = time.perf_counter() + ACK_SECONDS_MAX

    def _take_acks(self, seconds: float) -> None:
        readable, _, _ = select.select([self._writer.connection], [], [], seconds)
        if not readable:
            return
        replies = self._writer.connection.receive_some()
        now = time.perf_counter()
        for reply in replies:
            expect(reply, DataAppended)
            assert isinstance(reply, DataAppended)
            self._latencies += self._writer.take_ack(reply, now)
