"""Segments in chunks against plain bytes: with storage that fails, owners that crash between any
two steps, and owners that go on after others have taken their place."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from segstore.chunks.checksums import Checksums
from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.errors import StorageError
from segstore.tiers.memory import MemoryChunkStorage
from support.faults.faulty_chunks import Fault, FaultyChunkStorage

SEGMENTS = st.sampled_from(["a", "b", "b$attributes.index"])
ROLLOVERS = st.sampled_from([0, 5, 16, 50])
ATTEMPTS_MAX = 3000


@dataclass(slots=True)
class Segment:
    """The expected content of a segment: names are never used again, as those that the container
    gives."""

    name: str
    content: bytes
    first: int


class ChunkedMachine(RuleBasedStateMachine):
    """A machine that repeats every call until it succeeds, as a storage writer does."""

    @initialize(seed=st.integers(0, 2**32), fault_percent=st.sampled_from([0, 5, 15]))
    def start(self, seed: int, fault_percent: int) -> None:
        self.random = random.Random(seed)
        self.fault_percent = fault_percent
        self.memory = MemoryChunkStorage()
        self.epoch = 0
        self.name_count = 0
        self.segments: dict[str, Segment] = {}
        self.gone: list[Segment] = []
        self.late: list[ChunkedSegmentStorage] = []
        self.replace_owner()

    def replace_owner(self) -> None:
        self.epoch += 1
        epoch = self.epoch
        self.chunks = FaultyChunkStorage(self.memory, next_fault=self.next_fault)
        self.storage = ChunkedSegmentStorage(
            self.chunks, epoch=lambda: epoch, move_bytes_min=8, snapshot_bytes_min=300
        )

    def next_fault(self, _: str) -> Fault:
        if self.random.randrange(100) >= self.fault_percent:
            return Fault.NONE
        return self.random.choice([Fault.REFUSED, Fault.REPLY_LOST, Fault.PARTIAL])

    def until_done(self, call: Callable[[ChunkedSegmentStorage], Awaitable[object]]) -> None:
        async def main() -> None:
            for attempt in range(ATTEMPTS_MAX):
                try:
                    await call(self.storage)
                    return
                except StorageError as error:
                    if "injected" not in str(error) or attempt == ATTEMPTS_MAX - 1:
                        raise
                    if self.random.randrange(12) == 0:
                        self.late.append(self.storage)
                        self.replace_owner()
                    elif self.random.randrange(10) == 0:
                        await self.act_late()

        trio.run(main)

    def segment(self, key: str) -> Segment:
        if key not in self.segments:
            self.name_count += 1
            start = self.random.choice([0, 0, 0, 500])
            self.segments[key] = Segment(f"{key}.{self.name_count}", bytes(start), start)
        return self.segments[key]

    @rule(key=SEGMENTS, length=st.integers(0, 60), again=st.integers(0, 30), r=ROLLOVERS)
    def write(self, key: str, length: int, again: int, r: int) -> None:
        segment = self.segment(key)
        old = segment.content
        offset = max(len(old) - again, 0 if len(old) > segment.first else len(old))
        data = old[offset:] + self.random.randbytes(length)
        if not data:
            return
        segment.content = old[:offset] + data
        cut = self.random.randrange(len(data) + 1)
        pieces = [data[:cut], data[cut:]]
        self.until_done(
            lambda owner: owner.write(segment.name, offset=offset, data=pieces, rollover_bytes=r)
        )

    @rule(key=SEGMENTS, share=st.floats(0, 1))
    def truncate(self, key: str, share: float) -> None:
        segment = self.segment(key)
        offset = int(share * len(segment.content))
        segment.first = max(segment.first, offset)
        self.until_done(lambda owner: owner.truncate(segment.name, offset=offset))

    @rule(key=SEGMENTS)
    def delete(self, key: str) -> None:
        segment = self.segments.pop(key, None)
        if segment is not None:
            self.gone.append(segment)
            self.until_done(lambda owner: owner.delete(segment.name))

    @precondition(lambda self: "a" in self.segments and "b" in self.segments)
    @rule(r=ROLLOVERS)
    def merge(self, r: int) -> None:
        source, target = self.segments["b"], self.segments["a"]
        if source.first > 0 or target.first >= len(target.content):
            return
        offset, length = len(target.content), len(source.content)

        async def concat(owner: ChunkedSegmentStorage) -> None:
            await owner.concat(
                target.name, offset=offset, source=source.name, length=length, rollover_bytes=r
            )

        target.content += source.content
        self.until_done(concat)
        self.until_done(lambda owner: owner.delete(source.name))
        self.until_done(concat)
        del self.segments["b"]
        self.gone.append(source)

    @rule()
    def crash(self) -> None:
        self.replace_owner()

    @rule()
    def be_replaced(self) -> None:
        self.late.append(self.storage)
        self.replace_owner()

    @rule()
    def collect(self) -> None:
        self.until_done(ChunkedSegmentStorage.collect)

    @rule()
    def record_checksums(self) -> None:
        self.until_done(lambda owner: owner.journal.record_checksums())

    @rule()
    def settle(self) -> None:
        self.until_done(ChunkedSegmentStorage.settle)

    @precondition(lambda self: self.late)
    @rule()
    def go_on_late(self) -> None:
        trio.run(self.act_late)

    async def act_late(self) -> None:
        """Let a replaced owner repeat what its container would do late: things that have
        happened."""
        if not self.late:
            return
        owner = self.random.choice(self.late)
        everything = [*self.segments.values(), *self.gone]
        try:
            match self.random.randrange(4):
                case 0 if everything:
                    segment = self.random.choice(everything)
                    end = await owner.stored_length(segment.name)
                    start = max(end, segment.first if end == 0 else 0)
                    if data := segment.content[start : start + self.random.randrange(30)]:
                        await owner.write(segment.name, offset=start, data=[data], rollover_bytes=9)
                case 1 if everything:
                    segment = self.random.choice(everything)
                    offset = min(segment.first, await owner.stored_length(segment.name))
                    await owner.truncate(segment.name, offset=offset)
                case 2 if self.gone:
                    await owner.delete(self.random.choice(self.gone).name)
                case 3:
                    await owner.collect()
        except StorageError:
            pass

    @invariant()
    def every_byte_that_counts_is_there(self) -> None:
        if hasattr(self, "segments"):
            percent, self.fault_percent = self.fault_percent, 0
            trio.run(self.check)
            self.fault_percent = percent

    async def check(self) -> None:
        for segment in self.segments.values():
            length = len(segment.content)
            stored = await self.storage.stored_length(segment.name)
            if length == segment.first and stored == 0:
                continue  # nothing was ever stored of it
            assert stored == length
            data = b""
            while (offset := segment.first + len(data)) < length:
                data += await self.storage.read(segment.name, offset=offset, length=length - offset)
            assert data == segment.content[segment.first :]
            await self.check_checksums(segment)
        for segment in self.gone:
            assert await self.storage.stored_length(segment.name) == 0

    async def check_checksums(self, segment: Segment) -> None:
        """Check that all noted checksums, of any owner, are of bytes that are there."""
        for chunk in await self.storage.chunks_of(segment.name):
            known = chunk.checksums
            if chunk.is_open:
                assert known.length == chunk.length, "an owner knows all of its own"
            if known.length:
                data = await self.memory.read(chunk.name, offset=0, length=known.length)
                assert Checksums(phase=known.phase).extended([data]) == known
                assert known.phase == int(chunk.name.rpartition("$")[2][:20])

    def teardown(self) -> None:
        """Check at the end that the next owner leaves no chunk that nobody needs."""
        if not hasattr(self, "segments"):
            return
        self.fault_percent = 0
        self.late.clear()
        self.replace_owner()
        self.until_done(ChunkedSegmentStorage.collect)
        self.every_byte_that_counts_is_there()

        async def check() -> None:
            metadata = self.storage.journal.metadata
            needed = set(metadata.chunk_names())
            assert not metadata.condemned
            system, users = 0, set()
            for chunk in await self.memory.list_chunks(""):
                if chunk.name.startswith("_system/"):
                    system += 1
                else:
                    users.add(chunk.name)
            assert users <= needed
            assert system <= 3

        trio.run(check)


TestChunked = ChunkedMachine.TestCase
TestChunked.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
