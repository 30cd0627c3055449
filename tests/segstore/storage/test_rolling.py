"""Segments in chunks: against plain bytes, with failures and crashes between the steps."""

from __future__ import annotations

import pytest
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

from segstore.errors import ChunkNotFoundError, InvalidChunkOffsetError, StorageError
from segstore.storage.rolling import ROLLOVER_BYTES_MAX, RollingSegmentStorage, chunk_name
from segstore.testing.faulty_chunks import Fault, FaultyChunkStorage
from segstore.tiers.memory import MemoryChunkStorage


async def read_all(storage: RollingSegmentStorage, segment: str, start: int, end: int) -> bytes:
    data = b""
    while start + len(data) < end:
        piece = await storage.read(
            segment, offset=start + len(data), length=end - start - len(data)
        )
        assert piece
        data += piece
    return data


async def chunk_lengths(chunks: MemoryChunkStorage, segment: str) -> dict[int, int]:
    listed = await chunks.list_chunks(f"{segment}$")
    return {int(chunk.name.rpartition("$")[2]): chunk.length for chunk in listed}


async def test_writes_roll_over_into_chunks_named_by_their_start() -> None:
    chunks = MemoryChunkStorage()
    storage = RollingSegmentStorage(chunks)
    assert await storage.stored_length("s") == 0
    await storage.write("s", offset=0, data=[b"0123456789", b"ab"], rollover_bytes=5)
    await storage.write("s", offset=12, data=[b"cdef"], rollover_bytes=5)
    assert await chunk_lengths(chunks, "s") == {0: 5, 5: 5, 10: 5, 15: 1}
    assert await storage.stored_length("s") == 16
    assert await read_all(storage, "s", 0, 16) == b"0123456789abcdef"
    assert await storage.read("s", offset=3, length=100) == b"34"


async def test_the_default_rollover_is_the_cap() -> None:
    chunks = MemoryChunkStorage()
    storage = RollingSegmentStorage(chunks)
    piece = bytes(8 * 1024 * 1024)
    await storage.write("s", offset=0, data=[piece] * 17, rollover_bytes=0)
    await storage.write("t", offset=0, data=[piece] * 17, rollover_bytes=2**40)
    for segment in "st":
        assert await chunk_lengths(chunks, segment) == {
            0: ROLLOVER_BYTES_MAX,
            ROLLOVER_BYTES_MAX: len(piece),
        }


async def test_a_first_write_may_start_anywhere() -> None:
    storage = RollingSegmentStorage(MemoryChunkStorage())
    await storage.write("s", offset=1000, data=[b"data"], rollover_bytes=100)
    assert await storage.stored_length("s") == 1004
    assert await storage.read("s", offset=1000, length=4) == b"data"
    with pytest.raises(InvalidChunkOffsetError):
        await storage.read("s", offset=999, length=1)


async def test_a_write_beyond_the_end_is_refused() -> None:
    storage = RollingSegmentStorage(MemoryChunkStorage())
    await storage.write("s", offset=0, data=[b"data"], rollover_bytes=100)
    with pytest.raises(InvalidChunkOffsetError):
        await storage.write("s", offset=5, data=[b"x"], rollover_bytes=100)


async def test_a_repeated_write_changes_nothing() -> None:
    chunks = MemoryChunkStorage()
    storage = RollingSegmentStorage(chunks)
    for _ in range(3):
        await storage.write("s", offset=0, data=[b"0123456789ab"], rollover_bytes=5)
        await storage.write("s", offset=3, data=[b"3456789abc"], rollover_bytes=5)
    assert await chunk_lengths(chunks, "s") == {0: 5, 5: 5, 10: 3}
    assert await read_all(storage, "s", 0, 13) == b"0123456789abc"


