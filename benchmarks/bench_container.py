"""What does an append cost a container between its queue and its acknowledgement, and where?

Run from the repository's root: `python -m benchmarks.bench_container [--rounds 3]`.

1. A real container on a log in memory and a tier 2 that stores nothing: no disk, no socket, no
   thread. What remains is what the container itself does. The time is the thread's CPU time.
2. Appends come as a connection brings them: a burst of them, then a turn of the event loop, and
   so many unacknowledged at a time. Each has one writer attribute and counts its events.
3. `queue` is `append_nowait`; `frame` validates the operations and writes them into data frames;
   `commit` is from the log's completion to the last acknowledgement; `rest` is the event loop and
   the log. Stages are timed by the burst and by the frame, so that the clock costs little; where
   every append is a burst of its own they are not timed.
4. `connection` is the same with the append processor in front: from decoded appends to encoded
   acknowledgements.
"""

import argparse
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import thread_time

import trio

from _fast.cache.streaming_cache import StreamingCache
from _fast.wire.appends import Acknowledgement, Append
from benchmarks.bench_codecs import limited_row
from benchmarks.comparison import ComparedRow, Metric, plain_table, write_json_if_asked
from pravega_wire import commands as wire
from segstore.api import SegmentContainer
from segstore.cache.manager import CacheManager
from segstore.container import Container, open_container
from segstore.durable_log.operation_processor import OperationProcessor
from segstore.errors import SegmentStoreError
from segstore.model.attributes import EVENT_COUNT, AttributeUpdate, AttributeUpdateType
from segstore.network.admission.outstanding_requests import (
    OutstandingRequests,
    OutstandingTotal,
    Share,
)
from segstore.network.append_processor import AppendProcessor
from segstore.process.config import ConnectionSettings
from segstore.tiers.api import Buffer
from segstore.tiers.memory import MemoryDataLogFactory

MIB = 1024**2
WRITER = bytes(range(16))
STAGES = ("queue", "frame", "commit", "rest")


class NullStorage:
    """A tier 2 that takes everything and keeps only how much there was."""

    def __init__(self) -> None:
        self._lengths: dict[str, int] = {}

    async def stored_length(self, segment: str, *, certain: int | None = None) -> int:
        """Return the end of the last write."""
        return self._lengths.get(segment, 0)

    async def recovered(
        self,
        *,
        last_operation: int,
        next_segment_id: int,
        needed: Mapping[str, int],
        ends: Mapping[str, int],
    ) -> None:
        """Do nothing: all lengths are certain."""

    async def plan_scan(
        self, segment: str, *, start: int, end: int, lease_id: bytes, lease_seconds: float
    ) -> None:
        """Give no plan: nothing is stored that others could read."""

    async def hold_chunks(
        self, segment: str | None, *, lease_id: bytes, names: Sequence[str], lease_seconds: float
    ) -> bool:
        """Hold nothing: there are no chunks."""
        return False

    async def keep_container(self, snapshot: bytes, sequence_number: int) -> None:
        """Do nothing: this benchmark recovers no container."""

    async def close(self, *, last_operation: int) -> None:
        """Do nothing: no owner comes after this one."""

    async def write(
        self,
        segment: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        rollover_bytes: int,
        on_stored: Callable[[int], None] | None = None,
    ) -> None:
        """Note the end of the write."""
        end = self._lengths[segment] = offset + sum(map(len, data))
        if on_stored is not None:
            on_stored(end)

    async def read(self, segment: str, *, offset: int, length: int) -> bytes:
        """Raise an error: nobody reads here."""
        raise AssertionError(f"{segment} is read at {offset}")

    async def truncate(self, segment: str, *, offset: int) -> None:
        """Do nothing: there is nothing to free."""

    async def concat(
        self, target: str, *, offset: int, source: str, length: int, rollover_bytes: int
    ) -> None:
        """Note the end of the target."""
        self._lengths[target] = offset + length

    async def settle(self) -> None:
        """Do nothing: there is nothing to note."""

    async def run(self) -> None:
        """Do nothing: nothing runs behind the calls."""

    async def delete(self, segment: str, *, merged_into: str | None = None) -> None:
        """Forget the segment."""
        self._lengths.pop(segment, None)


