"""Many writers of many segments at a steady rate, straight over the wire.

1. Each writer has a connection of its own and its share of the segments; where there are fewer
   segments than writers, they share them. Every block is for the next segment of the next writer.
2. The official client cannot do this in one process: a writer of it sets up appends to every
   segment of a stream, whatever its keys, and it gives a connection up after 2,000 of them.
3. The load is open: block k is due at start + k / rate, and a late sender catches up. A block's
   latency is from its sending to the acknowledgement that covers it.
"""

import selectors
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path

from foreign_servers.original_durable import OriginalDurable
from foreign_servers.peer import PeerFailedError, running

from benchmarks.block_load import (
    ACK_SECONDS_MAX,
    BlockLoadFailedError,
    BlockLoadResult,
    BlockWriter,
    event_block,
    expect,
    wait_until_served,
)
from benchmarks.comparison import Metric, Outcome, report_progress
from benchmarks.history import HOST
from benchmarks.peers.segstore_standalone import SegstoreStandalone
from pravega_wire.blocking import SegmentConnection
from pravega_wire.commands import DataAppended
from pravega_wire.errors import ProtocolError

BLOCK_P95 = Metric("block p95", "ms", "lower")
BLOCKS = Metric("blocks", "1/s", "higher")
OUTSTANDING_MAX = 4_000
"""Of all writers."""


REHEARSED = "rehearsed"
"""The streams of the rehearsal, which makes a server warm."""


def segment_name(number: int, stream: str = "many") -> str:
    """Return the name of the one segment of a stream."""
    return f"scale/{stream}{number}/0.#epoch.0"


class ManySegments:
    """All writers, in one thread. A context manager that closes their connections."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        segments: int,
        writers: int,
        block_bytes: int,
        stream: str = "many",
    ) -> None:
        self._stack = ExitStack()
        self._selector = self._stack.enter_context(selectors.DefaultSelector())
        self._pairs: dict[bytes, BlockWriter] = {}
        self._latencies: list[float] = []
        self._outstanding = 0
        data = event_block(block_bytes)
        wait_until_served(host, port, segment_name(segments, stream))
        for writer in range(writers):
            connection = self._stack.enter_context(SegmentConnection(host, port))
            self._selector.register(connection, selectors.EVENT_READ, connection)
            numbers = range(writer, segments, writers) or range(
                writer % segments, segments, segments
            )
            for number in numbers:
                pair = BlockWriter(
                    connection,
                    data=data,
                    segment=segment_name(number, stream),
                    writer_id=(writer * segments + number).to_bytes(16),
                )
                self._pairs[pair.writer_id] = pair

    def __enter__(self) -> "ManySegments":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, *, blocks_per_second: float, seconds: float) -> BlockLoadResult:
        """Send for that long and wait for the acks. Raises BlockLoadFailedError."""
        self._latencies = []
        turns = self._turns()
        start = time.perf_counter()
        wanted, sent = int(blocks_per_second * seconds), 0
        while sent < wanted:
            due = min(wanted, int((time.perf_counter() - start) * blocks_per_second) + 1)
            for _ in range(min(due - sent, OUTSTANDING_MAX - self._outstanding)):
                next(turns).send()
                self._outstanding += 1
                sent += 1
            pause = start + sent / blocks_per_second - time.perf_counter()
            self._take_acks(min(max(0.0, pause), 0.1))
        deadline = time.perf_counter() + ACK_SECONDS_MAX
        while self._outstanding:
            if time.perf_counter() > deadline:
                raise BlockLoadFailedError(f"{self._outstanding} blocks were never acknowledged")
            self._take_acks(0.1)
        elapsed = time.perf_counter() - start
        return BlockLoadResult(wanted, elapsed, tuple(sorted(self._latencies)))

    def _turns(self) -> Iterator[BlockWriter]:
        """Yield the pairs for ever, one of each writer after the other."""
        by_writer: dict[int, list[BlockWriter]] = {}
        for pair in self._pairs.values():
            by_writer.setdefault(pair.connection.fileno(), []).append(pair)
        of_writer = [cycle(pairs) for pairs in by_writer.values()]
        while True:
            for pairs in of_writer:
                yield next(pairs)

    def _take_acks(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            replies = key.data.receive_some()
            now = time.perf_counter()
            for reply in replies:
                expect(reply, DataAppended)
                latencies = tuple(self._pairs[reply.writer_id].take_ack(reply, now))
                self._latencies += latencies
                self._outstanding -= len(latencies)


def load_on(
    peer: SegstoreStandalone | OriginalDurable,
    *,
    title: str,
    segments: int,
    writers: int,
    block_bytes: int,
    blocks_per_second: float,
    rehearsal_seconds: float,
    warmup_seconds: float,
    seconds: float,
    directory: str | None,
) -> Outcome:
    """Put the load on a fresh server; the warm-up, in which its segments are new, counts apart.

    The rehearsal is the same load on other segments: a server in Java is cold before.
    """
    begun = time.perf_counter()
    try:
        peer.prepare()
        with (
            tempfile.TemporaryDirectory(dir=directory) as made,
            running(peer, Path(made) / "server"),
        ):
            load_of = partial(
                ManySegments,
                HOST,
                peer.segment_store_port,
                writers=writers,
                block_bytes=block_bytes,
            )
            with load_of(segments=min(segments, writers), stream=REHEARSED) as load:
                load.run(blocks_per_second=blocks_per_second, seconds=rehearsal_seconds)
            with load_of(segments=segments) as load:
                new = load.run(blocks_per_second=blocks_per_second, seconds=warmup_seconds)
                found = load.run(blocks_per_second=blocks_per_second, seconds=seconds)
    except (PeerFailedError, BlockLoadFailedError, ProtocolError) as error:
        return Outcome({}, failure=str(error))
    report_progress(title, f"of {peer.name}", time.perf_counter() - begun)
    return Outcome(
        {
            BLOCK_P95: found.percentile_ms(95),
            Metric("block p50", "ms", "lower"): found.percentile_ms(50),
            BLOCKS: found.blocks / found.seconds,
            Metric("block p95 while they are new", "ms", "lower"): new.percentile_ms(95),
        }
    )