async def test_truncation_deletes_whole_chunks_and_keeps_the_length() -> None:
    chunks = MemoryChunkStorage()
    storage = RollingSegmentStorage(chunks)
    await storage.write("s", offset=0, data=[bytes(range(20))], rollover_bytes=6)
    await storage.truncate("s", offset=13)
    assert await chunk_lengths(chunks, "s") == {12: 6, 18: 2}
    await storage.truncate("s", offset=20)
    assert await chunk_lengths(chunks, "s") == {20: 0}
    assert await RollingSegmentStorage(chunks).stored_length("s") == 20
    await storage.write("s", offset=20, data=[b"more"], rollover_bytes=6)
    assert await storage.read("s", offset=20, length=10) == b"more"
    await storage.write("s", offset=10, data=[b"truncated!more"], rollover_bytes=6)
    assert await chunk_lengths(chunks, "s") == {20: 4}
    await storage.truncate("missing", offset=10)


async def test_segments_whose_names_begin_alike_do_not_mix() -> None:
    chunks = MemoryChunkStorage()
    storage = RollingSegmentStorage(chunks)
    names = ["s", "s$attributes.index", "s$1", "s$00000000000000000000", "s1", "s$" + "9" * 21]
    for name in names:
        await storage.write(name, offset=0, data=[name.encode()], rollover_bytes=3)
    fresh = RollingSegmentStorage(chunks)
    for name in names:
        assert await read_all(fresh, name, 0, len(name)) == name.encode()
    await fresh.delete("s")
    for name in names[1:]:
        assert await fresh.stored_length(name) == len(name)


async def test_a_missing_chunk_is_damage() -> None:
    chunks = MemoryChunkStorage()
    storage = RollingSegmentStorage(chunks)
    await storage.write("s", offset=0, data=[bytes(20)], rollover_bytes=5)
    await chunks.delete(chunk_name("s", 5))
    with pytest.raises(StorageError, match="ends at 5, the next chunk starts at 10"):
        await RollingSegmentStorage(chunks).stored_length("s")
    await RollingSegmentStorage(chunks).delete("s")
    assert await chunks.list_chunks("") == []


async def test_a_chunk_that_a_failed_write_left_too_long_is_cut_where_the_next_starts() -> None:
    chunks = MemoryChunkStorage()
    for start, data in [(0, b"01234567"), (5, b"56789")]:
        await chunks.write(chunk_name("s", start), offset=0, data=[data])
    storage = RollingSegmentStorage(chunks)
    assert await storage.stored_length("s") == 10
    assert await read_all(storage, "s", 0, 10) == b"0123456789"
    await storage.write("s", offset=2, data=[b"23456789ab"], rollover_bytes=20)
    assert await chunk_lengths(chunks, "s") == {0: 8, 5: 7}
    assert await read_all(storage, "s", 0, 12) == b"0123456789ab"
    await storage.truncate("s", offset=5)
    assert await chunk_lengths(chunks, "s") == {5: 7}


async def test_a_concat_can_be_repeated_after_its_source_is_gone() -> None:
    storage = RollingSegmentStorage(MemoryChunkStorage())
    await storage.write("target", offset=0, data=[b"head"], rollover_bytes=5)
    await storage.write("source", offset=0, data=[b"0123456789"], rollover_bytes=3)
    for _ in range(2):
        await storage.concat("target", offset=4, source="source", length=10, rollover_bytes=5)
    await storage.delete("source")
    await storage.concat("target", offset=4, source="source", length=10, rollover_bytes=5)
    assert await read_all(storage, "target", 0, 14) == b"head0123456789"
    with pytest.raises(ChunkNotFoundError):
        await storage.concat("target", offset=14, source="source", length=10, rollover_bytes=5)
    await storage.concat("target", offset=14, source="nothing", length=0, rollover_bytes=5)


async def test_the_cache_of_chunk_lists_is_bounded() -> None:
    chunks = FaultyChunkStorage(MemoryChunkStorage())
    storage = RollingSegmentStorage(chunks, cached_segments_max=3)
    for number in range(10):
        await storage.write(f"s{number}", offset=0, data=[b"x"], rollover_bytes=0)
    before = chunks.call_count
    for number in (7, 8, 9):
        assert await storage.stored_length(f"s{number}") == 1
    assert chunks.call_count == before
    assert await storage.stored_length("s0") == 1
    assert chunks.call_count == before + 1


SEGMENTS = st.sampled_from(["a", "b", "b$attributes.index"])
ROLLOVERS = st.sampled_from([0, 5, 16, 50])