@dataclass(frozen=True, slots=True)
class Load:
    """A row: so many appends of so many bytes, spread over segments."""

    name: str
    append_bytes: int
    append_count: int
    segment_count: int = 1
    burst: int = 64
    outstanding_max: int = 2000
    limit: float | None = None

    @property
    def is_timed(self) -> bool:
        """Return whether the clock costs little compared with the measured call."""
        return self.burst > 1


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of CPU for one append: in all, and by stage."""

    whole: float
    stages: dict[str, float]


LOADS = (
    Load("100 B, 1 segment", 100, 100_000, limit=6.0),
    Load("100 B, 16 segments", 100, 100_000, segment_count=16),
    Load("100 B, 1 segment, one at a time", 100, 5_000, burst=1, outstanding_max=1),
    Load("10 KB, 1 segment", 10_000, 20_000),
    Load("10 KB, 16 segments", 10_000, 20_000, segment_count=16),
)
SMALL = tuple(
    Load(load.name, load.append_bytes, 200, load.segment_count, min(load.burst, 16), 64)
    for load in LOADS
)


class Timer:
    """Adds up the CPU time of calls to a method of an object."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.on = False

    def around(self, method: Callable[..., object]) -> Callable[..., object]:
        """Wrap the method so that its CPU time is measured."""

        def timed(*arguments: object) -> object:
            if not self.on:
                return method(*arguments)
            started = thread_time()
            result = method(*arguments)
            self.seconds += thread_time() - started
            return result

        return timed


@asynccontextmanager
async def timed_container(timers: dict[str, Timer]) -> AsyncIterator[Container]:
    """Open a container whose processor measures how long it works on frames and on commits."""
    advance, frame_completed = OperationProcessor._advance, OperationProcessor._frame_completed
    OperationProcessor._advance = timers["frame"].around(advance)  # type: ignore[method-assign,assignment]
    OperationProcessor._frame_completed = timers["commit"].around(frame_completed)  # type: ignore[method-assign,assignment]
    try:
        cache_manager = CacheManager(StreamingCache(256 * MIB))
        async with open_container(
            1, MemoryDataLogFactory(), NullStorage(), cache_manager
        ) as container:
            yield container
    finally:
        OperationProcessor._advance = advance  # type: ignore[method-assign]
        OperationProcessor._frame_completed = frame_completed  # type: ignore[method-assign]


class Pace:
    """The numbers of queued and acknowledged appends, and the first error."""

    def __init__(self) -> None:
        self.queued = 0
        self.acknowledged = 0
        self.error: SegmentStoreError | None = None

    def on_complete(self, error: SegmentStoreError | None, length: int) -> None:
        """Count an acknowledgement."""
        self.acknowledged += 1
        self.error = self.error or error

    async def wait(self, outstanding_max: int) -> None:
        """Return when no more than so many are unacknowledged; at least a turn later."""
        await trio.lowlevel.checkpoint()
        while self.queued - self.acknowledged > outstanding_max:
            await trio.lowlevel.checkpoint()
        if self.error is not None:
            raise self.error


class DirectWriter:
    """Appends as a caller of the container does: by updates made one after the other."""

    def __init__(self, container: SegmentContainer, segment: str, pace: Pace) -> None:
        self._container = container
        self._segment = segment
        self._pace = pace
        self._event_number = 0

    async def set_up(self) -> None:
        """Make the segment, with the writer's attribute in it."""
        await self._container.create_segment(self._segment, attributes={WRITER: 0})

    def append(self, data: bytes) -> None:
        """Queue the next append."""
        number = self._event_number
        self._event_number = number + 1
        self._container.append_nowait(
            self._segment,
            data,
            attribute_updates=(
                AttributeUpdate(WRITER, AttributeUpdateType.REPLACE_IF_EQUALS, number + 1, number),
                AttributeUpdate(EVENT_COUNT, AttributeUpdateType.ACCUMULATE, 1),
            ),
            on_complete=self._pace.on_complete,
        )


class OneContainer:
    """A registry of one container, with the methods that an append processor calls."""

    def __init__(self, container: SegmentContainer) -> None:
        self._container = container

    async def wait_opened(self, segment: str) -> None:
        """Do nothing: it is open."""

    def container_for(self, segment: str) -> SegmentContainer:
        """Return the only container."""
        return self._container


class PacedRequests(OutstandingRequests):
    """Counts the appends that are durable."""

    def __init__(self, pace: Pace) -> None:
        super().__init__(OutstandingTotal(ConnectionSettings()))
        self._pace = pace

    def release(self, count: int, share: Share) -> None:
        """Count an append."""
        super().release(count, share)
        self._pace.acknowledged += 1


class ConnectionWriter:
    """Appends as they come out of a connection's decoder; acknowledgements end in its buffer."""

    def __init__(self, container: SegmentContainer, segment: str, pace: Pace) -> None:
        self._container = container
        self._segment = segment
        self._event_number = 0
        self._waiting: list[Acknowledgement] = []
        self._appends = AppendProcessor(
            OneContainer(container),  # type: ignore[arg-type]
            PacedRequests(pace),
            send=self._refuse,
            send_late=self._waiting.append,
            close=self._close,
        )

    async def set_up(self) -> None:
        """Make the segment and the writer."""
        await self._container.create_segment(self._segment)
        await self._appends.set_up(wire.SetupAppend(1, WRITER, self._segment, ""))

    def append(self, data: bytes) -> None:
        """Encode what would have been sent by now, and queue the next append."""
        number = self._event_number
        self._event_number = number + 1
        if self._waiting:
            for acknowledgement in self._waiting:
                acknowledgement.to_bytes()
            self._waiting.clear()
        self._appends.append(Append(self._segment, WRITER, data, 1, number, number))

    def _refuse(self, reply: wire.Reply) -> None:
        raise AssertionError(reply)

    def _close(self, reason: str) -> None:
        raise AssertionError(reason)


Writer = DirectWriter | ConnectionWriter


async def push(load: Load, kind: type[Writer], timers: dict[str, Timer]) -> Cost:
    """Do one run: use a tenth of the appends to warm up, then measure all of them."""
    async with timed_container(timers) as container:
        pace = Pace()
        writers = [
            kind(container, f"scope/stream/{number}.#epoch.0", pace)
            for number in range(load.segment_count)
        ]
        for writer in writers:
            await writer.set_up()
        await _push(load, writers, pace, load.append_count // 10, timers["queue"])
        for timer in timers.values():
            timer.seconds, timer.on = 0.0, load.is_timed
        started = thread_time()
        await _push(load, writers, pace, load.append_count, timers["queue"])
        whole = thread_time() - started
        for timer in timers.values():
            timer.on = False
    cost = {name: timer.seconds * 1e6 / load.append_count for name, timer in timers.items()}
    whole = whole * 1e6 / load.append_count
    return Cost(whole, {**cost, "rest": whole - sum(cost.values())})


async def _push(
    load: Load, writers: Sequence[Writer], pace: Pace, count: int, queue: Timer
) -> None:
    data = bytes(load.append_bytes)
    put_burst = queue.around(_put_burst)
    done = 0
    while done < count:
        burst = min(load.burst, count - done)
        put_burst(writers, data, done, done + burst)
        done += burst
        pace.queued += burst
        await pace.wait(load.outstanding_max - load.burst)
    await pace.wait(0)


def _put_burst(writers: Sequence[Writer], data: bytes, start: int, end: int) -> None:
    for number in range(start, end):
        writers[number % len(writers)].append(data)


def run(loads: Sequence[Load], *, rounds: int) -> list[ComparedRow]:
    """Measure the rows of all loads: whole and by stage, then the whole with the append
    processor."""
    rows = []
    for load in loads:
        direct: list[Cost] = []
        connection: list[Cost] = []
        for _ in range(rounds):
            for kind, costs in ((DirectWriter, direct), (ConnectionWriter, connection)):
                timers = {name: Timer() for name in STAGES[:-1]}
                costs.append(trio.run(push, load, kind, timers))
        rows.append(_row(load, "whole", [cost.whole for cost in direct], load.limit))
        if load.is_timed:
            rows += [_row(load, stage, [cost.stages[stage] for cost in direct]) for stage in STAGES]
        rows.append(_row(load, "connection", [cost.whole for cost in connection]))
    return rows


def _row(load: Load, what: str, rounds: list[float], limit: float | None = None) -> ComparedRow:
    return limited_row(load.name, Metric(what, "us of CPU", "lower"), rounds, limit)


def main(arguments: Sequence[str]) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_container")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="the size the test suite runs")
    options = parser.parse_args(arguments)
    rows = run(SMALL, rounds=1) if options.small else run(LOADS, rounds=options.rounds)
    print(plain_table(rows))
    write_json_if_asked(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