class RollingMachine(RuleBasedStateMachine):
    """Repeats every call until it succeeds, as a storage writer does, over a storage that fails;
    in between the process may crash, which empties the cache."""

    @initialize(seed=st.integers(0, 2**32), fault_percent=st.sampled_from([0, 5, 15]))
    def start(self, seed: int, fault_percent: int) -> None:
        import random

        self.random = random.Random(seed)
        self.fault_percent = fault_percent
        self.memory = MemoryChunkStorage()
        self.chunks = FaultyChunkStorage(self.memory, next_fault=self.next_fault)
        self.storage = RollingSegmentStorage(self.chunks)
        self.content: dict[str, bytes] = {}
        self.first: dict[str, int] = {}

    def next_fault(self, _: str) -> Fault:
        if self.random.randrange(100) >= self.fault_percent:
            return Fault.NONE
        return self.random.choice([Fault.REFUSED, Fault.REPLY_LOST, Fault.PARTIAL])

    def until_done(self, method: str, *args: object, **kwargs: object) -> None:
        async def main() -> None:
            for attempt in range(3000):
                try:
                    await getattr(self.storage, method)(*args, **kwargs)
                    return
                except StorageError as error:
                    if "injected" not in str(error) or attempt == 2999:
                        raise
                    if self.random.randrange(3) == 0:
                        self.storage = RollingSegmentStorage(self.chunks)

        trio.run(main)

    @rule(segment=SEGMENTS, length=st.integers(0, 60), again=st.integers(0, 30), r=ROLLOVERS)
    def write(self, segment: str, length: int, again: int, r: int) -> None:
        if segment not in self.content:
            start = self.random.choice([0, 0, 500])
            self.content[segment] = bytes(start)
            self.first[segment] = start
        old = self.content[segment]
        offset = max(len(old) - again, 0 if len(old) > self.first[segment] else len(old))
        data = old[offset:] + self.random.randbytes(length)
        if not data:
            return
        cut = self.random.randrange(len(data) + 1)
        self.until_done(
            "write", segment, offset=offset, data=[data[:cut], data[cut:]], rollover_bytes=r
        )
        self.content[segment] = old[:offset] + data

    @rule(segment=SEGMENTS, share=st.floats(0, 1))
    def truncate(self, segment: str, share: float) -> None:
        if segment in self.content:
            offset = int(share * len(self.content[segment]))
            self.until_done("truncate", segment, offset=offset)
            self.first[segment] = max(self.first[segment], offset)

    @rule(segment=SEGMENTS)
    def delete(self, segment: str) -> None:
        self.until_done("delete", segment)
        self.content.pop(segment, None)
        self.first.pop(segment, None)

    @precondition(lambda self: "a" in self.content and "b" in self.content)
    @rule(r=ROLLOVERS)
    def merge(self, r: int) -> None:
        if self.first["b"] > 0 or self.first["a"] >= len(self.content["a"]):
            return
        source = self.content["b"]
        offset = len(self.content["a"])
        arguments = {"offset": offset, "source": "b", "length": len(source), "rollover_bytes": r}
        self.until_done("concat", "a", **arguments)
        self.until_done("delete", "b")
        self.until_done("concat", "a", **arguments)
        self.content["a"] += source
        del self.content["b"], self.first["b"]

    @rule()
    def crash(self) -> None:
        self.storage = RollingSegmentStorage(self.chunks)

    @invariant()
    def every_byte_that_counts_is_there(self) -> None:
        if not hasattr(self, "content"):
            return

        async def check() -> None:
            percent, self.fault_percent = self.fault_percent, 0
            for storage in (self.storage, RollingSegmentStorage(self.memory)):
                for segment in ["a", "b", "b$attributes.index"]:
                    content = self.content.get(segment, b"")
                    first = self.first.get(segment, 0)
                    if first == len(content) and segment in self.content and first == 500:
                        continue  # nothing was ever stored of it
                    assert await storage.stored_length(segment) == len(content)
                    assert await read_all(storage, segment, first, len(content)) == content[first:]
            self.fault_percent = percent

        trio.run(check)


TestRolling = RollingMachine.TestCase
TestRolling.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
